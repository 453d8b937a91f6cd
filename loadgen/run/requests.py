"""The requests of a stage, but for their prompts: what a profile asks for, as the servers take it."""

from __future__ import annotations

from collections.abc import Iterable

from loadgen.plan import Stage
from loadgen.profile import Profile
from loadgen.run.probe import Served
from loadgen.server.client import api_key
from loadgen.stream.request import RequestTemplate, endpoint_url, request_template, stream_body


def templates_of(profile: Profile, served: Served, base_urls: Iterable[str], stage: Stage) -> list[RequestTemplate]:
    """A template for each server; they differ in whom they address."""
    load = profile.load
    body = stream_body(
        load.endpoint,
        model=served.model,
        osl=stage.osl,
        temperature=load.temperature,
        options=served.options,
    )
    key = api_key(profile.server)
    return [request_template(endpoint_url(base_url, load.endpoint), body, api_key=key) for base_url in base_urls]
