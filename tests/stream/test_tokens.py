"""What is known of an answer's tokens, however a server reports them: a figure is right, or it is unknown."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from loadgen.schema.deltas import StageDelta
from tests.stream.test_channel import DONE, END, Wire, event, head

USAGES = (
    "cumulative",
    "end",
    "zero until the end",
    "null until the end",
    "with the last event",
    "every third event",
    "from the third event on",
    "of each event",
    "prompt only",
    "missing",
    "nonsense",
)
WORD = " word"


class Truth(Struct):
    """What an engine generated: the tokens of each event and the time before it."""

    usage: str
    tokens: list[int]
    gaps_ms: list[int]
    hidden: int = 0  # before the first event, and never streamed
    details: bool = False  # usage says how many
    silent_end: bool = False  # usage counts an end-of-sequence token
    chat: bool = False
    prompt: int = 7

    @property
    def total(self) -> int:
        return self.hidden + sum(self.tokens) + self.silent_end

    def counts(self, completion: Any) -> dict[str, Any]:
        counts = {"prompt_tokens": self.prompt, "completion_tokens": completion}
        return counts | ({"completion_tokens_details": {"reasoning_tokens": self.hidden}} if self.details else {})

    def usage_at(self, number: int) -> Any:
        """The usage in the event with this number."""
        so_far = self.hidden + sum(self.tokens[: number + 1])
        last = number == len(self.tokens) - 1
        return {
            "cumulative": self.counts(so_far),
            "zero until the end": self.counts(0),
            "null until the end": self.counts(None),
            "with the last event": self.counts(self.total) if last else None,
            "every third event": self.counts(so_far) if number % 3 == 2 else None,
            "from the third event on": self.counts(so_far) if number >= 2 else None,
            "of each event": self.counts(self.tokens[number]),
            "prompt only": {"prompt_tokens": self.prompt},
            "nonsense": [{"completion_tokens": -3}, 17, {"completion_tokens": "x"}][number % 3],
        }.get(self.usage)

    @property
    def has_total(self) -> bool:
        return self.usage not in ("missing", "prompt only", "nonsense")


def measured(truth: Truth) -> StageDelta:
    """The account of the stream that this engine serves."""
    wire = Wire().read(head(), 1)
    at_ms = 1
    for number, (tokens, gap_ms) in enumerate(zip(truth.tokens, truth.gaps_ms, strict=True)):
        at_ms += gap_ms
        words = WORD * tokens
        output: dict[str, Any] = {"delta": {"content": words}} if truth.chat else {"text": words}
        finish = "length" if number == len(truth.tokens) - 1 else None
        wire.read(event({"choices": [{**output, "finish_reason": finish}], "usage": truth.usage_at(number)}), at_ms)
    closing = b""
    if truth.has_total and truth.usage != "with the last event":
        closing = event({"choices": [], "usage": truth.counts(truth.total)})
    wire.read(closing + DONE + END, at_ms + 1)
    return wire.delta()


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    several, usage = draw(st.booleans()), draw(st.sampled_from(USAGES))
    # Two counts that do not add up may be those of a token without an event: it takes more to see that they are not.
    least = 8 if usage == "of each event" else 1
    tokens = draw(st.lists(st.integers(1, 5) if several else st.just(1), min_size=least, max_size=40))
    hidden = draw(st.sampled_from([0, 0, 3 * sum(tokens) + 10]))
    return Truth(
        usage=usage,
        tokens=tokens,
        gaps_ms=draw(st.lists(st.integers(1, 60), min_size=len(tokens), max_size=len(tokens))),
        hidden=hidden,
        details=hidden > 0 and draw(st.booleans()),
        silent_end=draw(st.booleans()),
        chat=draw(st.booleans()),
    )


@given(truths())
def test_a_figure_is_right_or_unknown(truth: Truth) -> None:
    found = measured(truth)
    assert (found.completed, found.errors) == (1, {})
    assert found.latency["ttft"].sum_us == 1000 * (1 + truth.gaps_ms[0])
    assert found.latency["e2e"].sum_us == 1000 * (1 + sum(truth.gaps_ms))
    _check_counts(truth, found)
    _check_gaps(truth, found)
    _check_tpot(truth, found)


def _check_counts(truth: Truth, found: StageDelta) -> None:
    by_events = not truth.has_total
    assert found.counted_by_events == by_events
    assert found.output_tokens == (len(truth.tokens) if by_events else truth.total)
    knows_prompt = truth.usage not in ("missing", "nonsense")
    assert (found.input_tokens, found.unknown_input) == ((7, 0) if knows_prompt else (0, 1))
    assert found.hidden_tokens in (0, truth.hidden)


def _check_gaps(truth: Truth, found: StageDelta) -> None:
    gaps = found.latency.get("chunk_gap", found.latency.get("itl"))
    later = truth.gaps_ms[1:]
    if later:
        assert gaps is not None
        assert (gaps.count, gaps.sum_us) == (len(later), 1000 * sum(later))
    itl = found.latency.get("itl")
    if itl is None or found.uneven_streams or not truth.has_total:
        return
    # Only tokens that the server did not attribute, within the tolerance, may be missing.
    tokens = sum(truth.tokens[1:])
    assert abs(itl.count - tokens) <= max(1, 0.01 * len(truth.tokens))
    if itl.count == tokens:
        assert abs(itl.sum_us - 1000 * sum(later)) <= itl.count  # each is rounded down to 1 us


def _check_tpot(truth: Truth, found: StageDelta) -> None:
    span_ms, events = sum(truth.gaps_ms[1:]), len(truth.tokens)
    tpot = found.latency.get("tpot")
    if tpot is None:
        assert events == 1 or found.unknown_tpot
        return
    true_ms = span_ms / sum(truth.tokens[1:])
    if not truth.has_total:
        true_ms = span_ms / (events - 1)  # by events, as the result says
    elif found.uneven_streams:
        # On average over the events: the first is taken for as many tokens as the others.
        streamed = sum(truth.tokens) + truth.silent_end
        true_ms = span_ms / ((events - 1) * streamed / events)
    elif truth.usage != "cumulative":
        true_ms = span_ms / (events - 1)
        assert abs(sum(truth.tokens) - events) <= max(1, 0.01 * events)
    assert abs(tpot.sum_us / 1000 - true_ms) <= 0.001 + 1e-9 * true_ms


def test_hidden_reasoning_is_in_no_tpot() -> None:
    for usage in ("cumulative", "end", "zero until the end", "with the last event"):
        truth = Truth(usage, [1] * 20, [400, *[20] * 19], hidden=200, details=True)
        found = measured(truth)
        assert found.latency["tpot"].sum_us == 20_000, usage
        assert (found.output_tokens, found.hidden_tokens) == (220, 200), usage


def test_hidden_tokens_of_unknown_number_leave_tpot_unknown() -> None:
    found = measured(Truth("end", [1] * 20, [400, *[20] * 19], hidden=200))
    assert "tpot" not in found.latency
    assert (found.unknown_tpot, found.uneven_streams) == (1, 1)


def test_several_tokens_an_event_with_a_total_have_a_mean() -> None:
    found = measured(Truth("end", [4] * 20, [100, *[40] * 19]))
    assert found.latency["tpot"].sum_us == 10_000
    assert found.uneven_streams == 1


def test_usage_that_falls_is_not_believed() -> None:
    wire = Wire().read(head(), 1)
    for number, count in enumerate([1, 2, 3, 9, 4, 5, 6]):
        chunk = {"choices": [{"text": WORD, "finish_reason": None}], "usage": {"completion_tokens": count}}
        wire.read(event(chunk), 10 + 10 * number)
    wire.read(event({"choices": [], "usage": {"completion_tokens": 2}}) + DONE + END, 90)
    found = wire.delta()
    assert (found.completed, found.counted_by_events, found.uneven_streams, found.unknown_tpot) == (1, 1, 1, 1)
    assert "tpot" not in found.latency


def test_prompts_sent_as_ids_are_known_without_usage() -> None:
    wire = Wire()
    wire.stream.sent_ids = 64
    wire.read(head() + event({"choices": [{"text": "a", "finish_reason": "stop"}]}) + DONE + END, 10)
    found = wire.delta()
    assert (found.input_tokens, found.unknown_input, found.latency["normalized"].count) == (64, 0, 1)


def test_short_answers_are_counted_only_where_their_length_is_known() -> None:
    for usage, short in (("cumulative", 1), ("end", 1), ("missing", 0)):
        wire = Wire()
        wire.stream.osl = 128
        truth = Truth(usage, [1] * 3, [1] * 3)
        wire.read(head(), 1)
        for number in range(3):
            wire.read(event({"choices": [{"text": WORD}], "usage": truth.usage_at(number)}), 10 + number)
        closing = event({"choices": [], "usage": truth.counts(3)}) if truth.has_total else b""
        wire.read(closing + DONE + END, 20)
        found = wire.delta()
        assert (found.short_answers, found.requested_tokens) == (short, 128 * short)
