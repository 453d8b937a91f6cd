"""What the workers are told of a run, but for the prompts: what a profile asks for, as the servers take it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from loadgen.fleet.fleet import FleetSettings
from loadgen.plan import Stage
from loadgen.profile.schema import Profile
from loadgen.run.probe import Served
from loadgen.server.vllm.client import api_key
from loadgen.stream.request import (
    Cancellation,
    RequestTemplate,
    ServerAddress,
    common_fields,
    model_shares,
    request_template,
)


def templates_of(profile: Profile, served: Served, base_urls: Iterable[str], stage: Stage) -> list[RequestTemplate]:
    """A template for each server; they differ in whom they address."""
    load = profile.load
    fields = common_fields(
        load.endpoint,
        model=None if load.models else served.model,
        temperature=load.temperature,
        options=served.options,
        extra=load.extra_body,
    )
    key = api_key(profile.server)
    cancel = None if load.cancel is None else Cancellation(share=load.cancel.share, after_s=load.cancel.after)
    return [
        msgspec.structs.replace(
            request_template(base_url, load.endpoint, fields, osl=stage.osl, api_key=key),
            models=model_shares(load.models),
            cancel=cancel,
        )
        for base_url in base_urls
    ]


def fleet_settings(
    profile: Profile, served: Served, targets: Sequence[ServerAddress], seed: int, *, rows: bool
) -> FleetSettings:
    """What all workers of a run have in common; with `rows` they send one for each stream."""
    load = profile.load
    return FleetSettings(
        addresses=tuple(targets),
        vocabulary=served.vocabulary,
        seed=seed,
        timeout_s=load.timeout_s,
        stall_timeout_s=load.stall_timeout_s,
        connect_timeout_s=load.connect_timeout_s,
        realtime=load.realtime,
        rows=rows,
    )
