"""What hardware can have, and what no hardware has."""

from typing import Any

import pytest

from loadgen.metrics.samples import GpuSample, GpuStatic
from loadgen.telemetry.units import unit_checks

_GIB = 1024**3
_GPU = GpuStatic(index=0, vendor="amd", name="GPU", hbm_total_bytes=192 * _GIB)


def _sample(**values: Any) -> GpuSample:
    return GpuSample(index=0, t_s=0.0, **values)


@pytest.mark.parametrize(
    ("field", "value", "plausible"),
    [
        ("power_w", 612, True),
        ("power_w", 612e6, False),
        ("power_w", 0.612, False),
        ("power_cap_w", 750e6, False),
        ("temperature_hotspot_c", 78, True),
        ("temperature_hotspot_c", 78000, False),
        ("temperature_memory_c", 0.066, False),
        ("gfx_clock_mhz", 2100, True),
        ("gfx_clock_mhz", 2100e6, False),
        ("memory_clock_mhz", 14001, True),
        ("gfx_percent", 97, True),
        ("memory_percent", 4100, False),
        ("pcie_width", 16, True),
        ("pcie_speed_gts", 32000, False),
    ],
)
def test_a_wrong_unit_shows(field: str, value: float, plausible: bool) -> None:
    (check,) = (
        check for check in unit_checks(_GPU, _sample(**{field: value}), []) if check.quantity != "hbm_total_bytes"
    )
    assert (check.quantity, check.raw, check.value, check.plausible) == (field, value, value, plausible)


@pytest.mark.parametrize(("total", "plausible"), [(192 * _GIB, True), (196592, False), (192 * _GIB * 1024, False)])
def test_memory_in_another_unit_shows(total: int, plausible: bool) -> None:
    (check,) = unit_checks(GpuStatic(index=0, vendor="amd", name="GPU", hbm_total_bytes=total), _sample(), [])
    assert (check.raw, check.value, check.unit) == (total, total / _GIB, "GiB")
    assert check.plausible == plausible


def test_no_more_memory_is_used_than_there_is() -> None:
    checks = unit_checks(_GPU, _sample(hbm_used_bytes=193 * _GIB), [])
    assert [(check.quantity, check.plausible) for check in checks] == [
        ("hbm_total_bytes", True),
        ("hbm_used_bytes", False),
    ]


def test_throttling_is_a_share_of_time_for_each_reason() -> None:
    checks = unit_checks(_GPU, _sample(throttle_percent={"power": 37.1, "thermal": 371}), [])
    assert [(check.quantity, check.plausible) for check in checks[1:]] == [
        ("throttle_percent.power", True),
        ("throttle_percent.thermal", False),
    ]


def test_what_is_not_told_is_not_judged() -> None:
    assert unit_checks(GpuStatic(index=0, vendor="amd", name="GPU"), _sample(), [_sample(), _sample()]) == ()


@pytest.mark.parametrize(
    ("joules_per_s", "plausible"),
    [(600, True), (612, True), (700, True), (0, False), (612e-3, False), (612e3, False), (612 * 65536, False)],
)
def test_the_energy_counter_is_held_against_the_power(joules_per_s: float, plausible: bool) -> None:
    looks = [GpuSample(0, n * 0.5, power_w=612, energy_j=1e6 + joules_per_s * n * 0.5) for n in range(7)]
    (check,) = unit_checks(GpuStatic(index=0, vendor="amd", name="GPU"), _sample(), looks)
    assert (check.quantity, check.unit, check.plausible) == ("energy_j against power", "J", plausible)
    assert check.value == pytest.approx(joules_per_s * 3)
    assert [check.low, check.high] == pytest.approx([0.75 * 1836, 1.25 * 1836])


@pytest.mark.parametrize("looks", [[], [0.0], [0.0, 0.5]])
def test_a_moment_is_too_short_to_judge_the_counter(looks: list[float]) -> None:
    samples = [GpuSample(0, t_s, power_w=612, energy_j=1e6) for t_s in looks]
    assert unit_checks(GpuStatic(index=0, vendor="amd", name="GPU"), _sample(), samples) == ()
