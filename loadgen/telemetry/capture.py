"""A capture: what one box told for some seconds, as a file that can be sent, kept as a test, and played back.

JSON lines: a header, then for each candidate a line that names it, what it said when it opened, and its looks. One that
failed has its reason and no looks. Invariants: a capture is read whole and checked before anything of it is used; what
is wrong with one names the file and the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from loadgen.errors import ProfileError, ResultError
from loadgen.metrics.samples import DeviceFile
from loadgen.telemetry.sample import Opened, Sampled
from loadgen.vendors import VendorName

_LIMIT_BYTES = 256 << 20
_ADVICE = "vramp doctor --dump FILE makes a capture"


class Header(msgspec.Struct, frozen=True, tag="Capture", kw_only=True):
    """The first line: where the capture comes from."""

    schema: Literal["vramp.capture/1"] = "vramp.capture/1"
    captured_at: str  # UTC, ISO 8601
    versions: dict[str, str | None]
    environment: dict[str, str]  # what steers the vendors' libraries, without secrets
    groups: tuple[str, ...] = ()
    devices: tuple[DeviceFile, ...] = ()


class Candidate(msgspec.Struct, frozen=True, tag=True):
    """The lines that follow are this candidate's."""

    vendor: VendorName
    name: str
    why: str = ""
    failure: str | None = None
    printed: tuple[str, ...] = ()


CaptureLine = Header | Candidate | Opened | Sampled

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[CaptureLine] = msgspec.json.Decoder(CaptureLine)


@dataclass(slots=True)
class Part:
    """What one candidate told."""

    candidate: Candidate
    opened: Opened | None = None
    looks: list[Sampled] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture that was read."""

    header: Header
    parts: tuple[Part, ...]

    @property
    def playable(self) -> dict[VendorName, Part]:
        """For each vendor what its best candidate told: the first that measured to the end, or else measured at all."""
        found: dict[VendorName, Part] = {}
        for part in sorted(self.parts, key=lambda part: part.candidate.failure is not None):
            if part.looks:
                found.setdefault(part.candidate.vendor, part)
        return found


def write_capture(path: Path, header: Header, parts: Iterable[Part]) -> None:
    lines = [header, *(line for part in parts for line in _lines(part))]
    try:
        path.write_bytes(b"".join(_encode(line) + b"\n" for line in lines))
    except OSError as error:
        raise ResultError(f"{path}: the capture cannot be written: {error.strerror}") from error


def read_capture(path: Path) -> Capture:
    """Read a capture; raises `ProfileError` that names file and line."""
    lines = list(_decoded(path))
    if not lines or not isinstance(lines[0], Header):
        raise ProfileError(f"{path}, line 1: not the header of a capture; {_ADVICE}")
    parts: list[Part] = []
    for number, line in enumerate(lines[1:], start=2):
        wrong = _add(parts, line)
        if wrong:
            raise ProfileError(f"{path}, line {number}: {wrong}; {_ADVICE}")
    capture = Capture(lines[0], tuple(parts))
    if not capture.playable:
        raise ProfileError(f"{path}: nothing was measured in this capture{_failures(parts)}")
    return capture


def _lines(part: Part) -> Iterator[CaptureLine]:
    yield part.candidate
    if part.opened is not None:
        yield part.opened
        yield from part.looks


def _decoded(path: Path) -> Iterator[CaptureLine]:
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            raise ProfileError(f"{path}: more than {_LIMIT_BYTES >> 20} MiB, not a capture; {_ADVICE}")
        data = path.read_bytes()
    except OSError as error:
        raise ProfileError(f"{path}: the capture cannot be read: {error.strerror}; {_ADVICE}") from error
    for number, text in enumerate(data.splitlines(), start=1):
        try:
            yield _decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProfileError(f"{path}, line {number}: not a line of a capture ({error}); {_ADVICE}") from error


def _add(parts: list[Part], line: CaptureLine) -> str:
    """Sort a line in; what is wrong with it."""
    if isinstance(line, Header):
        return "a second header"
    if isinstance(line, Candidate):
        parts.append(Part(line))
        return ""
    if not parts:
        return "no candidate was named before"
    return _open(parts[-1], line) if isinstance(line, Opened) else _look(parts[-1], line)


def _open(part: Part, opened: Opened) -> str:
    if part.opened is not None:
        return "the candidate opened twice"
    part.opened = opened
    return ""


def _look(part: Part, look: Sampled) -> str:
    if part.opened is None:
        return "a look before the candidate opened"
    if part.looks and look.t_s <= part.looks[-1].t_s:
        return f"a look at {look.t_s:g} s, which is not after the one before"
    known = {gpu.index for gpu in part.opened.gpus}
    strange = [gpu.index for gpu in look.gpus if gpu.index not in known]
    if strange:
        return f"a look at GPU {strange[0]}, which was not opened"
    part.looks.append(look)
    return ""


def _failures(parts: Iterable[Part]) -> str:
    reasons: Mapping[str, str] = {part.candidate.name: part.candidate.failure or "no look" for part in parts}
    return "".join(f"\n  {name}: {reason}" for name, reason in reasons.items())
