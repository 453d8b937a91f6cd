"""The conditions of a published measurement next to those of a run, so that no figure is compared without them.

Only what the profile's `[reference]` gives is compared. What is not known here is unknown, and not the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from loadgen.profile.schema import Reference
from loadgen.schema.comparison import Condition
from loadgen.schema.shared import DataFile

NO_CONTAINER = "no container"


class Here(NamedTuple):
    """A run, or a box before it, as far as known; None is unknown."""

    models: Sequence[str]  # as the profile and as the server call it
    version: str | None
    image: str | None
    gpus: Sequence[str] | None  # the name of each that the server has
    requests: Sequence[int | None]  # of each stage with load; None for a stage that is bounded by time
    data: DataFile | None  # None for synthetic prompts
    canaries: int


def conditions(reference: Reference, here: Here) -> tuple[Condition, ...]:
    """Every published condition, and canaries, which no publication sends."""
    system = reference.system
    found = [
        _model(system.model, here.models),
        _version(system.version, here.version),
        Condition("image", system.image, here.image, None if here.image is None else here.image == system.image),
        _gpu(system.gpu, here.gpus),
        _gpus(system.gpus, here.gpus),
        _requests(system.requests, here.requests),
        _data(reference, here.data),
    ]
    named = [condition for condition in found if condition.published]
    if here.canaries:
        named.append(Condition("canaries", "none", f"{here.canaries:,}", same=False))
    return tuple(named)


def _model(published: str, here: Sequence[str]) -> Condition:
    same = published.casefold() in map(str.casefold, here) if here else None
    return Condition("model", published, here[0] if here else None, same)


def _version(published: str, here: str | None) -> Condition:
    same = None if here is None else here.removeprefix("v").partition("+")[0] == published
    return Condition("version", published, here, same)


def _gpu(published: str, gpus: Sequence[str] | None) -> Condition:
    names = sorted({*(gpus or ())})
    same = all(_is_part(published, name) for name in names) if names else None
    return Condition("GPU", published, ", ".join(names) or None, same)


def _is_part(part: str, name: str) -> bool:
    """Whether a GPU's name contains the part as a word: an L40S is no L40."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(part)}(?![A-Za-z0-9])", name, re.IGNORECASE) is not None


def _gpus(published: int | None, gpus: Sequence[str] | None) -> Condition:
    text = "" if published is None else str(published)
    return Condition("GPUs", text, str(len(gpus)) if gpus else None, len(gpus) == published if gpus else None)


def _requests(published: int | None, stages: Sequence[int | None]) -> Condition:
    text = "" if published is None else f"{published:,}"
    here = dict.fromkeys("as many as in a time" if requests is None else f"{requests:,}" for requests in stages)
    return Condition("requests", text, ", ".join(here) or None, same=[*here] == [text] if here else None)


def _data(reference: Reference, data: DataFile | None) -> Condition:
    here = data.words if data is not None else "synthetic prompts"
    same = data is not None and data.sha256 == reference.data_sha256
    return Condition("data", reference.data, here, same=same)
