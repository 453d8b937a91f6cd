"""What goes through a worker's pipes: commands in, ticks out, one line of JSON each.

Times of the schedule are CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.
"""

from __future__ import annotations

import msgspec

from loadgen.metrics.deltas import ClientDelta, StageDelta, StreamRow
from loadgen.plan.stage import Stage
from loadgen.stream.request import RequestTemplate, ServerAddress
from loadgen.workload.arrivals import share_of
from loadgen.workload.prompts import Prompts, text_prompts, token_prompts

TICK_NS = 250_000_000
"""Workers tick at multiples of this on CLOCK_MONOTONIC, so that ticks of one number cover the same time."""


class Vocabulary(msgspec.Struct, frozen=True):
    """What prompts are made of: token ids, or words with the tokens that a chat template adds."""

    ids: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    overhead: int = 0


def prompts_of(vocabulary: Vocabulary, seed: int) -> Prompts:
    if vocabulary.words:
        return text_prompts(vocabulary.words, seed, overhead=vocabulary.overhead)
    return token_prompts(vocabulary.ids, seed)


class Configure(msgspec.Struct, frozen=True, tag=True):
    """The first command: who this worker is and where the server is."""

    address: ServerAddress
    vocabulary: Vocabulary
    seed: int
    timeout_s: float
    stall_timeout_s: float
    connect_timeout_s: float
    worker: int = 0
    verify_tls: bool = True
    realtime_share: float = 0.0
    """Run before all other processes, where the system lets it, while it takes no more of a core than this."""
    sample_answers: bool = False  # look at a few answers for text that is degenerate
    rows: bool = False  # send a row for each stream that is over


class BeginStage(msgspec.Struct, frozen=True, tag=True):
    """End the running stage and begin this one; streams on their way are carried over into it."""

    index: int
    stage: Stage  # of all workers together
    template: RequestTemplate
    rank: int
    ranks: int
    """This worker takes every `ranks`-th request, beginning with `rank`; ranks beyond the concurrency have none."""
    start_ns: int
    waits: bool = False  # everything is warm-up until `OpenWindow`
    first_wave_apart: bool = False  # the streams that fill the closed loop at its beginning are told apart

    @property
    def warmup_ns(self) -> int:
        return int(self.stage.warmup_s * 1e9)

    @property
    def key(self) -> int:
        """What prompts and arrivals are drawn by."""
        return self.index if self.stage.work.key is None else self.stage.work.key

    def share(self, total: int | None) -> int | None:
        """What this worker has of a number of streams."""
        return None if total is None else share_of(total, self.rank, self.ranks)


class OpenWindow(msgspec.Struct, frozen=True, tag=True):
    """Measure the running stage from now on: its transient is over."""

    index: int


class EndLoad(msgspec.Struct, frozen=True, tag=True):
    """Send no more; with `abort`, cut the running streams off too."""

    abort: bool


Command = Configure | BeginStage | OpenWindow | EndLoad


class Tick(msgspec.Struct, frozen=True):
    """What one worker did since its last tick, and what it holds now."""

    worker: int
    number: int
    stages: dict[int, StageDelta]
    client: ClientDelta
    held: int
    queued: int
    open_stages: dict[int, int]  # open streams by the stage in which they were sent
    running: int | None  # the stage that runs here
    open_sent: int  # its open streams that count in `sent`
    first_wave_waiting: int  # streams of its first wave that have no first token yet, sent or to be sent
    finished: int | None  # the stage whose requests were all sent and answered, if the running one is such
    rss_bytes: int
    rows: list[StreamRow] = []  # of the streams that ended in this tick, if they are asked for


encode = msgspec.json.Encoder().encode
decode_command = msgspec.json.Decoder(Command).decode
decode_tick = msgspec.json.Decoder(Tick).decode
