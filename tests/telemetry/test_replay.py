"""A capture as a backend: the looks of the box again, in their time, without end."""

import asyncio
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.metrics.samples import GpuProcess, GpuSample, GpuStatic
from loadgen.telemetry.capture import Candidate, Part, write_capture
from loadgen.telemetry.monitor import Monitor
from loadgen.telemetry.options import BackendOption
from loadgen.telemetry.replay import played, replay_attempts
from loadgen.telemetry.sample import Opened, Sampled
from loadgen.telemetry.source import Patience
from loadgen.vendors import VendorName
from tests.telemetry.test_capture import HEADER, OPENED

_PATIENCE = Patience(open_s=20, silence_s=20, pause_s=0.01)


def _look(t_s: float, energy_j: float, replays: int) -> Sampled:
    return Sampled(t_s, 1.0, (GpuSample(0, t_s, power_w=600.0, energy_j=energy_j, pcie_replays=replays),))


def test_the_looks_come_in_their_time_stamped_with_the_present() -> None:
    looks = [_look(10.0, 0.0, 0), _look(11.0, 600.0, 0), _look(12.5, 1500.0, 1)]
    again = list(islice(played(looks, 1000.0), 5))
    assert [look.t_s for look in again] == [1000.0, 1001.0, 1002.5, 1003.75, 1004.75]
    assert [look.gpus[0].t_s for look in again] == [look.t_s for look in again]


def test_counters_go_on_at_their_pace_when_it_begins_again() -> None:
    looks = [_look(10.0, 5000.0, 7), _look(11.0, 5600.0, 7), _look(12.0, 6200.0, 8)]
    again = list(islice(played(looks, 0.0), 9))
    energies = [gpu.energy_j for look in again for gpu in look.gpus if gpu.energy_j is not None]
    assert [after - before for before, after in pairwise(energies)] == pytest.approx([600.0] * 8)
    assert [look.gpus[0].pcie_replays for look in again] == [7, 7, 8, 8, 8, 9, 10, 10, 11]


def test_one_look_is_repeated_every_second() -> None:
    again = list(islice(played([_look(10.0, 5.0, 7)], 0.0), 3))
    assert [(look.t_s, look.gpus[0].energy_j) for look in again] == [(0.0, 5.0), (1.0, 5.0), (2.0, 5.0)]


_STEPS = st.lists(
    st.tuples(st.floats(0.01, 10), st.floats(0, 1e6), st.integers(0, 1000), st.booleans()), min_size=1, max_size=8
)


@given(_STEPS, st.floats(0, 1e6))
def test_time_goes_on_and_no_counter_ever_falls(steps: list[tuple[float, float, int, bool]], start_s: float) -> None:
    looks, t_s, energy_j, replays = [], 5.0, 0.0, 0
    for step_s, joules, more, known in steps:
        t_s, energy_j, replays = t_s + step_s, energy_j + joules, replays + more
        gpu = GpuSample(0, t_s, energy_j=energy_j, pcie_replays=replays if known else None)
        looks.append(Sampled(t_s, 1.0, (gpu,)))
    again = list(islice(played(looks, start_s), 4 * len(looks)))
    assert all(before.t_s < after.t_s for before, after in pairwise(again))
    counted = [look.gpus[0].pcie_replays for look in again]
    known_counts = [count for count in counted if count is not None]
    assert known_counts == sorted(known_counts)
    energies = [look.gpus[0].energy_j or 0.0 for look in again]
    assert all(after >= before - 1e-6 for before, after in pairwise(energies))


def _capture(folder: Path) -> Path:
    gpu = GpuSample(0, 1.0, power_w=600.0, processes=(GpuProcess(42, "python3"),))
    other = Opened("nvml", {}, (GpuStatic(index=0, vendor="nvidia", name="H200"),))
    amd = Part(Candidate("amd", "amdsmi 7.0.2"), OPENED, [Sampled(n * 0.05, 1.0, (gpu,)) for n in range(3)])
    nvidia = Part(Candidate("nvidia", "nvml"), other, [Sampled(9.0, 1.0, (GpuSample(0, 9.0, power_w=99.0),))])
    path = folder / "capture.jsonl"
    write_capture(path, HEADER, [amd, nvidia])
    return path


async def test_a_capture_is_watched_like_the_box_it_came_from(tmp_path: Path) -> None:
    path = _capture(tmp_path)
    monitor = Monitor(replay_attempts(path), folder=tmp_path, interval_s=5.0, patience=_PATIENCE)
    monitor.start()
    try:
        async with asyncio.timeout(60):
            looks: list[Sampled] = []
            while len(looks) < 8 or len(monitor.latest) < 2:  # the AMD part has three
                await monitor.change()
                looks += monitor.take()
            assert sorted(gpu.name for gpu in monitor.gpus) == ["H200", "MI300X"]
            assert sorted(gpu.power_w or 0 for gpu in monitor.latest.values()) == [99.0, 600.0]
            assert all(gpu.processes is None for gpu in monitor.latest.values())
            amd, nvidia = monitor.status
            assert (amd.attempt, amd.works, amd.failures) == ("replay", True, {})
            assert amd.why == f"{path}: amdsmi 7.0.2"
            assert amd.meta == {
                "driver": "6.14",
                "replay": {"candidate": "amdsmi 7.0.2", "captured_at": HEADER.captured_at},
            }
            assert nvidia.works
            monitor.show_processes(True)
            while not any(gpu.processes for gpu in monitor.latest.values()):
                await monitor.change()
    finally:
        await monitor.close()


async def test_a_capture_that_has_gone_bad_is_refused_with_its_place(tmp_path: Path) -> None:
    path = _capture(tmp_path)
    attempts: dict[VendorName, list[BackendOption]] = {"amd": replay_attempts(path)["amd"]}
    path.write_text("{}\n")
    monitor = Monitor(attempts, folder=tmp_path, patience=_PATIENCE)
    monitor.start()
    try:
        async with asyncio.timeout(60):
            while not monitor.status[0].failures:
                await monitor.change()
        assert f"{path}, line 1: not a line of a capture" in monitor.status[0].failures["replay"]
    finally:
        await monitor.close()


def test_what_is_no_capture_is_a_mistake_of_usage(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("hello\n")
    with pytest.raises(ProfileError, match="line 1"):
        replay_attempts(tmp_path / "c")
