"""Which answers are looked at, and what of them."""

import pytest

from loadgen.stream.samples import StageSamples
from loadgen.worker.sampling import EVENTS, AnswerSampler
from tests.stream.test_channel import DONE, END, Wire, delta, event, head, text
from tests.stream.test_responses import text as response_text


class Followed(Wire):
    """A channel whose stream is followed."""

    def __init__(self) -> None:
        super().__init__()
        self.sampler = AnswerSampler(wanted=True)
        self.sampler.follow(self.channel, self.stream)
        self.read(head(), 1)

    def say(self, *events: bytes, ended: bool = True) -> None:
        for at_ms, data in enumerate(events, 2):
            self.read(data, at_ms)
        if ended:
            self.read(text("", finish="stop") + DONE + END, len(events) + 2)

    def judged(self, samples: StageSamples | None = None) -> tuple[int, dict[str, int], dict[str, int]]:
        """What is known at the next tick."""
        self.sampler.tick()
        counts = samples or self.samples
        return counts.answers, counts.degenerate, counts.loops


BANGS = 40 * [text("!")]


@pytest.mark.parametrize(
    "events",
    [
        BANGS,
        40 * [delta(content="!")],
        40 * [delta(reasoning_content="!")],
        40 * [response_text("!")],
        20 * [text("!!"), text("!")],
    ],
)
def test_a_whole_answer_is_judged_once(events: list[bytes]) -> None:
    wire = Followed()
    wire.say(*events)
    assert wire.judged() == (1, {"repeating": 1}, {"!": 1})
    assert wire.judged() == (1, {"repeating": 1}, {"!": 1})
    drained = wire.delta()
    assert (drained.answers, drained.degenerate, drained.loops) == (1, {"repeating": 1}, {"!": 1})
    assert wire.delta().answers == 0


def test_long_answer_is_judged_by_its_beginning() -> None:
    wire = Followed()
    wire.say(*(text(f"word{number} ") for number in range(EVENTS - 1)), ended=False)
    assert wire.judged() == (0, {}, {})
    wire.say(*BANGS, ended=False)
    assert wire.judged() == (1, {}, {})
    assert wire.stream.pieces is None
    wire.say(text("a"), ended=False)
    assert wire.stream.plain


def test_tokens_without_text_are_a_blank_answer() -> None:
    wire = Followed()
    wire.say(*(text("", usage) for usage in range(1, 30)))
    assert wire.judged() == (1, {"blank": 1}, {})


@pytest.mark.parametrize(
    "events",
    [
        7 * [text("!")],
        [*BANGS, event({"error": {"message": "engine died"}})],
        [*BANGS, delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}])],
    ],
)
def test_what_is_short_failed_or_calls_a_tool_says_nothing(events: list[bytes]) -> None:
    wire = Followed()
    for at_ms, data in enumerate([*events, text("", finish="stop") + DONE + END], 2):
        if wire.channel.stream is not None:
            wire.read(data, at_ms)
    assert wire.judged() == (0, {}, {})
    assert wire.stream.pieces is None


def test_an_answer_that_outlives_its_stage_says_nothing_about_either() -> None:
    wire, later = Followed(), StageSamples()
    wire.say(*BANGS, ended=False)
    wire.stream.leave_window(100)
    wire.stream.enter_window(later)
    assert wire.judged() == wire.judged(later) == (0, {}, {})


def test_one_is_followed_a_tick_and_none_unless_it_is_wanted() -> None:
    sampler = Followed().sampler
    due = [AnswerSampler(wanted=True).due, sampler.due]
    for _ in range(10):
        sampler.tick()
        due.append(sampler.due)
    assert due == [1, 0, 1, 2, 3, *7 * [4]]
    unwanted = AnswerSampler(wanted=False)
    unwanted.tick()
    assert not unwanted.due
