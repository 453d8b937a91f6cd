"""Requests on one worker: the same whoever writes them and when, and conversations in their order."""

import asyncio
import json
from functools import partial

import pytest

from loadgen.worker.queues import ArrivalQueue, RequestQueue, Turn
from loadgen.workload.prompts import FALLBACK_IDS, token_prompts
from loadgen.workload.work import Work
from tests.worker.test_stage_run import command_of


def requests(work: Work, rank: int = 0, ranks: int = 1) -> RequestQueue:
    return RequestQueue(command_of(rank, ranks, isl=16, work=work), token_prompts(FALLBACK_IDS, 5), 5)


def body(wire: bytes) -> dict[str, object]:
    document: dict[str, object] = json.loads(wire.partition(b"\r\n\r\n")[2])
    return document


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_requests_do_not_depend_on_the_number_of_workers(ranks: int) -> None:
    work = Work(isl="uniform:8:32", osl="uniform:1:9")
    whole = requests(work)
    expected = {whole.take() for _ in range(12)}
    parts = [requests(work, rank, ranks) for rank in range(ranks)]
    assert {part.take() for part in parts for _ in range(12 // ranks)} == expected
    assert {body(written.wire)["max_tokens"] for _, written in expected} <= set(range(1, 10))


def test_written_ahead_or_not_it_is_the_same() -> None:
    ahead, late = requests(Work(isl="uniform:8:32")), requests(Work(isl="uniform:8:32"))
    while ahead.write_ahead(3):
        pass
    assert [ahead.take() for _ in range(5)] == [late.take() for _ in range(5)]


def test_a_due_turn_comes_before_a_new_conversation() -> None:
    talks = requests(Work(turns=2))
    first, _ = talks.take()
    following = talks.following(first)
    assert following == Turn(0, 1)
    while talks.write_ahead(2):
        pass
    talks.due.append(following)
    turn, written = talks.take()
    assert turn == following
    prompt = body(written.wire)["prompt"]
    assert isinstance(prompt, list)
    assert len(prompt) == 16 + 4 + 16
    assert talks.following(turn) is None
    assert talks.take()[0] == Turn(1)


def test_a_conversation_that_is_over_keeps_nothing() -> None:
    talks = requests(Work(turns=2))
    written, unwritten = talks.take()[0], None
    while talks.write_ahead(0):
        pass
    unwritten = talks.take()[0]
    talks.forget(written)
    talks.forget(unwritten)
    assert not talks.write_ahead(0)


async def test_wall_clock_step_does_not_change_waiting_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Clocks of the test's own: one of them is stepped back by an hour.
    now_ns, hour_ns = 7_200_000_000_000, 3_600_000_000_000
    monkeypatch.setattr("time.monotonic_ns", lambda: now_ns)
    monkeypatch.setattr("time.time_ns", lambda: 10 * hour_ns)
    arrivals = ArrivalQueue(asyncio.get_running_loop(), lambda: None)
    arrivals.begin(now_ns - 5_000, 1.0, partial(next, iter([0, 1_000]), None))
    assert arrivals.take_due() and arrivals.take_due() and not arrivals.take_due()
    monkeypatch.setattr("time.time_ns", lambda: 9 * hour_ns)
    assert arrivals.take_waiting() == 9 * hour_ns - 5_000
    assert arrivals.end() == [9 * hour_ns - 4_000]
