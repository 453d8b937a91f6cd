"""A sample of what streams say, kept off the timed path: the beginning of one answer a tick.

The output of such a stream takes the way of odd events, `Channel._take_odd_output`, which keeps it; to the way of all
others nothing is added. Each answer is followed from its first token for `EVENTS` events, so that those under one load
can be held against those under another, and judged at a tick.
"""

from __future__ import annotations

from typing import NamedTuple

from loadgen.metrics.degenerate import LEAST_EVENTS
from loadgen.stream.channel import Channel
from loadgen.stream.events import said
from loadgen.stream.samples import StageSamples
from loadgen.stream.stream import Stream

EVENTS = 256
_MOST_DUE = 4


class _Followed(NamedTuple):
    channel: Channel
    stream: Stream
    samples: StageSamples  # of the stage in which it was sent


class AnswerSampler:
    """Follows a few streams and counts what is wrong with them in the stage in which they were sent."""

    def __init__(self, *, wanted: bool) -> None:
        """Without `wanted` no stream is followed."""
        self.due = int(wanted)
        """So many of the next streams that are sent are to be followed; where all are sent at once, a few of them."""
        self._wanted = wanted
        self._followed: list[_Followed] = []

    def follow(self, channel: Channel, stream: Stream) -> None:
        self.due -= 1
        stream.pieces = []
        self._followed.append(_Followed(channel, stream, stream.samples))

    def tick(self) -> None:
        """Judge what is complete; a stream that failed, or outlived its stage, says nothing about a load."""
        self.due = min(self.due + self._wanted, _MOST_DUE)
        self._followed = [followed for followed in self._followed if not _judged(followed)]


def _judged(followed: _Followed) -> bool:
    """Whether there is nothing more to wait for."""
    channel, stream, samples = followed
    pieces = stream.pieces or []
    over = channel.stream is not stream
    within = stream.samples is samples
    if within and not over and len(pieces) < EVENTS:
        return False
    stream.pieces = None
    texts = [said(piece) for piece in pieces[:EVENTS]]
    if within and (stream.done or not over) and len(texts) >= LEAST_EVENTS and None not in texts:
        samples.note_answer("".join(filter(None, texts)))
    return True
