"""What the picker offers, read from disk: profiles that can be started, and runs that were.

Nothing here starts or changes anything, and nothing it reads can make it fail: a file that is no profile, or a folder
without a result, is shown as just that. Of a result only what is shown is decoded; the series of a long run are not.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from loadgen.errors import ProfileError
from loadgen.masking import masked
from loadgen.metrics.result import StageResult
from loadgen.places import read_whole
from loadgen.profile.document import build_profile, load_document, variant_names
from loadgen.profile.schema import Profile
from loadgen.report.assessment import best_of
from loadgen.store.journal import JOURNAL, journal_is_held
from loadgen.store.runs import RESULT

SHIPPED_FOLDERS = (Path(__file__).parent / "profiles", Path(__file__).parents[1] / "profiles")
"""Where the profiles lie that come with vramp: in its package, or beside it in a checkout."""
_PROFILE_FOLDERS = (Path("profiles"), *SHIPPED_FOLDERS)
"""Where profiles are looked for by name, the operator's own first."""

State = Literal["complete", "stopped", "failed", "server_died", "goes on", "killed", "unreadable"]

_FOLDER = re.compile(r"(?P<time>\d{8}T\d{6}Z)-(?P<profile>.+)")
_REPEATED = re.compile(r"-\d+$")  # what a second run in the same second has behind its name


@dataclass(frozen=True, slots=True)
class StartChoice:
    """What the operator wants to start."""

    document: Mapping[str, Any]  # A profile that was not yet validated, varied or overridden
    where: str  # its origin, for messages
    variant: str | None = None
    url: str | None = None  # A server that is already running, in place of the profile's


@dataclass(frozen=True, slots=True)
class Entry:
    """One profile of the list."""

    path: Path
    document: Mapping[str, Any]
    profile: Profile | None
    problem: str = ""  # why it cannot be started
    shipped: bool = False

    @property
    def name(self) -> str:
        """What it is called: the name of its file, where it has no other."""
        return self.profile.name if self.profile is not None else self.path.stem

    @property
    def variants(self) -> list[str]:
        """As which else it can be started."""
        return variant_names(self.document)


class _End(msgspec.Struct, frozen=True):
    """All of a result that the picker shows."""

    state: Literal["complete", "stopped", "failed", "server_died"]
    finished_at: str | None = None
    reason: str = ""
    stages: list[StageResult] = []


@dataclass(frozen=True, slots=True)
class PastRun:
    """One folder below `runs/`."""

    folder: Path
    profile: str
    started: datetime | None
    state: State
    reason: str = ""
    stages: list[StageResult] = field(default_factory=list)

    @property
    def best(self) -> StageResult | None:
        """The stage of the most output tokens a second that met its limits; of all, where none met them."""
        return best_of([stage for stage in self.stages if stage.requests.completed])


def find_profile(name: str) -> Path:
    """A path as given, or the profile of that name which ships with vramp."""
    path = Path(name)
    if path.exists() or path.suffix == ".toml":
        return path
    named = (folder / f"{name}.toml" for folder in _PROFILE_FOLDERS)
    return next((shipped for shipped in named if shipped.exists()), path)


def entries() -> list[Entry]:
    """Every profile: those of the current folder, then those that ship with vramp; what cannot be read comes last."""
    paths = [path for path in _files_in(Path()) if _says_server(path)]
    for folder in _PROFILE_FOLDERS:
        paths += _files_in(folder)
    once = {path.resolve(): path for path in reversed(paths)}
    found = [entry_of(path) for path in reversed(once.values())]
    return sorted(found, key=lambda entry: (entry.shipped, entry.profile is None))


def entry_of(path: Path) -> Entry:
    """The profile of a file, or what is wrong with it."""
    shipped = is_shipped(path)
    document: dict[str, Any] = {}
    try:
        document = load_document(path)
        return Entry(path, document, build_profile(document, where=str(path)), shipped=shipped)
    except ProfileError as error:
        return Entry(path, document, None, str(error), shipped=shipped)


def is_shipped(path: Path) -> bool:
    """Whether a file came with vramp, and is therefore never written."""
    return path.exists() and any(path.resolve().is_relative_to(folder.resolve()) for folder in SHIPPED_FOLDERS)


def _files_in(folder: Path) -> list[Path]:
    """No pipe, which would never end, and no link to itself."""
    return [path for path in sorted(folder.glob("*.toml")) if path.is_file()]


def _says_server(path: Path) -> bool:
    """Whether a TOML file means to be a profile: others lie in a folder too."""
    try:
        text = path.read_text(encoding="utf-8")
        return isinstance(tomllib.loads(text).get("server"), dict)
    except tomllib.TOMLDecodeError:
        return "[server" in text
    except (OSError, UnicodeDecodeError):
        return False


def newest_by_profile(folders: Iterable[Path]) -> dict[str, Path]:
    """The newest folder of each profile's name, whatever the variant; only names are looked at."""
    newest: dict[str, Path] = {}
    for folder in folders:
        name = profile_of(folder.name)
        for each in (name, _REPEATED.sub("", name)):
            newest.setdefault(each.partition("+")[0], folder)
    return newest


def profile_of(name: str) -> str:
    """The profile that the name of a run's folder tells; the whole name where it is another kind of name."""
    match = _FOLDER.fullmatch(name)
    return match["profile"] if match is not None else name


def past_run(folder: Path) -> PastRun:
    """What a run's folder tells of it."""
    name, started = profile_of(folder.name), _started(folder.name)
    try:
        end = masked(msgspec.json.decode(read_whole(folder / RESULT), type=_End))
    except (OSError, msgspec.DecodeError, RecursionError):
        return PastRun(folder, name, started, _state_without_result(folder))
    state = end.state if end.finished_at is not None else _state_without_result(folder)
    return PastRun(folder, name, started, state, end.reason, end.stages)


def _state_without_result(folder: Path) -> State:
    journal = folder / JOURNAL
    if not journal.is_file():
        return "unreadable"
    return "goes on" if journal_is_held(journal) else "killed"


def _started(name: str) -> datetime | None:
    match = _FOLDER.fullmatch(name)
    try:
        return datetime.strptime(match["time"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) if match is not None else None
    except ValueError:
        return None
