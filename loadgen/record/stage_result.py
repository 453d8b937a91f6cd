"""Turns the record of a stage into its part of the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from loadgen.metrics.bursts import buffered_words, on_host
from loadgen.metrics.energy import sockets, window_energy
from loadgen.metrics.frontier import Price, cost_of
from loadgen.metrics.mfu import compute_of
from loadgen.metrics.verdicts import StageFacts, error_verdicts, gpu_verdicts, memory_rate, stage_verdicts
from loadgen.record.crosscheck import truth_check, truth_verdicts
from loadgen.record.curve import LoadCurve
from loadgen.record.hardware import HardwareRecord, full_host_share, gpu_stages, host_means
from loadgen.record.output import CanaryRecord, answer_verdicts
from loadgen.record.slo import judge, tier_checks
from loadgen.record.stage import StageRecord
from loadgen.record.verdicts import account_verdicts, rising_words, session_verdicts, token_verdicts
from loadgen.schema.deltas import COUNTERS, LATENCIES
from loadgen.schema.engine import OthersTraffic
from loadgen.schema.finding import Verdict
from loadgen.schema.hardware_result import ComputeResult, EnergyResult, GpuStage
from loadgen.schema.result import (
    Concurrency,
    FirstWave,
    HostResult,
    InstanceResult,
    Limits,
    Requests,
    StageHardware,
    StageResult,
    Target,
    Throughput,
    Tokens,
)
from loadgen.schema.samples import GpuStatic

_REQUESTS = tuple(name for name in Requests.__struct_fields__ if name in COUNTERS)


def stage_result(
    stage: StageRecord,
    *,
    started_at: str,
    now_s: float,
    limits: Limits,
    urls: Sequence[str],
    machine: StageHardware,
    canaries: CanaryRecord,
    price: Price,
    stages: Iterable[StageRecord],
    with_hdr: bool,
) -> StageResult:
    """The figures of a stage, over or not; `urls` are those of the servers, if there are several.

    `stages` are all stages of its run, with which its answers are compared.
    """
    started, counters, why = stage.started, stage.counters, stage.limit()
    judgement = judge(stage, limits)
    truth = truth_check(stage, stage.engine) if stage.engine is not None else None
    verdicts = [
        *machine.verdicts,
        *truth_verdicts(stage, truth),
        *canaries.stage_verdicts(started.index),
        *account_verdicts(stage),
        *token_verdicts(stage),
        *session_verdicts(stage),
        *answer_verdicts(stage, stages, urls),
    ]
    end_s = stage.ended.t_s if stage.ended is not None else now_s
    throughput = _throughput(stage, sockets=price.gpus or machine.sockets)
    return StageResult(
        index=started.index,
        label=started.label,
        target=Target(
            concurrency=started.concurrency,
            rate=started.rate,
            arrival=started.arrival if started.rate is not None else None,
            moves=(started.steps[0][1], started.steps[-1][1]) if started.steps else None,
        ),
        isl=started.isl,
        osl=started.osl,
        started_at=started_at,
        duration_s=round(max(0.0, end_s - started.t_s), 3),
        measured_s=stage.window_s,
        stop_reason=stage.ended.reason if stage.ended is not None else "the run ended in this stage",
        requests=requests_of(stage),
        concurrency=Concurrency(mean=stage.held_mean, peak=stage.metrics.peak),
        tokens=_tokens(stage),
        throughput=throughput,
        latency_ms=stage.summaries(*LATENCIES, *stage.optional_latencies, with_hdr=with_hdr),
        slo=judgement.slo,
        engine=stage.engine,
        limited=why is not None,
        why=why,
        # A server that took no part has zeros.
        instances=[_instance_result(stage.part(number), url) for number, url in enumerate(urls)],
        hosts=[_host_result(stage, part) for part in stage.hosts],
        gpu=machine.gpu,
        energy=machine.energy,
        host=machine.host,
        verdicts=verdicts,
        truth=truth,
        others=stage.others,
        goodput=judgement.goodput,
        failures=judgement.failures,
        settled_s=stage.settled_s,
        inconclusive=stage.inconclusive,
        variant=started.variant,
        pass_number=started.pass_number,
        precision=stage.blocks.precision(),
        first_wave=_first_wave(stage),
        tail_share=stage.tail_share,
        open_loop=stage.open_loop,
        tpot_parts=counters["tpot_parts"],
        carried_share=stage.carried_share,
        e2e_inconclusive=stage.e2e_inconclusive,
        e2e_needs_s=stage.e2e_needs_s,
        curve=LoadCurve([stage]).points() if started.steps else (),
        compute=machine.compute,
        canary=canaries.stage(started.index, counters["sent"] + counters["warmup"]),
        cost=cost_of(throughput, price),
        answers=stage.answers if stage.answers.read else None,
        tiers=tier_checks(stage, limits.tiers),
        sessions=stage.sessions,
        hits=stage.hits,
        bursts=on_host(stage.bursts, machine.full_host_share),
    )


def _instance_result(part: StageRecord, url: str) -> InstanceResult:
    return InstanceResult(
        url=url,
        requests=requests_of(part),
        throughput=_throughput(part),
        latency_ms=part.summaries("ttft", "tpot"),
        engine=part.engine,
        answers=part.answers if part.answers.read else None,
    )


def _host_result(stage: StageRecord, part: StageRecord) -> HostResult:
    sent, client, tick = stage.counters["sent"], part.client, part.host_tick
    return HostResult(
        name=part.host,
        workers=tick.workers,
        share=part.counters["sent"] / sent if sent else None,
        held=part.held_mean,
        requests=requests_of(part),
        throughput=_throughput(part),
        latency_ms=part.summaries("ttft", "tpot"),
        cpu_share=client.counters["cpu_ns"] / part.client_span_ns if part.client_span_ns else None,
        read_lag_p99_ms=client.read_lag.percentile_ms(99),
        send_lag_p99_ms=client.send_lag.percentile_ms(99),
        rss_mib=tick.rss_bytes / 2**20,
        offset_ms=tick.offset_ns / 1e6,
        uncertainty_ms=tick.uncertainty_ns / 1e6,
        rtt_ms=tick.rtt_ns / 1e6,
        lost=part.host_lost,
        why=part.limit(),
    )


def _tokens(stage: StageRecord) -> Tokens:
    counters = stage.counters
    completed = counters["completed"]
    of = "" if stage.started.requests is not None else "window_"
    known = completed - counters["unknown_input"]
    return Tokens(
        input=None if stage.misses_input and not known else counters[f"{of}input_tokens"],
        input_requests=known,
        output=counters[f"{of}output_tokens"],
        source="events" if counters["counted_by_events"] else "usage",
        input_per_request=counters["input_tokens"] / known if known else None,
        output_per_request=counters["output_tokens"] / completed if completed else None,
        hidden=counters["hidden_tokens"],
    )


def _first_wave(stage: StageRecord) -> FirstWave | None:
    """The streams that filled a closed loop at once; None if there were none."""
    started, streams = stage.started, stage.counters["first_wave"]
    if started.concurrency is None or started.no_load:
        return None
    if started.first_wave == "counted":
        return FirstWave(streams=started.concurrency, counted=True, ttft_ms=None)
    return FirstWave(streams, False, stage.histogram("first_wave_ttft").summary()) if streams else None


def requests_of(stage: StageRecord) -> Requests:
    metrics = stage.metrics
    counts: dict[str, Any] = {name: stage.counters[name] for name in _REQUESTS}
    counts["scheduled"] = counts["sent"] + counts["unsent"]
    if not stage.is_part:
        counts["open"] = stage.open_sent
    if counts["unsent"]:
        counts["unsent_longest_wait_s"] = round(metrics.unsent_wait_ns / 1e9, 3)
    counts |= {name: dict(getattr(metrics, name)) for name in ("errors", "messages", "models", "finish_reasons")}
    return Requests(**counts)


def _throughput(stage: StageRecord, *, sockets: int = 0) -> Throughput:
    """The rates of its window; `sockets` are those of the server, 0 if unknown."""
    output = stage.per_second("window_output_tokens")
    total = stage.per_second("window_input_tokens", "window_output_tokens")
    held, slow_ms = stage.held_mean, stage.histogram("tpot").percentile_ms(75)
    inputs, cached = stage.per_second("window_input_tokens"), None
    if inputs is not None and stage.hits is not None and stage.hits.measured is not None:
        cached = inputs * stage.hits.measured
    uncached = inputs - cached if inputs is not None and cached is not None else None
    return Throughput(
        requests_per_s=stage.per_second("window_requests"),
        input_tokens_per_s=inputs,
        output_tokens_per_s=output,
        total_tokens_per_s=total,
        output_tokens_per_s_per_user=output / held if output is not None and held else None,
        output_tokens_per_s_p25=1000 / slow_ms if slow_ms else None,
        cached_input_tokens_per_s=cached,
        output_tokens_per_s_per_gpu=output / sockets if output is not None and sockets else None,
        total_tokens_per_s_per_gpu=total / sockets if total is not None and sockets else None,
        cached_input_tokens_per_s_per_gpu=cached / sockets if cached is not None and sockets else None,
        uncached_input_tokens_per_s_per_gpu=uncached / sockets if uncached is not None and sockets else None,
    )


_BUSY_FROM_PERCENT = 5.0


def stage_hardware(stage: StageRecord, hardware: HardwareRecord) -> StageHardware:
    """All hardware figures over the window so far; empty without a window."""
    if stage.hardware_figures is not None:
        return stage.hardware_figures
    if stage.metrics.window is None:
        return StageHardware()
    start_s, end_s = stage.metrics.window
    samples = stage.hardware_samples
    devices = hardware.of_stage(samples)
    indices = {gpu.index for gpu in hardware.sockets_of(devices)}
    gpus = gpu_stages(hardware.gpus, samples.within(start_s, end_s), samples.by_gpu, of_server=indices)
    host = host_means(samples.host, start_s, end_s)
    full_share = full_host_share(samples.host, start_s, end_s)
    energy, compute = stage_energy(stage, hardware), stage_compute(stage, hardware)
    facts = msgspec.structs.replace(
        limit_facts(stage, _busy(gpus, hardware.gpus), compute, host, full_share, stage.others),
        waiting=stage.waiting_mean,
        kv_usage=stage.kv_usage_max,
        preemptions=stage.engine.preemptions if stage.engine is not None else None,
        rising=rising_words(stage, {gpu.index for gpu in gpus if gpu.of_server}),
    )
    errors = error_verdicts(stage.subject, gpus, end_s - start_s, hardware.of_others(devices))
    verdicts = [*stage_verdicts(stage.subject, facts), *errors]
    return StageHardware(gpus, energy, compute, host, verdicts, full_share, server_sockets(stage, hardware))


def summarise_hardware(stage: StageRecord, hardware: HardwareRecord) -> None:
    """Replace the samples of a stage that is long over by its figures, which take a tenth of the memory."""
    hardware.health |= _health(stage, hardware)
    stage.hardware_figures = stage_hardware(stage, hardware)
    stage.hardware_samples.forget()


def run_health(stages: Iterable[StageRecord], hardware: HardwareRecord) -> list[Verdict]:
    """Verdicts on the GPUs' health in any stage and now; of repeated ones, only the latest.

    Past stages count, because GPUs that are idle again are neither hot nor slow.
    """
    found = dict(hardware.health)
    for stage in stages:
        if stage.hardware_figures is None:
            found |= _health(stage, hardware)
    return list((found | _by_subject(gpu_verdicts(hardware.facts()))).values())


def _health(stage: StageRecord, hardware: HardwareRecord) -> dict[tuple[str, str], Verdict]:
    if stage.metrics.window is None:
        return {}
    return _by_subject(gpu_verdicts(hardware.facts_within(stage.hardware_samples, *stage.metrics.window)))


def _by_subject(verdicts: Iterable[Verdict]) -> dict[tuple[str, str], Verdict]:
    return {(verdict.id, verdict.subject): verdict for verdict in verdicts}


def server_sockets(stage: StageRecord, hardware: HardwareRecord) -> int:
    """How many GPUs the server was given, counting partitions of one GPU once; 0 if unknown."""
    devices = hardware.of_stage(stage.hardware_samples)
    return len(sockets(hardware.sockets_of(devices))) if devices.by != "all" else 0


def stage_energy(stage: StageRecord, hardware: HardwareRecord) -> EnergyResult | None:
    """The energy of the server's sockets over the window; None without GPUs, or before five seconds."""
    if stage.metrics.window is None or not hardware.gpus:
        return None
    samples = stage.hardware_samples
    devices = hardware.of_stage(samples)
    ours = hardware.sockets_of(devices)
    used = window_energy(ours, samples.by_gpu, *stage.metrics.window, stage.generated_tokens)
    return None if used is None else msgspec.structs.replace(used, devices_by=devices.by)


def stage_compute(stage: StageRecord, hardware: HardwareRecord) -> ComputeResult | None:
    """What the GPUs computed in a stage; None before the engine's figures for it are known."""
    if stage.engine is None:
        return None
    gpus = hardware.sockets_of(hardware.of_stage(stage.hardware_samples))
    return compute_of(stage.engine, stage.server_command, gpus)


def _busy(gpus: Sequence[GpuStage], statics: Sequence[GpuStatic]) -> list[BusyGpu]:
    static_of = {static.index: static for static in statics}
    found = []
    for gpu in gpus:
        figures = (gpu.gfx_percent, gpu.dram_percent, gpu.memory_percent)
        gfx, dram, memory = (None if figure is None else figure.mean for figure in figures)
        if gpu.of_server and (gfx or 0.0) >= _BUSY_FROM_PERCENT:
            found.append((static_of[gpu.index], gfx, dram, memory))
    return found


BusyGpu = tuple[GpuStatic, float | None, float | None, float | None]
"""An active GPU with its activity and the use of its memory: `gfx_percent`, `dram_percent`, `memory_percent`."""


def limit_facts(
    stage: StageRecord,
    busy: Sequence[BusyGpu],
    compute: ComputeResult | None,
    host: Mapping[str, float | None],
    full_share: float | None,
    others: OthersTraffic | None,
) -> StageFacts:
    """What may have limited a stage, apart from the engine's own figures."""
    return StageFacts(
        client_limit=stage.limit(),
        buffered=buffered_words(on_host(stage.bursts, full_share)),
        capped=stage.capped(),
        others=stage.others_meanwhile(others),
        is_loaded=stage.is_loaded,
        gfx_percent=mean_of(gfx for _, gfx, _, _ in busy),
        memory_rate_percent=mean_of(memory_rate(gpu, dram, memory) for gpu, _, dram, memory in busy),
        mfu_percent=compute.mfu_percent if compute is not None else None,
        host_percent=host.get("cpu_percent"),
        busiest_core_percent=host.get("cpu_busiest_percent"),
        steal_percent=host.get("cpu_steal_percent"),
    )


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the known ones."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
