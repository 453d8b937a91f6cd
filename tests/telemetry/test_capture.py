"""Captures as files, and played back: the samples of the box again, in their time, without end."""

import asyncio
import math
from itertools import islice, pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError, ResultError
from loadgen.schema.samples import GpuProcess, GpuSample, GpuStatic
from loadgen.telemetry.backends import BackendOption
from loadgen.telemetry.capture import (
    Candidate,
    CapturedPart,
    Header,
    played,
    read_capture,
    replay_options,
    write_capture,
)
from loadgen.telemetry.monitor import Monitor, Timing
from loadgen.telemetry.protocol import Opened, Sampled

HEADER = Header(captured_at="2026-01-02T03:04:05+00:00", versions={"vramp": "1", "rocm": None}, environment={"A": "b"})
OPENED = Opened("amdsmi", {"driver": "6.14"}, (GpuStatic(index=0, vendor="amd", name="MI300X"),))
_FAILED = CapturedPart(Candidate("amd", "amdsmi 7.0.2", "first", "no libamd_smi.so", ("a", "b")))


def look(t_s: float, index: int = 0) -> Sampled:
    return Sampled(t_s, 1.0, (GpuSample(index, t_s, power_w=600.0, missing={"gfx_percent": "busy"}),))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "capture.jsonl"
    good = CapturedPart(Candidate("amd", "amd-sysfs"), OPENED, [look(1.0), look(2.0)])
    write_capture(path, HEADER, [_FAILED, good])
    assert read_capture(path) == (HEADER, {"amd": good})
    assert len(path.read_bytes().splitlines()) == 6


def test_first_working_part_is_replayed(tmp_path: Path) -> None:
    broke = CapturedPart(Candidate("amd", "broke", failure="it was killed by SIGABRT"), OPENED, [look(1.0)])
    first = CapturedPart(Candidate("amd", "first"), OPENED, [look(2.0)])
    second = CapturedPart(Candidate("amd", "second"), OPENED, [look(3.0)])
    other = CapturedPart(Candidate("nvidia", "nvml", failure="lost"), OPENED, [look(4.0)])
    write_capture(tmp_path / "c", HEADER, [broke, first, second, other])
    assert read_capture(tmp_path / "c")[1] == {"amd": first, "nvidia": other}


_HUGE_COUNT = b'{"type":"Sampled","t_s":2,"took_ms":1,"gpus":[{"index":0,"t_s":2,"xids":%s}]}' % (b"9" * 400)
_GOOD = [HEADER, Candidate("amd", "amdsmi"), OPENED, look(1.0)]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "line 1: not the header"),
        ([OPENED], "line 1: not the header"),
        ([*_GOOD, HEADER], "line 5: a second header"),
        ([HEADER, OPENED], "line 2: no candidate was named"),
        ([HEADER, look(1.0)], "line 2: no candidate was named"),
        ([HEADER, Candidate("amd", "amdsmi"), look(1.0)], "line 3: a sample before the candidate opened"),
        ([*_GOOD, OPENED], "line 5: the candidate opened twice"),
        ([*_GOOD, look(1.0)], "line 5: a sample at 1 s, which is not after"),
        ([*_GOOD, look(2.0, index=3)], "line 5: a sample of GPU 3, which was not opened"),
        ([HEADER], "nothing was measured in this capture"),
        ([HEADER, _FAILED.candidate], "amdsmi 7.0.2: no libamd_smi.so"),
        ([HEADER, Candidate("amd", "amdsmi"), OPENED], "amdsmi: no sample"),
    ],
)
def test_what_is_wrong_is_reported_with_file_and_line(tmp_path: Path, lines: list[msgspec.Struct], words: str) -> None:
    path = tmp_path / "capture.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    with pytest.raises(ProfileError) as raised:
        read_capture(path)
    assert str(raised.value).startswith(str(path))
    assert words in str(raised.value)


@pytest.mark.parametrize("text", [b"{", b"{}", b"\xff", b'{"type":"Run"}', b"", b'{"type":"Sampled","t_s":NaN}'])
def test_a_malformed_line_is_reported_with_its_number(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "capture.jsonl"
    path.write_bytes(msgspec.json.encode(HEADER) + b"\n" + text + b"\n")
    with pytest.raises(ProfileError, match="line 2: not a line of a capture") as raised:
        read_capture(path)
    assert "vramp doctor --dump" in str(raised.value)


def test_another_schema_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "c").write_text('{"type":"Capture","schema":"vramp.capture/9","captured_at":"","versions":{}}\n')
    with pytest.raises(ProfileError, match=r"line 1: .*vramp.capture/9"):
        read_capture(tmp_path / "c")


def test_a_file_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="No such file"):
        read_capture(tmp_path / "none")
    with pytest.raises(ProfileError, match="Is a directory"):
        read_capture(tmp_path)
    with pytest.raises(ResultError, match="cannot be written: No such file"):
        write_capture(tmp_path / "no" / "folder", HEADER, [])


def test_what_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ProfileError, match="more than 256 MiB"):
        read_capture(path)


@given(
    st.lists(st.sampled_from([msgspec.json.encode(line) for line in [*_GOOD, look(2.0)]]) | st.binary(max_size=20)).map(
        b"\n".join
    )
)
def test_any_file_is_a_capture_or_an_error_that_names_it(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    try:
        _, playable = read_capture(path)
    except ProfileError as error:
        assert str(error).startswith(str(path))
    else:
        assert all(part.opened is not None and part.samples for part in playable.values())


_TIMING = Timing(open_s=20, silence_s=20, pause_s=0.01)


def _sampled(t_s: float, energy_j: float, replays: int) -> Sampled:
    return Sampled(t_s, 1.0, (GpuSample(0, t_s, power_w=600.0, energy_j=energy_j, pcie_replays=replays),))


def test_the_samples_come_in_their_time_stamped_with_the_present() -> None:
    samples = [_sampled(10.0, 0.0, 0), _sampled(11.0, 600.0, 0), _sampled(12.5, 1500.0, 1)]
    again = list(islice(played(samples, 1000.0), 5))
    assert [sampled.t_s for sampled in again] == [1000.0, 1001.0, 1002.5, 1003.75, 1004.75]
    assert [sampled.gpus[0].t_s for sampled in again] == [sampled.t_s for sampled in again]


def test_counters_go_on_at_their_pace_when_it_begins_again() -> None:
    samples = [_sampled(10.0, 5000.0, 7), _sampled(11.0, 5600.0, 7), _sampled(12.0, 6200.0, 8)]
    again = list(islice(played(samples, 0.0), 9))
    energies = [gpu.energy_j for sampled in again for gpu in sampled.gpus if gpu.energy_j is not None]
    assert [after - before for before, after in pairwise(energies)] == pytest.approx([600.0] * 8)
    assert [sampled.gpus[0].pcie_replays for sampled in again] == [7, 7, 8, 8, 8, 9, 10, 10, 11]


def test_one_look_is_repeated_every_second() -> None:
    again = list(islice(played([_sampled(10.0, 5.0, 7)], 0.0), 3))
    assert [(sampled.t_s, sampled.gpus[0].energy_j) for sampled in again] == [(0.0, 5.0), (1.0, 5.0), (2.0, 5.0)]


def test_a_clock_that_is_far_from_zero_goes_on_as_well() -> None:
    again = list(islice(played([_sampled(1e18, 5.0, 7)], 0.0), 3))
    assert [(sampled.t_s, sampled.gpus[0].t_s) for sampled in again] == [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)]


def test_a_counter_that_leaps_grows_by_what_can_be_counted() -> None:
    again = islice(played([_sampled(0.0, 0.0, 0), _sampled(5e-324, 1e308, 1 << 62)], 0.0), 4)
    assert all(math.isfinite(sampled.gpus[0].energy_j or 0.0) for sampled in again)


@pytest.mark.parametrize("line", [b'{"type":"Sampled","t_s":1e13,"took_ms":1,"gpus":[]}', _HUGE_COUNT])
def test_a_time_or_a_count_beyond_all_sense_is_reported(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "capture.jsonl"
    path.write_bytes(msgspec.json.Encoder().encode_lines(_GOOD) + line)
    with pytest.raises(ProfileError, match="line 5: not a line of a capture"):
        read_capture(path)


_STEPS = st.lists(
    st.tuples(st.floats(0.01, 10), st.floats(0, 1e6), st.integers(0, 1000), st.booleans()), min_size=1, max_size=8
)


@given(_STEPS, st.floats(0, 1e6))
def test_time_goes_on_and_no_counter_ever_falls(steps: list[tuple[float, float, int, bool]], start_s: float) -> None:
    samples, t_s, energy_j, replays = [], 5.0, 0.0, 0
    for step_s, joules, more, known in steps:
        t_s, energy_j, replays = t_s + step_s, energy_j + joules, replays + more
        gpu = GpuSample(0, t_s, energy_j=energy_j, pcie_replays=replays if known else None)
        samples.append(Sampled(t_s, 1.0, (gpu,)))
    again = list(islice(played(samples, start_s), 4 * len(samples)))
    assert all(before.t_s < after.t_s for before, after in pairwise(again))
    counted = [sampled.gpus[0].pcie_replays for sampled in again]
    known_counts = [count for count in counted if count is not None]
    assert known_counts == sorted(known_counts)
    energies = [sampled.gpus[0].energy_j or 0.0 for sampled in again]
    assert all(after >= before - 1e-6 for before, after in pairwise(energies))


def _capture(folder: Path) -> Path:
    gpu = GpuSample(0, 1.0, power_w=600.0, processes=(GpuProcess(42, "python3"),))
    other = Opened("nvml", {}, (GpuStatic(index=0, vendor="nvidia", name="H200"),))
    amd = CapturedPart(Candidate("amd", "amdsmi 7.0.2"), OPENED, [Sampled(n * 0.05, 1.0, (gpu,)) for n in range(3)])
    nvidia = CapturedPart(Candidate("nvidia", "nvml"), other, [Sampled(9.0, 1.0, (GpuSample(0, 9.0, power_w=99.0),))])
    path = folder / "capture.jsonl"
    write_capture(path, HEADER, [amd, nvidia])
    return path


async def test_a_capture_is_watched_like_the_box_it_came_from(tmp_path: Path) -> None:
    path = _capture(tmp_path)
    monitor = Monitor(replay_options(path), folder=tmp_path, interval_s=5.0, timing=_TIMING)
    monitor.start()
    try:
        async with asyncio.timeout(60):
            samples: list[Sampled] = []
            while len(samples) < 8 or len(monitor.latest) < 2:  # the AMD part has three
                await monitor.change()
                samples += monitor.new_samples()
            assert sorted(gpu.name for gpu in monitor.gpus) == ["H200", "MI300X"]
            assert sorted(gpu.power_w or 0 for gpu in monitor.latest.values()) == [99.0, 600.0]
            assert all(gpu.processes is None for gpu in monitor.latest.values())
            amd, nvidia = monitor.status
            assert (amd.option, amd.works, amd.failures) == ("replay", True, {})
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
    options: dict[str, list[BackendOption]] = {"amd": replay_options(path)["amd"]}
    path.write_text("{}\n")
    monitor = Monitor(options, folder=tmp_path, timing=_TIMING)
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
        replay_options(tmp_path / "c")
