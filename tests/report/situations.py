"""Runs as they go in known situations, written as journals: what is said of each is in situations.md.

A situation is a row: what differs from a healthy box with eight GPUs, whose server vramp started, at 64 streams. All
its lines are made here, so that neither the machine of the test nor chance is in what is said.

`python -m tests.report.situations > tests/report/situations.md` rewrites the file; read each line that changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage import ClientMetrics, StageMetrics
from loadgen.record.quote import quote_of
from loadgen.record.record import Record
from loadgen.report.assessment import assessment
from loadgen.run.view import ShownStages, snapshot_of
from loadgen.schema.engine import EngineStage, EngineView, OwnRequests
from loadgen.schema.journal import (
    CanaryMeasured,
    DevicesChosen,
    EngineMeasured,
    GpusSampled,
    HostSampled,
    Line,
    RunFinished,
    RunStarted,
    ServerChanged,
    StageEnded,
    StageStarted,
    TelemetryChanged,
    Ticked,
)
from loadgen.schema.output import CanaryMoment
from loadgen.schema.samples import GpuSample, GpuStatic, HostSample, ServerDevices
from loadgen.schema.shared import Diagnosis
from loadgen.schema.snapshot import LoadView, ServerView

GIB = 1024**3
GPUS = range(8)
URL = "http://127.0.0.1:8000"
STARTING_S, READY_S, BEGIN_S, SECONDS = 2.0, 5, 10, 60
TICK_S = 0.25
TTFT_MS, TPOT_MS, OSL, ISL = 60.0, 10.0, 128, 512
E2E_S = (TTFT_MS + TPOT_MS * (OSL - 1)) / 1000
BUSY = {"gfx_percent": 96.0, "memory_percent": 55.0, "power_w": 610.0, "gfx_clock_mhz": 2050.0}
IDLE = {"gfx_percent": 0.0, "memory_percent": 0.0, "power_w": 140.0, "gfx_clock_mhz": 130.0}


@dataclass(frozen=True)
class Situation:
    """What differs from a healthy box under load; a dictionary overrides fields of the lines that it is named for."""

    streams: int | None = 64  # None: an open loop at `rate`; 0: nothing is sent
    rate: float | None = None  # requests a second
    answered: float = 1.0  # share of the rate that is answered
    drain_s: float = 0.0  # an open loop bounded by requests: from the last arrival to the last answer
    engine: str | None = "vllm"  # `attach`: it ran before; None: there is none
    gpu: dict[str, Any] = field(default_factory=dict)
    one_gpu: dict[str, Any] = field(default_factory=dict)  # of GPU 5
    used_before_gib: float = 0.3  # on each GPU when the run begins
    admits: int | None = None  # requests that run at once in the engine; the others wait
    host: dict[str, Any] = field(default_factory=dict)
    view: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)  # of each tick
    client: dict[str, int] = field(default_factory=dict)  # of each tick
    read_lag_ms: float = 0.05
    others: float = 0.0  # their requests a second
    canary_drift: float = 0.0  # nats a token
    dies: bool = False
    silent_from_s: float = float(SECONDS)  # of the stage: no token comes any more, and the engine's figures stand still
    paused: bool = False  # by the operator, when the header is read
    without: tuple[type[Line], ...] = ()  # lines that nobody wrote, as their source is missing
    looks: int | None = None  # of GPUs and host during the stage; None: one a second


def journal(situation: Situation) -> list[Line]:
    """The lines of such a run, in order."""
    lines = [line for line in _lines(situation) if not isinstance(line, situation.without)]
    return sorted(lines, key=lambda line: 0.0 if isinstance(line, RunStarted) else line.t_s)


def _lines(situation: Situation) -> Iterator[Line]:
    engine = {"engine": situation.engine or "none"}
    yield RunStarted(
        unix_s=1.7e9,
        run_id="r",
        vramp_version="0",
        profile={"server": engine},
        environment={"engine": engine["engine"]},
        workers=2,
        seed=1,
        stages_planned=1,
    )
    if situation.engine is not None:
        yield from _server(situation)
    yield from _machine(situation)
    yield from _stage(situation)
    end_s = float(BEGIN_S + SECONDS + situation.drain_s)
    if situation.dies:
        found = Diagnosis("out-of-memory", "the GPU ran out of memory", ("torch.OutOfMemoryError",), "less memory")
        yield ServerChanged(end_s, "died", "vllm", URL, diagnosis=found)
    yield RunFinished(end_s + 1, 1.7e9 + end_s, "server_died" if situation.dies else "complete", "done")


def _server(situation: Situation) -> Iterator[Line]:
    if situation.engine != "attach":
        yield ServerChanged(STARTING_S, "starting", "vllm", URL)
    command = ["vllm", "serve", "m", "--dtype", "bfloat16"]
    yield ServerChanged(float(READY_S), "ready", "vllm", URL, model="m", version="0.32.0", command=command)
    yield DevicesChosen(float(READY_S), ServerDevices(tuple(GPUS), by="processes"))
    for number in range(2 * int(situation.streams != 0)):
        moments: tuple[tuple[CanaryMoment, float, float], ...] = (
            ("before", READY_S + 1.0, 0.0),
            ("load", BEGIN_S + 10.0, situation.canary_drift),
        )
        for when, t_s, drift in moments:
            yield _canary(when, t_s + number, kind="score", name=f"text {number}", score=-2.5 - drift, scored_tokens=64)
            yield _canary(when, t_s + number, kind="greedy", name=f"prompt {number}", answer=f"answer {number}")


def _canary(when: CanaryMoment, t_s: float, **fields: Any) -> Line:
    index = None if when == "before" else 0
    usual: dict[str, Any] = {"method": "prompt_logprobs", "ttft_ms": TTFT_MS, "input_tokens": 65, "output_tokens": 1}
    return CanaryMeasured(t_s=t_s, when=when, index=index, **usual | fields)


def _machine(situation: Situation) -> Iterator[Line]:
    statics = (
        GpuStatic(
            index=index,
            vendor="amd",
            name="AMD Instinct MI300X",
            uuid=f"GPU-{index}",
            socket=f"GPU-{index}",
            arch="gfx942",
            engine_index=index,
            hbm_total_bytes=192 * GIB,
            power_cap_default_w=750.0,
            gfx_clock_max_mhz=2100.0,
            pcie_width_max=16,
            pcie_speed_max_gts=32.0,
            links_total=7,
            compute_partition="SPX",
        )
        for index in GPUS
    )
    yield TelemetryChanged(0.0, tuple(statics), {"amd": {"backend": "amdsmi"}})
    looks_s = [1.0, *np.linspace(READY_S + 1, BEGIN_S + SECONDS, situation.looks or SECONDS + BEGIN_S - READY_S)]
    for t_s in map(float, looks_s):
        yield GpusSampled(t_s, tuple(_gpu(situation, index, t_s) for index in GPUS))
        yield HostSampled(t_s, _host(situation, t_s))


def _gpu(situation: Situation, index: int, t_s: float) -> GpuSample:
    loaded = t_s >= BEGIN_S and situation.engine is not None and (situation.streams != 0 or situation.others > 0)
    served = situation.engine == "attach" or (situation.engine is not None and t_s >= READY_S)
    used_gib = 170.0 if served else situation.used_before_gib
    values: dict[str, Any] = {
        "hbm_used_bytes": round(used_gib * GIB),
        "temperature_hotspot_c": 70.0,
        "power_cap_w": 750.0,
        "pcie_width": 16,
        "pcie_speed_gts": 32.0,
        "links_up": 7,
        "ecc_uncorrectable": 0,
        **(BUSY if loaded else IDLE),
    }
    if loaded:
        values |= situation.gpu
        values |= situation.one_gpu if index == 5 else {}
    return GpuSample(index=index, t_s=t_s, **values)


def _host(situation: Situation, t_s: float) -> HostSample:
    usual = {"cores": 128, "memory_used_bytes": 40 * GIB, "memory_total_bytes": 1024 * GIB, "load_1min": 4.0}
    busy = {"cpu_percent": 4.0, "cpu_busiest_percent": 60.0}
    return HostSample(t_s=t_s, **{**usual, **busy, **situation.host})


def _stage(situation: Situation) -> Iterator[Line]:
    limit = (
        {"requests": round((situation.rate or 0) * SECONDS)} if situation.drain_s else {"duration_s": float(SECONDS)}
    )
    yield StageStarted(
        t_s=float(BEGIN_S),
        index=0,
        label="no load" if situation.streams == 0 else "load",
        concurrency=situation.streams,
        rate=situation.rate,
        isl=ISL,
        osl=OSL,
        **limit,
    )
    seconds = SECONDS + situation.drain_s
    for number in range(round(seconds / TICK_S)):
        yield _tick(situation, number)
    if situation.engine is not None:
        yield EngineMeasured(BEGIN_S + seconds, 0, _measured(situation, seconds))
    yield StageEnded(BEGIN_S + seconds, 0, "its time was up")


def _rate(situation: Situation) -> float:
    """Own requests that end in a second."""
    return situation.answered * situation.rate if situation.rate is not None else (situation.streams or 0) / E2E_S


def _tick(situation: Situation, number: int) -> Ticked:
    start_s = number * TICK_S
    arriving = start_s < SECONDS
    rate = _rate(situation) if start_s < min(SECONDS, situation.silent_from_s) else 0.0
    done = round(rate * (start_s + TICK_S)) - round(rate * start_s)
    held = round(rate * E2E_S if situation.streams is None else situation.streams)
    if situation.rate is not None and arriving:
        held += round((1 - situation.answered) * situation.rate * (start_s + TICK_S))
    tokens = round(rate * OSL * TICK_S)
    metrics = StageMetrics()
    if situation.streams != 0:
        metrics.counters |= {
            "sent": done + situation.counts.get("failed", 0),
            "completed": done,
            "good": done,
            "input_tokens": ISL * done,
            "output_tokens": OSL * done,
            "window_requests": done,
            "window_output_tokens": tokens,
            "held_area_ns": round(held * TICK_S * 1e9),
            **{name: value for name, value in situation.counts.items() if isinstance(value, int)},
        }
        metrics.errors |= situation.counts.get("errors", {})
        for name, value_ms in (("ttft", TTFT_MS), ("tpot", TPOT_MS), ("e2e", 1000 * E2E_S)):
            metrics.latency[name] = _histogram(value_ms, done)
        metrics.latency["itl"] = _histogram(TPOT_MS, tokens)
    origin_ns = BEGIN_S * 10**9
    metrics.window_start_ns = origin_ns
    metrics.window_end_ns = origin_ns + round((start_s + TICK_S) * 1e9)
    if not arriving:
        metrics.tail_start_ns = origin_ns + SECONDS * 10**9
    client = ClientMetrics()
    usual = {"cpu_ns": 20_000_000, "waited_ns": 100_000, "reads": max(1, tokens), "requests": done}
    client.counters |= {**usual, "input_tokens": ISL * done, "output_tokens": tokens, **situation.client}
    client.read_lag = _histogram(situation.read_lag_ms, tokens)
    return Ticked(
        t_s=BEGIN_S + start_s + TICK_S,
        span_s=TICK_S,
        stages={0: metrics.encode()},
        client=client.encode(),
        held=held,
        workers=2,
        sharing=2,
        engine=_view(situation, held, done / TICK_S, BEGIN_S + start_s),
        own=OwnRequests(),
    )


@cache
def _histogram(value_ms: float, count: int) -> Histogram:
    histogram = Histogram()
    histogram.record_us(np.full(count, round(value_ms * 1000), dtype=np.int64))
    return histogram


def _view(situation: Situation, held: int, answered_per_s: float, t_s: float) -> EngineView | None:
    if situation.engine is None:
        return None
    rate = answered_per_s + situation.others
    admitted = float(held if situation.admits is None else situation.admits)
    usual: dict[str, Any] = {
        "kind": "vllm",
        "running": min(held, admitted) + situation.others * E2E_S,
        "waiting": max(0.0, held - admitted),
        "kv_usage": 0.97 if held > admitted else 0.3,
        "preemptions": 0.0,
        "requests_per_s": rate,
        "prompt_tokens_per_s": rate * ISL,
        "generation_tokens_per_s": rate * OSL,
        "between_s": (t_s - 1.0, t_s),
        "span_s": 1.0,
    }
    return EngineView(**usual | situation.view)


def _measured(situation: Situation, seconds: float) -> EngineStage:
    requests = round((_rate(situation) + situation.others) * min(SECONDS, situation.silent_from_s))
    usual: dict[str, Any] = {
        "kind": "vllm",
        "requests": requests,
        "prompt_tokens": requests * ISL,
        "generation_tokens": requests * OSL,
        "ttft_mean_ms": TTFT_MS,
        "ttft_count": requests,
        "tpot_mean_ms": TPOT_MS,
        "preemptions": 0,
        "between_s": (float(BEGIN_S), BEGIN_S + seconds),
        "idle_around": False,
    }
    return EngineStage(**usual | situation.measured)


_GAUGES = ("running", "waiting", "kv_usage", "requests_per_s")
HELD_BACK = {
    "bursts": 8,
    "burst_events": 160,
    "burst_gap_ns": 8 * 200_000_000,
    "burst_moments": 4,
    "first_bursts": 2,
    "first_burst_events": 40,
    "first_burst_gap_ns": 2 * 200_000_000,
}
SITUATIONS = {
    "idle box: monitor without a server": Situation(streams=0, engine=None),
    "attached server without traffic": Situation(streams=0, engine="attach", used_before_gib=170.0),
    "attached server with the traffic of others": Situation(streams=0, engine="attach", others=20.0),
    "healthy, 1 stream": Situation(streams=1, gpu={"gfx_percent": 70.0, "memory_percent": 40.0, "power_w": 300.0}),
    "healthy, 4 streams": Situation(streams=4),
    "healthy, 64 streams": Situation(),
    "attached box, 64 streams": Situation(engine="attach", used_before_gib=170.0),
    "memory in use before the start": Situation(used_before_gib=60.0),
    "memory bandwidth full": Situation(gpu={"memory_percent": 95.0}),
    "matrix cores full": Situation(measured={"tflops_per_gpu": 700.0}),
    "GPUs active, hardly computing": Situation(streams=4, measured={"tflops_per_gpu": 47.0}),
    "others use the server, too": Situation(engine="attach", others=10.0),
    "overload": Situation(streams=300, admits=256),
    "open loop that keeps up": Situation(streams=None, rate=20.0),
    "open loop over the capacity": Situation(streams=None, rate=40.0, answered=0.6, admits=256),
    "open loop bounded by requests, drained": Situation(streams=None, rate=20.0, drain_s=20.0),
    "open loop over the capacity, of an engine that admits all": Situation(streams=None, rate=40.0, answered=0.6),
    "open loop over the capacity, without metrics": Situation(
        streams=None, rate=40.0, answered=0.6, without=(EngineMeasured,), view=dict.fromkeys(_GAUGES)
    ),
    "client limited": Situation(read_lag_ms=60.0, client={"cpu_ns": 480_000_000}),
    "client stood still": Situation(client={"stood_still_ns": 20_000_000}),
    "time stolen by the hypervisor": Situation(host={"cpu_steal_percent": 12.0}),
    "host busy": Situation(host={"cpu_percent": 98.0, "cpu_busiest_percent": 100.0}, gpu={"gfx_percent": 40.0}),
    "one core busy, GPUs idle": Situation(host={"cpu_busiest_percent": 100.0}, gpu={"gfx_percent": 40.0}),
    "host busy, nothing sent": Situation(streams=0, engine="attach", host={"cpu_percent": 98.0}),
    "throttled by heat": Situation(gpu={"throttle_percent": {"thermal": 60.0}, "temperature_hotspot_c": 104.0}),
    "one slow GPU": Situation(one_gpu={"gfx_clock_mhz": 1200.0, "temperature_hotspot_c": 95.0}),
    "all GPUs slow": Situation(gpu={"gfx_clock_mhz": 60.0, "power_w": 200.0}),
    "a GPU with memory errors": Situation(one_gpu={"ecc_uncorrectable": 3}),
    "streams held back on their way": Situation(streams=8, counts=HELD_BACK),
    "output differs under load": Situation(canary_drift=0.4),
    "requests fail": Situation(counts={"failed": 2, "errors": {"aborted": 2}}),
    "server dies": Situation(dies=True),
    "paused": Situation(paused=True),
    "a kernel that does not end": Situation(silent_from_s=20.0),
    "a lost event": Situation(silent_from_s=20.0, gpu=IDLE),
    "no answer yet, GPUs busy": Situation(silent_from_s=0.0),
    "no GPUs": Situation(without=(TelemetryChanged, GpusSampled)),
    "no metrics of the engine": Situation(view=dict.fromkeys(_GAUGES), without=(EngineMeasured,)),
    "no host": Situation(without=(HostSampled,)),
    "one look at GPUs and host": Situation(looks=1),
    "nothing but the client": Situation(
        without=(TelemetryChanged, GpusSampled, HostSampled, EngineMeasured), view=dict.fromkeys(_GAUGES)
    ),
}


def header(record: Record, situation: Situation) -> str:
    """The cockpit's header as the stage ends."""
    snapshot = snapshot_of(
        record,
        ShownStages(),
        t_s=BEGIN_S + SECONDS,
        phase="paused" if situation.paused else "running",
        server=ServerView(situation.engine or "none", URL, "ready"),
        workers=2,
        unix_s=0.0,
        profile="matrix",
        load=LoadView(1, 1, situation.streams, situation.rate, 0, 0, ISL, OSL),
        telemetry="",
    )
    return f"{'' if snapshot.healthy else 'bad: '}{snapshot.headline}"


def said(situation: Situation) -> Iterator[str]:
    """The header while it runs, what the report says first, every verdict, and what speaks against quoting it."""
    record = Record()
    for line in journal(situation):
        if isinstance(line, StageEnded | RunFinished) and not record.stages[0].ended:
            yield f"Header: {header(record, situation)}"
        record.apply(line)
    result = record.result()
    for answer in assessment(result):
        yield f"{answer.subject} {answer.text}"
    for verdict in (*result.verdicts, *(found for stage in result.stages for found in stage.verdicts)):
        yield f"{verdict.id}{'' if verdict.bad else ' (information)'}, {verdict.subject}: {verdict.text}"
    quote = quote_of(result)
    if quote is not None:
        yield f"Fit to quote? {', '.join(problem.rule for problem in quote.problems) or 'yes'}"


if __name__ == "__main__":
    print("# What is said of each situation\n")
    print("Reviewed line by line: a situation without a verdict has none on purpose. See situations.py.")
    for name, situation in SITUATIONS.items():
        print(f"\n## {name}\n", *(f"- {line}" for line in said(situation)), sep="\n")
