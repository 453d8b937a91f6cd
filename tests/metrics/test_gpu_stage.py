"""What the looks at GPUs say about a stage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.hardware import GpuSamples, gpu_stages, host_means, mean_throttle
from loadgen.metrics.samples import GpuSample, GpuStatic, HostSample

GPU = GpuStatic(index=0, vendor="sim", name="GPU", hbm_total_bytes=100)


def look(t_s: float, **fields: object) -> GpuSample:
    return GpuSample(index=0, t_s=t_s, **fields)  # type: ignore[arg-type]


def test_figures_gains_and_reasons() -> None:
    looks = [
        look(
            float(second),
            power_w=100.0 * second,
            hbm_used_bytes=10 * second,
            pcie_replays=5 + second,
            link_read_bytes=1000 * second,
            throttle_percent={"power": 10.0 * second, "thermal": 0.0},
            missing={"memory_percent": "NOT_SUPPORTED", "power_w": "once"},
        )
        for second in range(1, 6)
    ]
    (stage,) = gpu_stages([GPU], {0: looks})
    assert stage.power_w is not None
    assert (stage.power_w.min, stage.power_w.mean, stage.power_w.p50, stage.power_w.max) == (100, 300, 300, 500)
    assert (stage.looks, stage.hbm_used_bytes_max, stage.hbm_total_bytes) == (5, 50, 100)
    assert (stage.pcie_replays, stage.link_read_bytes_per_s, stage.link_write_bytes_per_s) == (4, 1000.0, None)
    assert stage.throttled_percent == {"power": 30.0}
    assert (stage.gfx_percent, stage.missing) == (None, {"memory_percent": "NOT_SUPPORTED"})


def test_a_counter_that_was_reset_gains_nothing_that_is_known() -> None:
    (stage,) = gpu_stages([GPU], {0: [look(0.0, pcie_replays=9), look(1.0, pcie_replays=2), look(2.0, pcie_replays=3)]})
    assert stage.pcie_replays is None


def test_a_gpu_without_a_look_is_left_out() -> None:
    assert gpu_stages([GPU], {}) == gpu_stages([GPU], {0: []}) == []


def test_reasons_that_never_held_back_are_left_out() -> None:
    assert mean_throttle([look(0.0), look(1.0, throttle_percent={"power": 0.0})]) == {}
    assert mean_throttle([look(0.0, throttle_percent={}), look(1.0, throttle_percent={"hbm": 50.0})]) == {"hbm": 25.0}


def test_the_hosts_figures_are_means_over_the_window() -> None:
    looks = [
        HostSample(float(second), 2, 10 * second, 99, 0.5, percent) for second, percent in enumerate([None, 10, 30])
    ]
    means = host_means(looks, 0.0, 1.5)
    assert (means["cpu_percent"], means["memory_used_bytes"], means["server_rss_bytes"]) == (10.0, 5.0, None)
    assert set(host_means([], 0.0, 1.0).values()) == {None}


def test_looks_that_are_forgotten_do_not_come_back() -> None:
    looks = GpuSamples({0: look(0.0), 1: look(0.0)})
    looks.until_s = 1.0
    looks.forget()
    looks.add([look(2.0)])
    assert looks.complete


def test_looks_reach_one_beyond_each_end() -> None:
    looks = GpuSamples({0: look(0.0)})
    looks.add([look(1.0)])
    complete = [looks.complete]
    looks.until_s = 1.5
    complete.append(looks.complete)
    looks.add([look(2.0)])
    complete.append(looks.complete)
    assert complete == [False, False, True]
    assert [sample.t_s for sample in looks.within(0.5, 1.5)[0]] == [1.0]
    assert [sample.t_s for sample in looks.by_gpu[0]] == [0.0, 1.0, 2.0]


@given(st.integers(2, 5000))
def test_a_long_stage_is_thinned_and_keeps_its_ends(seconds: int) -> None:
    looks = GpuSamples({})
    for second in range(seconds):
        looks.add([look(float(second))])
    times = [sample.t_s for sample in looks.by_gpu[0]]
    assert times == sorted(set(times))
    assert (times[0], times[-1], len(times) <= 1000) == (0.0, seconds - 1.0, True)
    assert looks.count == seconds


@pytest.mark.parametrize("seconds", [1000, 1001])
def test_only_what_is_too_much_is_thinned(seconds: int) -> None:
    looks = GpuSamples({})
    for second in range(seconds):
        looks.add([look(float(second))])
    assert len(looks.by_gpu[0]) == (1000 if seconds == 1000 else 501)
