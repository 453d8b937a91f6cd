"""Views of stages for the screen: of each, of all together, and of their latency distributions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadgen.metrics.frontier import cost_of
from loadgen.metrics.stage import StageMetrics
from loadgen.record.crosscheck import truth_check
from loadgen.record.curve import LoadCurve, distribution_of
from loadgen.record.record import Record
from loadgen.record.slo import is_known, judge, needed_words
from loadgen.record.stage import StageRecord
from loadgen.record.stage_result import (
    first_wave_of,
    requests_of,
    server_sockets,
    stage_compute,
    stage_energy,
    throughput_of,
)
from loadgen.report.notes import notes_of
from loadgen.report.served import served_part
from loadgen.schema.deltas import MAIN_LATENCIES
from loadgen.schema.engine import EngineStage, EngineView, TruthCheck
from loadgen.schema.hardware_result import ComputeResult, EnergyResult
from loadgen.schema.result import CurvePoint, met_limits
from loadgen.schema.snapshot import Distribution, StageView

_SETTLED_S = 5.0  # after its end: by then the last GPU sample and the engine's figures are there


class StageViews:
    """The views of a record's stages; the view of a complete stage is computed once."""

    def __init__(self) -> None:
        self._settled: dict[int, StageView] = {}
        self._curve = LoadCurve()
        self._running: dict[int, LoadCurve] = {}  # of each incomplete stage, at the last look
        self._energy: dict[int, tuple[int, EnergyResult | None]] = {}

    def of(self, record: Record) -> tuple[StageView, ...]:
        return tuple(self._view(index, stage, record) for index, stage in record.stages.items())

    def curve(self) -> tuple[CurvePoint, ...]:
        """The load curve of all stages, as `of` saw them."""
        return self._curve.points(self._running.values())

    def _view(self, index: int, stage: StageRecord, record: Record) -> StageView:
        if index in self._settled:
            return self._settled[index]
        curve = self._running[index] = LoadCurve([stage])
        own = curve.points() if stage.started.steps else ()
        view = stage_view(stage, record, curve=own, energy=self._energy_of(index, stage, record))
        tick = record.last_tick
        silent = tick is not None and index not in tick.open_stages
        if stage.ended is not None and tick is not None and silent and tick.t_s > stage.ended.t_s + _SETTLED_S:
            self._settled[index] = view
            self._reduce(index - 2)
            self._curve.add(stage)
            del self._running[index], self._energy[index]
        return view

    def _reduce(self, index: int) -> None:
        """Drop an earlier stage's engine figures that no table shows: only the last two stages are shown in full."""
        view = self._settled.get(index)
        if view is not None and view.engine is not None:
            self._settled[index] = msgspec.structs.replace(view, engine=served_part(view.engine))

    def _energy_of(self, index: int, stage: StageRecord, record: Record) -> EnergyResult | None:
        """A stage's energy, computed once per GPU sample; without the figures by socket, which only a result has."""
        if self._energy.get(index, (None,))[0] != stage.hardware_samples.count:
            energy = stage_energy(stage, record.hardware)
            whole = msgspec.structs.replace(energy, sockets=()) if energy is not None else None
            self._energy[index] = (stage.hardware_samples.count, whole)
        return self._energy[index][1]


def stage_view(
    stage: StageRecord,
    record: Record,
    *,
    curve: tuple[CurvePoint, ...],
    energy: EnergyResult | None,
) -> StageView:
    """One stage as the screen shows it."""
    started, ended = stage.started, stage.ended
    judgement = judge(stage, record.limits)
    now_s = record.timeline.points[-1].t_s if record.timeline.points else started.t_s
    truth = truth_check(stage, stage.engine) if stage.engine is not None else None
    compute = stage_compute(stage, record.hardware)
    throughput = throughput_of(stage, sockets=record.price.gpus or server_sockets(stage, record.hardware))
    return msgspec.structs.replace(
        _measured(stage, max(0.0, (ended.t_s if ended is not None else now_s) - started.t_s)),
        throughput=throughput,
        slo_met=met_limits(judgement) if is_known(judgement) else None,
        slo_needs=needed_words(judgement),
        stop_reason=ended.reason if ended is not None else None,
        truth=_truth_words(truth) if truth is not None else "",
        truth_agrees=truth.agrees if truth is not None else None,
        waits_for=stage.waits_for,
        others=stage.others if ended is not None else record.others,
        engine=stage.engine or (_last_seconds(record.engine) if ended is None and started.no_load else None),
        e2e_needs_s=_beyond_its_end(stage),
        moves=(started.steps[0][1], started.steps[-1][1]) if started.steps else None,
        notes=_notes(stage, compute) if ended is not None else (),
        curve=curve,
        energy=energy,
        compute=compute,
        cost=cost_of(throughput, record.price),
    )


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


def whole_view(stages: Sequence[StageRecord], total: StageMetrics) -> StageView | None:
    """All stages together; None before the first."""
    if not stages:
        return None
    whole = StageRecord(stages[0].started)
    whole.metrics = total
    return msgspec.structs.replace(
        _measured(whole, total.window_s),
        number=0,
        label="whole run",
        concurrency=None,
        rate=None,
        isl=0,
        osl=0,
        running=stages[-1].ended is None,
        open=sum(stage.open_sent for stage in stages),
    )


def _measured(stage: StageRecord, elapsed_s: float) -> StageView:
    """A view of a stage's load and measurements, without limits and engine."""
    started = stage.started
    return StageView(
        number=started.index + 1,
        label=started.label,
        concurrency=started.concurrency,
        rate=started.rate,
        isl=started.isl,
        osl=started.osl,
        running=stage.ended is None,
        elapsed_s=elapsed_s,
        held_mean=stage.held_mean,
        requests=requests_of(stage),
        throughput=throughput_of(stage),
        open=stage.open_sent,
        latency_ms=stage.summaries(*(name for name in MAIN_LATENCIES if name != "e2e" or not started.steps)),
        first_wave=stage.counters["first_wave"],
    )


def _notes(stage: StageRecord, compute: ComputeResult | None) -> tuple[str, ...]:
    moves = bool(stage.started.steps)
    notes = notes_of(
        {} if moves else stage.summaries("ttft", "ttft_from_intended", "tpot"),
        moves=moves,
        inconclusive=stage.inconclusive,
        e2e_inconclusive=stage.e2e_inconclusive,
        tpot_parts=stage.counters["tpot_parts"],
        first_wave=first_wave_of(stage),
        tail_share=stage.tail_share,
        capped=stage.capped(),
        compute=compute,
    )
    return tuple(str(note) for note in notes)


def _beyond_its_end(stage: StageRecord) -> float | None:
    """How much longer than planned the stage must be measured to know E2E; None if that cannot be said."""
    needs_s, planned_s = stage.e2e_needs_s, stage.started.duration_s
    if needs_s is None or planned_s is None or stage.ended is not None:
        return needs_s
    return max(0.0, needs_s - max(0.0, planned_s - stage.window_s))


def _truth_words(truth: TruthCheck) -> str:
    """Where TTFT was spent, then what disagrees or could not be compared."""
    ttft = None
    if truth.ttft_outside_ms is not None and truth.ttft_server_ms is not None:
        ttft = f"mean TTFT {truth.ttft_server_ms:.1f} ms at the server, {truth.ttft_outside_ms:+.1f} ms at the client"
        ttft += f" ({truth.over})" if truth.over else ""
    return "; ".join(filter(None, (ttft, truth.why))) or "the same requests and tokens"


def distributions(record: Record) -> tuple[Distribution, ...]:
    """How the latencies of the running stage are distributed, and those of the stage before it."""
    return tuple(
        distribution_of(stage.started.index + 1, stage.started.label, stage.metrics.latency)
        for stage in list(record.stages.values())[:-3:-1]
    )
