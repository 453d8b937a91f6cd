"""From the record of a stage to its part of the result."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.result import (
    Concurrency,
    InstanceResult,
    Requests,
    StageResult,
    Target,
    Throughput,
    Tokens,
)
from loadgen.metrics.slo import Limits, judge
from loadgen.metrics.stage import LATENCIES
from loadgen.metrics.stage_hardware import StageHardware
from loadgen.metrics.stage_record import StageRecord
from loadgen.metrics.truth import ClientAccount, TruthCheck, truth_check, truth_verdicts


def stage_result(
    stage: StageRecord,
    *,
    started_at: str,
    now_s: float,
    limits: Limits,
    urls: Sequence[str],
    machine: StageHardware,
) -> StageResult:
    """The numbers of a stage, over or not; `urls` are those of the servers, where there are several."""
    started, counters, why = stage.started, stage.counters, stage.limit()
    truth, judgement = truth_of(stage), judge(stage, limits)
    end_s = stage.ended.t_s if stage.ended is not None else now_s
    return StageResult(
        index=started.index,
        label=started.label,
        target=Target(
            concurrency=started.concurrency,
            rate=started.rate,
            arrival=started.arrival if started.rate is not None else None,
        ),
        isl=started.isl,
        osl=started.osl,
        started_at=started_at,
        duration_s=round(max(0.0, end_s - started.t_s), 3),
        measured_s=stage.window_s,
        stop_reason=stage.ended.reason if stage.ended is not None else "the run ended in this stage",
        requests=_requests(stage),
        concurrency=Concurrency(mean=stage.held_mean, peak=stage.metrics.peak),
        tokens=Tokens(
            input=counters["input_tokens"],
            output=counters["output_tokens"],
            source="events" if counters["counted_by_events"] else "usage",
        ),
        throughput=_throughput(stage),
        latency_ms=stage.summaries(*LATENCIES, with_hdr=True),
        slo=judgement.slo,
        engine=stage.engine,
        limited=why is not None,
        why=why,
        # A server that took no part in a stage has a part of zeros.
        instances=[_instance_result(url, stage.part(number)) for number, url in enumerate(urls)],
        gpu=machine.gpu,
        energy=machine.energy,
        host=machine.host,
        verdicts=machine.verdicts + truth_verdicts(f"stage {started.index + 1}", truth, stage.engine),
        truth=truth,
        goodput=judgement.goodput,
        failures=judgement.failures,
        settled_s=stage.settled_s,
        inconclusive=stage.inconclusive,
        variant=started.variant,
        precision=stage.blocks.precision(),
    )


def truth_of(stage: StageRecord) -> TruthCheck | None:
    """Client against engine; None before the engine has had its word.

    That covers warm-up, so the client's first tokens are those of all streams.
    """
    if stage.engine is None:
        return None
    counters, ttft = stage.counters, Histogram()
    for name in ("ttft", "warmup_ttft"):
        ttft.add(stage.metrics.latency.get(name, Histogram()))
    account = ClientAccount(
        ttft_ms=ttft.mean_ms(),
        first_tokens=ttft.count,
        asked=stage.started.requests,
        completed=counters["completed"],
        failed=counters["failed"] + counters["warmup_failed"],
        unfinished=counters["unfinished"],
        warmup=counters["warmup"],
        input_tokens=counters["input_tokens"],
        output_tokens=counters["output_tokens"],
        counted_by_events=counters["counted_by_events"] > 0,
        alone=stage.alone,
    )
    return truth_check(account, stage.engine)


def _instance_result(url: str, part: StageRecord) -> InstanceResult:
    return InstanceResult(
        url=url,
        requests=_requests(part),
        throughput=_throughput(part),
        latency_ms=part.summaries("ttft", "tpot"),
        engine=part.engine,
    )


def _requests(stage: StageRecord) -> Requests:
    names = ("sent", "completed", "failed", "cancelled", "unfinished", "warmup", "retried", "clock_steps")
    counts = {name: stage.counters[name] for name in names}
    metrics = stage.metrics
    return Requests(**counts, errors=dict(metrics.errors), messages=dict(metrics.messages), models=dict(metrics.models))


def _throughput(stage: StageRecord) -> Throughput:
    output = stage.per_second("window_output_tokens")
    held = stage.held_mean
    return Throughput(
        requests_per_s=stage.per_second("window_requests"),
        input_tokens_per_s=stage.per_second("window_input_tokens"),
        output_tokens_per_s=output,
        total_tokens_per_s=stage.per_second("window_input_tokens", "window_output_tokens"),
        output_tokens_per_s_per_user=output / held if output is not None and held else None,
    )
