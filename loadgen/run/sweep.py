"""A sweep: the same load on one server after another, each a variant of a profile, with a folder for its state.

The folder `runs/<UTC time>-<profile>-sweep/` holds the result of each variant and `sweep.json`, which says which are
done. It is rewritten as a whole after every variant, so that a sweep can be resumed whatever ended it. Before anything
is started, it is checked that the variants are comparable: equal loads in every key, including the seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from loadgen.errors import UNDECODABLE, ProfileError, ResultError, reported_as
from loadgen.masking import masked
from loadgen.places import read_whole, write_whole
from loadgen.profile.schema import Profile
from loadgen.report.compare_document import VariantOutcome
from loadgen.schema.shared import RunState
from loadgen.store.runs import claim_folder, read_result

_FILE = "sweep.json"


class Variant(msgspec.Struct, frozen=True):
    """How the run of one variant ended."""

    name: str
    state: RunState
    reason: str
    result: str | None  # its file in the folder; None if there was no run


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `sweep.json`."""

    schema: Literal["vramp.sweep/1"] = "vramp.sweep/1"
    profile: str
    started_at: str
    seed: int
    digest: str  # of all variants' profiles: a sweep is resumed only with the same ones
    variants: list[str]
    done: list[Variant] = []

    @property
    def remaining(self) -> list[str]:
        """The variants that have not completed; one that failed is tried again."""
        complete = {variant.name for variant in self.done if variant.state == "complete"}
        return [name for name in self.variants if name not in complete]


def begin_sweep(name: str, profiles: Mapping[str, Profile], *, seed: int) -> tuple[Path, Sweep]:
    """Claim a folder for a sweep over these profiles by variant.

    Raises `ProfileError` if they are not comparable, `ResultError` if the folder cannot be written.
    """
    require_comparable(profiles)
    now = datetime.now(UTC)
    sweep = Sweep(
        profile=name, started_at=f"{now:%Y-%m-%dT%H:%M:%SZ}", seed=seed, digest=_digest(profiles), variants=[*profiles]
    )
    folder = claim_folder(f"{name}-sweep", now)
    _write(folder, sweep)
    return folder, sweep


def resume_sweep(folder: Path, profiles: Mapping[str, Profile]) -> Sweep:
    """Read a sweep to resume it; raises `ResultError` if it is not one, `ProfileError` if its profiles differ."""
    sweep = read_sweep(folder)
    if sweep.variants != [*profiles]:
        raise ProfileError(f"{folder}: is a sweep of {', '.join(sweep.variants)}; name the same variants to resume it")
    if sweep.digest != _digest(profiles):
        raise ProfileError(f"{folder}: the profile or the options are not those that it began with; begin a new sweep")
    return sweep


def read_sweep(folder: Path) -> Sweep:
    path = folder / _FILE
    try:
        return msgspec.json.decode(read_whole(path), type=Sweep)
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror}; --resume takes the folder of a sweep") from error
    except UNDECODABLE as error:
        raise ResultError(f"{path}: not a sweep of vramp: {error}") from error


def note_variant(folder: Path, sweep: Sweep, variant: Variant) -> Sweep:
    """Record how a variant ended, replacing an earlier attempt; raises `ResultError`."""
    others = [other for other in sweep.done if other.name != variant.name]
    noted = msgspec.structs.replace(sweep, done=[*others, variant])
    _write(folder, noted)
    return noted


def outcomes_of(folder: Path, sweep: Sweep) -> list[VariantOutcome]:
    """The outcomes of the variants so far, in order, with their results; raises `ResultError`."""
    done = {variant.name: variant for variant in sweep.done}
    return [
        VariantOutcome(
            variant=variant.name,
            state=variant.state,
            reason=variant.reason,
            result=read_result(folder / variant.result) if variant.result is not None else None,
        )
        for variant in (done[name] for name in sweep.variants if name in done)
    ]


def result_path(folder: Path, variant: str) -> Path:
    return folder / f"{variant}.json"


def as_swept(profile: Profile, seed: int) -> Profile:
    """The profile with this seed, and with a server that is stopped before the next one starts."""
    load, server = profile.load.model_copy(update={"seed": seed}), profile.server.model_copy(update={"on_exit": "stop"})
    return profile.model_copy(update={"load": load, "server": server})


def require_comparable(profiles: Mapping[str, Profile]) -> None:
    """Refuse variants whose load differs from the first one's, whose servers vramp does not start, or called `sweep`.

    Raises `ProfileError`.
    """
    first, *others = profiles
    for name in profiles:
        if profiles[name].server.engine == "attach":
            raise ProfileError(f"variant {name}: a sweep starts each server itself; engine attach starts none")
        if result_path(Path(), name).name == _FILE:
            raise ProfileError(f"variant {name}: {_FILE} says what a sweep has done; give the variant another name")
    for name in others:
        keys = differing_load(profiles[first], profiles[name])
        if keys:
            raise ProfileError(
                f"variant {name}: {', '.join(keys)} differs from variant {first}, and a sweep compares servers under "
                "one load: leave it out with --variants, or set the load for all with options"
            )


def differing_load(one: Profile, other: Profile) -> list[str]:
    """The keys of the load, apart from its seed, in which two profiles differ."""
    theirs = _load_of(other)
    return [key for key, value in _load_of(one).items() if theirs[key] != value]


def _load_of(profile: Profile) -> dict[str, Any]:
    document = profile.model_dump(mode="json", include={"load", "stages", "plan"})
    load = document.pop("load")
    load.pop("seed")
    return {f"load.{key}": value for key, value in load.items()} | document


def _digest(profiles: Mapping[str, Profile]) -> str:
    # Without the seed, which is drawn when the sweep begins.
    documents = {name: as_swept(profile, 0).model_dump(mode="json") for name, profile in profiles.items()}
    return hashlib.sha256(json.dumps(documents, sort_keys=True).encode()).hexdigest()


def _write(folder: Path, sweep: Sweep) -> None:
    path = folder / _FILE
    with reported_as(f"{path}: cannot be written"):
        write_whole(path, msgspec.json.format(msgspec.json.encode(masked(sweep)), indent=1) + b"\n")
