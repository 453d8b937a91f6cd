"""One stage of a record: its load, its figures so far, and whether the client was its limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadgen.format import counted
from loadgen.metrics.batch_means import BatchMeans
from loadgen.metrics.bursts import bursts_of
from loadgen.metrics.client_limit import MAX_COALESCED, MIN_FOR_SHARE, ClientFacts, cap_held_back, client_limit
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.hits import hits_of
from loadgen.metrics.open_loop import open_loop_of, thinned
from loadgen.metrics.stage import ClientMetrics, StageMetrics
from loadgen.record.hardware import HardwareSamples
from loadgen.schema.deltas import OPTIONAL_LATENCIES, SESSION_COUNTERS, ClientDelta, StageDelta, Summary
from loadgen.schema.engine import EngineStage, EngineView, OthersTraffic, OwnRequests
from loadgen.schema.journal import ClockMoved, HostTick, StageEnded, StageSettled, StageStarted
from loadgen.schema.output import Answers
from loadgen.schema.result import Bursts, Hits, OpenLoop, SessionsResult, StageHardware

if TYPE_CHECKING:
    from loadgen.record.crosscheck import ClientAccount

FIRST_TOKENS = ("ttft", "first_wave_ttft", "warmup_ttft", "priming_ttft")
E2E_WINDOWS = 3.0  # how many times E2E a window must last to know it
ANSWERS_BLOCK_S = 30.0
_LOOPS_KEPT = 3
_SESSION_COUNTS = tuple(name for name in SessionsResult.__struct_fields__ if name in SESSION_COUNTERS)
MAX_FAILED = 0.01  # of the streams, while all of a closed loop must be held
_NO_TICK, _NO_CANARIES = HostTick(), OwnRequests()


@dataclass(slots=True, eq=False, repr=False)
class StageRecord:
    """One stage, or one server's part in it: its load, its figures so far, how it ended."""

    started: StageStarted
    _whole: StageRecord | None = None  # what this is a part of: rates are over its window, so that parts add up
    metrics: StageMetrics = field(default_factory=StageMetrics)
    blocks: BatchMeans = field(default_factory=BatchMeans)
    answer_blocks: dict[int, Answers] = field(default_factory=dict)
    """The answers looked at, by the half minute of the run."""
    parts: list[StageRecord] = field(default_factory=list)  # by server, where there are several
    hosts: list[StageRecord] = field(default_factory=list)  # by host, if the load comes from a cluster
    host: str = ""  # the name of the host that this is the part of
    host_tick: HostTick = _NO_TICK  # its last tick
    host_lost: bool = False
    clock_moves: list[ClockMoved] = field(default_factory=list)  # of hosts, while it ran
    client: ClientMetrics = field(default_factory=ClientMetrics)
    client_span_ns: int = 0
    settled: StageSettled | None = None
    ended: StageEnded | None = None
    engine: EngineStage | None = None
    span: ClientAccount | None = None  # of the time between two idle readings of the engine, with its figures
    server_command: list[str] | None = None  # of the server that it ran on
    kv_tokens: int | None = None  # that fit into the KV caches of its servers
    workers: int = 1  # that drove its load at the last tick
    open_sent: int = 0  # streams that count in `sent` and are not over
    alone: bool = True  # no stream of an earlier stage was open when it began
    hardware_samples: HardwareSamples = field(default_factory=lambda: HardwareSamples({}))
    hardware_figures: StageHardware | None = None  # in place of the samples, once it is long over
    canaries: OwnRequests = _NO_CANARIES  # under its load, and in none of its numbers but the engine's
    others: OthersTraffic | None = None  # once the engine's figures are known
    kv_usage_max: float | None = None
    _open_areas: list[tuple[int, int]] = field(default_factory=list)
    """In an open loop while arrivals are due: ns since the window began, open requests integrated until then."""
    _watched_tokens: float | None = None
    _others_running: float = 0.0
    _others_looks: int = 0
    _waiting: float = 0.0  # requests in the engine's queue, summed
    _waiting_ticks: int = 0

    @property
    def subject(self) -> str:
        """The subject of verdicts on it, by its number on the screen."""
        return f"stage {self.started.index + 1}"

    @property
    def is_part(self) -> bool:
        """Whether it is one server's or host's part."""
        return self._whole is not None

    @property
    def counters(self) -> dict[str, int]:
        return self.metrics.counters

    @property
    def window_s(self) -> float:
        """Length of the measured window in seconds, 0 before it has begun."""
        return (self._whole or self).metrics.window_s

    def add(self, metrics: StageMetrics) -> None:
        """Add a tick of all its workers; their spans of a moving load's step coincide, so they are averaged."""
        for step in metrics.bins.values():
            step.span_ns //= max(1, self.workers)
        self.metrics.merge(metrics)
        if self.started.rate is not None and not self.metrics.tail_s:
            now_ns = round(self.metrics.window_s * 1e9)
            self._open_areas = thinned([*self._open_areas, (now_ns, self.counters["held_area_ns"])])

    def part(self, number: int) -> StageRecord:
        """One server's part, if there are several; created when first used."""
        return self._part_in(self.parts, number)

    def host_part(self, number: int) -> StageRecord:
        return self._part_in(self.hosts, number)

    def _part_in(self, parts: list[StageRecord], number: int) -> StageRecord:
        while len(parts) <= number:
            parts.append(StageRecord(self.started, self))
        return parts[number]

    def add_host(self, number: int, name: str, tick: HostTick, span_s: float) -> None:
        """Add what the workers of a host did in a tick of the running stage."""
        part = self.host_part(number)
        part.host, part.host_tick = name, tick
        part.host_lost |= tick.lost
        part.add_client(tick.client, span_s=span_s, workers=tick.sharing or tick.workers)

    def add_client(self, delta: ClientDelta, *, span_s: float, workers: int) -> None:
        self.client.add(delta)
        self.client_span_ns += int(span_s * 1e9) * workers

    @property
    def meant_hits(self) -> float:
        """The share of the engine's prompt tokens that may hit its prefix cache, including canaries, which repeat."""
        total = self.engine.prompt_tokens if self.engine is not None else None
        return self.started.meant_hits + (self.canaries.input_tokens / total if total else 0.0)

    @property
    def answers(self) -> Answers:
        """The sampled answers of the whole stage, with the most frequent loops."""
        loops = Counter(self.metrics.loops).most_common(_LOOPS_KEPT)
        return Answers(self.counters["answers"], dict(self.metrics.degenerate), dict(loops))

    @property
    def finished(self) -> Mapping[str, int]:
        """The engine's requests by how they ended; empty if unknown."""
        return self.engine.finished if self.engine is not None else {}

    def add_answers(self, delta: StageDelta, t_s: float) -> None:
        """Add the sampled answers of a tick to those of its half minute."""
        if delta.answers:
            block = int(t_s // ANSWERS_BLOCK_S)
            before = self.answer_blocks.get(block, Answers(0))
            degenerate = Counter(before.degenerate) + Counter(delta.degenerate)
            loops = Counter(before.loops) + Counter(delta.loops)
            self.answer_blocks[block] = Answers(before.read + delta.answers, dict(degenerate), dict(loops))

    def add_engine(self, view: EngineView, span_s: float) -> None:
        """Add the engine's gauges at a tick of `span_s`, and without load of ours what it generated for others."""
        if self.started.no_load and view.generation_tokens_per_s is not None:
            self._watched_tokens = (self._watched_tokens or 0.0) + view.generation_tokens_per_s * span_s
        if view.waiting is None:
            return
        self._waiting += view.waiting
        self._waiting_ticks += 1
        if view.kv_usage is not None:
            self.kv_usage_max = max(view.kv_usage, self.kv_usage_max or 0.0)

    @property
    def generated_tokens(self) -> int | None:
        """The output tokens of its window; without load of ours those of others, None if the engine counts none."""
        if not self.started.no_load:
            return self.counters["window_output_tokens"]
        if self.engine is not None:
            return self.engine.generation_tokens
        return None if self._watched_tokens is None else round(self._watched_tokens)

    def add_others(self, seen: OthersTraffic) -> None:
        if seen.running is not None:
            self._others_running += seen.running
            self._others_looks += 1

    @property
    def others_running(self) -> float | None:
        """Mean of others' requests in the engine."""
        return self._others_running / self._others_looks if self._others_looks else None

    @property
    def waiting_mean(self) -> float | None:
        return self._waiting / self._waiting_ticks if self._waiting_ticks else None

    def thin(self) -> None:
        """Use less memory, once it is long over."""
        for each in (*self.parts, *self.hosts):
            each.thin()
        self.blocks.freeze()
        self.metrics.thin()
        self.client.thin()

    def per_second(self, *counters: str) -> float | None:
        """Counts in the window divided by its length; None before it opened, or for prompts of unknown length."""
        if "window_input_tokens" in counters and self.misses_input:
            return None
        window_s = self.window_s
        return sum(self.counters[name] for name in counters) / window_s if window_s else None

    @property
    def misses_input(self) -> bool:
        """Whether the length of some of its prompts is unknown: the server does not report it."""
        without_any = self.histogram("ttft").count > 0 and not self.counters["window_input_tokens"]
        return self.counters["unknown_input"] > 0 or (without_any and not self.counters["input_tokens"])

    @property
    def optional_latencies(self) -> list[str]:
        latency = self.metrics.latency
        return [name for name in OPTIONAL_LATENCIES if name in latency or f"{name}_censored" in latency]

    @property
    def hits(self) -> Hits | None:
        """Its prefix cache hits; None if nothing is known of them."""
        return hits_of(self.counters, pool_tokens=(self._whole or self).kv_tokens, engine=self.engine)

    @property
    def sessions(self) -> SessionsResult | None:
        """What became of its sessions; None for another load."""
        counts, window_s = self.metrics.sessions, self.window_s
        if counts is None or not self.started.in_sessions:
            return None
        per_token_ms = self.histogram("e2e_per_token").percentile_ms(90)
        return SessionsResult(
            live=counts["live_ms"] / 1000 / window_s if window_s else None,
            context_tokens=counts["context_ms"] / 1000 / window_s if window_s else None,
            skipped_s=counts["skipped_ms"] / 1000,
            e2e_interactivity=1000 / per_token_ms if per_token_ms else None,
            **{name: counts[name] for name in _SESSION_COUNTS},
        )

    def measured_s(self, t_s: float) -> float:
        """How long it has been measured, `t_s` after the run began; 0 before that."""
        if self.waits:
            return max(0.0, t_s - self.settled.t_s) if self.settled is not None else 0.0
        return max(0.0, t_s - self.started.t_s - self.started.warmup_s)

    @property
    def held_mean(self) -> float | None:
        """Mean number of open streams in the window."""
        window_s = self.window_s
        return self.counters["held_area_ns"] / 1e9 / window_s if window_s else None

    def histogram(self, name: str) -> Histogram:
        """A latency by name; empty if nothing was recorded, or if what was recorded is not that latency."""
        if name == "itl" and self.counters["uneven_streams"]:
            return Histogram()
        return self.metrics.latency.get(name, Histogram())

    def summaries(self, *names: str, with_hdr: bool = False) -> dict[str, Summary]:
        """The statistics of the named latencies, in milliseconds; for E2E only the count while it is unknown."""
        found = {}
        for name in names:
            known = self.histogram(name)
            if name in ("e2e", "normalized") and self.e2e_inconclusive is not None:
                found[name] = Summary(count=known.count)
                continue
            # Censored E2E is not needed: E2E is known only when its longest streams fit; see `e2e_needs_s`.
            censored = Histogram() if name == "e2e" else self.histogram(f"{name}_censored")
            found[name] = known.summary_with(censored, with_hdr=with_hdr)
        return found

    # E2E of streams that outlive a window.

    @property
    def e2e_needs_s(self) -> float | None:
        """How much longer the stage must be measured to know E2E: 0 if E2E is known, None if that cannot be said.

        Long streams outlive a window more often than short ones. A window of three times their length contains at least
        two thirds of them.
        """
        if self.started.steps or not self.window_s:
            return None
        if self.started.requests is not None and not self.counters["carried_over"]:
            return 0.0

        # The duration of its longer streams, as measured or as estimated from TTFT and gaps, whichever is longer.
        first = next((mean for name in FIRST_TOKENS if (mean := self.histogram(name).mean_ms()) is not None), None)
        gap = self.histogram("itl").mean_ms() or self.histogram("tpot").mean_ms()
        seen = self.histogram("e2e").percentile_ms(90)
        made_up = None if first is None or gap is None else first + gap * (self.started.osl - 1)
        known = [ms for ms in (seen, made_up) if ms is not None]
        return max(0.0, E2E_WINDOWS * (max(known) / 1000) - self.window_s) if known else None

    @property
    def e2e_inconclusive(self) -> str | None:
        """Why E2E is unknown, in words; None if it is known, or while the stage runs."""
        needs_s = self.e2e_needs_s
        if self.ended is None or not needs_s:
            return None
        share = self.carried_share
        outlived = f"{share:.0%} of its streams outlived the stage; " if share else ""
        return f"E2E: inconclusive: {outlived}it takes {self.window_s + needs_s:.1f} s"

    @property
    def carried_share(self) -> float | None:
        sent = self.counters["sent"]
        return self.counters["carried_over"] / sent if sent else None

    @property
    def tail_share(self) -> float | None:
        """The share of the window in which a stage had fewer streams than asked for, as its requests had run out."""
        if self.started.requests is None or self.started.concurrency is None or not self.window_s:
            return None
        return min(1.0, self.metrics.tail_s / self.window_s)

    @property
    def open_loop(self) -> OpenLoop | None:
        """Whether its requests queued up; None for other loads."""
        started = self.started
        if started.rate is None or started.steps or started.arrival == "replay":
            return None
        longest_ms = self.histogram("e2e").percentile_ms(90)
        return open_loop_of(self._open_areas, started.rate, None if longest_ms is None else longest_ms / 1000)

    def others_meanwhile(self, others: OthersTraffic | None) -> str | None:
        """A message if its engine also served others; None if not, or if the stage had no load."""
        if others is None or not others.seen or self.started.no_load:
            return None
        return f"others use this server, too: {others.words}"

    @property
    def is_loaded(self) -> bool:
        """Whether anybody sends requests, vramp or others."""
        return not self.started.no_load or (self.others is not None and self.others.seen)

    def limit(self) -> str | None:
        """Why the client was the limit of this stage, and on which host; None if it was not, or had no load."""
        if self.started.no_load:
            return None
        if self.host_lost:
            lost = self.counters["lost"]
            return f"it was lost, and {counted(lost, 'stream') if lost else 'what it had open'} with it"
        of_hosts = (f"{part.host}: {why}" for part in self.hosts if (why := part.limit()) is not None)
        return next(of_hosts, None) or client_limit(self._client_facts()) or self._own_path_limit()

    def _own_path_limit(self) -> str | None:
        """Why this host's own way to the server was the limit; None if it was not, or other hosts fare the same."""
        bursts = self.bursts
        if self._whole is None or bursts is None or not bursts.held_back:
            return None
        others = (part for part in self._whole.hosts if part.client.counters["reads"] >= MIN_FOR_SHARE)
        smooth = next((part.host for part in others if (part.client.coalesced_share or 0.0) <= MAX_COALESCED), None)
        if smooth is None:
            return None
        return (
            f"{self.client.coalesced_share:.1%} of its reads carried several events, unlike those of {smooth}: packets "
            "were lost or held back on its own way to the server"
        )

    @property
    def bursts(self) -> Bursts | None:
        """Its reads with several output events, and whether the client caused them; None if there were none."""
        client, span_ns = self.client.counters, self.client_span_ns
        first_tokens = [self.histogram(name) for name in FIRST_TOKENS]
        # Without a single wait for a core, the kernel does not count them.
        known = span_ns > 0 and client["waited_ns"] > 0
        return bursts_of(
            self.counters,
            output_events=self.histogram("chunk_gap").count + sum(ttft.count for ttft in first_tokens),
            first_tokens=sum(ttft.count for ttft in first_tokens),
            ttft_ns=sum(1e6 * (ttft.mean_ms() or 0.0) * ttft.count for ttft in first_tokens),
            busy_share=(client["cpu_ns"] + client["waited_ns"]) / span_ns if known else None,
        )

    def _client_facts(self) -> ClientFacts:
        started, bursts = self.started, self.bursts
        # Events that were held back before they arrived were not read late; if it is not known, it is nobody's fault.
        caused_bursts = bursts is not None and bursts.held_back is False
        client, span_ns = self.client, self.client_span_ns
        # If a cap held requests back, they were sent as slots became free, as in a closed loop, and not on schedule.
        scheduled = started.rate is not None and self.capped() is None
        sharers = max(1, len(self._whole.hosts)) if self._whole is not None else 1  # hosts that share its requests
        return ClientFacts(
            workers_lost=client.counters["workers_lost"],
            stood_still_s=client.counters["stood_still_ns"] / 1e9,
            span_s=span_ns / 1e9,
            cpu_share=client.counters["cpu_ns"] / span_ns if span_ns else None,
            realtime_share=client.counters["realtime_ns"] / span_ns if span_ns else None,
            waited_share=client.counters["waited_ns"] / span_ns if span_ns else None,
            lags=client.read_lag.count,
            read_lag_p99_ms=client.read_lag.percentile_ms(99),
            reads=client.counters["reads"],
            coalesced_share=client.coalesced_share if caused_bursts else None,
            ttfts=sum(self.histogram(name).count for name in FIRST_TOKENS if name != "priming_ttft"),
            unsure_ttfts=client.counters["unsure_ttfts"] + client.counters["coalesced_ttfts"] * caused_bursts,
            resent_requests=client.counters["resent_requests"],
            held_mean=self.held_mean if self._should_hold_all else None,
            wanted=started.concurrency,
            sends=client.send_lag.count,
            unsent=self.counters["unsent"] if started.max_concurrency is None else 0,
            send_lag_mean_ms=client.send_lag.mean_ms(),
            e2e_mean_ms=self.histogram("e2e").mean_ms(),
            send_lag_p99_ms=client.send_lag.percentile_ms(99) if scheduled else None,
            mean_gap_ms=1000 * sharers / started.rate if started.rate and scheduled else None,
        )

    @property
    def _should_hold_all(self) -> bool:
        """Whether its streams are always as many as its concurrency asks, if the client keeps up.

        Not if it is bounded by requests, and runs empty at its end; if its load moves; if conversations pause; or if
        streams fail, since the client then waits before it sends the next.
        """
        started, counters = self.started, self.counters
        pauses = started.thinks or started.in_sessions or counters["failed"] > MAX_FAILED * counters["sent"]
        stands = started.requests is None and not started.steps
        return stands and not pauses and self.window_s > 1 and self._whole is None

    def capped(self) -> str | None:
        """What `max_concurrency` kept from being sent in time, as intended; None if nothing."""
        ttft_ms, from_intended_ms = (self.histogram(name).mean_ms() for name in ("ttft", "ttft_from_intended"))
        waited_ms = None if ttft_ms is None or from_intended_ms is None else from_intended_ms - ttft_ms
        started, unsent = self.started, self.counters["unsent"]
        return cap_held_back(started.rate, started.max_concurrency, unsent=unsent, waited_mean_ms=waited_ms)

    @property
    def settled_s(self) -> float | None:
        """Duration of the transient in seconds; None for a stage that does not wait for its end."""
        return None if self.settled is None else round(self.settled.t_s - self.started.t_s, 3)

    @property
    def waits(self) -> bool:
        """Whether it is measured only from the line `StageSettled` on."""
        return bool(self.started.settle_s or self.started.waits_for_drain or self.started.awaits_first_wave)

    @property
    def _awaited(self) -> str:
        if self.started.in_sessions:
            return "each live session had an answer under its load"
        if self.started.settle_s:
            return "its transient was over"
        awaited = []
        if self.started.waits_for_drain:
            awaited.append("the streams of a higher load had ended")
        if self.started.awaits_first_wave:
            awaited.append("its first wave had its first tokens")
        return " and ".join(awaited)

    @property
    def waits_for(self) -> str:
        """Why its measurement has not begun, in words; empty if it has."""
        if not self.waits or self.settled is not None or self.ended is not None:
            return ""
        return f"not measured before {self._awaited}"

    @property
    def inconclusive(self) -> str | None:
        """Why a stage that waits for its transient is inconclusive; None if it is not, or while it runs."""
        if self.ended is None:
            return None
        if self.waits and self.settled is None:
            return f"it ended before {self._awaited}"
        if not self.window_s:
            return "it ended before anything was measured"
        if self.settled is None:
            return None
        problems = []
        if not self.settled.settled:
            problems.append(f"it was measured before {self._awaited}: {self.settled_s:.1f} s were not enough")
        if self.counters["completed"] < self.started.min_completed:
            problems.append(f"{self.counters['completed']} of at least {self.started.min_completed} streams completed")
        return "; ".join(problems) or None
