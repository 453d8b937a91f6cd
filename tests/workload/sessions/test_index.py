"""Recorded sessions read from files: AgentX's format, Mooncake's rows, OpenTelemetry's spans, and broken ones."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.workload.sessions.data import SessionReader
from loadgen.workload.sessions.index import index_sessions
from loadgen.workload.sessions.recordings import otel_spans
from loadgen.workload.sessions.tree import SessionTree

WEKA: dict[str, Any] = {
    "id": "x1",
    "block_size": 64,
    "requests": [
        {"t": 0, "type": "s", "in": 320, "out": 40, "hash_ids": [1, 2, 3, 4, 5], "api_time": 2},
        {
            "t": 3,
            "type": "subagent",
            "requests": [
                {"t": 3, "type": "n", "in": 192, "out": 30, "hash_ids": [1, 2, 20], "api_time": 2},
                {"t": 7, "type": "n", "in": 256, "out": 27, "hash_ids": [1, 2, 20, 21], "api_time": 2},
            ],
        },
        {"t": 10, "type": "s", "in": 448, "out": 64, "hash_ids": [1, 2, 3, 4, 5, 6, 7], "api_time": 3},
    ],
}


def trees(path: Path, **options: int) -> list[SessionTree]:
    data = index_sessions(str(path), **options)
    reader = SessionReader(data)
    return [reader.tree(number) for number in range(data.sessions)]


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def changed(**changes: object) -> dict[str, Any]:
    """The session with other values of its last request."""
    return WEKA | {"requests": [*WEKA["requests"][:-1], WEKA["requests"][-1] | changes]}


def test_weka_sessions_have_the_edges_gaps_and_prefixes_of_the_recording(tmp_path: Path) -> None:
    (tree,) = trees(written(tmp_path / "one.json", WEKA))
    assert [(each.chain, each.after, each.gap_s) for each in tree.requests] == [
        (0, (), 0.0),
        (1, (0,), 1.0),
        (1, (1,), 2.0),
        (0, (0, 2), 1.0),
    ]
    assert [(each.base, each.shared) for each in tree.requests] == [(None, 0), (0, 2), (1, 3), (0, 5)]


def test_times_of_a_sub_agent_that_count_from_its_own_start_are_the_same_session(tmp_path: Path) -> None:
    own = [request | {"t": request["t"] - 3} for request in WEKA["requests"][1]["requests"]]
    relative = WEKA | {"requests": [WEKA["requests"][0], WEKA["requests"][1] | {"requests": own}, WEKA["requests"][2]]}
    assert trees(written(tmp_path / "a.json", relative)) == trees(written(tmp_path / "b.json", WEKA))


@pytest.mark.parametrize("form", ["lines", "array", "indented", "folder"])
def test_a_session_is_the_same_in_every_kind_of_file(tmp_path: Path, form: str) -> None:
    path = written(tmp_path / "a.json", WEKA)
    if form == "array":
        path.write_text(json.dumps([WEKA]))
    elif form == "indented":
        path.write_text(json.dumps(WEKA, indent=1))
    data = index_sessions(str(tmp_path if form == "folder" else path))
    assert (data.sessions, data.requests, data.subagents, data.isl, data.longest) == (1, 4, 1, 304, 512)
    assert data.note == "1 session of 4 requests and 1 sub-agent"


def test_requests_and_sessions_without_answers_are_left_out_and_counted(tmp_path: Path) -> None:
    silent = {"id": "x2", "requests": [{"t": 0, "in": 64, "out": 0}]}
    data = index_sessions(str(written(tmp_path / "a.json", changed(out=0), silent)))
    assert (data.sessions, data.left_out) == (1, 1)
    assert data.note == (
        "1 session of 3 requests and 1 sub-agent; left out: 1 session without answers; "
        "left out: 2 requests without answer tokens (requests that failed)"
    )
    with pytest.raises(ProfileError, match="no sessions to play; left out: 1 session without answers"):
        index_sessions(str(written(tmp_path / "b.json", silent)))


def test_sessions_that_begin_above_the_context_limit_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", WEKA)
    limited = index_sessions(str(path), max_context=360)
    assert (limited.sessions, limited.requests, limited.isl) == (1, 3, 256)  # the fourth is too long
    with pytest.raises(ProfileError, match=r"1 session whose first request is longer than load\.sessions\.max_context"):
        index_sessions(str(path), max_context=359)


@pytest.mark.parametrize(
    ("session", "problem"),
    [
        (changed(t=9) | {"requests": [*WEKA["requests"], {"t": 5, "in": 1, "out": 1}]}, "request 4: t = 5: expected"),
        (changed(t=-1), "request 3: t = -1: expected seconds, in ascending order"),
        (changed(api_time=-1), "request 3: api_time: expected seconds, not -1"),
        (changed(**{"in": -5}), "request 3: in: expected a number of tokens, not -5"),
        (
            WEKA | {"requests": WEKA["requests"][1:]},
            "'x1': a sub-agent starts at 3 s, before any request",
        ),
        (WEKA | {"requests": [{"t": 0, "type": "subagent"}]}, "request 1: expected the requests of a sub-agent"),
        (WEKA | {"block_size": 0}, "block_size: expected a number of tokens, not 0"),
        (WEKA | {"requests": 5}, "expected {.*; Expected `array`, got `int`"),
    ],
)
def test_a_broken_session_is_refused_with_its_file_line_and_request(
    tmp_path: Path, session: object, problem: str
) -> None:
    path = written(tmp_path / "broken.json", WEKA, session)
    with pytest.raises(ProfileError, match=rf"load\.sessions\.data: {re.escape(str(path))}: line 2: .*{problem}"):
        index_sessions(str(path))


def row(session: str, at_ms: float | None, isl: int, **more: object) -> dict[str, object]:
    return {"session_id": session, "timestamp": at_ms, "input_length": isl, "output_length": 10, **more}


def test_rows_of_mooncake_are_gathered_by_session_wherever_they_lie(tmp_path: Path) -> None:
    rows = [
        row("b", 0, 1024, hash_ids=[7, 8]),
        row("a", 100, 512, hash_ids=[7]),
        row("b", 4000, 1536, hash_ids=[7, 8, 9]),
        row("a", None, 1024, delay=2500, hash_ids=[7, 10]),
    ]
    first, second = trees(written(tmp_path / "a.jsonl", *rows))
    assert [(first.name, first.requests[1].gap_s), (second.name, second.requests[1].gap_s)] == [("b", 4), ("a", 2.5)]
    assert [(each.base, each.shared) for each in first.requests + second.requests] == [
        (None, 0),
        (0, 2),
        (None, 0),
        (0, 1),
    ]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([row("a", 5000, 512), row("a", 2000, 512)], "line 1: session 'a': a turn is 3 s before the one above"),
        ([row("a", 5000, 512), row("a", 0, 512)], "line 1: session 'a': a turn is 5 s before the one above"),
        ([row("a", 0, 512), row("a", None, 512, delay=-1)], "line 2: delay: expected milliseconds from 0, not -1"),
        ([row("a", 0, 512, hash_ids=[1, 2, 3])], "line 1: hash_ids: 3 blocks of 512 .* load.sessions.block_size"),
        ([{"timestamp": 0, "input_length": 5}], "line 1: expected sessions: .*; found input_length, timestamp"),
        ([[1]], "line 1: expected a JSON object"),
    ],
)
def test_broken_rows_are_refused(tmp_path: Path, rows: list[object], problem: str) -> None:
    with pytest.raises(ProfileError, match=problem):
        index_sessions(str(written(tmp_path / "a.jsonl", *rows)))


def span(name: str, parent: str, start_s: float, end_s: float, operation: str = "chat", more: Any = ()) -> Any:
    values: dict[str, Any] = {"gen_ai.operation.name": operation, **dict(more)}
    if operation == "chat":
        values = {"gen_ai.usage.input_tokens": 256, "gen_ai.usage.output_tokens": 9} | values
    wrapped = [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]
    times = {"startTimeUnixNano": str(int(start_s * 1e9)), "endTimeUnixNano": str(int(end_s * 1e9))}
    return {"traceId": "t", "spanId": name, "parentSpanId": parent, "attributes": wrapped, **times}


def otlp(*spans: Any) -> Any:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def test_spans_are_one_session_with_sub_agents_and_parallel_requests(tmp_path: Path) -> None:
    spans = [
        span("root", "", 0, 60, "invoke_agent"),
        span("1", "root", 1, 2),
        span("child", "root", 3, 9, "invoke_agent"),
        span("2", "child", 3, 4),
        span("3", "child", 5, 8),
        span("tool", "root", 2, 9, "execute_tool"),
        span("4", "root", 10, 14),
        span("5", "root", 11, 13),  # while the one before is open
        span("6", "lost", 20, 21),
    ]
    data = index_sessions(str(written(tmp_path / "a.json", otlp(*spans[:4]), otlp(*spans[4:]))))
    tree = SessionReader(data).tree(0)
    assert tree.parents == (None, 0, 0)
    assert [(each.chain, each.after, each.gap_s) for each in tree.requests] == [
        (0, (), 0),
        (1, (0,), 1),
        (1, (1,), 1),
        (0, (0, 2), 2),
        (2, (3,), 0),
        (0, (3, 4), 6),
    ]
    assert data.note is not None
    assert data.note.endswith("; 1 request without parent span in the file, taken as the outermost agent's")


def test_messages_say_what_a_prompt_repeats(tmp_path: Path) -> None:
    def asked(*texts: str) -> str:
        return json.dumps([{"role": "user", "content": text * 100} for text in texts])

    spans = [
        span("1", "", 0, 1, more={"gen_ai.input.messages": asked("a", "b")}),
        span(
            "2", "", 2, 3, more={"gen_ai.input.messages": asked("a", "b", "c", "d"), "gen_ai.usage.input_tokens": 512}
        ),
        span("3", "", 4, 5, more={"gen_ai.input.messages": asked("a", "x")}),
    ]
    (tree,) = trees(written(tmp_path / "a.json", otlp(*spans)))
    assert [(each.base, each.shared) for each in tree.requests] == [(None, 0), (0, 4), (1, 2)]


@pytest.mark.parametrize("rows", [[WEKA], [row("a", 0, 1024, hash_ids=[3, 4]), row("a", 9, 512, hash_ids=[3])]])
def test_a_whole_float_is_a_count_in_rows(tmp_path: Path, rows: list[object]) -> None:
    plain = written(tmp_path / "a.json", *rows)
    floats = tmp_path / "b.json"
    floats.write_text(re.sub(r"(?<=[ \[])([0-9]+)(?=[],}])", r"\1.0", plain.read_text()))
    assert trees(floats) == trees(plain)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from([int, float, str, lambda n: f"{n}.0"]))
def test_a_whole_float_is_a_count_and_a_time(isl: int, osl: int, form: Callable[[int], Any]) -> None:
    values = {"gen_ai.usage.input_tokens": form(isl), "gen_ai.usage.output_tokens": form(osl)}
    times = {"start_time_unix_nano": form(10**18), "end_time_unix_nano": form(10**18 + 10**9)}
    record = {"name": "chat", "span_id": "1", "trace_id": "t", "attributes": values, **times}
    (read,) = otel_spans(json.dumps(record).encode())
    assert (read.isl, read.osl, read.start_s, read.end_s) == (isl, osl, 1e9, 1e9 + 1)


@given(st.floats().filter(lambda number: not number.is_integer()) | st.text(st.characters(categories=["L"])))
def test_what_is_no_whole_number_is_no_count(given_count: object) -> None:
    attributes = {"gen_ai.usage.input_tokens": str(given_count) or "none"}
    record = {"span_id": "1", "attributes": attributes, "start_time": "2026-01-31", "end_time": "2026-01-31"}
    with pytest.raises(ValueError, match="input_tokens: expected a number of tokens"):
        list(otel_spans(json.dumps(record).encode()))


def test_times_of_spans_without_a_zone_are_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        times = {"start_time": "2026-01-31T12:00:00", "end_time": "2026-01-31T12:00:02Z"}
        spans = [
            {"span_id": "1", "trace_id": "t", "attributes": span("1", "", 0, 1)["attributes"], **times},
            {"span_id": "2", "trace_id": "t", "attributes": span("2", "", 0, 1)["attributes"], **times}
            | {"start_time": "2026-01-31T12:00:05", "end_time": "2026-01-31T12:00:06"},
        ]
        (tree,) = trees(written(tmp_path / "a.json", *spans))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [(each.at_s, each.gap_s) for each in tree.requests] == [(0, 0), (5, 3)]


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        ([span("1", "2", 0, 1), span("2", "1", 0, 1, "invoke_agent")], "span '1' is its own ancestor"),
        ([span("1", "", 5, 1)], "ends 4 s before it starts"),
        ([span("1", "", 0, 1, more={"gen_ai.usage.input_tokens": -3})], "input_tokens: expected a number of tokens"),
        ([span("1", "", 0, 1) | {"startTimeUnixNano": "x"}], "startTimeUnixNano: expected Unix nanoseconds"),
    ],
)
def test_broken_spans_are_refused(tmp_path: Path, spans: list[Any], problem: str) -> None:
    with pytest.raises(ProfileError, match=problem):
        index_sessions(str(written(tmp_path / "a.json", otlp(*spans))))


def test_generated_sessions_are_a_function_of_seed_and_number() -> None:
    sample, one, other = (
        index_sessions("sample"),
        *(index_sessions("generated", seed=seed, scale=0.1) for seed in (1, 2)),
    )
    assert len({sample.sha256, index_sessions("generated").sha256, one.sha256, other.sha256}) == 4
    assert sample == index_sessions("sample", seed=9)  # the sample is the same in every run
    assert SessionReader(one).tree(7) == SessionReader(one).tree(7) != SessionReader(other).tree(7)
    with pytest.raises(ProfileError, match=r"lower load\.sessions\.scale"):
        index_sessions("sample", max_context=100)
