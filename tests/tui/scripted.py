"""A scripted run: it yields exactly the snapshots that a test gives it, and records the operations asked of it.

The screen's rows, dialogs and timing are tested on it because a real run never shows the same numbers twice and cannot
be held at one moment; that the keys reach a real run is tested in `test_with_run.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import msgspec

from loadgen.metrics.verdicts import flags, gpu_facts, gpu_verdicts
from loadgen.run.operations import Operation
from loadgen.schema.deltas import Summary
from loadgen.schema.engine import EngineView
from loadgen.schema.finding import Verdict
from loadgen.schema.hardware_result import EnergyResult
from loadgen.schema.result import (
    Concurrency,
    CurvePoint,
    Requests,
    RunEvent,
    SloCheck,
    StageResult,
    Target,
    Throughput,
    Tokens,
)
from loadgen.schema.samples import GpuPace, GpuSample, GpuStatic, HostSample
from loadgen.schema.shared import Milestone
from loadgen.schema.snapshot import ClientView, GpuView, LoadView, Phase, SeriesPoint, ServerView, Snapshot

LADDER = (8, 16, 32, 64)
NO_REQUESTS = Requests(0, 0, 0, 0, 0, 0, 0, {}, {}, scheduled=0, unsent=0, carried_over=0, carried_in=0, open=0)
STAGE_S = 60.0


class ScriptedRun:
    """Snapshots come when `show` is called; what was asked of it is kept in `calls`."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self._feed: asyncio.Queue[Snapshot | Exception | None] = asyncio.Queue()

    def show(self, snapshot: Snapshot) -> None:
        self._feed.put_nowait(snapshot)

    def finish(self) -> None:
        self._feed.put_nowait(None)

    def fail(self, error: Exception) -> None:
        self._feed.put_nowait(error)

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        while (snapshot := await self._feed.get()) is not None:
            if isinstance(snapshot, Exception):
                raise snapshot
            yield snapshot

    def apply(self, operation: Operation) -> None:
        self.calls.append(operation)


Errors = Mapping[str, tuple[int, list[str]]]  # by kind, how many and their messages


def running(t_s: float = 200.0, *, phase: Phase = "running", errors: Errors | None = None, **changes: Any) -> Snapshot:
    """A plausible moment of a ladder; the same for the same time."""
    reached = min(int(t_s // STAGE_S), len(LADDER) - 1)
    conc = LADDER[reached]
    load = LoadView(
        stage=reached + 1,
        stages_planned=len(LADDER),
        concurrency=conc,
        rate=None,
        held=conc,
        queued=0,
        isl=4096,
        osl=1024,
        stage_elapsed_s=t_s - reached * STAGE_S,
        stage_progress=(t_s - reached * STAGE_S) / STAGE_S,
        paused=phase == "paused",
    )
    snapshot = Snapshot(
        t_s=t_s,
        unix_s=1_800_000_000.0 + t_s,
        phase=phase,
        profile="mi300x-gpt-oss-120b",
        headline="engine-limited: queueing" if conc >= 64 else "ok",
        healthy=conc < 64,
        server=_server(t_s),
        load=load,
        point=point(t_s, conc),
        client=ClientView("kernel", 2, 11.2, 0.41, 0.003, limited=False, why=None),
        engine=EngineView(running=min(conc, 48), waiting=max(0, conc - 48), kv_usage=0.41, preemptions=0),
        stages=tuple(stage(n + 1, LADDER[n], t_s - n * STAGE_S, running=n == reached) for n in range(reached + 1)),
        requests=with_errors(requests(40, running=True), errors or {}),
        latency_ms=latencies(40),
        events=tuple(
            RunEvent(n * STAGE_S, "load", f"concurrency {LADDER[n - 1] if n else 0} -> {LADDER[n]}")
            for n in range(reached + 1)
        ),
    )
    snapshot = msgspec.structs.replace(snapshot, **changes)
    if "curve" in changes:
        return snapshot
    return msgspec.structs.replace(snapshot, curve=tuple(curve_point(stage) for stage in snapshot.stages))


def curve_point(stage: StageResult, direction: Literal["", "up", "down"] = "") -> CurvePoint:
    """A stage as a point of the load curve."""
    output, held = stage.throughput.output_tokens_per_s, stage.concurrency.mean or 0.0
    ttft, itl = stage.latency_ms["ttft"], stage.latency_ms["itl"]
    per_user = output / held if output is not None and held else None
    load = stage.target.load
    return CurvePoint(stage.isl, stage.osl, load, direction, held, stage.duration_s, output, per_user, ttft, itl)


def starting(progress: float = 0.54, **changes: Any) -> Snapshot:
    server = ServerView(
        engine="vLLM",
        url="http://127.0.0.1:8000",
        state="starting",
        version="0.32.0",
        pid=4121,
        uptime_s=42.0,
        milestones=(
            Milestone("process", "process started", "done", started_s=0.0, finished_s=3.1),
            Milestone("weights", "loading weights", "running", progress, "safetensors 38/70", 3.1),
            Milestone("profile", "memory profiling", "waiting"),
            Milestone("graphs", "graph capture", "waiting"),
        ),
        log_tail=tuple(f"INFO 11-21 07:10:{n:02} [loader.py:{n}] Loading safetensors shard {n}" for n in range(30)),
    )
    snapshot = running(
        0.0,
        phase="starting",
        headline="server starting: loading weights 38/70",
        healthy=True,
        server=server,
        stages=(),
        requests=None,
        latency_ms={},
        events=(),
        point=SeriesPoint(0.0),
        engine=None,
        load=LoadView(0, 4, 8, None, 0, 0, 4096, 1024),
    )
    return msgspec.structs.replace(snapshot, **changes)


def point(t_s: float, conc: int) -> SeriesPoint:
    """Values that climb with the load and wave a little."""
    wave = 1 + 0.06 * math.sin(t_s * 1.7) + 0.03 * math.sin(t_s * 0.31)
    load = conc * (1 - math.exp(-((t_s % STAGE_S) + 4) / 8))
    return SeriesPoint(
        t_s=t_s,
        held=conc,
        target=conc,
        output_tokens_per_s=62 * load * wave * (1 - conc / 300),
        requests_per_s=0.06 * load * wave,
        ttft_p50_ms=(180 + 9 * load) * wave,
        ttft_p99_ms=(400 + 40 * load) * wave * wave,
        tpot_p50_ms=(14 + 0.1 * load) * (0.9 + wave / 10),
        tpot_p99_ms=(15 + 0.16 * load) * (0.8 + wave / 5),
        engine_running=min(conc, 48),
        engine_waiting=max(0, conc - 48) * wave,
        kv_usage=0.41,
        read_lag_p99_ms=0.41,
        client_cpu_percent=11.2,
    )


def stage(number: int, conc: int, elapsed_s: float, *, running: bool) -> StageResult:
    per_user = 1000 / (16 + 0.1 * conc)  # with the waits for the first tokens
    return StageResult(
        index=number - 1,
        label=f"conc {conc}",
        target=Target(conc, None, None),
        isl=4096,
        osl=1024,
        started_at="",
        duration_s=min(elapsed_s, STAGE_S),
        measured_s=min(elapsed_s, STAGE_S),
        stop_reason="" if running else "over",
        requests=requests(conc, running=running),
        concurrency=Concurrency(conc * 0.997, conc),
        tokens=Tokens(None, conc * 8 * 1024, "usage"),
        throughput=Throughput(0.056 * conc, None, 57.3 * conc, 290.0 * conc, per_user, per_user * conc / 8),
        latency_ms=latencies(conc),
        slo={"ttft_p99": SloCheck(1500.0, 14.6 * conc, met=conc < 64)},
        engine=None,
        limited=False,
        why=None,
    )


def requests(size: int, *, running: bool) -> Requests:
    return msgspec.structs.replace(
        NO_REQUESTS,
        sent=size * 9,
        completed=size * 8,
        carried_over=0 if running else size,
        open=size if running else 0,
        scheduled=size * 9,
    )


def with_errors(sent: Requests, errors: Errors) -> Requests:
    counts = {kind: count for kind, (count, _) in errors.items()}
    return msgspec.structs.replace(sent, errors=counts, messages={kind: told for kind, (_, told) in errors.items()})


def latencies(size: int) -> dict[str, Summary]:
    return {
        "ttft": summary(180 + 9 * size),
        "tpot": summary(14 + 0.1 * size),
        "itl": summary(13.8 + 0.1 * size),
        "e2e": summary(16_000 + 20 * size),
    }


def summary(middle: float) -> Summary:
    return Summary(
        100, middle * 1.02, middle * 0.1, middle * 0.5, middle, middle * 1.4, middle * 1.6, middle * 2.1, middle * 2.3,
        middle * 2.4,
    )  # fmt: skip


HBM_BYTES = 192 * 1024**3
PACE = GpuPace(link_read_bytes_per_s=12.3e9, link_write_bytes_per_s=13.0e9, energy_j=123_400.0)
LOOKED_S = 50_000.0
"""CLOCK_MONOTONIC of the samples."""


def with_gpus(count: int = 8, **changes: Any) -> Snapshot:
    """A box of MI300X under load; number 5 is held back by its heat."""
    watched = {index: _gpu(index) for index in range(count)}
    throttled = {index: {"thermal": 18.2} for index in watched if index == 5}
    statics = [static for static, _ in watched.values()]
    found = gpu_verdicts(gpu_facts(statics, {n: sample for n, (_, sample) in watched.items()}, {}, throttled))
    queueing = Verdict("queueing", "stage 4", "queueing: 16.0 requests waiting on average", bad=False)
    snapshot = running(
        gpus=tuple(GpuView(static, sample, flags(found, static.index), PACE) for static, sample in watched.values()),
        telemetry="amd: amdsmi",
        host=host(),
        verdicts=(*found, queueing),
    )
    stages = tuple(
        msgspec.structs.replace(
            stage, energy=EnergyResult(None, None, False, stage.duration_s, 2.1 / stage.number, 0.48, ())
        )
        for stage in snapshot.stages
    )
    return msgspec.structs.replace(snapshot, **({"stages": stages} | changes))


def with_partitions(sockets: int = 8, each: int = 8, **changes: Any) -> Snapshot:
    """The same box in CPX: only the first partition of a socket carries the socket's figures."""
    gpus = []
    for index in range(sockets * each):
        socket, partition = divmod(index, each)
        static, sample = _gpu(index, socket=socket, partition=partition, hbm_bytes=HBM_BYTES // each)
        if partition:
            used, reason = sample.hbm_used_bytes, dict.fromkeys(("power_w", "gfx_percent"), "belongs to partition 0")
            sample = GpuSample(index, LOOKED_S, hbm_used_bytes=used, missing=reason)
        gpus.append(GpuView(static, sample, ("THROTTLED thermal 18%",) if index == 40 else ()))
    return msgspec.structs.replace(with_gpus(), **({"gpus": tuple(gpus), "verdicts": ()} | changes))


def _gpu(
    index: int, *, socket: int | None = None, partition: int = 0, hbm_bytes: int = HBM_BYTES
) -> tuple[GpuStatic, GpuSample]:
    held_back = index == 5
    static = GpuStatic(
        index=index,
        vendor="amd",
        name="AMD Instinct MI300X",
        socket=f"socket {index if socket is None else socket}",
        partition=partition,
        hbm_total_bytes=hbm_bytes,
        power_cap_default_w=750.0,
        gfx_clock_max_mhz=2100.0,
        pcie_width_max=16,
        pcie_speed_max_gts=32.0,
        links_total=7,
    )
    sample = GpuSample(
        index=index,
        t_s=LOOKED_S,
        gfx_percent=81.0 if held_back else 97.0 + index % 2,
        memory_percent=41.0,
        hbm_used_bytes=hbm_bytes * 171 // 192,
        power_w=750.0 if held_back else 608.0 + index,
        power_cap_w=750.0,
        temperature_hotspot_c=86.0 if held_back else 77.0 + index % 2,
        temperature_memory_c=66.0,
        gfx_clock_mhz=1610.0 if held_back else 2085.0 + index,
        memory_clock_mhz=1300.0,
        energy_j=123.4e6,
        pcie_width=16,
        pcie_speed_gts=32.0,
        link_read_bytes=1_230_000_000_000,
        link_write_bytes=1_300_000_000_000,
        links_up=7,
        ecc_correctable=0,
        ecc_uncorrectable=0,
    )
    return static, sample


def host(**changes: Any) -> HostSample:
    """A host that is bored, with the governor that many come with."""
    sample = HostSample(
        t_s=LOOKED_S + 0.4,
        cores=192,
        memory_used_bytes=210 * 1024**3,
        memory_total_bytes=1511 * 1024**3,
        load_1min=31.4,
        cpu_percent=12.3,
        cpu_busiest_percent=98.0,
        server_cpu_percent=910.0,
        governor="powersave",
    )
    return msgspec.structs.replace(sample, **changes)


FAILURES = {
    "timeout": (7, ["no event for 60 s"]),
    "http_500": (12, ["500 Internal Server Error: CUDA out of memory"]),
}


def _server(t_s: float) -> ServerView:
    return ServerView(
        engine="vLLM",
        url="http://127.0.0.1:8000",
        state="ready",
        model="openai/gpt-oss-120b",
        version="0.32.0",
        pid=4121,
        uptime_s=550.0 + t_s,
        log_total=int(t_s // 10),
        log_tail=tuple(
            f"INFO 11-21 07:{n // 6:02}:{n % 6}0 [loggers.py:123] Engine 000: Avg prompt throughput: 21034.1 tokens/s, "
            f"Avg generation throughput: {3000 + n} tokens/s, Running: 48 reqs, Waiting: 16 reqs, KV cache usage: 41.0%"
            for n in range(int(t_s // 10))
        ),
    )
