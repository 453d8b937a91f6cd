"""A stall is called when nothing moves for longer than this run is used to, and never for a long prompt."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.stall import MAX_STEP_S, MIN_STALL_S, Stall, StallKind, StallSample, StallWatch
from loadgen.schema.engine import EngineView

FROZEN = EngineView(running=8.0, waiting=0.0, kv_usage=0.4, generation_tokens_per_s=0.0, prompt_tokens_per_s=0.0)
WORKING = EngineView(running=8.0, waiting=0.0, kv_usage=0.4, generation_tokens_per_s=900.0)


def moment(t_s: float, engine: EngineView | None = FROZEN, **changes: object) -> StallSample:
    seen = StallSample(
        t_s, heard=False, open_streams=8, answered=True, engine=engine, gfx_percent=None, waits_for_worker=False
    )
    return seen._replace(**changes)  # type: ignore[arg-type]


def watch(moments: Iterable[StallSample]) -> tuple[StallWatch, list[Stall]]:
    one = StallWatch()
    ended = [stall for each in moments if (stall := one.add(each)) is not None]
    return one, ended


def silence(from_s: int, to_s: int, **changes: object) -> list[StallSample]:
    return [moment(t_s, **changes) for t_s in range(from_s, to_s)]  # type: ignore[arg-type]


def talk(from_s: int, to_s: int) -> list[StallSample]:
    return [moment(t_s, WORKING, heard=True) for t_s in range(from_s, to_s)]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"gfx_percent": 99.0}, "kernel"),
        ({"gfx_percent": 99.0, "waits_for_worker": True}, "collective"),
        ({"gfx_percent": 0.0}, "lost-wakeup"),
        ({"gfx_percent": 40.0}, "unknown"),
        ({}, "unknown"),
        ({"engine": EngineView(running=0.0, waiting=5.0, kv_usage=0.0, generation_tokens_per_s=0.0)}, "scheduler"),
    ],
)
def test_a_stall_has_the_kind_that_is_seen(changes: dict[str, object], kind: StallKind) -> None:
    found, _ = watch([*talk(0, 20), *silence(20, 60, **changes)])
    assert found.stall is not None
    assert (found.stall.kind, found.stall.since_s) == (kind, 20)


def test_a_stall_of_an_engine_without_gauges_has_no_figures() -> None:
    found, _ = watch([*talk(0, 10), *silence(10, 60, engine=EngineView(generation_tokens_per_s=0.0))])
    assert found.stall is not None
    assert found.stall.words(60.0) == "stalled for 50 s: requests are open, but no token comes"


def test_a_stall_that_clears_is_returned_with_its_length() -> None:
    found, [ended] = watch([*talk(0, 10), *silence(10, 80), *talk(80, 90)])
    assert found.stall is None
    assert (ended.since_s, ended.ended_s, ended.cleared) == (10, 80, True)
    assert ended.words(90.0).startswith("stalled for 70 s: requests are open, but no token comes (8 running, 0 waiting")


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param([*talk(0, 10), *silence(10, 39)], id="not long enough"),
        pytest.param(silence(0, 200, open_streams=0, engine=EngineView(running=0.0, waiting=0.0)), id="no work"),
        pytest.param(silence(0, 200, engine=None), id="engine unknown"),
        pytest.param([moment(t, WORKING) for t in range(200)], id="tokens flow to others"),
        pytest.param(
            [moment(t, EngineView(running=1.0, kv_usage=t / 200, generation_tokens_per_s=0.0)) for t in range(200)],
            id="a long prompt fills the KV cache",
        ),
        pytest.param([*silence(0, 25), *talk(25, 30), *silence(30, 130)], id="this run has come out of 25 s before"),
    ],
)
def test_no_stall_is_called(moments: list[StallSample]) -> None:
    found, ended = watch(moments)
    assert (found.stall, ended) == (None, [])


def test_a_server_that_vramp_sends_nothing_to_stalls_by_its_own_requests() -> None:
    found, _ = watch(silence(0, 60, open_streams=0))
    assert found.stall is not None


@pytest.mark.parametrize("changes", [{}, {"gfx_percent": 99.0}, {"gfx_percent": 0.0}, {"waits_for_worker": True}])
def test_before_the_first_answer_a_long_prefill_looks_the_same(changes: dict[str, object]) -> None:
    asked = {"answered": False, **changes}
    found, _ = watch([*talk(0, 20), *silence(20, 60, **asked)])
    assert found.stall is not None and not found.stall.is_certain
    assert found.stall.words(60.0).startswith(
        "no output for 40 s: a stall, or a long prefill or compilation (8 running, "
    )
    found, _ = watch([*talk(0, 20), *silence(20, 22 + int(MAX_STEP_S), **asked)])
    assert found.stall is not None and found.stall.is_certain


def test_a_scheduler_that_admits_nothing_prefills_nothing() -> None:
    idle = EngineView(running=0.0, waiting=5.0, kv_usage=0.0, generation_tokens_per_s=0.0)
    found, _ = watch(silence(0, 60, engine=idle, answered=False))
    assert found.stall is not None and found.stall.kind == "scheduler"


def test_a_run_is_used_to_the_long_prefill_that_it_has_come_out_of() -> None:
    found, [ended] = watch([*talk(0, 10), *silence(10, 60, answered=False), *talk(60, 70), *silence(70, 200)])
    assert found.stall is None and ended.words(0.0).startswith("no output for 50 s")


def test_others_requests_are_not_judged_by_an_engine_that_counts_tokens_at_their_end() -> None:
    tgi = EngineView(running=8.0, waiting=0.0, generation_tokens_per_s=0.0)
    found, _ = watch(silence(0, 400, open_streams=0, engine=tgi))
    assert found.stall is None


@given(st.lists(st.tuples(st.booleans(), st.floats(0.1, 60.0)), max_size=60))
def test_a_stall_is_never_shorter_than_the_limit(steps: list[tuple[bool, float]]) -> None:
    one, t_s = StallWatch(), 0.0
    for heard, dt_s in steps:
        t_s += dt_s
        one.add(moment(t_s, WORKING if heard else FROZEN, heard=heard))
        assert one.stall is None or t_s - one.stall.since_s > MIN_STALL_S


def test_a_page_that_does_not_answer_does_not_end_a_stall() -> None:
    found, ended = watch([*talk(0, 10), *silence(10, 60), moment(60.0, None), *silence(61, 62)])
    assert found.stall is not None and ended == []


def test_what_the_log_said_counts_until_something_moves() -> None:
    said = [moment(15.0, waits_for_worker=True)]
    found, _ = watch([*talk(0, 10), *silence(10, 15), *said, *silence(16, 60, gfx_percent=0.0)])
    assert found.stall is not None and found.stall.kind == "collective"
    found, _ = watch([*talk(0, 10), *silence(10, 15), *said, *talk(16, 20), *silence(20, 60, gfx_percent=0.0)])
    assert found.stall is not None and found.stall.kind == "lost-wakeup"


def test_a_stall_whose_requests_end_has_not_cleared() -> None:
    idle = EngineView(running=0.0, waiting=0.0, kv_usage=0.0, generation_tokens_per_s=0.0)
    found, [ended] = watch([*talk(0, 10), *silence(10, 60), moment(60.0, idle, open_streams=0)])
    assert found.stall is None and not ended.cleared
