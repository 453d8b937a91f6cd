"""What of this box and plan differs from the publication that the profile reproduces."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.record.conditions import NO_CONTAINER, Here, conditions
from loadgen.schema.finding import Finding
from loadgen.server.preflight.facts import Setup


def unlike_publication(setup: Setup) -> Iterator[Finding]:
    reference, server = setup.profile.reference, setup.server
    if reference is None:
        return
    here = Here(
        models=[server.model] if server.model else [],
        version=setup.vllm,
        image=server.docker.image if server.docker is not None else NO_CONTAINER,
        gpus=[gpu.name for gpu in setup.taken_gpus] or None,
        requests=[stage.requests for stage in setup.plan if stage.concurrency != 0],
        data=None,
        canaries=0,
    )
    # The file of prompts is read by the run, which says whether it is the published one.
    found = conditions(reference.model_copy(update={"data": ""}), here)
    differing = [f"{one.name} {one.here}, not {one.published}" for one in found if one.same is False]
    if differing:
        why = f"{reference.source} measured under other conditions; the report names them beside its figures"
        yield Finding("unlike-publication", "info", "; ".join(differing), why, source=reference.source)
