"""A sample of the answers' text, kept off the timed path: the beginning of one answer per tick.

A sampled stream's output takes the path of odd events, `Channel._take_odd_output`, which keeps it; all other streams
pay nothing. Each answer is kept from its first token for `EVENTS` events, so that answers are comparable
between loads, and checked at a tick.
"""

from __future__ import annotations

from loadgen.metrics.degenerate import MIN_EVENTS
from loadgen.stream.channel import Channel
from loadgen.stream.events import text_of
from loadgen.stream.samples import StageSamples
from loadgen.stream.stream import Stream

EVENTS = 256
_MAX_DUE = 4


class AnswerSampler:
    """Keeps the answers of a few streams and counts degenerate ones in the stage in which they were sent."""

    def __init__(self, *, wanted: bool) -> None:
        """Unless `wanted`, no stream is sampled."""
        self.due = int(wanted)
        """How many of the next streams to sample; it accumulates, so a burst of requests yields a few samples."""
        self._wanted = wanted
        self._followed: list[tuple[Channel, Stream, StageSamples]] = []  # with the samples of the stage of its sending

    def follow(self, channel: Channel, stream: Stream) -> None:
        self.due -= 1
        stream.pieces = []
        self._followed.append((channel, stream, stream.samples))

    def tick(self) -> None:
        """Check the complete answers; failed streams and those that outlived their stage say nothing about a load."""
        self.due = min(self.due + self._wanted, _MAX_DUE)
        self._followed = [followed for followed in self._followed if not _judged(*followed)]


def _judged(channel: Channel, stream: Stream, samples: StageSamples) -> bool:
    """Check an answer once enough of it has arrived; returns False until then."""
    pieces = stream.pieces or []
    over = channel.stream is not stream
    within = stream.samples is samples
    if within and not over and len(pieces) < EVENTS:
        return False
    stream.pieces = None
    texts = [text_of(piece) for piece in pieces[:EVENTS]]
    if within and (stream.completed or not over) and len(texts) >= MIN_EVENTS and None not in texts:
        samples.note_answer("".join(filter(None, texts)))
    return True
