"""Lines of the journal: what ran where, with every secret masked, and what came of it."""

from __future__ import annotations

import time

import loadgen
from loadgen.fleet.fleet import FleetTick
from loadgen.metrics.journal import EngineView, RunStarted, ServerChanged, StageStarted, Ticked
from loadgen.plan import Stage
from loadgen.profile.schema import Profile
from loadgen.run.environment import describe_environment
from loadgen.run.probe import Served
from loadgen.run.servers import Servers
from loadgen.run.stage_watch import StageWatch
from loadgen.server.process.masking import masked_document, masked_environment, masked_text
from loadgen.server.supervisor import ServerState


def run_started(
    profile: Profile, run_id: str, seed: int, workers: int, stages_planned: int, *, monotonic_s: float
) -> RunStarted:
    """The first line: the profile as it is run, the machine, the seed."""
    document = profile.model_dump(mode="json")
    server = document["server"]
    server["env"] = masked_environment(profile.server.env)
    masked = masked_environment({name: str(value) for name, value in server["args"].items()})
    server["args"] = {
        name: value if masked[name] == str(value) else masked[name] for name, value in server["args"].items()
    }
    server["url"] = masked_text(server["url"]) if server["url"] else None
    document["load"]["seed"] = seed
    document["load"]["extra_body"] = masked_document(document["load"]["extra_body"])
    return RunStarted(
        unix_s=time.time(),
        monotonic_s=monotonic_s,
        run_id=run_id,
        vramp_version=loadgen.__version__,
        profile=document,
        environment=describe_environment(),
        workers=workers,
        seed=seed,
        stages_planned=stages_planned,
    )


def server_changed(
    servers: Servers, served: Served | None, state: ServerState, *, variant: str | None, t_s: float
) -> ServerChanged:
    """The servers reached a state; `served` is None until they were asked."""
    described = servers.described()
    settings, first = servers.settings, next(iter(described), None)
    return ServerChanged(
        t_s=t_s,
        state=state,
        engine=settings.engine,
        url=servers.url,
        model=served.model if served is not None else settings.model,
        version=served.version if served is not None else None,
        pid=first.pid if first is not None else None,
        max_model_len=served.max_model_len if served is not None else None,
        command=first.command if first is not None else None,
        env=first.env if first is not None else masked_environment(settings.env),
        milestones=servers.milestones,
        diagnosis=servers.diagnosis,
        instances=described if servers.count > 1 else (),
        variant=variant,
    )


def stage_started(
    stage: Stage, index: int, t_s: float, *, manual: bool, watch: StageWatch, variant: str | None
) -> StageStarted:
    """A stage begins; `manual` if the operator asked for it, `watch` says what its measurement waits for."""
    return StageStarted(
        t_s=t_s,
        index=index,
        label=stage.title,
        concurrency=stage.concurrency,
        rate=stage.rate,
        arrival=stage.arrival,
        isl=stage.isl,
        osl=stage.osl,
        requests=stage.requests,
        duration_s=stage.duration_s,
        warmup_requests=stage.warmup_requests,
        warmup_s=stage.warmup_s,
        manual=manual,
        settle_s=stage.settle_s,
        sheds=watch.sheds,
        awaits_first_wave=watch.fills,
        first_wave=stage.first_wave,
        steps=stage.steps,
        completed=stage.completed,
        most=stage.most,
        variant=variant,
    )


def ticked(tick: FleetTick, engine: EngineView | None, *, workers: int, t_s: float) -> Ticked:
    """What the fleet did in a quarter of a second."""
    return Ticked(
        t_s=t_s,
        span_s=tick.span_s,
        stages=tick.stages,
        client=tick.client,
        held=tick.held,
        open_sent=tick.open_sent,
        queued=tick.queued,
        open_stages=tick.open_stages,
        workers=workers,
        rss_bytes=tick.rss_bytes,
        engine=engine,
        instances=tick.instances,
    )
