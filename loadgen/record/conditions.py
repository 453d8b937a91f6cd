"""The conditions of a published measurement beside those of a run, so that no figure is compared without them.

Only what the profile's `[reference]` gives is compared. What a run does not know is unknown, and not the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.profile.schema import Reference
from loadgen.schema.comparison import Condition
from loadgen.schema.journal import DataFile, ServerChanged, StageStarted
from loadgen.schema.samples import GpuStatic


def conditions(
    reference: Reference,
    *,
    profile: Mapping[str, Any],
    data: DataFile | None,
    server: ServerChanged | None,
    gpus: Sequence[GpuStatic] | None,
    stages: Sequence[StageStarted],
    canaries: int,
) -> tuple[Condition, ...]:
    """Every published condition; `gpus` are the server's, None if unknown, `canaries` how many were sent."""
    system = reference.system
    found = [
        _model(system.model, profile, server),
        _version(system.version, server),
        _image(system.image, profile),
        _gpu(system.gpu, gpus),
        _gpus(system.gpus, gpus),
        _requests(system.requests, stages),
        _data(reference, data),
    ]
    named = [condition for condition in found if condition.published]
    if canaries:
        named.append(Condition("canaries", "none", f"{canaries:,}", same=False))
    return tuple(named)


def _model(published: str, profile: Mapping[str, Any], server: ServerChanged | None) -> Condition:
    asked = _table(profile, "server").get("model")
    here = [str(name) for name in (asked, server.model if server is not None else None) if name]
    same = any(published.casefold() == name.casefold() for name in here) if here else None
    return Condition("model", published, here[0] if here else None, same)


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _version(published: str, server: ServerChanged | None) -> Condition:
    here = server.version if server is not None else None
    same = None if here is None else here.removeprefix("v").partition("+")[0] == published
    return Condition("version", published, here, same)


def _image(published: str, profile: Mapping[str, Any]) -> Condition:
    server = _table(profile, "server")
    if server.get("engine") == "attach":
        return Condition("image", published, None, None)
    here = str(_table(server, "docker").get("image") or "no container")
    return Condition("image", published, here, same=here == published)


def _gpu(published: str, gpus: Sequence[GpuStatic] | None) -> Condition:
    names = sorted({gpu.name for gpu in gpus or ()})
    same = all(_is_part(published, name) for name in names) if names else None
    return Condition("GPU", published, ", ".join(names) or None, same)


def _is_part(part: str, name: str) -> bool:
    """Whether a GPU's name contains the part as a word: an L40S is no L40."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(part)}(?![A-Za-z0-9])", name, re.IGNORECASE) is not None


def _gpus(published: int | None, gpus: Sequence[GpuStatic] | None) -> Condition:
    text = "" if published is None else str(published)
    sockets = {gpu.socket or gpu.index for gpu in gpus or ()}
    same = len(sockets) == published if sockets else None
    return Condition("GPUs", text, str(len(sockets)) if sockets else None, same)


def _requests(published: int | None, stages: Sequence[StageStarted]) -> Condition:
    text = "" if published is None else f"{published:,}"
    loaded = [stage for stage in stages if not stage.no_load]
    here = sorted({stage.requests or 0 for stage in loaded})
    words = ", ".join(f"{requests:,}" if requests else "as many as in a time" for requests in here)
    return Condition("requests", text, words or None, same=here == [published] if here else None)


def _data(reference: Reference, data: DataFile | None) -> Condition:
    here = data.words if data is not None else "synthetic prompts"
    same = data is not None and data.sha256 == reference.data_sha256
    return Condition("data", reference.data, here, same=same)
