"""The verdict `output-degenerate`: found within seconds, and never on a healthy engine."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.difference import chance_of_rise
from loadgen.record.output import DOUBT, answer_verdicts, degenerate
from loadgen.record.stage import ANSWERS_BLOCK_S, StageRecord
from loadgen.schema.deltas import StageDelta
from loadgen.schema.engine import EngineStage, EngineView
from loadgen.schema.journal import StageStarted

PER_MINUTE = 4 * 60  # answers that one worker looks at


def seen(read: int, loops: dict[str, int] | None = None, **kinds: int) -> StageDelta:
    """What a tick says of so many answers."""
    found = kinds | ({"repeating": sum(loops.values())} if loops else {})
    return StageDelta(answers=read, degenerate=found, loops=loops or {})


def look(record: StageRecord, delta: StageDelta, t_s: float) -> None:
    """Take it in as the fold of a journal does."""
    record.metrics.add(delta)
    record.add_answers(delta, t_s)


def stage(index: int, *answers: StageDelta, parts: tuple[StageDelta, ...] = (), osl: int = 64) -> StageRecord:
    """A stage that looked at these, half a minute after each other; of several servers, at `parts`."""
    record = StageRecord(StageStarted(t_s=0.0, index=index, concurrency=8, rate=None, isl=16, osl=osl))
    for block, delta in enumerate(answers):
        look(record, delta, ANSWERS_BLOCK_S * block)
    for number, part in enumerate(parts):
        look(record.part(number), part, 0.0)
    return record


def words(own: StageRecord, *others: StageRecord, urls: tuple[str, ...] = ()) -> list[str]:
    verdicts = list(answer_verdicts(own, [own, *others], urls))
    assert {(verdict.id, verdict.bad) for verdict in verdicts} <= {("output-degenerate", True)}
    return [verdict.text for verdict in verdicts]


def one_flaw(count: int) -> list[StageDelta]:
    return [seen(count, unreadable=count), seen(count, blank=count), seen(count, {"!": count})]


def test_the_same_flaw_in_most_answers_is_reported_within_seconds() -> None:
    assert [len(words(stage(0, flawed))) for flawed in one_flaw(15)] == [1, 1, 1]
    assert [words(stage(0, flawed)) for flawed in one_flaw(8)] == [[], [], []]
    # A fifth of them may be by chance; next to a stage without, they are not.
    assert words(stage(0, seen(PER_MINUTE, blank=PER_MINUTE // 5))) == []


def test_many_different_loops_are_no_verdict() -> None:
    loops = {f" word{number}": 2 for number in range(90)}
    assert words(stage(0, seen(PER_MINUTE, loops))) == []
    # Against the same model under another load they would be a rise.
    assert words(stage(1, seen(PER_MINUTE, loops)), stage(0, seen(PER_MINUTE, loops))) == []
    (reported,) = words(stage(1, seen(PER_MINUTE, loops)), stage(0, seen(60)))
    assert (
        reported == "degenerate text: 180 of 240 answers repeat themselves (' word0' over and over); stage 1: 0 of 60"
    )


def test_share_of_broken_answers_is_found_within_a_minute() -> None:
    assert words(stage(1, seen(PER_MINUTE, blank=PER_MINUTE // 10)), stage(0, seen(PER_MINUTE)))
    assert not words(stage(1, seen(PER_MINUTE, blank=3)), stage(0, seen(PER_MINUTE)))


def test_other_lengths_say_nothing() -> None:
    own = stage(1, seen(40, {str(number): 1 for number in range(40)}))
    assert words(own, stage(0, seen(40)))
    assert not words(own, stage(0, seen(40), osl=128))


def test_one_server_of_several_is_named() -> None:
    broken, good = seen(30, unreadable=30), seen(30)
    both = stage(0, seen(60, unreadable=30), parts=(good, broken))
    (reported,) = words(both, urls=("http://a", "http://b"))
    assert reported.startswith("http://b: degenerate text: 30 of 30 answers are not readable")
    all_of_them = stage(0, seen(60, unreadable=60), parts=(broken, broken))
    (reported,) = words(all_of_them, urls=("http://a", "http://b"))
    assert reported == "degenerate text: 60 of 60 answers are not readable"


def test_what_a_server_says_cannot_paint_the_screen() -> None:
    (reported,) = words(stage(0, seen(20, {"\x1b[2J\n": 20})))
    assert "\x1b" not in reported
    assert "\n" not in reported


def test_answers_that_do_not_end_where_they_did_before() -> None:
    def ended(index: int, length: int, stop: int) -> StageRecord:
        record = stage(index, seen(0))
        record.engine = EngineStage(finished={"length": length, "stop": stop, "abort": 5})
        return record

    (reported,) = words(ended(1, 98, 2), ended(0, 30, 170))
    assert reported == "answers do not end: 98 of 100 ran into their limit, in stage 1 30 of 200"
    running, now = stage(1, seen(0)), EngineView(finished={"length": 40, "stop": 1})
    before = ended(0, 30, 170)
    assert not words(running, before)
    assert [one.text for one in answer_verdicts(running, [before, running], (), now)] == [
        "answers do not end: 40 of 41 ran into their limit, in stage 1 30 of 200"
    ]
    assert not words(ended(1, 98, 2), ended(0, 110, 90))  # a stage's length decides which answers end in it
    assert not words(ended(1, 100, 0), ended(0, 100, 0))  # `ignore_eos`


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_the_chance_is_that_of_fishers_exact_test(bad: int, good: int, other_bad: int, other_good: int) -> None:
    read, other_read = bad + good, other_bad + other_good
    chance = chance_of_rise(bad, read, other_bad, other_read)
    if bad * other_read <= other_bad * read:
        assert chance == 1
        return
    flawed, everything = bad + other_bad, read + other_read
    ways = sum(
        math.comb(flawed, n) * math.comb(everything - flawed, read - n) for n in range(bad, flawed + 1) if n <= read
    )
    assert chance == pytest.approx(ways / math.comb(everything, read), rel=1e-6)


def test_healthy_engine_has_no_verdict_for_an_hour() -> None:
    """A model with a share of loops, some of them favourites, while another stage: looked at after each answer."""
    random = Random(7)
    favourites = ["\n\n-", " 0", " the", *(f"w{number}" for number in range(40))]

    def answer() -> dict[str, int]:
        return {random.choice(favourites): 1} if random.random() < 0.3 else {}

    before, now = stage(0), stage(1)
    for number in range(PER_MINUTE):
        look(before, seen(1, answer()), number / 4)
    for number in range(60 * PER_MINUTE):
        look(now, seen(1, answer()), number / 4)
        block = int(number / 4 // ANSWERS_BLOCK_S)
        # Every look of the hour: at the block that grows, next to the rest and next to the other stage.
        assert not degenerate(now.answer_blocks[block], {"stage 1": before.answers})
        assert number % 40 or not words(now, before)
    assert now.answers.read == 60 * PER_MINUTE
    assert DOUBT * 60 * PER_MINUTE * 4 < 0.01


def test_what_begins_after_an_hour_is_reported_within_seconds_and_stays_reported() -> None:
    hour = [seen(120, {f"w{number % 7}": 1}) for number in range(120)]
    assert not words(stage(0, *hour))
    assert words(stage(0, *hour, seen(40, blank=30))) == ["degenerate text: 30 of 40 answers are blank"]
    (reported,) = words(stage(0, *hour, seen(40, blank=12)))
    assert reported == "degenerate text: 12 of 40 answers are blank; the rest of the stage: 120 of 14400"
    assert words(stage(0, *hour, seen(40, blank=12), *hour))


def test_the_result_keeps_the_most_frequent_loops() -> None:
    reported = stage(0, seen(10, {"a": 1, "b": 5}), seen(20, {"c": 3, "d": 4})).answers
    assert (reported.read, reported.degenerate, list(reported.loops)) == (30, {"repeating": 13}, ["b", "d", "c"])
