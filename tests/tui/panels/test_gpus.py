"""The GPU panel: the rows at each size, and what it says when there is little or nothing to say.

What it shows of a common box is in the goldens.
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.schema.samples import GpuProcess, GpuSample
from loadgen.schema.snapshot import GpuView, Snapshot
from tests.tui.cockpit import Seat, seated
from tests.tui.painted import frame_of, lines, painted, texts
from tests.tui.scripted import LOOKED_S, host, running, starting, with_gpus, with_partitions
from tui.panels.gpus import gpus, grid
from tui.widgets.rows import ROLES, width_of

replace = msgspec.structs.replace


def panel_of(seat: Seat) -> list[str]:
    """The panel's rows as they stand on the screen."""
    region = seat.screen.query_one("#gpus").region
    rows = seat.rows[region.y : region.bottom] if region.height else []
    return [row[region.x : region.right].rstrip() for row in rows]


def sampled(snapshot: Snapshot, *figures: dict[str, Any]) -> Snapshot:
    """The box with other figures in the samples: each GPU's own, the last for all further ones."""
    own = itertools.chain(figures, itertools.repeat(figures[-1]))
    found = [
        replace(gpu, sample=replace(gpu.sample, **changes))
        for gpu, changes in zip(snapshot.gpus, own, strict=False)
        if gpu.sample is not None
    ]
    return replace(snapshot, gpus=tuple(found))


def test_a_flag_has_a_word_and_a_colour() -> None:
    rows = painted(gpus, with_gpus())
    number, flag = [text.strip() for text, role in rows[7] if role == "bad"]
    assert number == "5" and flag.startswith("THROTTLED thermal 18%")
    assert not any(role == "bad" for text, role in rows[2])


def test_a_host_is_named_only_if_there_are_gpus_of_another_machine() -> None:
    here = with_gpus()
    there = replace(here, gpus=tuple(replace(g, static=replace(g.static, host="node7")) for g in here.gpus))
    assert not any("host" in line.split() for line in lines(gpus, here, 80, 11))
    assert lines(gpus, there, 80, 11)[1].split()[:3] == ["gpu", "busy", "host"]
    assert sum("node7" in line for line in lines(gpus, there, 80, 11)) == 8
    assert sum("node7" in line for line in lines(grid, there, 160, 45)) == 4  # rows of two cells
    assert not any("node7" in line for line in lines(grid, here, 160, 45))


def test_energy_and_straggler_have_a_row_if_there_is_room() -> None:
    last = lines(gpus, with_gpus(), 100, 11)[-1]
    assert last == " J/token 0.525   tok/s/W 0.480   all 5.03k W   straggler gpu 5: clock -23%"
    assert "J/token     -   tok/s/W     -" in lines(gpus, with_gpus(stages=()), 100, 11)[-1]


@pytest.mark.parametrize("width", range(60, 241, 20))
def test_a_head_ends_where_its_column_does_and_flags_keep_their_room(width: int) -> None:
    heads, row = lines(gpus, with_gpus(), width)[1:3]
    assert heads.rstrip().index("flags") == len(row) - 1
    assert width >= len(row) - 1 + 22 or width < 70
    for head, value in (("HBM GiB", "171/192"), ("power W", "608/750")):
        if head in heads:
            assert heads.index(head) + len(head) == row.index(value) + len(value)


def test_a_figure_that_no_gpu_reports_has_no_column() -> None:
    figures = {"sm_percent": 81.0, "dram_percent": 55.0, "xids": 2, "rows_remapped": 1, "pcie_bytes_per_s": 2.5e9}
    heads, row = lines(gpus, sampled(with_gpus(), figures), 200, 12)[1:3]
    for head, value in (("SM/DRAM%", "81/55"), ("Xid", "2"), ("retired", "1"), ("PCIe B/s", "2.50G")):
        assert row[: heads.index(head) + len(head)].endswith(f" {value}")
    assert not any(head in lines(gpus, with_gpus(), 240, 12)[1] for head in ("SM/DRAM", "Xid", "retired"))


def test_a_partition_in_a_row_of_its_own_shows_its_own_utilization() -> None:
    split = sampled(with_partitions(1, 2), {"xcp_percent": 0.0}, {"xcp_percent": 30.0})
    assert [row.split()[2] for row in lines(gpus, split, 100, 5)[2:4]] == ["0%", "30%"]
    assert lines(gpus, split, 100, 2)[1].split()[2] == "97%"


@pytest.mark.parametrize("size", [(80, 24), (160, 45), (240, 60)])
def test_processes_are_below_the_grid_those_of_others_first(size: tuple[int, int]) -> None:
    server = GpuProcess(101, "VLLM::Worker", 160 * 1024**3, "ada", "VLLM::Worker_TP0", of_server=True)
    other = GpuProcess(77, "python3", 3 * 1024**3, "bob", "python3 train.py --api-key ***", of_server=False)
    held = [{"processes": found} for found in ((server, other), (replace(server, pid=102), other), ())]
    rows = lines(grid, sampled(with_gpus(), *held), *size)
    title, first, second = rows[-3:]
    assert title.startswith("processes on the GPUs") and title.endswith("others: 1")
    assert first.split()[:8] == "6 GiB gpu 0-1 other's 77 bob python3".split()
    assert second.split()[:7] == "320 GiB gpu 0-1 server's 2 pids".split()


# What does not fit.


@pytest.mark.parametrize(
    ("snapshot", "size", "hidden", "numbers"),
    [
        (with_gpus(), (80, 3), "worst 2, 6 more", ["5", "0"]),
        (with_partitions(), (100, 10), "", [f"{n * 8}+7" for n in range(8)]),
        (with_partitions(), (100, 70), "", [str(n) for n in range(64)]),
        (with_partitions(16), (80, 7), "worst 5, 11 more", ["40+7", "0+7", "8+7", "16+7", "24+7"]),
    ],
    ids=["the worst", "sockets", "partitions", "the worst sockets"],
)
def test_of_too_many_the_worst_are_shown(
    snapshot: Snapshot, size: tuple[int, int], hidden: str, numbers: list[str]
) -> None:
    rows = lines(gpus, snapshot, *size)
    shown = [row for row in rows if "━" in row or "╌" in row]
    assert [row.split()[0] for row in shown] == numbers and hidden in rows[0]


def test_a_folded_socket_has_all_its_memory_and_flags() -> None:
    row = lines(gpus, with_partitions(), 100, 11)[7]
    assert "40+7 ━━━━━━━━  97%  171/192  648/750" in row and "THROTTLED thermal 18%" in row
    assert lines(gpus, with_partitions(), 100, 70)[3].rstrip().endswith("belongs to partition 0")


# What is not known.


@pytest.mark.parametrize("height", [3, 10])
def test_stale_samples_are_dim_and_have_an_age(height: int) -> None:
    rows = painted(gpus, with_gpus(gpus_stale=True, host=host(t_s=LOOKED_S + 7.2)), 80, height)
    assert "STALE: 7 s old" in texts(rows)[0]
    assert {role for row in rows[2:] for text, role in row if text} == {"dim"}
    assert lines(gpus, with_gpus(gpus_stale=True, host=None))[0].endswith("STALE")


def test_what_is_not_measured_is_a_dash_with_a_reason() -> None:
    blind = tuple(
        replace(gpu, sample=GpuSample(n, LOOKED_S, missing={"power_w": "not in a guest"}), flags=())
        for n, gpu in enumerate(with_gpus().gpus)
    )
    rows = lines(gpus, with_gpus(gpus=blind, verdicts=()))
    assert rows[2] == "   0 ╌╌╌╌╌╌╌╌    -    -/192        -         -     -  not in a guest"
    assert "all     - W" in rows[0]
    early = tuple(GpuView(gpu.static, None) for gpu in with_gpus().gpus)
    assert lines(gpus, with_gpus(gpus=early))[2].endswith("-  no sample yet")


numbers = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-1, 2**70).map(float))
counts = st.one_of(st.none(), st.integers(-1, 2**64))


@given(
    st.fixed_dictionaries(
        dict.fromkeys(("gfx_percent", "memory_percent", "power_w", "power_cap_w", "gfx_clock_mhz"), numbers)
        | dict.fromkeys(("temperature_hotspot_c", "energy_j", "pcie_speed_gts"), numbers)
        | dict.fromkeys(("hbm_used_bytes", "pcie_width", "links_up", "link_read_bytes", "ecc_correctable"), counts)
    ),
    st.lists(st.text(max_size=40), max_size=3),
    st.integers(30, 250),
    st.integers(2, 14),
)
def test_rows_keep_their_width_whatever_a_driver_reports(
    fields: dict[str, Any], flags: list[str], width: int, height: int
) -> None:
    found = tuple(
        GpuView(gpu.static, GpuSample(index=gpu.static.index, t_s=LOOKED_S, **fields), tuple(flags))
        for gpu in with_gpus().gpus
    )
    rows = painted(gpus, with_gpus(gpus=found), width, height)
    assert all(width_of(row) <= width for row in rows)
    assert all(role in ROLES for row in rows for text, role in row if text)
    assert len({row.index("  flags") for row in texts(rows) if "  flags" in row}) <= 1


# Where it is.


async def test_it_takes_no_more_room_than_it_needs() -> None:
    async with seated() as seat:
        for count, rows in ((1, 5), (2, 5), (4, 7), (8, 11), (16, 11)):
            await seat.show(with_gpus(count))
            assert len(panel_of(seat)) == rows, count
        await seat.show(running(telemetry="no GPU found: see vramp doctor for what was tried"))
        assert len(panel_of(seat)) == 1 and panel_of(seat)[0].endswith("for what was tried")
        await seat.show(running(telemetry="off"))
        assert "gpus ─" not in seat.text


async def test_it_shows_memory_filling_while_the_server_starts() -> None:
    async with seated() as seat:
        await seat.show(starting(gpus=with_gpus().gpus, telemetry="amd: amdsmi"))
        assert len(panel_of(seat)) == 11 and "171/192" in panel_of(seat)[2]
        assert "▸ loading weights" in seat.text and "TTFT ms" not in seat.text


@pytest.mark.parametrize("size", [(80, 24), (240, 60), (60, 30)])
@pytest.mark.parametrize("count", [1, 3, 8, 16])
def test_the_grid_has_every_gpu_or_the_number_of_the_others(size: tuple[int, int], count: int) -> None:
    rows = lines(grid, frame_of(with_gpus(count), with_gpus(count, t_s=201.0)), *size)
    shown = sum(f" {n} MI300X" in f" {row}" for row in rows for n in range(count))
    assert shown == count or "flags" in rows[1]


@pytest.mark.parametrize("count", [1, 8])
def test_the_grid_has_rows_in_the_smallest_terminal_too(count: int) -> None:
    frame = frame_of(with_gpus(count), with_gpus(count, t_s=201.0))
    for width, height in itertools.product(range(1, 41, 3), repeat=2):
        assert grid(frame, width, height)
