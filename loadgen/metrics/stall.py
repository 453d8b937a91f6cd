"""Whether a server is stalled: streams wait, nothing arrives, and nothing in the engine moves.

Silence alone is no stall: a long prompt is silent for minutes, and its KV cache grows meanwhile. Within one step
nothing grows, so while no prompt of this length has been answered, a long step cannot be told from a stall: this is
said, and nothing is judged. Invariants: without the engine's figures nothing is judged; the limit adapts to the
longest silence that this run has already come out of; a stall that clears is kept with its length.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from loadgen.schema.engine import EngineView

STALLED, NO_OUTPUT = "stalled", "no-output"  # ids of verdicts: what is judged, and what may be a long prefill
MIN_STALL_S = 30.0
MAX_STEP_S = 300.0  # after which vLLM itself gives up a step (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)
TIMES_LONGEST = 5.0  # of the longest silence that ended by itself
_BUSY_PERCENT = 80.0
_IDLE_PERCENT = 5.0

StallKind = Literal["kernel", "collective", "lost-wakeup", "scheduler", "prefill", "unknown"]
WORDS: dict[StallKind, str] = {
    "kernel": "requests are open and the GPUs are busy, but no token comes: a kernel that does not end",
    "collective": "requests are open, no token comes, and workers wait for each other: a collective that does not end",
    "lost-wakeup": "requests are open, but the GPUs are idle: the engine waits for an event that does not come",
    "scheduler": "requests wait, and none runs: the scheduler admits nothing",
    "prefill": "a stall, or a long prefill or compilation",
    "unknown": "requests are open, but no token comes",
}


class StallSample(NamedTuple):
    """What is seen at one tick."""

    t_s: float
    heard: bool  # whether output arrived since the last tick
    open_streams: int
    answered: bool  # whether prompts like those that are open have had a first token
    engine: EngineView | None  # the latest reading; None if there is none, or it has failed
    gfx_percent: float | None  # of the server's GPUs, the mean; None without
    waits_for_worker: bool  # whether the log has said since the last tick that a worker does not answer


class Stall(NamedTuple):
    """A stall that goes on, or has ended."""

    since_s: float
    kind: StallKind
    running: float | None
    waiting: float | None
    gfx_percent: float | None
    ended_s: float | None = None
    cleared: bool = False  # it ended because something moved, not because no request was left
    server: str = ""  # which one, if not all

    @property
    def is_certain(self) -> bool:
        """Whether it is more than a silence that a long prefill explains as well."""
        return self.kind != "prefill"

    def words(self, now_s: float) -> str:
        lasted_s = (self.ended_s if self.ended_s is not None else now_s) - self.since_s
        figures = ((self.running, " running"), (self.waiting, " waiting"), (self.gfx_percent, "% GPU busy"))
        seen = ", ".join(f"{value:.0f}{what}" for value, what in figures if value is not None)
        head = "stalled" if self.is_certain else "no output"
        head = f"{self.server} {head}" if self.server else head
        return f"{head} for {lasted_s:.0f} s: {WORDS[self.kind]}{f' ({seen})' if seen else ''}"


class StallWatch:
    """Judges a run tick by tick; `stall` is the one that goes on."""

    def __init__(self, server: str = "") -> None:
        self._server = server
        self.stall: Stall | None = None
        self._silent_since_s: float | None = None
        self._heard_s: float | None = None  # when something last arrived, or nothing was open
        self._longest_s = 0.0  # silence that ended by itself
        self._state: tuple[object, ...] | None = None  # of the engine, since the silence began
        self._waits_for_worker = False  # since then, by the log

    def add(self, now: StallSample) -> Stall | None:
        """Judge one more tick; returns a stall that has just ended."""
        self._listen(now)
        if self.stall is not None and not now.heard and _is_unknown(now):
            return None  # a page that does not answer is no sign of life
        state = _state_of(now)
        engine = now.engine
        waits = now.open_streams > 0 or (engine is not None and (engine.running or 0.0) + (engine.waiting or 0.0) > 0)
        if now.heard or not waits or state is None or state != self._state:
            # Begin a new silence; one that was a stall has ended.
            ended = self.stall and self.stall._replace(ended_s=now.t_s, cleared=now.heard or waits)
            self.stall, self._silent_since_s, self._state = None, now.t_s, state
            self._waits_for_worker = False
            return ended
        assert self._silent_since_s is not None
        self._waits_for_worker |= now.waits_for_worker
        silent_s = now.t_s - self._silent_since_s
        if silent_s > max(MIN_STALL_S, TIMES_LONGEST * self._longest_s):
            assert engine is not None
            is_certain = now.answered or silent_s > MAX_STEP_S or (self.stall is not None and self.stall.is_certain)
            kind = _kind(now, is_certain=is_certain, waits_for_worker=self._waits_for_worker)
            since_s, gfx_percent = self._silent_since_s, now.gfx_percent
            self.stall = Stall(since_s, kind, engine.running, engine.waiting, gfx_percent, server=self._server)
        return None

    def _listen(self, now: StallSample) -> None:
        """Learn the longest silence; what a stall took is not what this run is used to."""
        if now.heard and (self.stall is None or not self.stall.is_certain) and self._heard_s is not None:
            self._longest_s = max(self._longest_s, now.t_s - self._heard_s)
        if now.heard or not now.open_streams or self._heard_s is None:
            self._heard_s = now.t_s


def moving_part(engine: EngineView) -> EngineView:
    """Only the figures that a stall is judged by."""
    return EngineView(
        running=engine.running,
        waiting=engine.waiting,
        kv_usage=engine.kv_usage,
        preemptions=engine.preemptions,
        prompt_tokens_per_s=engine.prompt_tokens_per_s,
        generation_tokens_per_s=engine.generation_tokens_per_s,
    )


def _state_of(now: StallSample) -> tuple[object, ...] | None:
    """What moves in an engine that works; None if it says nothing, or tokens flow.

    Waiting requests are none of it: they become more while nothing works.
    """
    engine = now.engine
    if engine is None or _is_unknown(now):
        return None
    if engine.generation_tokens_per_s or engine.prompt_tokens_per_s:
        return None
    return (engine.running, engine.kv_usage, engine.preemptions)


def _is_unknown(now: StallSample) -> bool:
    if now.engine is None or now.engine.generation_tokens_per_s is None:
        return True
    # Some engines count tokens when a request ends: the KV cache alone shows that they work for others.
    return not now.open_streams and now.engine.kv_usage is None


def _kind(now: StallSample, *, is_certain: bool, waits_for_worker: bool) -> StallKind:
    assert now.engine is not None
    if not now.engine.running and now.engine.waiting:
        return "scheduler"
    if not is_certain:
        return "prefill"
    if waits_for_worker:
        return "collective"
    if now.gfx_percent is None:
        return "unknown"
    if now.gfx_percent >= _BUSY_PERCENT:
        return "kernel"
    return "lost-wakeup" if now.gfx_percent <= _IDLE_PERCENT else "unknown"
