"""Lines of the journal that say what ran where, with every secret masked."""

from __future__ import annotations

import time

import loadgen
from loadgen.metrics.journal import RunStarted, ServerChanged
from loadgen.profile import Profile, Server
from loadgen.run.environment import describe_environment
from loadgen.run.probe import Served
from loadgen.server.masking import masked_environment, masked_text
from loadgen.server.supervisor import ManagedServer, ServerState


def run_started(profile: Profile, run_id: str, seed: int, workers: int, stages_planned: int) -> RunStarted:
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
    return RunStarted(
        unix_s=time.time(),
        run_id=run_id,
        vramp_version=loadgen.__version__,
        profile=document,
        environment=describe_environment(),
        workers=workers,
        seed=seed,
        stages_planned=stages_planned,
    )


def server_changed(
    settings: Server, managed: ManagedServer | None, served: Served | None, state: ServerState, *, t_s: float
) -> ServerChanged:
    """The server reached a state; `managed` is None for one that is not ours, `served` until it was asked."""
    return ServerChanged(
        t_s=t_s,
        state=state,
        engine=settings.engine,
        url=managed.base_url if managed is not None else masked_text(settings.url or ""),
        model=served.model if served is not None else settings.model,
        version=served.version if served is not None else None,
        pid=managed.pid if managed is not None else None,
        max_model_len=served.max_model_len if served is not None else None,
        command=managed.command if managed is not None else None,
        env=masked_environment(settings.env),
        milestones=managed.milestones if managed is not None else (),
    )
