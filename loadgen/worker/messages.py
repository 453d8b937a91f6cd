"""The messages on a worker's pipes: commands in, ticks out, one line of JSON each.

Schedule times are CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.
"""

from __future__ import annotations

import msgspec

from loadgen.plan.stage import Stage
from loadgen.schema.deltas import ClientDelta, SessionsNow, StageDelta, StreamRow
from loadgen.stream.request import RequestTemplate, ServerAddress
from loadgen.workload.arrivals import share_of
from loadgen.workload.prompts import Prompts, text_prompts, token_prompts

TICK_NS = 250_000_000
"""Workers tick at multiples of this on CLOCK_MONOTONIC, so that ticks with the same number cover the same time."""


class Vocabulary(msgspec.Struct, frozen=True):
    """What synthetic prompts are made of: token ids, or words together with the chat template's own tokens."""

    ids: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    overhead: int = 0


def prompts_of(vocabulary: Vocabulary, seed: int) -> Prompts:
    if vocabulary.words:
        return text_prompts(vocabulary.words, seed, overhead=vocabulary.overhead)
    return token_prompts(vocabulary.ids, seed)


class Configure(msgspec.Struct, frozen=True, tag=True):
    """The first command: this worker's number, the server's address, and settings for the whole run."""

    address: ServerAddress
    vocabulary: Vocabulary
    seed: int
    timeout_s: float
    stall_timeout_s: float
    connect_timeout_s: float
    worker: int = 0
    source_addresses: tuple[str, ...] = ()  # connections are opened from these in turn; empty: the kernel chooses
    cpus: tuple[int, ...] = ()  # run on these only; empty: wherever vramp itself may
    realtime_share: float = 0.0
    """Run at realtime priority, where the system allows it, while using no more than this share of a core; 0: never."""
    sample_answers: bool = False  # check a few answers for degenerate text
    rows: bool = False  # send a row per ended stream
    kv_tokens: int | None = None  # that fit into the KV caches of all servers; None: unknown
    echo_header: str | None = None  # of responses, which the session's next request repeats
    lifeline_s: float = 0.0  # exit after so long without input, not even an empty line; 0: never


class BeginStage(msgspec.Struct, frozen=True, tag=True):
    """End the running stage and begin this one; open streams are carried over into it."""

    index: int
    stage: Stage  # of all workers together
    template: RequestTemplate
    rank: int
    ranks: int
    """This worker sends every `ranks`-th request, beginning with `rank`; ranks beyond the concurrency send none."""
    start_ns: int
    waits: bool = False  # everything is warm-up until `OpenWindow`
    first_wave_apart: bool = False  # keep the streams that fill the closed loop at its beginning apart

    @property
    def warmup_ns(self) -> int:
        return int(self.stage.warmup_s * 1e9)

    @property
    def key(self) -> int:
        """The seed for this stage's prompts and arrivals."""
        return self.index if self.stage.work.key is None else self.stage.work.key

    def share(self, total: int | None) -> int | None:
        """This worker's share of a number of streams."""
        return None if total is None else share_of(total, self.rank, self.ranks)


class OpenWindow(msgspec.Struct, frozen=True, tag=True):
    """Measure the running stage from now on: its transient is over."""

    index: int


class EndLoad(msgspec.Struct, frozen=True, tag=True):
    """Send no more; with `abort`, also cut off the open streams."""

    abort: bool
    ends_sessions: bool = False  # otherwise they continue with the next stage


Command = Configure | BeginStage | OpenWindow | EndLoad


class Tick(msgspec.Struct, frozen=True):
    """What one worker did since its last tick, and its open streams."""

    worker: int
    number: int
    stages: dict[int, StageDelta]
    client: ClientDelta
    held: int
    queued: int
    open_stages: dict[int, int]  # open streams by the stage in which they were sent
    running: int | None  # the running stage
    open_sent: int  # open streams that count in its `sent`
    first_wave_waiting: int  # streams of its first wave without a first token, sent or to be sent
    finished: int | None  # the running stage, if it is bounded by requests and all are answered
    rss_bytes: int
    sessions: SessionsNow | None = None  # None where the load is not sessions
    most_held: int = 0  # open at the same time since the last tick
    rows: list[StreamRow] = []  # of the streams that ended since the last tick, if rows are wanted


encode = msgspec.json.Encoder().encode
decode_command = msgspec.json.Decoder(Command).decode
decode_tick = msgspec.json.Decoder(Tick).decode
