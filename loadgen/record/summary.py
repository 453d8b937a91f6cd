"""The summary of a result: the same figures by the same definitions, without series and histograms.

Pure: the result is enough, so that a run, a recovered run and a file of another tool have the same kind of summary.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

import msgspec

from loadgen.format import gib
from loadgen.metrics.hits import NO_HITS
from loadgen.metrics.verdicts import merged
from loadgen.record.quote import quote_of
from loadgen.record.subject import hardware_of, known_time, model_of
from loadgen.schema.deltas import MAIN_LATENCIES, Summary
from loadgen.schema.hardware_result import GpuStage
from loadgen.schema.result import Result, StageResult, met_limits
from loadgen.schema.samples import GpuStatic
from loadgen.schema.start import Provenance
from loadgen.schema.summary import (
    GpuGroup,
    RunSummary,
    StageSummary,
    SummaryClient,
    SummaryEngine,
    SummaryHardware,
    SummaryLatency,
    SummaryLimit,
    SummaryProvenance,
    SummaryRequests,
    SummarySearch,
    SummarySessions,
    SummarySystem,
    SummaryThroughput,
    SummaryWorkload,
)

_DIGITS = 5
_MAX_TEXT = 160  # of a reason, a verdict, a setting; longer ones are in the result
_MAX_CLAUSE = 100  # of a stage
_MAX_COMMAND = 1000
_KINDS_OF_REQUESTS = ("prefix", "turns", "trace", "models", "extra_body", "cancel", "temperature", "ignore_eos")
"""Keys of `load` that change what is sent."""
_OF_ENVIRONMENT = ("host", "cpu", "kernel", "engine", "vllm_version", "max_model_len")


def summary_of(result: Result) -> RunSummary:
    environment, profile = result.environment, result.profile
    search = result.search
    whole = RunSummary(
        vramp_version=result.vramp_version,
        measured_by=result.measured_by,
        run_id=result.run_id,
        kind=result.kind,
        started_at=known_time(result.started_at),
        finished_at=known_time(result.finished_at),
        state=result.state,
        reason=_short(result.reason.partition("\n")[0]),
        profile=str(profile.get("name") or "unnamed"),
        model=model_of(result),
        hardware=hardware_of(result),
        system=_system(result, environment),
        provenance=_provenance(result),
        # Rounded, a time in seconds since 1970 would be wrong.
        start=None if result.server is None else msgspec.structs.replace(result.server.start, unix_s=None),
        workload=_workload(result, profile.get("load") or {}),
        client=SummaryClient(
            timestamps=result.client.timestamps,
            workers=result.client.workers,
            hosts=len(result.hosts),
            read_lag_p99_ms=result.client.read_lag_ms.p99,
            limited=result.client.limited,
            why=_short(result.client.why),
        ),
        stages=tuple(_stage(result, stage) for stage in result.stages),
        search=None if search is None else msgspec.convert(search, SummarySearch, from_attributes=True),
        verdicts=tuple(msgspec.structs.replace(one, text=_short(one.text)) for one in merged(result.verdicts)),
        reference=None if result.reference is None else result.reference.source,
        conditions={} if result.reference is None else {one.name: one.same for one in result.reference.conditions},
        diagnosis=None if result.diagnosis is None else result.diagnosis.title,
        quote=quote_of(result),
    )
    return msgspec.convert(_rounded(msgspec.to_builtins(whole)), RunSummary)


def summary_json(summary: RunSummary) -> bytes:
    """The document: a line for each key, and for each stage."""
    document = msgspec.to_builtins(summary)
    lines = [f"{_json(key)}:{_json(value)}" for key, value in document.items() if key != "stages"]
    stages = ",\n".join(map(_json, document["stages"]))
    return ("{" + ",\n".join(lines) + f',\n"stages":[\n{stages}\n]}}\n').encode()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _rounded(node: object) -> object:
    if isinstance(node, float):
        return float(f"{node:.{_DIGITS}g}")
    if isinstance(node, dict):
        return {key: _rounded(value) for key, value in node.items()}
    return [_rounded(one) for one in node] if isinstance(node, list | tuple) else node


def _short(text: Any, most: int = _MAX_TEXT) -> Any:  # noqa: ANN401 - None stays None
    return text if text is None or len(text) <= most else text[: most - 3] + "..."


def _clause(text: str) -> str:
    """What is said before any explanation."""
    shortened: str = _short(text.partition(";")[0], _MAX_CLAUSE)
    return shortened


def _system(result: Result, environment: Mapping[str, Any]) -> SummarySystem:
    command = environment.get("server_command")
    without_server = environment.get("engine") in (None, "none")
    return SummarySystem(
        **{name: environment.get(name) for name in _OF_ENVIRONMENT},
        gpus=tuple(_gpu_groups(result.gpus)),
        drivers=dict(_drivers(result.telemetry_meta or {})),
        servers=0 if without_server else len(environment.get("server_instances") or [None]),
        server_command=None if command is None else _short(shlex.join(command), _MAX_COMMAND),
    )


def _gpu_groups(gpus: Sequence[GpuStatic]) -> Iterator[GpuGroup]:
    alike = [
        GpuGroup(
            name=gpu.name,
            count=1,
            hbm_gib=gib(gpu.hbm_total_bytes),
            power_cap_w=gpu.power_cap_default_w,
            compute_partition=gpu.compute_partition,
            memory_partition=gpu.memory_partition,
            firmware=gpu.firmware or {},
        )
        for gpu in gpus
    ]
    for first, others in groupby(sorted(alike, key=_json)):
        yield msgspec.structs.replace(first, count=len(list(others)))


def _drivers(meta: object, name: str = "") -> Iterator[tuple[str, str]]:
    """The versions in what measured the GPUs, by dotted name."""
    if isinstance(meta, dict):
        for key, value in meta.items():
            inner = name if key == "meta" else f"{name}.{key}" if name else str(key)
            yield from _drivers(value, inner)
    elif isinstance(meta, str) and name.rpartition(".")[2] in ("driver", "driver_version", "rocm", "cuda"):
        yield name, meta


def _provenance(result: Result) -> SummaryProvenance:
    recipe, data, server = result.profile.get("recipe") or {}, result.data, result.provenance or Provenance()
    return SummaryProvenance(
        image=server.image,
        image_digest=server.image_digest,
        weights_revision=server.weights_revision,
        recipe=recipe.get("source"),
        recipe_commit=recipe.get("commit") or None,
        data=None if data is None else _short(data.words),
        data_sha256=None if data is None else data.sha256,
        missing={name: _short(why) for name, why in server.missing.items()},
    )


def _workload(result: Result, load: Mapping[str, Any]) -> SummaryWorkload:
    prompts = "synthetic" if result.data is None else result.data.words
    given = {key: value for key in _KINDS_OF_REQUESTS if (value := load.get(key)) not in (None, [], {}, "")}
    return SummaryWorkload(
        endpoint=load.get("endpoint"),
        prompts=_short(prompts if result.measured_by is None else "unknown"),
        seed=load.get("seed"),
        settings={key: value if len(_json(value)) <= _MAX_TEXT else "see the result" for key, value in given.items()},
    )


def _stage(result: Result, stage: StageResult) -> StageSummary:
    requests, published = stage.requests, {}
    for one in result.reference.comparisons if result.reference is not None else ():
        if one.stage == stage.index:
            published[f"{one.figure} ({one.of})" if one.of else one.figure] = one.difference_percent
    return StageSummary(
        label=stage.label,
        concurrency=stage.target.concurrency,
        rate=stage.target.rate,
        isl=stage.isl,
        osl=stage.osl,
        measured_s=stage.measured_s,
        requests=SummaryRequests(
            scheduled=requests.scheduled,
            sent=requests.sent,
            completed=requests.completed,
            failed=requests.failed_in_all,
            cancelled=requests.cancelled,
            unfinished=requests.unfinished,
            unsent=requests.unsent or 0,
            carried_over=requests.carried_over or 0,
            errors=requests.errors,
        ),
        concurrency_mean=stage.concurrency.mean,
        isl_mean=stage.tokens.input_per_request,
        osl_mean=stage.tokens.output_per_request,
        throughput=msgspec.convert(stage.throughput, SummaryThroughput, from_attributes=True),
        latency_ms=dict(_latencies(stage)),
        hardware=_hardware(stage),
        engine=_engine(stage),
        sessions=_sessions(stage),
        verdicts={one.id: _clause(one.text) for one in stage.verdicts},
        met_limits=met_limits(stage),
        limits=dict(_limits(stage)),
        published_difference_percent=published,
        arrival=stage.target.arrival if stage.target.rate is not None else None,
        moves=stage.target.moves,
        inconclusive=None if stage.inconclusive is None else _clause(stage.inconclusive),
        variant=stage.variant,
        pass_number=stage.pass_number,
    )


def _sessions(stage: StageResult) -> SummarySessions | None:
    sessions, hits = stage.sessions, stage.hits or NO_HITS
    if sessions is None:
        return None
    return SummarySessions(
        live=sessions.live,
        finished=sessions.finished,
        e2e_interactivity=sessions.e2e_interactivity,
        hits_measured=hits.measured,
        hits_infinite=hits.infinite,
        hits_pool=hits.pool,
    )


def _latencies(stage: StageResult) -> Iterator[tuple[str, SummaryLatency]]:
    """Those that were measured; none for a moving load, as they belong to no single load."""
    names = (*MAIN_LATENCIES, *(["ttft_from_intended"] if stage.target.rate is not None else []))
    for name in names if stage.target.moves is None else ():
        found = stage.latency_ms.get(name, Summary(count=0))
        if found.count or found.censored:
            bounds = tuple(one for one in found.lower_bounds if one in SummaryLatency.__struct_fields__)
            yield name, SummaryLatency(found.count, found.mean, found.p50, found.p99, bounds)


def _limits(stage: StageResult) -> Iterator[tuple[str, SummaryLimit]]:
    for name, check in stage.slo.items():
        yield name, SummaryLimit(check.limit_ms, check.measured_ms, check.verdict)
    goodput, failures = stage.goodput, stage.failures
    if goodput is not None:
        yield "goodput", SummaryLimit(goodput.wanted, goodput.share, goodput.verdict)
    if failures is not None and (failures.allowed or not failures.met):
        share = min(failures.count, failures.scheduled) / failures.scheduled if failures.scheduled else None
        yield "failed", SummaryLimit(failures.allowed, share, failures.verdict)


def server_gpus(stage: StageResult) -> list[GpuStage]:
    """The GPUs that the server computes on; all of the box where those are unknown."""
    return [gpu for gpu in stage.gpu if gpu.of_server] or stage.gpu


def gpu_mean(name: str, stage: StageResult) -> float | None:
    """The mean of one figure over the window and over the server's GPUs."""
    figures = [figure for gpu in server_gpus(stage) if (figure := getattr(gpu, name)) is not None]
    return fmean(figure.mean for figure in figures) if figures else None


def hbm_used_gib(stage: StageResult) -> float | None:
    """The most that was in use in the window, as a mean over the server's GPUs."""
    used = [gpu.hbm_used_bytes_max for gpu in server_gpus(stage) if gpu.hbm_used_bytes_max is not None]
    return gib(fmean(used)) if used else None


def _hardware(stage: StageResult) -> SummaryHardware | None:
    gpus, energy, compute = server_gpus(stage), stage.energy, stage.compute
    if not gpus and compute is None and not stage.host:
        return None
    hot = [gpu.temperature_hotspot_c.max for gpu in gpus if gpu.temperature_hotspot_c is not None]
    return SummaryHardware(
        gpus=len(gpus),
        activity_percent=gpu_mean("gfx_percent", stage),
        hbm_used_gib=hbm_used_gib(stage),
        power_w=gpu_mean("power_w", stage),
        hottest_c=max(hot, default=None),
        mfu_percent=None if compute is None else compute.mfu_percent,
        hbm_bandwidth_percent=None if compute is None else compute.hbm_bandwidth_percent,
        joules_per_output_token=None if energy is None else energy.joules_per_output_token,
        usd_per_million_output_tokens=None if stage.cost is None else stage.cost.usd_per_million_output_tokens,
        host_cpu_percent=stage.host.get("cpu_percent"),
    )


def _engine(stage: StageResult) -> SummaryEngine | None:
    engine = stage.engine
    if engine is None:
        return None
    no_load = stage.target.concurrency == 0
    return SummaryEngine(
        requests=engine.requests if no_load else None,
        prompt_tokens_per_s=engine.prompt_tokens_per_s if no_load else None,
        generation_tokens_per_s=engine.generation_tokens_per_s if no_load else None,
        ttft_mean_ms=engine.ttft_mean_ms,
        queue_mean_ms=engine.queue_mean_ms,
        preemptions=engine.preemptions,
        prefix_hit_rate=engine.prefix_hit_rate,
        spec_acceptance=None if engine.spec is None else engine.spec.acceptance,
    )
