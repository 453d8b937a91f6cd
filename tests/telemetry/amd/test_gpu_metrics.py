"""The firmware's table: layouts, units, sentinels, and throttling as a difference of two tables."""

import ctypes
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.telemetry.amd.gpu_metrics import LAYOUTS, Table, decode, links, readings, residency, throttle_percent
from loadgen.telemetry.readings import Missing

SIZES = {(1, 3): 120, (1, 4): 288, (1, 5): 360, (1, 6): 1664, (1, 7): 2208, (1, 8): 3872}
"""Bytes of the whole table, as the driver writes it, by version."""
Version = tuple[int, int]


def blob(version: Version, **fields: int | tuple[int, ...]) -> bytes:
    """A table as the driver writes it: what is not given has all bits set."""
    content = bytearray(b"\xff" * SIZES[version])
    table = LAYOUTS[version].from_buffer(content)
    table.structure_size, table.format_revision, table.content_revision = len(content), *version
    for name, value in fields.items():
        setattr(table, name, type(getattr(table, name))(*value) if isinstance(value, tuple) else value)
    return bytes(content)


def table(version: Version, **fields: int | tuple[int, ...]) -> Table:
    decoded = decode(blob(version, **fields))
    assert not isinstance(decoded, Missing)
    return decoded


OFFSETS = """
1.3 temperature_edge=4 temperature_hotspot=6 temperature_mem=8 average_gfx_activity=16 average_umc_activity=18
1.3 average_socket_power=22 energy_accumulator=24 current_gfxclk=54 current_uclk=58 throttle_status=68
1.3 pcie_link_width=74 pcie_link_speed=76 firmware_timestamp=96 indep_throttle_status=112
1.4 energy_accumulator=24 pcie_link_width=48 xgmi_read_data_acc=104 current_gfxclks=240
1.5 energy_accumulator=88 pcie_link_width=112 xgmi_read_data_acc=176 current_gfxclks=312
1.6 energy_accumulator=16 accumulation_counter=32 prochot_residency_acc=36 ppt_residency_acc=40
1.6 socket_thm_residency_acc=44 vr_thm_residency_acc=48 hbm_thm_residency_acc=52 pcie_link_width=60 pcie_link_speed=62
1.6 pcie_bandwidth_inst=88 pcie_replay_count_acc=104 firmware_timestamp=256 current_gfxclks=264 current_uclk=304
1.7 energy_accumulator=24 accumulation_counter=40 prochot_residency_acc=44 hbm_thm_residency_acc=60 pcie_link_width=68
1.7 pcie_bandwidth_inst=96 pcie_replay_count_acc=112 xgmi_link_status=264 firmware_timestamp=288 current_gfxclks=296
1.7 current_uclk=336
"""
"""Bytes from the beginning of the table, by version."""


@pytest.mark.parametrize("line", OFFSETS.split("\n")[1:-1])
def test_fields_lie_where_the_driver_puts_them(line: str) -> None:
    version, *fields = line.split()
    layout = LAYOUTS[int(version[0]), int(version[2])]
    expected = dict(field.split("=") for field in fields)
    assert {name: str(getattr(layout, name).offset) for name in expected} == expected


@pytest.mark.parametrize("version", [version for version in LAYOUTS if version > (1, 3)])
def test_newer_tables_begin_alike(version: Version) -> None:
    names = ("temperature_hotspot", "temperature_mem", "temperature_vrsoc", "current_socket_power")
    offsets = [
        getattr(LAYOUTS[version], name).offset for name in (*names, "average_gfx_activity", "average_umc_activity")
    ]
    assert offsets == [4, 6, 8, 10, 12, 14]


@pytest.mark.parametrize("version", LAYOUTS)
def test_a_layout_is_no_longer_than_the_table(version: Version) -> None:
    assert ctypes.sizeof(LAYOUTS[version]) <= SIZES[version]


@pytest.mark.parametrize("version", [version for version in LAYOUTS if version > (1, 3)])
def test_figures_of_an_mi300_in_the_units_of_the_schema(version: Version) -> None:
    decoded = table(
        version,
        temperature_hotspot=78,
        temperature_mem=66,
        current_socket_power=612,
        average_gfx_activity=97,
        average_umc_activity=41,
        energy_accumulator=65536000,
        current_gfxclks=(2080, 2090, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF),
        current_uclk=1300,
        pcie_link_width=16,
        pcie_link_speed=320,
        pcie_replay_count_acc=3,
        xgmi_read_data_acc=(1000, 2000, *[2**64 - 1] * 6),
        xgmi_write_data_acc=(0, 1, *[2**64 - 1] * 6),
    )
    assert readings(decoded) == {
        "gfx_percent": 97,
        "memory_percent": 41,
        "power_w": 612,
        "temperature_hotspot_c": 78,
        "temperature_memory_c": 66,
        "gfx_clock_mhz": 2085.0,
        "memory_clock_mhz": 1300,
        "energy_j": 1000.0,
        "pcie_width": 16,
        "pcie_speed_gts": 32.0,
        "pcie_replays": 3,
        "link_read_bytes": 3000 * 1024,
        "link_write_bytes": 1024,
    }


@pytest.mark.parametrize("version", LAYOUTS)
def test_a_table_of_nothing_gives_no_number(version: Version) -> None:
    empty = table(version)
    assert all(isinstance(reading, Missing) for reading in readings(empty).values())
    assert isinstance(throttle_percent(empty, {"looks": 1}), Missing)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "gpu_metrics has 0 bytes"),
        (b"\x01", "gpu_metrics has 1 bytes"),
        (struct.pack("<HBB", 4000, 1, 9) + bytes(3996), "gpu_metrics 1.9 is an unknown version"),
        (struct.pack("<HBB", 120, 2, 3) + bytes(116), "gpu_metrics 2.3 is an unknown version"),
        (blob((1, 6))[:200], "gpu_metrics 1.6 is cut off: 200 bytes"),
    ],
)
def test_a_table_that_is_not_known_or_not_whole_is_not_read(content: bytes, reason: str) -> None:
    assert decode(content) == Missing(reason)


@given(st.binary(max_size=4096))
def test_no_bytes_make_it_fail(content: bytes) -> None:
    decoded = decode(content)
    readings(decoded)
    links(decoded)
    throttle_percent(decoded, residency(decoded))


@given(st.sampled_from(list(LAYOUTS)), st.binary(min_size=4000, max_size=4000))
def test_no_content_of_a_known_version_makes_it_fail(version: Version, noise: bytes) -> None:
    decoded = decode(noise[:2] + bytes(version) + noise[4:])
    assert not isinstance(decoded, Missing)
    for reading in readings(decoded).values():
        assert isinstance(reading, Missing) or reading >= 0


def counters(looks: int, ppt: int) -> Table:
    others = dict.fromkeys(
        ("prochot_residency_acc", "socket_thm_residency_acc", "vr_thm_residency_acc", "hbm_thm_residency_acc"), 5
    )
    return table((1, 8), accumulation_counter=looks, ppt_residency_acc=ppt, **others)


def test_throttling_needs_two_tables() -> None:
    assert throttle_percent(counters(1000, 0), None) == Missing("needs two samples")
    assert throttle_percent(counters(1000, 0), {}) == Missing("needs two samples")


@given(before=st.integers(0, 2**31), samples=st.integers(1, 10**6), share=st.floats(0, 1), start=st.integers(0, 2**30))
def test_the_share_is_that_of_the_samples(before: int, samples: int, share: float, start: int) -> None:
    held = int(samples * share)
    shares = throttle_percent(counters(before + samples, start + held), residency(counters(before, start)))
    assert shares == {"power": 100 * held / samples, "thermal": 0.0, "hbm": 0.0, "vr": 0.0, "prochot": 0.0}


@given(now=st.integers(0, 2**31), before=st.integers(0, 2**31), held=st.integers(0, 2**31), ago=st.integers(0, 2**31))
def test_shares_are_percentages_or_missing_whatever_the_counters_did(
    now: int, before: int, held: int, ago: int
) -> None:
    shares = throttle_percent(counters(now, held), residency(counters(before, ago)))
    if isinstance(shares, Missing):
        assert now <= before or held < ago
    else:
        assert all(0 <= share <= 100 for share in shares.values())


def test_older_cards_have_bits_of_this_moment() -> None:
    shares = throttle_percent(table((1, 3), indep_throttle_status=1 << 3 | 1 << 34 | 1 << 47), None)
    assert shares == {"power": 100.0, "current": 0.0, "thermal": 0.0, "hbm": 100.0, "vr": 0.0, "prochot": 100.0}


def test_links_that_are_up_of_those_that_are_there() -> None:
    status = (0xFFFF, 1, 1, 0, 1, 1, 1, 2)
    assert links(table((1, 8), xgmi_link_status=status)) == (5, 6)
    assert links(table((1, 6)))[0] == Missing("no state of links")
