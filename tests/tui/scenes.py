"""An afternoon at the box, scripted: every snapshot of a ladder with GPUs, errors, notes, a search and a publication.

Everything that a view shows is in it, and it is the same every time.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import msgspec

from loadgen.schema.comparison import Comparison
from loadgen.schema.deltas import SessionRow, SessionsNow, Summary
from loadgen.schema.engine import EngineLatencyMs, EngineStage, EngineView, OthersTraffic, SpecDecode, TruthCheck
from loadgen.schema.finding import Finding
from loadgen.schema.hardware_result import EnergyResult
from loadgen.schema.result import Concurrency, HostResult, RunEvent, StageResult, Target, Throughput
from loadgen.schema.shared import SearchResult
from loadgen.schema.snapshot import (
    CURVE_PERCENTS,
    ClientView,
    Distribution,
    GpuView,
    LoadView,
    SeriesPoint,
    ServerView,
    Snapshot,
)
from loadgen.schema.start import ServerStart
from tests.tui.cockpit import Seat
from tests.tui.scripted import LADDER, NO_REQUESTS, STAGE_S, host, running, with_gpus

SNAPSHOT_S = 0.25
END_S = 238.0
ERRORS = {
    "http_5xx": (12, ["500: CUDA out of memory", "503: no engine is ready"]),
    "timeout": (7, ["not complete within 60 s"]),
}
FINDINGS = (
    Finding("flag-unknown", "blocks", "--swap-space", "vLLM 0.32 has no such flag", "remove server.args.swap-space"),
    Finding("numa-balancing", "warns", "kernel.numa_balancing is 1", "it can make GPUs hang", "sysctl -w it to 0"),
)
_HOST = HostResult(
    name="rack1-a",
    workers=2,
    share=0.34,
    held=10.6,
    requests=msgspec.structs.replace(NO_REQUESTS, sent=300, completed=290),
    throughput=Throughput(30.0, 6_000.0, 1_200.0, 7_200.0, 113.0),
    latency_ms={"ttft": Summary(290, p50=210.0, p99=420.0), "tpot": Summary(290, p50=12.5, p99=19.0)},
    cpu_share=0.12,
    read_lag_p99_ms=0.4,
    send_lag_p99_ms=0.2,
    rss_mib=48.0,
    offset_ms=-2_814.2,
    uncertainty_ms=0.31,
    rtt_ms=0.9,
)
HOSTS = (
    _HOST,
    msgspec.structs.replace(
        _HOST,
        name="[bold]far[/]",
        share=0.33,
        held=10.7,
        requests=msgspec.structs.replace(NO_REQUESTS, sent=290, completed=280),
        throughput=Throughput(29.0, 5_900.0, 1_150.0, 7_050.0, 110.0),
        latency_ms={"ttft": Summary(280, p50=250.0, p99=461.0), "tpot": Summary(280, p50=12.6, p99=19.2)},
        cpu_share=0.96,
        read_lag_p99_ms=31.0,
        offset_ms=1.4,
        uncertainty_ms=10.2,
        rtt_ms=41.0,
        why="workers used 96% of their cores; give them more with --workers",
    ),
    msgspec.structs.replace(
        _HOST,
        name="rack1-c",
        workers=0,
        share=0.33,
        held=6.1,
        requests=msgspec.structs.replace(NO_REQUESTS, sent=280, completed=260, lost=10),
        throughput=Throughput(18.0, 3_600.0, 700.0, 4_300.0, 114.0),
        latency_ms={"ttft": Summary(260, p50=211.0, p99=425.0), "tpot": Summary(260, p50=12.5, p99=19.1)},
        cpu_share=0.11,
        offset_ms=12.0,
        uncertainty_ms=0.5,
        rtt_ms=1.0,
        lost=True,
        why="it was lost, and 10 streams with it",
    ),
)
SLO_MS = {"ttft_p99": 1500.0, "tpot_p50": 22.0}
SEARCH = SearchResult("knee", "concurrency", 32.0, 24.0, 48.0, resolved=True, why="", probes=6)


_box = lru_cache(with_gpus)


def moment(t_s: float, *, gpus: int = 8, **changes: Any) -> Snapshot:
    now = running(t_s, errors=ERRORS if t_s > 130 else {})
    stage = now.stages[-1]
    fields: dict[str, Any] = {
        "gpus": _gpus(gpus, t_s),
        "telemetry": "amd: amdsmi",
        "host": _box().host,
        "verdicts": _box().verdicts,
        "findings": FINDINGS,
        "engine": _engine(t_s, now.load.concurrency or 0),
        "recent": {name: _rescaled(one, 1.08) for name, one in stage.latency_ms.items()},
        "distributions": tuple(
            _distribution(n + 1, LADDER[n]) for n in range(len(now.stages) - 1, max(-1, len(now.stages) - 3), -1)
        ),
        "slo_ms": SLO_MS,
        "events": _events(t_s, now.events),
        "stages": tuple(_reported(stage) for stage in now.stages),
        "reference": _published(len(now.stages) - 1),
        "point": msgspec.structs.replace(now.point, errors=int(130 < t_s < 133)),
    }
    return msgspec.structs.replace(now, **(fields | changes))


def without_server(t_s: float) -> Snapshot:
    """A moment of a burn-in: no server, eight GPUs of which one is held back, and the host."""
    now = watching(t_s)
    drawn = EnergyResult(4_960.0 * t_s, "counter", False, t_s or 1.0, None, None, ())
    stage = msgspec.structs.replace(now.stages[0], others=None, engine=None, energy=drawn)
    return msgspec.structs.replace(
        now,
        profile="monitor",
        headline="gpu 5: THROTTLED thermal 18%, and 1 more",
        healthy=False,
        verdicts=tuple(verdict for verdict in now.verdicts if verdict.bad),
        server=ServerView(engine="none", url="", state="ready"),
        point=SeriesPoint(t_s),
        engine=None,
        others=None,
        stages=(stage,),
        host=host(
            server_cpu_percent=None,
            cpu_percent=12.0 + 10 * math.sin(t_s / 20),
            network_in_bytes_per_s=2.4e6,
            network_out_bytes_per_s=0.3e6 * (1 + t_s / 100),
            disk_read_bytes_per_s=140e6,
            disk_write_bytes_per_s=0.0,
            cpu_mhz=3_100.0,
            cpu_mhz_min=2_400.0,
        ),
    )


@lru_cache
def afternoon(gpus: int = 8) -> tuple[Snapshot, ...]:
    """All beats, the last one with what the search has found."""
    beats = [moment(n * SNAPSHOT_S, gpus=gpus) for n in range(int(END_S / SNAPSHOT_S))]
    return (*beats, moment(END_S, gpus=gpus, search=SEARCH))


def watching(t_s: float) -> Snapshot:
    """A moment without load of our own, while others send more and more."""
    now, conc = running(t_s), max(1.0, t_s / 6)
    none = msgspec.structs.replace(
        now.stages[0],
        label="no load",
        target=Target(0, None, None),
        stop_reason="",
        duration_s=t_s,
        requests=NO_REQUESTS,
        concurrency=Concurrency(0.0, 0),
        throughput=Throughput(None, None, None, None, None),
        latency_ms={},
        slo={},
        others=OthersTraffic(conc, conc / 16, 210.0 * conc, 52.0 * conc),
        engine=EngineStage(
            latency_ms=_engine_of_others(t_s, conc).latency_ms,
            requests=int(conc),
            prompt_tokens=int(3360 * conc),
            generation_tokens=int(832 * conc),
            between_s=(0.0, 16.0),
        ),
    )
    return moment(
        t_s,
        headline=f"no load; others: {conc:.0f} running, {52 * conc:.0f} tok/s out",
        healthy=True,
        load=LoadView(1, 1, 0, None, 0, 0, 4096, 1024, stage_elapsed_s=t_s),
        point=SeriesPoint(
            t_s, engine_running=conc, engine_waiting=0.0, kv_usage=conc / 60, others_tokens_per_s=52.0 * conc
        ),
        client=ClientView("unknown", 0, None, None, None, limited=False, why=None),
        engine=_engine_of_others(t_s, conc),
        others=OthersTraffic(conc, conc / 16, 210.0 * conc, 52.0 * conc),
        stages=(none,),
        curve=(),
        recent={},
        distributions=(),
        requests=now.requests,
        reference=(),
        events=(RunEvent(0.0, "load", "no load"),),
    )


def _engine_of_others(t_s: float, conc: float) -> EngineView:
    bounds = (40.0, 60.0, 80.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0, None)
    place = min(5, int(t_s // 40))

    def latency(times: float, of: int) -> EngineLatencyMs:
        low, middle, high = ((bounds[n + place] or 0.0) * times for n in range(3))
        top = bounds[place + 3]
        within = {"p50": (low, middle), "p90": (middle, high), "p99": (high, None if top is None else top * times)}
        return EngineLatencyMs(of, middle, within)

    times = {"ttft": 1.0, "tpot": 0.2, "itl": 0.2, "e2e": 100.0, "queue": 0.05, "prefill": 0.8, "decode": 90.0}
    return msgspec.structs.replace(
        _engine(t_s, int(conc)),
        kind="vllm",
        running=conc,
        requests_per_s=conc / 16,
        latency_ms={name: latency(each, int(conc) + 3) for name, each in times.items()},
        since_start={name: latency(each, 5000) for name, each in times.items()},
        finished={"stop": 12, "length": 3, "abort": 1},
        errors={"4xx": 2},
        spec=SpecDecode(40, 200, 118, 0.59, 3.95, (0.83, 0.71, 0.55, 0.46, 0.4)),
        prompt_tokens_by_source={"local_compute": 900, "local_cache_hit": 100},
        hbm_bytes_per_s=2.1e12,
        unavailable={"tflops_per_gpu": "start vLLM with --enable-mfu-metrics"},
    )


def playing(t_s: float) -> Snapshot:
    """A moment of a load of sessions, whose contexts outgrow the KV cache as more of them live."""
    live = int(8 + t_s / 4)
    pausing, contexts = live * 2 // 3, 123_000 * live
    hit = 96.0 if contexts < 2_100_000 else max(4.0, 96.0 - (contexts - 2_100_000) / 20_000)
    rows = [
        SessionRow(n, 7 * n, 5 + n, 40 + n, int(n % 3 == 0), False, 200_000 - 9_000 * n, round(hit / 100, 2))
        for n in range(12)
    ]
    now = moment(t_s)
    point = msgspec.structs.replace(
        now.point,
        held=live - pausing,
        live_sessions=live,
        pausing_sessions=pausing,
        due_requests=0,
        context_tokens=contexts,
        hit_percent=hit,
        infinite_hit_percent=96.4,
        pool_hit_percent=min(96.4, hit + 2.0),
    )
    return msgspec.structs.replace(
        now,
        point=point,
        load=msgspec.structs.replace(now.load, concurrency=live, held=live - pausing, in_sessions=True),
        server=msgspec.structs.replace(now.server, start=ServerStart(kv_cache_tokens=2_100_000)),
        sessions=SessionsNow(live, 0, pausing, 0, contexts, rows),
    )


async def watch(seat: Seat, *, gpus: int = 8) -> None:
    """All of it before the eyes, the last moment drawn."""
    *before, last = afternoon(gpus)
    for snapshot in before:
        seat.screen.gather(snapshot)
    await seat.show(last)


def _gpus(count: int, t_s: float) -> tuple[GpuView, ...]:
    """One look a second; number 5 is held back from the second stage on."""
    look = float(int(t_s))
    hot = 1 - math.exp(-t_s / 60)
    found = []
    for gpu in _box(count).gpus:
        assert gpu.sample is not None
        wave = math.sin(look / 7 + gpu.static.index)
        held_back = bool(gpu.flags) and t_s > STAGE_S
        sample = msgspec.structs.replace(
            gpu.sample,
            t_s=50_000 + look,
            gfx_percent=(gpu.sample.gfx_percent or 0) - 6 - 5 * wave,
            power_w=(gpu.sample.power_w or 0) * (0.55 + 0.45 * hot) if not held_back else 750.0,
            temperature_hotspot_c=40 + hot * 45 + gpu.static.index % 3,
        )
        found.append(GpuView(gpu.static, sample, gpu.flags if held_back else (), gpu.pace))
    return tuple(found)


def _engine(t_s: float, conc: int) -> EngineView:
    wave = 1 + 0.1 * math.sin(t_s)
    preempted = max(0.0, math.floor(t_s - 190) * 2)
    return EngineView(
        running=min(conc, 48),
        waiting=max(0, conc - 48),
        kv_usage=min(0.98, conc / 60),
        preemptions=preempted,
        waiting_by_reason={"capacity": max(0.0, conc - 50.0), "deferred": 2.0 if conc > 48 else 0.0},
        prefix_hit_rate=0.003,
        prompt_tokens_per_s=210.0 * conc * wave,
        generation_tokens_per_s=52.0 * conc * wave,
        engines={
            "0": EngineView(running=conc / 2, waiting=0, kv_usage=0.4, preemptions=0),
            "1": EngineView(running=conc / 2, waiting=max(0, conc - 48), kv_usage=0.97, preemptions=preempted),
        }
        if conc >= 64
        else {},
    )


def _rescaled(one: Summary, by: float) -> Summary:
    names = ("mean", "stddev", "min", "p50", "p90", "p95", "p99", "p999", "max")
    return msgspec.structs.replace(one, **{name: getattr(one, name) * by for name in names})


def _distribution(number: int, conc: int) -> Distribution:
    middles = {"ttft": 180 + 9 * conc, "tpot": 14 + 0.1 * conc, "itl": 13.8 + 0.1 * conc, "e2e": 16_000 + 20 * conc}
    counts = {"ttft": conc * 8, "tpot": conc * 8, "itl": conc * 8 * 1023, "e2e": conc * 8}
    curves = {
        name: tuple(middle * _relative_to_the_median(percent) for percent in CURVE_PERCENTS)
        for name, middle in middles.items()
    }
    return Distribution(number, f"conc {conc}", counts, curves)


def _reported(stage: StageResult) -> StageResult:
    """With what the engine says of it, once it has ended."""
    truth = TruthCheck(
        ttft_client_ms=251.3,
        ttft_server_ms=250.1,
        ttft_outside_ms=1.2,
        queue_ms=None,
        prefill_ms=None,
        frontend_ms=None,
        requests_client=8,
        requests_server=8,
        input_tokens_client=None,
        input_tokens_server=None,
        output_tokens_client=8192,
        output_tokens_server=8192,
        agrees=True,
        why="",
    )
    return stage if stage.running else msgspec.structs.replace(stage, truth=truth)


def _relative_to_the_median(percent: float) -> float:
    return 0.5 + 0.5 * (percent / 50) ** 2 if percent < 50 else 1 - math.log10(1 - percent / 100) / 2


def _events(t_s: float, ladder: tuple[RunEvent, ...]) -> tuple[RunEvent, ...]:
    others = (
        RunEvent(-40.0, "server", "starting: vllm serve openai/gpt-oss-120b"),
        RunEvent(-1.0, "server", "ready"),
        RunEvent(75.0, "note", "fan of node 3 swapped"),
        RunEvent(95.0, "pause", "paused"),
        RunEvent(99.0, "resume", "goes on"),
    )
    return tuple(sorted((one for one in (*ladder, *others) if one.t_s <= t_s), key=lambda one: one.t_s))


def _published(index: int) -> tuple[Comparison, ...]:
    if index > 2:
        return ()
    size = LADDER[index]
    figures = {"output_tokens_per_s": 58.0 * size, "ttft_p50_ms": 170.0 + 9 * size, "tpot_p50_ms": 13.9 + 0.1 * size}
    return tuple(Comparison(index, "MI300X", name, value, value * 1.01, 1.0) for name, value in figures.items())
