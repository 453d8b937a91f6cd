"""The profiles and past runs that the picker lists, read from disk.

Nothing here starts or changes anything, and no file can make it fail: one that is not a profile, or a folder without a
result, is listed as such. Only the parts of a result that are shown are decoded, not the series of a long run.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from loadgen.errors import UNDECODABLE, ProfileError
from loadgen.masking import masked, masked_text
from loadgen.places import read_whole
from loadgen.profile.document import build_profile, load_document, variant_names
from loadgen.profile.schema import Profile
from loadgen.report.assessment import best_of
from loadgen.report.history import ListedRun, state_without_result
from loadgen.schema.result import RESULT, StageResult
from loadgen.store.runs import profile_of, started_of

Origin = Literal["yours", "site", "shipped"]
SHIPPED_FOLDERS = (Path(__file__).parent / "profiles", Path(__file__).parents[1] / "profiles")
"""Where the shipped profiles are: in the package, or next to it in a checkout."""
PROFILE_FOLDERS: tuple[tuple[Path, Origin], ...] = (
    (Path("profiles"), "yours"),
    (Path("/etc/vramp/profiles.d"), "site"),  # for all users of this machine, from its administrator
    *((folder, "shipped") for folder in SHIPPED_FOLDERS),
)
"""The folders in which profiles are looked up by name, in this order."""
_MAX_BYTES = 4 << 20  # of a listed profile; a larger one can be started by its path

_REPEATED = re.compile(r"-\d+$")  # the suffix of a second run in the same second


class StartChoice(msgspec.Struct, frozen=True):
    """What the operator wants to start."""

    document: Mapping[str, Any]  # the profile before validation, variant and overrides
    where: str  # its origin, for messages
    variant: str | None = None
    url: str | None = None  # a running server to use instead of the profile's


class Entry(msgspec.Struct, frozen=True):
    """One profile in the list."""

    path: Path
    document: Mapping[str, Any]
    profile: Profile | None
    problem: str = ""  # why it cannot be started
    origin: Origin = "yours"

    @property
    def name(self) -> str:
        """The profile's name, or that of its file if it cannot be read."""
        return self.profile.name if self.profile is not None else self.path.stem

    @property
    def variants(self) -> list[str]:
        return variant_names(self.document)


class _End(msgspec.Struct, frozen=True):
    """The part of a result that the picker shows."""

    state: Literal["complete", "stopped", "failed", "server_died"]
    finished_at: str | None = None
    reason: str = ""
    stages: list[StageResult] = []


class PastRun(ListedRun, frozen=True, kw_only=True):
    """A run in a list, with its folder below `runs/` and its stages."""

    folder: Path
    stages: Sequence[StageResult] | None = None  # None: not read

    @property
    def started(self) -> datetime | None:
        return datetime.fromisoformat(self.started_at) if self.started_at else None

    @property
    def is_acceptance(self) -> bool:
        return self.kind == "acceptance"


def find_profile(name: str) -> Path:
    """Return `name` as a path if it is one, else the first profile of that name in `PROFILE_FOLDERS`."""
    path = Path(name)
    if os.path.exists(path) or path.suffix == ".toml":  # noqa: PTH110 - a folder may be denied
        return path
    named = (folder / f"{name}.toml" for folder, _ in PROFILE_FOLDERS)
    return next((found for found in named if os.path.isfile(found)), path)  # noqa: PTH113 - the same


def entries() -> list[Entry]:
    """Return every profile by origin; within an origin, unreadable ones come last."""
    paths = [path for path in _files_in(Path()) if _says_server(path)]
    for folder, _ in PROFILE_FOLDERS:
        paths += _files_in(folder)
    once = {path.resolve(): path for path in reversed(paths)}
    found = [entry_of(path) for path in reversed(once.values())]
    order = get_args(Origin)
    return sorted(found, key=lambda entry: (order.index(entry.origin), entry.profile is None))


def entry_of(path: Path) -> Entry:
    """Return the profile in a file, or what is wrong with it."""
    origin = origin_of(path)
    document: dict[str, Any] = {}
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ProfileError(f"{path}: is larger than {_MAX_BYTES >> 20} MiB: not a profile")
        document = load_document(path)
        return Entry(path, document, build_profile(document, where=str(path)), origin=origin)
    except OSError as error:
        problem = f"{path}: cannot be read: {error.strerror}"
    except RecursionError:
        problem = f"{path}: its tables are nested too deeply"
    except ProfileError as error:
        problem = masked_text(str(error))  # it quotes the value
    return Entry(path, document, None, problem, origin=origin)


def origin_of(path: Path) -> Origin:
    """Return where a profile comes from; shipped ones are never written."""
    if os.path.exists(path):  # noqa: PTH110 - a folder may be denied
        for folder, origin in PROFILE_FOLDERS:
            if origin != "yours" and path.resolve().is_relative_to(folder.resolve()):
                return origin
    return "yours"


def _files_in(folder: Path) -> list[Path]:
    """Regular files only: no pipes, which never end, no circular links, nothing that this user may not read."""
    return [path for path in sorted(folder.glob("*.toml")) if os.path.isfile(path)]  # noqa: PTH113 - is never denied


def _says_server(path: Path) -> bool:
    """Whether a TOML file is meant to be a profile: a folder may hold other TOML files."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return isinstance(tomllib.loads(text).get("server"), dict)
    except (OSError, UnicodeDecodeError):
        return False
    except UNDECODABLE:
        return "[server" in text


def newest_by_profile(folders: Iterable[Path]) -> dict[str, Path]:
    """Return the first of `folders` for each profile, whatever its variant; the newest come first, only names count."""
    newest: dict[str, Path] = {}
    for folder in folders:
        name = profile_of(folder.name)
        for each in (name, _REPEATED.sub("", name)):
            newest.setdefault(each.partition("+")[0], folder)
    return newest


def past_run(folder: Path) -> PastRun:
    try:
        end = masked(msgspec.json.decode(read_whole(folder / RESULT), type=_End))
    except (OSError, *UNDECODABLE):
        end = _End("failed")
    best = best_of([stage for stage in end.stages if stage.requests.completed])
    started = started_of(folder.name)
    return PastRun(
        kind="load",
        state=end.state if end.finished_at is not None else state_without_result(folder),
        reason=end.reason,
        profile=profile_of(folder.name),
        started_at=started.isoformat() if started is not None else "",
        load=best.load_words if best is not None else "",
        output_tokens_per_s=best.throughput.output_tokens_per_s if best is not None else None,
        folder=folder,
        stages=end.stages,
    )
