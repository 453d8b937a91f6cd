"""The hardware's part of a stage: energy, GPUs and host over its measured window, and the verdicts on its limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from loadgen.metrics.energy import joules_per_token, tokens_per_s_per_w, window_energy
from loadgen.metrics.gpu_stage import gpu_stages, host_means
from loadgen.metrics.hardware import HardwareRecord
from loadgen.metrics.health import StageFacts, stage_verdicts
from loadgen.metrics.result import EnergyResult, Verdict
from loadgen.metrics.samples import GpuSample, GpuStage
from loadgen.metrics.stage_record import StageRecord

_BUSY_FROM_PERCENT = 5.0


class StageHardware(msgspec.Struct, frozen=True):
    """What a stage did to the machine."""

    gpu: list[GpuStage]
    energy: EnergyResult | None
    host: dict[str, float | None]
    verdicts: list[Verdict]


def stage_hardware(stage: StageRecord, hardware: HardwareRecord) -> StageHardware:
    """Everything over the window so far; without a window there is none."""
    start_ns, end_ns = stage.metrics.window_start_ns, stage.metrics.window_end_ns
    if start_ns is None or end_ns is None:
        return StageHardware([], None, {}, [])
    start_s, end_s = start_ns / 1e9, end_ns / 1e9
    gpus = gpu_stages(hardware.gpus, stage.looks.within(start_s, end_s))
    host = host_means(stage.looks.host, start_s, end_s)
    verdicts = stage_verdicts(f"stage {stage.started.index + 1}", _facts(stage, gpus, host))
    return StageHardware(gpus, stage_energy(stage, hardware), host, verdicts)


def stage_energy(stage: StageRecord, hardware: HardwareRecord) -> EnergyResult | None:
    """The energy of the server's sockets over the window; None without GPUs, or before five seconds."""
    start_ns, end_ns = stage.metrics.window_start_ns, stage.metrics.window_end_ns
    if start_ns is None or end_ns is None or not hardware.gpus:
        return None
    looks: Mapping[int, Sequence[GpuSample]] = stage.looks.by_gpu
    energy = window_energy(hardware.of_server(looks), looks, start_ns / 1e9, end_ns / 1e9)
    if energy is None:
        return None
    tokens = stage.counters["window_output_tokens"]
    return EnergyResult(
        joules=energy.joules,
        source=energy.source,
        distrusted=energy.distrusted,
        window_s=energy.window_s,
        joules_per_output_token=joules_per_token(energy.joules, tokens),
        tokens_per_s_per_w=tokens_per_s_per_w(energy.joules, tokens),
        sockets=energy.sockets,
    )


def _facts(stage: StageRecord, gpus: Sequence[GpuStage], host: Mapping[str, float | None]) -> StageFacts:
    busy = [gpu for gpu in gpus if gpu.gfx_percent is not None and gpu.gfx_percent.mean >= _BUSY_FROM_PERCENT]
    engine = stage.engine
    return StageFacts(
        client_limit=stage.limit(),
        capped=stage.capped(),
        waiting=stage.gauges.waiting_mean,
        kv_usage=stage.gauges.kv_usage_max,
        preemptions=engine.preemptions if engine is not None else None,
        gfx_percent=_mean([gpu.gfx_percent.mean for gpu in busy if gpu.gfx_percent is not None]),
        memory_percent=_mean([gpu.memory_percent.mean for gpu in busy if gpu.memory_percent is not None]),
        host_percent=host.get("cpu_percent"),
        busiest_core_percent=host.get("cpu_busiest_percent"),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
