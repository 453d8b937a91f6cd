"""The running stage compared with an earlier run, for the screen."""

from __future__ import annotations

from loadgen.record.curve import recorded_distribution
from loadgen.record.figures import Baseline, LoadShape, compared_with, load_requested
from loadgen.record.record import Record
from loadgen.schema.comparison import BaselineView
from loadgen.schema.result import StageHardware
from loadgen.schema.snapshot import Distribution

_EVERY_S = 1.0


class BaselineWatch:
    """Compares the running or last stage of a record with the baseline, once a second."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._known: tuple[int, float, BaselineView] | None = None
        self._distributions: dict[LoadShape, Distribution] = {}

    def view(self, record: Record) -> BaselineView | None:
        """The comparison as of now; None before the first stage has figures."""
        stage = record.shown
        if stage is None or record.last_tick is None or not stage.counters["completed"]:
            return None
        index, now_s = stage.started.index, record.last_tick.t_s
        if self._known is not None and self._known[0] == index and now_s < self._known[1] + _EVERY_S:
            return self._known[2]
        # Its energy is known only when it is over.
        result = record.stage_result(stage, StageHardware(), with_hdr=False)
        model = record.server.model if record.server is not None else None
        view = compared_with(self._baseline, result, model, stage.metrics.latency)
        self._known = (index, now_s, view)
        return view

    def distribution(self, record: Record) -> Distribution | None:
        """The baseline's latency distributions under the same load; None if it has no such stage."""
        load = load_requested(record.shown.started) if record.shown is not None else None
        if load is None or load not in self._baseline.stages:
            return None
        if load not in self._distributions:
            measured = self._baseline.stages[load]
            self._distributions[load] = recorded_distribution(self._baseline.name, measured)
        return self._distributions[load]
