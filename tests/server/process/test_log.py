"""The log's text and its tail."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.server.process.log import MAX_LINE_CHARS, RING_LINES, LogTail, clean_line, split_line, telling_lines

NASTY = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b"\r", b"\n", b"\r\n", b"\x1b[31m", b"\x1b]0;t\x07", b"\x1b]52;c;", b"\xff", "ä\u202e".encode()]),
    st.integers(1, 40_000).map(lambda size: b"x" * size),
)


def written(path: Path, pieces: list[bytes]) -> list[str]:
    path.unlink(missing_ok=True)
    tail = LogTail(path)
    lines: list[str] = []
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        lines += tail.poll()
    return lines


@given(pieces=st.lists(NASTY, max_size=12))
def test_any_split_into_writes_gives_the_same_lines(pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        ended = [*pieces, b"\n"]
        lines = written(path, ended)
        assert lines == written(path, [b"".join(ended)])
        assert all(line and len(line) <= MAX_LINE_CHARS for line in lines)


@given(st.binary(max_size=300))
def test_no_control_character_survives(data: bytes) -> None:
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in clean_line(data))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1b]52;c;c3RlYWw=", ""),
        (b"\x1bPq#0;2;0;0;0\x1b\\after", "after"),
        (b"\x1bcreset\x1b(B", "reset"),
        ("\x9b31mred".encode(), "red"),
        (b"a\x08\x07\x00b", "ab"),
        (b"a\tb", "a   b"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        ("abc\u202edef\u2028".encode(), "abcdef"),
        (b"\x1b[31", ""),
        ("größe █▏".encode(), "größe █▏"),
    ],
)
def test_control_sequences_are_harmless(data: bytes, text: str) -> None:
    assert clean_line(data) == text


def test_the_tail_follows_from_its_offset_through_a_truncation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path, offset=4)
    assert tail.poll() == []
    path.write_bytes(b"old\nnew\nLoading 1/4")
    assert tail.poll() == ["new"]
    assert tail.unfinished == "Loading 1/4"
    path.write_bytes(b"\n")
    assert tail.poll() == ["Loading 1/4"]


def test_the_ring_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{i}\n" for i in range(RING_LINES + 5)))
    tail = LogTail(path)
    tail.poll()
    assert tail.total == RING_LINES + 5
    assert tail.lines[0] == "5"
    assert len(tail.lines) == RING_LINES


def test_answered_requests_are_handed_on_and_not_kept(tmp_path: Path) -> None:
    access = '(APIServer pid=7) INFO:     127.0.0.1:50000 - "POST /v1/completions HTTP/1.1" {} {}'
    answered, refused = access.format(200, "OK"), access.format(503, "Service Unavailable")
    stats = "(APIServer pid=7) INFO 10-21 09:00:10 [loggers.py:1] Engine 000: Running: 4 reqs, Waiting: 0 reqs"
    written = [answered, stats, *[answered] * RING_LINES, refused]
    path = tmp_path / "log"
    path.write_text("\n".join(written) + "\n")
    tail = LogTail(path)
    assert tail.poll() == written
    assert tail.lines == [stats, refused]
    assert tail.total == 2


def test_the_lines_that_tell() -> None:
    lines = [
        "(APIServer pid=1) INFO 10-21 09:00:00 [api_server.py:1] vLLM API server version 0.32.0",
        "(EngineCore pid=2) ERROR 10-21 09:00:09 [core.py:700] Traceback (most recent call last):",
        '(EngineCore pid=2) ERROR 10-21 09:00:09 [core.py:700]   File "core.py", line 1, in run',
        "(EngineCore pid=2) ERROR 10-21 09:00:09 [core.py:700]     engine = EngineCore()",
        "(EngineCore pid=2) ERROR 10-21 09:00:09 [core.py:700] ValueError: no memory for the KV cache",
        "Loading safetensors checkpoint shards:  50%|#####     | 1/2",
        "",
        "Traceback (most recent call last):",
        "    raise RuntimeError(",
        "    ^^^^^^^^^^^^^^^^^^",
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert telling_lines(lines) == [lines[4], lines[-1]]
    assert telling_lines(lines, limit=1) == [lines[-1]]
    assert telling_lines(lines[:1]) == lines[:1]
    assert telling_lines([]) == []


@pytest.mark.parametrize(
    ("line", "level", "message"),
    [
        ("(EngineCore pid=2) ERROR 10-21 09:00:09 [core.py:700]   File", "ERROR", "  File"),
        ("(VllmWorkerProcess pid=1252) ERROR 12-25 01:10:28 multiproc_worker_utils.py:229]   File", "ERROR", "  File"),
        ("INFO 11-15 09:07:04 api_server.py:528] vLLM API server version 0.6", "INFO", "vLLM API server version 0.6"),
        ("[rank0]: ValueError: x", "", "ValueError: x"),
        ("[rank0]:[W217 13:41:38.699860505 ProcessGroupNCCL.cpp:1487] Warning: w", "WARNING", "Warning: w"),
        ("INFO:     Application startup complete.", "INFO", "Application startup complete."),
        ("(Worker_TP0 pid=3) Loading", "", "Loading"),
        ("(a) plain", "", "(a) plain"),
        ("", "", ""),
    ],
)
def test_a_line_is_a_level_and_a_message(line: str, level: str, message: str) -> None:
    assert split_line(line) == (level, message)


def test_routine_of_every_version_is_not_telling() -> None:
    routine = ["INFO 11-15 09:07:04 api_server.py:528] version", "INFO:     Shutting down", "[W217 13:41 x.cpp:1] w"]
    assert telling_lines([*routine, "ValueError: x"]) == ["ValueError: x"]


def test_first_server_messages_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("of an earlier start\n")
    tail = LogTail(path, offset=path.stat().st_size)
    trace = "".join(f"line {number} of a traceback\n" for number in range(20))
    path.write_text("of an earlier start\n" + "why\n" + trace * 1000 + "the end")
    while tail.poll():
        pass
    assert "why" not in tail.lines
    assert tail.distinct_lines() == ["why", *trace.splitlines(), "the end"]
    path.unlink()
    assert tail.distinct_lines() == []
