"""What only the run that goes on knows of the present moment: its server, its load, its end."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from loadgen.format import harmless
from loadgen.metrics.baseline import BaselineWatch
from loadgen.metrics.journal import RunState
from loadgen.metrics.record import Record
from loadgen.metrics.snapshot import Liveness, LoadView, Phase, ServerView
from loadgen.run.controller import LoadController
from loadgen.run.hardware import HardwareWatch
from loadgen.run.session import Session
from loadgen.run.view import Now, load_view


class Parts(msgspec.Struct, frozen=True):
    """The parts of a run that are alive."""

    t_s: float
    phase: Phase
    record: Record
    session: Session
    steering: LoadController
    hardware: HardwareWatch
    variants: tuple[str, ...]
    ending: RunState | None
    reason: str
    result_path: Path | None
    beside: BaselineWatch | None


def now_of(parts: Parts) -> Now:
    """The present moment of a run that goes on."""
    beside = parts.beside
    return Now(
        t_s=parts.t_s,
        unix_s=time.time(),
        phase=parts.phase,
        profile=parts.session.profile.name,
        server=_server_view(parts),
        load=_load_view(parts),
        workers=parts.session.workers,
        ending=parts.ending,
        reason=parts.reason,
        waiting_for=tuple(f"{process.name} ({process.pid})" for process in parts.session.servers.waiting_for),
        gpus_stale=parts.hardware.stale,
        telemetry=parts.hardware.words,
        variants=parts.variants,
        result_path=str(parts.result_path) if parts.result_path is not None else None,
        baseline=beside.view(parts.record) if beside is not None else None,
        baseline_distribution=beside.distribution(parts.record) if beside is not None else None,
    )


def _server_view(parts: Parts) -> ServerView:
    session = parts.session
    servers, served, settings = session.servers, session.served, session.profile.server
    return ServerView(
        engine=settings.engine,
        url=servers.url,
        state="ready" if settings.engine == "attach" and served is not None else servers.state,
        model=harmless(served.model) if served is not None else settings.served_model_name or settings.model,
        version=harmless(served.version or "") or None if served is not None else None,
        variant=session.variant,
        pid=servers.pid,
        uptime_s=parts.t_s - session.began_s,
        milestones=servers.milestones,
        log_tail=servers.log_lines,
        log_total=servers.log_total,
        expected_s=servers.expected_s,
        liveness=_liveness(parts),
        diagnosis=servers.diagnosis,
        instances=servers.views(session.engines),
    )


def _liveness(parts: Parts) -> Liveness | None:
    """What the server's processes do while it starts; with the memory in use on all GPUs."""
    life = parts.session.servers.liveness if parts.phase == "starting" else None
    used = [sample.hbm_used_bytes for sample in parts.record.hardware.latest.values() if sample.hbm_used_bytes]
    return msgspec.structs.replace(life, hbm_used_bytes=sum(used)) if life is not None and used else life


def _load_view(parts: Parts) -> LoadView:
    steering = parts.steering
    return load_view(
        steering.current or steering.last,
        parts.record,
        t_s=parts.t_s,
        stage=steering.index + 1,
        stages_planned=max(steering.stages_planned, steering.index + 1),
        paused=steering.paused,
        manual=steering.manual,
        held_open=steering.held_open,
    )
