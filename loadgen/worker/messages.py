"""What goes through a worker's pipes: commands in, ticks out, one line of JSON each.

Times of the schedule are CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.
"""

from __future__ import annotations

import msgspec

from loadgen.metrics.deltas import ClientDelta, StageDelta, StreamRow
from loadgen.stream.request import RequestTemplate, ServerAddress
from loadgen.stream.samples import StreamLimits
from loadgen.workload.work import Work

TICK_NS = 250_000_000
"""Workers tick at multiples of this on CLOCK_MONOTONIC, so that ticks of one number cover the same time."""


class Vocabulary(msgspec.Struct, frozen=True):
    """What prompts are made of: token ids, or words with the tokens that a chat template adds."""

    ids: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    overhead: int = 0


class Configure(msgspec.Struct, frozen=True, tag=True):
    """The first command: who this worker is and where the server is."""

    worker: int
    address: ServerAddress
    verify_tls: bool
    vocabulary: Vocabulary
    seed: int
    timeout_s: float
    stall_timeout_s: float
    connect_timeout_s: float
    realtime_share: float = 0.0
    """Run before all other processes, where the system lets it, while it takes no more of a core than this."""
    rows: bool = False  # send a row for each stream that is over


class BeginStage(msgspec.Struct, frozen=True, tag=True):
    """End the running stage and begin this one; streams on their way are carried over into it."""

    index: int
    template: RequestTemplate
    isl: int
    osl: int
    rank: int
    ranks: int
    """This worker takes every `ranks`-th request, beginning with `rank`; ranks beyond the concurrency have none."""
    concurrency: int | None  # this worker's share of the closed loop
    rate: float | None  # the whole rate of the open loop; the schedule is sliced by rank
    arrival: str
    start_ns: int
    warmup_requests: int
    warmup_ns: int
    requests: int | None  # measured requests of all workers together
    rate_points: tuple[tuple[float, float], ...] = ()
    """In place of `rate`: straight lines through (seconds, requests a second)."""
    max_concurrency: int | None = None  # this worker's share of the most streams that the open loop may hold
    work: Work = Work()
    waits: bool = False  # everything is warm-up until `OpenWindow`
    first_wave_apart: bool = False  # the streams that fill the closed loop at its beginning are told apart
    steps: tuple[tuple[int, int | None], ...] = ()
    """A load that moves: (nanoseconds since the window was opened, this worker's share of the closed loop from then
    on); the share is None in open loop, whose arrivals have the moving rate already."""
    limits: StreamLimits | None = None  # what makes a stream a good one


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
