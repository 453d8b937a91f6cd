"""How long the last start of the same kind took, so that a start without progress of its own still has an end in sight.

One small JSON file for each kind of start, replaced as a whole. It is a convenience: a file that is missing, damaged or
of another time is no history, and one that cannot be written is a reason to tell, never a failure of the run.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from loadgen.metrics.journal import Milestone
from loadgen.profile import Profile

_MAX_BYTES = 16_384
_MAX_NAME_CHARS = 60
_DECIDING = {"engine", "platform", "model", "command", "docker", "instances", "args", "env"}
"""What of `[server]` decides how long a start takes; ports, names and limits do not."""

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class ExpectedStart(msgspec.Struct, frozen=True):
    """What the last start took, in seconds."""

    total_s: _Seconds
    milestones_s: dict[str, _Seconds]  # by the milestone's id; those that were passed over are missing


def start_key(profile: Profile) -> str:
    """The kind of start: equal for starts that should take equally long, and fit to be the name of a file."""
    deciding = profile.server.model_dump(mode="json", include=_DECIDING)
    digest = hashlib.sha256(msgspec.json.encode(deciding, order="deterministic")).hexdigest()
    return f"{profile.name[:_MAX_NAME_CHARS]}-{digest[:16]}"


def remember_start(folder: Path, key: str, milestones: Iterable[Milestone]) -> str | None:
    """Keep what a finished start took; returns why, where that was not possible."""
    start = _taken(milestones)
    if start is None:
        return "the start did not finish; its times are not kept"
    try:
        _replace_file(folder / f"{key}.json", msgspec.json.encode(start))
    except OSError as error:
        return f"{folder}: the times of the start cannot be kept there: {error.strerror}"
    return None


def expected_start(folder: Path, key: str) -> ExpectedStart | None:
    """What the last start of this kind took; None if there was none, or its file says nothing useful."""
    try:
        with (folder / f"{key}.json").open("rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=ExpectedStart)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def with_expectations(
    milestones: Iterable[Milestone], expected: ExpectedStart | None, *, now_s: float
) -> tuple[Milestone, ...]:
    """The milestones with the time that each took in the last start, and how long the one under way already takes."""
    before = expected.milestones_s if expected is not None else {}
    return tuple(replace(one, expected_s=before.get(one.id), elapsed_s=_elapsed_s(one, now_s)) for one in milestones)


def _elapsed_s(one: Milestone, now_s: float) -> float | None:
    return now_s - one.started_s if one.state == "running" and one.started_s is not None else None


def _taken(milestones: Iterable[Milestone]) -> ExpectedStart | None:
    every = list(milestones)
    times = {one.id: (one.started_s, one.finished_s) for one in every}
    taken = {id: (start, end) for id, (start, end) in times.items() if start is not None and end is not None}
    if not taken or any(one.state != "done" for one in every):
        return None
    total_s = max(end for _, end in taken.values()) - min(start for start, _ in taken.values())
    return ExpectedStart(total_s, {id: end - start for id, (start, end) in taken.items()})


def _replace_file(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".start-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
