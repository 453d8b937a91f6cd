"""The figures of a run's stages for its snapshots."""

from __future__ import annotations

from msgspec.structs import replace

from loadgen.record.curve import LoadCurve
from loadgen.record.record import Record
from loadgen.record.stage import StageRecord
from loadgen.record.stage_result import server_sockets, stage_compute, stage_energy, stage_hardware
from loadgen.schema.engine import EngineStage, EngineView
from loadgen.schema.hardware_result import EnergyResult
from loadgen.schema.result import CurvePoint, StageHardware, StageResult

_SETTLED_S = 5.0  # after its end: by then the last GPU sample and the engine's figures are there


class ShownStages:
    """The figures of a record's stages; those of a complete stage are computed once."""

    def __init__(self) -> None:
        self._settled: dict[int, StageResult] = {}
        self._curve = LoadCurve()
        self._unsettled: dict[int, LoadCurve] = {}
        self._energy: dict[int, tuple[int, EnergyResult | None]] = {}

    def of(self, record: Record) -> tuple[StageResult, ...]:
        return tuple(self._figures(index, stage, record) for index, stage in record.stages.items())

    def curve(self) -> tuple[CurvePoint, ...]:
        """The load curve of all stages, as `of` saw them."""
        return self._curve.points(self._unsettled.values())

    def _figures(self, index: int, stage: StageRecord, record: Record) -> StageResult:
        if index in self._settled:
            return self._settled[index]
        self._unsettled[index] = LoadCurve([stage])
        tick, hardware = record.last_tick, record.hardware
        if (
            stage.ended is not None
            and tick is not None
            and index not in tick.open_stages
            and tick.t_s > stage.ended.t_s + _SETTLED_S
        ):
            machine = replace(stage_hardware(stage, hardware), gpu=[], host={})
            self._settled[index] = record.stage_result(stage, machine, with_hdr=False)
            self._curve.add(stage)
            del self._unsettled[index]
            self._energy.pop(index, None)
            return self._settled[index]
        machine = StageHardware(
            energy=self._energy_of(index, stage, record),
            compute=stage_compute(stage, hardware),
            sockets=server_sockets(stage, hardware),
        )
        figures = record.stage_result(stage, machine, with_hdr=False)
        if stage.ended is not None:
            return figures
        # Of a stage that runs, the latest seconds where there are no figures of the whole yet.
        engine = _last_seconds(record.engine) if stage.started.no_load else None
        needs_s, planned_s = stage.e2e_needs_s, stage.started.duration_s
        if needs_s is not None and planned_s is not None:  # beyond its planned end
            needs_s = max(0.0, needs_s - max(0.0, planned_s - stage.window_s))
        return replace(
            figures, stop_reason="", others=record.others, engine=stage.engine or engine, e2e_needs_s=needs_s
        )

    def _energy_of(self, index: int, stage: StageRecord, record: Record) -> EnergyResult | None:
        """The energy of an unsettled stage, computed once per GPU sample."""
        samples = stage.hardware_samples.count
        if self._energy.get(index, (None,))[0] != samples:
            self._energy[index] = (samples, stage_energy(stage, record.hardware))
        return self._energy[index][1]


def _last_seconds(engine: EngineView | None) -> EngineStage | None:
    """The engine's view in the form of a stage's figures."""
    if engine is None or engine.between_s is None:
        return None
    span_s = engine.between_s[1] - engine.between_s[0]
    rates = (engine.requests_per_s, engine.prompt_tokens_per_s, engine.generation_tokens_per_s)
    requests, prompt, generation = (None if rate is None else round(rate * span_s) for rate in rates)
    return EngineStage(
        latency_ms=engine.latency_ms,
        requests=requests,
        prompt_tokens=prompt,
        generation_tokens=generation,
        errors=engine.errors,
        between_s=engine.between_s,
    )
