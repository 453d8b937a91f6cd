"""Captures as files: what is written is read, and what is wrong with one is told with its place."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError, ResultError
from loadgen.metrics.samples import GpuSample, GpuStatic
from loadgen.telemetry.capture import Candidate, Header, Part, read_capture, write_capture
from loadgen.telemetry.sample import Opened, Sampled

HEADER = Header(captured_at="2026-01-02T03:04:05+00:00", versions={"vramp": "1", "rocm": None}, environment={"A": "b"})
OPENED = Opened("amdsmi", {"driver": "6.14"}, (GpuStatic(index=0, vendor="amd", name="MI300X"),))
_FAILED = Part(Candidate("amd", "amdsmi 7.0.2", "first", "no libamd_smi.so", ("a", "b")))


def look(t_s: float, index: int = 0) -> Sampled:
    return Sampled(t_s, 1.0, (GpuSample(index, t_s, power_w=600.0, missing={"gfx_percent": "busy"}),))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "capture.jsonl"
    good = Part(Candidate("amd", "amd-sysfs"), OPENED, [look(1.0), look(2.0)])
    write_capture(path, HEADER, [_FAILED, good])
    capture = read_capture(path)
    assert (capture.header, capture.parts) == (HEADER, (_FAILED, good))
    assert capture.playable == {"amd": good}


def test_the_first_that_worked_is_played_and_one_that_broke_only_for_want_of_it(tmp_path: Path) -> None:
    broke = Part(Candidate("amd", "broke", failure="it was killed by SIGABRT"), OPENED, [look(1.0)])
    first = Part(Candidate("amd", "first"), OPENED, [look(2.0)])
    second = Part(Candidate("amd", "second"), OPENED, [look(3.0)])
    other = Part(Candidate("nvidia", "nvml", failure="lost"), OPENED, [look(4.0)])
    write_capture(tmp_path / "c", HEADER, [broke, first, second, other])
    assert read_capture(tmp_path / "c").playable == {"amd": first, "nvidia": other}


_GOOD = [HEADER, Candidate("amd", "amdsmi"), OPENED, look(1.0)]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "line 1: not the header"),
        ([OPENED], "line 1: not the header"),
        ([*_GOOD, HEADER], "line 5: a second header"),
        ([HEADER, OPENED], "line 2: no candidate was named"),
        ([HEADER, look(1.0)], "line 2: no candidate was named"),
        ([HEADER, Candidate("amd", "amdsmi"), look(1.0)], "line 3: a look before the candidate opened"),
        ([*_GOOD, OPENED], "line 5: the candidate opened twice"),
        ([*_GOOD, look(1.0)], "line 5: a look at 1 s, which is not after"),
        ([*_GOOD, look(2.0, index=3)], "line 5: a look at GPU 3, which was not opened"),
        ([HEADER], "nothing was measured in this capture"),
        ([HEADER, _FAILED.candidate], "amdsmi 7.0.2: no libamd_smi.so"),
        ([HEADER, Candidate("amd", "amdsmi"), OPENED], "amdsmi: no look"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path: Path, lines: list[msgspec.Struct], words: str) -> None:
    path = tmp_path / "capture.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    with pytest.raises(ProfileError) as raised:
        read_capture(path)
    assert str(raised.value).startswith(str(path))
    assert words in str(raised.value)


@pytest.mark.parametrize("text", [b"{", b"{}", b"\xff", b'{"type":"Run"}', b"", b'{"type":"Sampled","t_s":NaN}'])
def test_a_line_that_is_none_is_told_with_its_number(tmp_path: Path, text: bytes) -> None:
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
        capture = read_capture(path)
    except ProfileError as error:
        assert str(error).startswith(str(path))
    else:
        assert all(part.opened is not None and part.looks for part in capture.playable.values())
