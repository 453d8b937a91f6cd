"""The GPU panel: the rows at each size, and what it says when there is little or nothing to say."""

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
from tests.tui.scenes import watch
from tests.tui.scripted import LOOKED_S, host, running, starting, with_gpus, with_partitions
from tui.panels.frame import Frame, Wanted
from tui.panels.gpus import gpus, grid
from tui.widgets.rows import ROLES, Rows, width_of


def painted(snapshot: Snapshot, width: int = 80, height: int = 10) -> Rows:
    return gpus(Frame(snapshot, Wanted()), width, height)


def texts(rows: Rows) -> list[str]:
    return ["".join(text for text, _ in row) for row in rows]


def panel_of(seat: Seat) -> list[str]:
    """The panel's rows as they stand on the screen."""
    region = seat.screen.query_one("#gpus").region
    rows = seat.rows[region.y : region.bottom] if region.height else []
    return [row[region.x : region.right].rstrip() for row in rows]


# The figures.


def test_eight_gpus_are_ten_lines_of_eighty_columns() -> None:
    rows = texts(painted(with_gpus()))
    assert len(rows) == 10 and max(len(row) for row in rows) <= 80
    assert rows[0] == "gpus ─────────────────  J/token 0.525   tok/s/W 0.480   all 5.03k W  amd: amdsmi"
    assert rows[1] == " gpu busy           HBM GiB  power W hot/mem C   MHz  flags                     "
    assert rows[2] == "   0 ━━━━━━━━  97%  171/192  608/750     77/66  2085  -"
    assert rows[7] == "   5 ━━━━━━╌╌  81%  171/192  750/750     86/66  1610  THROTTLED thermal 18%; st…"


def test_a_flag_is_a_word_and_a_colour() -> None:
    number, flag = [text.strip() for text, role in painted(with_gpus())[7] if role == "bad"]
    assert number == "5" and flag.startswith("THROTTLED thermal 18%")
    assert not any(role == "bad" for text, role in painted(with_gpus())[2])


def test_one_row_more_carries_energy_and_straggler() -> None:
    last = texts(painted(with_gpus(), 100, 11))[-1]
    assert last == " J/token 0.525   tok/s/W 0.480   all 5.03k W   straggler gpu 5: clock -23%"
    assert "J/token     -   tok/s/W     -" in texts(painted(with_gpus(stages=()), 100, 11))[-1]


def test_wide_shows_everything() -> None:
    heads, row = texts(painted(with_gpus(), 240, 12))[1:3]
    assert (
        heads.split()
        == (
            "gpu busy HBM GiB power W hot/mem C MHz max mem% PCIe links ECC c/u links r/w B/s J, run mem MHz name flags"
        ).split()
    )
    assert row.split()[6:] == "2085 2100 41 x16 32 7/7 0/0 12.3G/13.0G 123k 1300 AMD Instinct MI300X -".split()


@pytest.mark.parametrize("width", range(60, 241, 7))
def test_a_head_ends_where_its_column_does_and_flags_keep_their_room(width: int) -> None:
    heads, row = texts(painted(with_gpus(), width))[1:3]
    assert heads.rstrip().index("flags") == len(row) - 1
    assert width >= len(row) - 1 + 22 or width < 70
    for head, value in (("HBM GiB", "171/192"), ("power W", "608/750")):
        if head in heads:
            assert heads.index(head) + len(head) == row.index(value) + len(value)


def reported(**figures: Any) -> Snapshot:
    """The box with these figures in every sample."""
    return with_gpus(
        gpus=tuple(
            msgspec.structs.replace(gpu, sample=msgspec.structs.replace(gpu.sample, **figures))
            for gpu in with_gpus().gpus
            if gpu.sample is not None
        )
    )


def test_what_only_some_gpus_tell_takes_room_only_there() -> None:
    nvidia = reported(sm_percent=81.0, dram_percent=55.0, xids=2, rows_remapped=1, pcie_bytes_per_s=2.5e9)
    heads, row = texts(painted(nvidia, 200, 12))[1:3]
    for head, value in (("SM/DRAM%", "81/55"), ("Xid", "2"), ("retired", "1"), ("PCIe B/s", "2.50G")):
        end = heads.index(head) + len(head)
        assert row[:end].endswith(f" {value}")
    assert not any(head in texts(painted(with_gpus(), 240, 12))[1] for head in ("SM/DRAM", "Xid", "retired"))


def test_a_partition_shows_its_own_activity_where_it_has_a_row_of_its_own() -> None:
    split = with_partitions(1, 2)
    gpus = tuple(
        msgspec.structs.replace(gpu, sample=msgspec.structs.replace(gpu.sample, xcp_percent=30.0 * n))
        for n, gpu in enumerate(split.gpus)
        if gpu.sample is not None
    )
    apart = texts(painted(msgspec.structs.replace(split, gpus=gpus), 100, 5))
    assert [row.split()[2] for row in apart[2:4]] == ["0%", "30%"]
    assert texts(painted(msgspec.structs.replace(split, gpus=gpus), 100, 2))[1].split()[2] == "97%"


def test_processes_stand_below_the_grid_those_of_others_first() -> None:
    server = GpuProcess(101, "VLLM::Worker", 160 * 1024**3, "ada", "VLLM::Worker_TP0", of_server=True)
    other = GpuProcess(77, "python3", 3 * 1024**3, "bob", "python3 train.py --api-key ***", of_server=False)
    second_worker = msgspec.structs.replace(server, pid=102)
    held = {0: (server, other), 1: (second_worker, other)}
    found = tuple(
        msgspec.structs.replace(gpu, sample=msgspec.structs.replace(gpu.sample, processes=held.get(n, ())))
        for n, gpu in enumerate(with_gpus().gpus)
        if gpu.sample is not None
    )
    for size in ((80, 24), (160, 45), (240, 60)):
        view = Frame(with_gpus(gpus=found), Wanted())
        view.timeline.add(with_gpus(gpus=found))
        rows = texts(grid(view, *size))
        assert len(rows) <= size[1] and max(len(row) for row in rows) <= size[0]
        title, first, second = rows[-3:]
        assert title.startswith("processes on the GPUs") and title.endswith("others: 1")
        assert first.split()[:8] == "6 GiB gpu 0-1 other's 77 bob python3".split()
        assert second.split()[:7] == "320 GiB gpu 0-1 server's 2 pids".split()


# What does not fit.


def test_the_worst_two_remain() -> None:
    rows = texts(painted(with_gpus(), 80, 3))
    assert [row.split()[0] for row in rows] == ["gpu", "5", "0"]
    assert rows[0].endswith("worst 2, 6 more") and len(rows[0]) == 80


def test_partitions_of_a_socket_share_a_row_with_all_its_memory() -> None:
    rows = texts(painted(with_partitions(), 100, 11))
    assert [row.split()[0] for row in rows[2:10]] == [f"{n * 8}+7" for n in range(8)]
    assert "40+7 ━━━━━━━━  97%  171/192  648/750" in rows[7] and "THROTTLED thermal 18%" in rows[7]
    assert "all 5.09k W" in rows[10] and "more" not in rows[0]


def test_partitions_are_apart_where_they_fit() -> None:
    rows = texts(painted(with_partitions(), 100, 70))
    assert [row.split()[0] for row in rows[2:66]] == [str(n) for n in range(64)]
    assert rows[3].rstrip().endswith("belongs to partition 0") and "  21/24" in rows[3]


def test_folded_and_still_too_many() -> None:
    rows = texts(painted(with_partitions(16), 80, 7))
    assert rows[0].rstrip().endswith("worst 5, 11 more")
    assert [row.split()[0] for row in rows[2:]] == ["40+7", "0+7", "8+7", "16+7", "24+7"]


# What is not known.


def test_stale_samples_dim_and_say_their_age() -> None:
    rows = painted(with_gpus(gpus_stale=True, host=host(t_s=LOOKED_S + 7.2)))
    assert texts(rows)[0].endswith("STALE: 7 s old")
    assert {role for row in rows[2:] for text, role in row if text} == {"dim"}
    assert texts(painted(with_gpus(gpus_stale=True, host=None)))[0].endswith("STALE")
    assert "STALE: 7 s old" in texts(painted(with_gpus(gpus_stale=True, host=host(t_s=LOOKED_S + 7.2)), 80, 3))[0]


def test_nothing_measured_is_dashes_and_a_reason() -> None:
    blind = tuple(
        msgspec.structs.replace(gpu, sample=GpuSample(n, LOOKED_S, missing={"power_w": "not in a guest"}), flags=())
        for n, gpu in enumerate(with_gpus().gpus)
    )
    rows = texts(painted(with_gpus(gpus=blind, verdicts=())))
    assert rows[2] == "   0 ╌╌╌╌╌╌╌╌    -    -/192        -         -     -  not in a guest"
    assert "all     - W" in rows[0]


def test_before_the_first_sample() -> None:
    early = tuple(GpuView(gpu.static, None) for gpu in with_gpus().gpus)
    assert texts(painted(with_gpus(gpus=early)))[2].endswith("-  no sample yet")


def test_no_gpu_is_one_line_that_says_why() -> None:
    assert texts(painted(running(telemetry="amd: nothing works"), 60, 1)) == [f"gpus {'─' * 36} amd: nothing works"]


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
def test_whatever_a_driver_says_rows_keep_their_width(
    fields: dict[str, Any], flags: list[str], width: int, height: int
) -> None:
    found = tuple(
        GpuView(gpu.static, GpuSample(index=gpu.static.index, t_s=LOOKED_S, **fields), tuple(flags))
        for gpu in with_gpus().gpus
    )
    rows = painted(with_gpus(gpus=found), width, height)
    assert len(rows) <= height and all(width_of(row) <= width for row in rows)
    assert all(role in ROLES for row in rows for text, role in row if text)
    figures = {row.index("  flags") for row in texts(rows) if "  flags" in row}
    assert len(figures) <= 1


# Where it stands.


async def test_at_each_size_it_has_its_place() -> None:
    async with seated() as seat:
        for size, gpu_rows in (((80, 24), 2), ((80, 45), 8), ((120, 40), 5), ((160, 45), 8), ((240, 60), 8)):
            await seat.pilot.resize_terminal(*size)
            await seat.show(with_gpus())
            rows = panel_of(seat)
            figures = [row for row in rows if row[5:6] == "━"]
            assert len(figures) == gpu_rows
            assert any(row.startswith("   5 ") and "THROTTLED thermal 18%" in row for row in figures)
            assert rows[-1] in figures or "J/token 0.525" in rows[-1]
            for words in ("TTFT ms", "TPOT ms", "held    64", "p99.9", "▸  4     64", "J/tok", "throughput tok/s"):
                assert words in seat.text
            assert ("name" in rows[1]) == (size == (240, 60))


async def test_at_the_design_size_the_percentiles_stand_beside_it() -> None:
    async with seated() as seat:
        await seat.show(with_gpus())
        row = next(row for row in seat.rows if row.startswith("gpus "))
        assert row[79:].startswith(" latency stage 4: 20 s, 512 done") and len(row.rstrip()) == 160
        assert "! gpu 5  THROTTLED thermal 18%" in seat.text
        assert "· stage 4  queueing: 16.0 requests waiting on average" in seat.text


@pytest.mark.parametrize(("count", "rows"), [(1, 5), (2, 5), (4, 7), (8, 11), (16, 11)])
async def test_it_takes_no_more_room_than_it_needs(count: int, rows: int) -> None:
    async with seated() as seat:
        await seat.show(with_gpus(count))
        assert len(panel_of(seat)) == rows


async def test_without_gpus_it_is_a_line_that_says_why_or_nothing() -> None:
    async with seated() as seat:
        await seat.show(running(telemetry="no GPU found: see vramp doctor for what was tried"))
        assert len(panel_of(seat)) == 1 and panel_of(seat)[0].endswith("for what was tried")
        await seat.show(running(telemetry="off"))
        assert "gpus ─" not in seat.text
        await seat.pilot.resize_terminal(80, 24)
        await seat.show(running(telemetry="no GPU found"))
        assert "gpus ─" not in seat.text and "p99.9" in seat.text


async def test_it_shows_memory_filling_while_the_server_starts() -> None:
    async with seated() as seat:
        await seat.show(starting(gpus=with_gpus().gpus, telemetry="amd: amdsmi"))
        assert len(panel_of(seat)) == 11 and "171/192" in panel_of(seat)[2]
        assert "▸ loading weights" in seat.text and "TTFT ms" not in seat.text


async def test_a_click_on_it_shows_each_with_its_history_and_nine_the_verdicts() -> None:
    async with seated((80, 24)) as seat:
        await watch(seat)
        await seat.pilot.click("#gpus")
        await seat.settle()
        assert seat.text.count(" busy ") == 8 and "5 MI300X THROTTLED" in seat.text and "TTFT ms" not in seat.text
        await seat.press("4")
        assert seat.text.count(" HBM ") == 8 and "held" not in seat.text
        await seat.press("9")
        assert "! gpu 5  straggler: clock -23% of its siblings" in seat.text and "2 bad" in seat.text
        await seat.press("escape")
        assert "p99.9" in seat.text


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (240, 60), (60, 30)])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 16])
def test_the_grid_holds_every_gpu_or_says_how_many_more_there_are(size: tuple[int, int], count: int) -> None:
    view = Frame(with_gpus(count), Wanted())
    for snapshot in (with_gpus(count), with_gpus(count, t_s=201.0)):
        view.timeline.add(snapshot)
    rows = grid(view, *size)
    assert len(rows) <= size[1] and all(width_of(row) <= size[0] for row in rows)
    shown = sum(f" {n} MI300X" in f" {text}" for text in texts(rows) for n in range(count))
    assert shown == count or "flags" in texts(rows)[1]


@pytest.mark.parametrize("count", [1, 8])
def test_the_grid_has_rows_for_the_smallest_terminal_too(count: int) -> None:
    view = Frame(with_gpus(count), Wanted())
    for snapshot in (with_gpus(count), with_gpus(count, t_s=201.0)):
        view.timeline.add(snapshot)
    for width, height in itertools.product(range(1, 41), repeat=2):
        assert grid(view, width, height)


async def test_text_of_a_driver_cannot_act() -> None:
    hostile = "\x1b[2J[bold]x[/]\n"
    async with seated((240, 60)) as seat:
        full = with_gpus()
        found = tuple(
            GpuView(msgspec.structs.replace(gpu.static, name=hostile), gpu.sample, (hostile,)) for gpu in full.gpus
        )
        verdicts = tuple(msgspec.structs.replace(verdict, text=hostile) for verdict in full.verdicts)
        await seat.show(with_gpus(gpus=found, verdicts=verdicts, telemetry=hostile, host=host(governor=hostile)))
        assert not any(character in seat.text.replace("\n", "") for character in "\x1b\r")
        assert len(seat.rows) == 60 and "[bold]x[/]" in seat.text
