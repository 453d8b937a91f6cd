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
    system, data = reference.system, here.data
    model = here.models[0] if here.models else None
    is_model = system.model.casefold() in map(str.casefold, here.models) if here.models else None
    is_version = None if here.version is None else here.version.removeprefix("v").partition("+")[0] == system.version
    names = sorted({*(here.gpus or ())})
    are_gpus = all(_is_part(system.gpu, name) for name in names) if names else None
    gpus, wanted_gpus = str(len(here.gpus)) if here.gpus else None, str(system.gpus or "")
    requests = "" if system.requests is None else f"{system.requests:,}"
    sent = [*dict.fromkeys("as many as in a time" if each is None else f"{each:,}" for each in here.requests)]
    data_words = data.words if data is not None else "synthetic prompts"
    is_data = data is not None and data.sha256 == reference.data_sha256
    found = [
        Condition("model", system.model, model, is_model),
        Condition("version", system.version, here.version, is_version),
        Condition("image", system.image, here.image, None if here.image is None else here.image == system.image),
        Condition("GPU", system.gpu, ", ".join(names) or None, are_gpus),
        Condition("GPUs", wanted_gpus, gpus, gpus == wanted_gpus if gpus else None),
        Condition("requests", requests, ", ".join(sent) or None, sent == [requests] if sent else None),
        Condition("data", reference.data, data_words, same=is_data),
    ]
    named = [condition for condition in found if condition.published]
    if here.canaries:
        named.append(Condition("canaries", "none", f"{here.canaries:,}", same=False))
    return tuple(named)


def _is_part(part: str, name: str) -> bool:
    """Whether a GPU's name contains the part as a word: an L40S is no L40."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(part)}(?![A-Za-z0-9])", name, re.IGNORECASE) is not None
