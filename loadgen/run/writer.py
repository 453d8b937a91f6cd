"""The output of a run: writes each line to its files and its record, and a result on request.

Every line goes through `log`, so screen, journal and result cannot differ; after the last one, nothing more is written.
A full disk costs the run nothing but an event.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil

import loadgen
from loadgen.errors import VrampError
from loadgen.fleet.fleet import FleetTick
from loadgen.masking import masked
from loadgen.record.figures import with_baseline
from loadgen.record.record import Record
from loadgen.run.settings import RunSettings
from loadgen.schema.engine import EngineView, OwnRequests
from loadgen.schema.journal import Happened, Line, RunFinished, RunStarted, Ticked, TickNumbers, time_of
from loadgen.schema.result import RESULT, Result
from loadgen.schema.shared import DataFile, RunState
from loadgen.store.files import Event, SafeFiles, require_format
from loadgen.store.runs import claim_folder, require_writable, write_result, write_summary
from loadgen.telemetry.host import host_settings
from loadgen.worker.timing import MIN_STANDSTILL_NS
from loadgen.workload.data import Dataset
from loadgen.workload.sessions.data import SessionData

RECENT_S = 120.0  # kept in memory, line by line


class RunWriter:
    """The files, the record and the result of one run."""

    def __init__(self, settings: RunSettings) -> None:
        """Claim a folder for the run; raises `ResultError` if the results cannot be written."""
        require_format(settings.records)
        for named in (settings.json_path, settings.junit_path):
            if named is not None:
                require_writable(named)
        self._settings = settings
        self.folder = settings.folder or claim_folder(settings.profile.name, datetime.now(UTC))
        self.result_paths = [self.folder / RESULT]
        if settings.json_path is not None:
            self.result_paths.append(settings.json_path)
        self.record = Record()
        self.result: Result | None = None
        self.written: Path | None = None  # where the result was last written
        self.error: VrampError | None = None  # why it could not be written
        self.began_s = time.monotonic()
        self.recent: deque[Line] = deque()  # of the last `RECENT_S` seconds
        self._files = SafeFiles(self.folder, settings.records)
        self._closed = False

    @property
    def keeps_rows(self) -> bool:
        return self._files.keeps_rows

    def clock_s(self) -> float:
        return time.monotonic() - self.began_s

    def log(self, line: Line) -> None:
        """Write a line, without secrets; nothing once the result is made."""
        if not self._closed:
            self._write_line(line)

    def _write_line(self, line: Line) -> None:
        line = masked(line)
        self.recent.append(line)
        while time_of(self.recent[0]) < time_of(line) - RECENT_S:
            self.recent.popleft()
        self.record.apply(line)
        self._log_events(self._files.write(line))

    def event(self, kind: str, text: str) -> None:
        self.log(Happened(t_s=self.clock_s(), kind=kind, text=text))

    def begin(self, *, seed: int, workers: int, stages_planned: int, data: Dataset | SessionData | None = None) -> None:
        """Write the first line: the profile as run, the machine, the seed, the file of prompts."""
        document = self._settings.profile.model_dump(mode="json")
        document["load"]["seed"] = seed
        self.log(
            RunStarted(
                unix_s=time.time(),
                monotonic_s=self.began_s,
                run_id=self.folder.name,
                vramp_version=loadgen.__version__,
                profile=document,
                environment=_environment(),
                workers=workers,
                seed=seed,
                stages_planned=stages_planned,
                data=None if data is None else msgspec.convert(data, DataFile, from_attributes=True),
            )
        )

    def tick(
        self,
        tick: FleetTick,
        *,
        engine: EngineView | None,
        engines: tuple[EngineView | None, ...],
        workers: int,
        model: str | None,
        own: OwnRequests,
        waits_for_worker: bool,
    ) -> None:
        """Write the fleet's tick; `model` is for rows that name none."""
        self.log(
            Ticked(
                t_s=self.clock_s(),
                workers=workers,
                engine=engine,
                engines=engines,
                own=own,
                waits_for_worker=waits_for_worker,
                **{name: getattr(tick, name) for name in TickNumbers.__struct_fields__},
            )
        )
        for stall in self.record.ended_stalls:
            how = "it goes on" if stall.cleared else "its requests have ended"
            self.event("server", f"{stall.words(self.clock_s())}; {how}")
        self._log_events(self._files.write_rows(tick.rows, model))
        if tick.client.stood_still_ns >= MIN_STANDSTILL_NS:
            self.event(
                "error", f"vramp stood still for at least {tick.client.stood_still_ns / 1e9:.1f} s: see verdicts"
            )
        for death in tick.deaths:
            self.event("error", death)
        for news in tick.news:
            self.event("load", news)

    async def write(self) -> None:
        await self._make_result()
        self._log_events(self._save())

    async def finish(self, state: RunState, reason: str) -> None:
        """Write the last line and the result."""
        self.log(RunFinished(t_s=self.clock_s(), unix_s=time.time(), state=state, reason=reason))
        await self._make_result()
        self._closed = True  # lines logged while a slow disk is written to would be missing from the result
        for kind, text in await asyncio.to_thread(self._save):
            self._write_line(Happened(t_s=self.clock_s(), kind=kind, text=text))
        self._files.close()

    async def _make_result(self) -> None:
        self._log_events(self._files.flush())
        stages = []
        for stage in list(self.record.stages.values()):
            stages.append(self.record.stage_result(stage))
            await asyncio.sleep(0)  # a long run has hundreds, each of which takes milliseconds
        result = self.record.result(stages)
        baseline = self._settings.baseline
        self.result = result if baseline is None else with_baseline(result, baseline)

    def _save(self) -> list[Event]:
        """Write the result to each of its paths; returns what went wrong."""
        assert self.result is not None, "it is made first"
        failures: list[Event] = []
        for path in self.result_paths:
            try:
                # A path chosen by the operator gets the usual mode; the run's folder is private.
                write_result(self.result, path, named=path.parent != self.folder)
                self.written = path
                if path.parent == self.folder:
                    write_summary(self.result, self.folder)
            except VrampError as error:
                self.error = self.error or error
                failures.append(("error", str(error)))
        return failures

    def _log_events(self, events: Sequence[Event]) -> None:
        for kind, text in events:
            self.event(kind, text)


def _environment() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "os": platform.platform(),
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cpu_cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "settings": host_settings(),
    }


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else None
