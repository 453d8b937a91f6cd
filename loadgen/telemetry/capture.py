"""A capture: what one box reported for some seconds, as a file to send, keep as a test, and play back.

JSON lines: a header, then per candidate a line that names it, its first line, and its samples. A failed candidate has
its reason and no samples. Invariants: a capture is read and checked completely before it is used; errors name the file
and the line.

In playback, samples come at their original pace, stamped with the present, in an endless loop. Invariants: counters
continue at their mean pace when the capture starts over, so that a replay has no resets that the box did not have;
processes are listed only while requested, as by a real backend.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from loadgen.errors import UNDECODABLE, ProfileError, reported_as
from loadgen.masking import masked
from loadgen.schema.samples import DeviceFile
from loadgen.telemetry.backends import BackendOption
from loadgen.telemetry.child import Orders, Output
from loadgen.telemetry.protocol import Opened, Sampled
from loadgen.vendors import VendorName

_LIMIT_BYTES = 256 << 20
_ADVICE = "vramp doctor --dump FILE makes a capture"


class Header(msgspec.Struct, frozen=True, tag="Capture", kw_only=True):
    """The first line: the origin of the capture."""

    schema: Literal["vramp.capture/1"] = "vramp.capture/1"
    captured_at: str  # UTC, ISO 8601
    versions: dict[str, str | None]
    environment: dict[str, str]  # variables that affect the vendors' libraries, without secrets
    groups: tuple[str, ...] = ()
    devices: tuple[DeviceFile, ...] = ()


class Candidate(msgspec.Struct, tag=True):
    """The candidate to which the following lines belong."""

    vendor: str
    name: str
    why: str = ""
    failure: str | None = None
    printed: tuple[str, ...] = ()


CaptureLine = Header | Candidate | Opened | Sampled

_COUNTERS: list[str] = """
    energy_j pcie_replays link_read_bytes link_write_bytes ecc_correctable ecc_uncorrectable ecc_deferred bad_pages
    rows_remapped xids
""".split()
_MAX_GAINED = 1e18  # the most that a counter may grow per round
_LATE_S = 1.0  # samples due longer ago than this, because the process was stopped, are skipped

_decoder: msgspec.json.Decoder[CaptureLine] = msgspec.json.Decoder(CaptureLine)


@dataclass(slots=True)
class CapturedPart:
    candidate: Candidate
    opened: Opened | None = None
    samples: list[Sampled] = field(default_factory=list)
    first_sample_ms: float | None = None  # from its start; not in the file


def write_capture(path: Path, header: Header, parts: Iterable[CapturedPart]) -> None:
    """Write a capture without secrets; raises `ResultError`."""
    lines: list[CaptureLine] = [header]
    for part in parts:
        lines += [part.candidate, *([part.opened] if part.opened is not None else []), *part.samples]
    with reported_as(f"{path}: the capture cannot be written"):
        path.write_bytes(msgspec.json.Encoder().encode_lines(masked(lines)))


def read_capture(path: Path) -> tuple[Header, dict[str, CapturedPart]]:
    """The header, and for each vendor its best candidate's part: the first that measured to the end, or else at all.

    Raises `ProfileError` that names file and line.
    """
    lines = _lines(path)
    header = next(iter(lines), None)
    if not isinstance(header, Header):
        raise ProfileError(f"{path}, line 1: not the header of a capture; {_ADVICE}")
    parts: list[CapturedPart] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            _add(parts, line)
        except ValueError as error:
            raise ProfileError(f"{path}, line {number}: {error}; {_ADVICE}") from None
    playable: dict[str, CapturedPart] = {}
    for part in sorted(parts, key=lambda part: part.candidate.failure is not None):
        if part.samples:
            playable.setdefault(part.candidate.vendor, part)
    if not playable:
        reasons = [f"\n  {part.candidate.name}: {part.candidate.failure or 'no sample'}" for part in parts]
        raise ProfileError(f"{path}: nothing was measured in this capture{''.join(reasons)}")
    return header, playable


def _lines(path: Path) -> list[CaptureLine]:
    lines: list[CaptureLine] = []
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            raise ProfileError(f"{path}: more than {_LIMIT_BYTES >> 20} MiB, not a capture; {_ADVICE}")
        data = path.read_bytes()
    except OSError as error:
        raise ProfileError(f"{path}: the capture cannot be read: {error.strerror}; {_ADVICE}") from error
    for number, text in enumerate(data.splitlines(), start=1):
        try:
            lines.append(_decoder.decode(text))
        except UNDECODABLE as error:
            raise ProfileError(f"{path}, line {number}: not a line of a capture ({error}); {_ADVICE}") from error
    return lines


def _add(parts: list[CapturedPart], line: CaptureLine) -> None:
    """Add a line to its part; raises `ValueError` if it does not belong there."""
    match line:
        case Header():
            raise ValueError("a second header")
        case Candidate():
            parts.append(CapturedPart(line))
        case _ if not parts:
            raise ValueError("no candidate was named before")
        case Opened():
            if parts[-1].opened is not None:
                raise ValueError("the candidate opened twice")
            parts[-1].opened = line
        case Sampled():
            _add_sample(parts[-1], line)


def _add_sample(part: CapturedPart, sample: Sampled) -> None:
    if part.opened is None:
        raise ValueError("a sample before the candidate opened")
    if part.samples and sample.t_s <= part.samples[-1].t_s:
        raise ValueError(f"a sample at {sample.t_s:g} s, which is not after the one before")
    known = {gpu.index for gpu in part.opened.gpus}
    strange = [gpu.index for gpu in sample.gpus if gpu.index not in known]
    if strange:
        raise ValueError(f"a sample of GPU {strange[0]}, which was not opened")
    part.samples.append(sample)


def replay_options(path: Path) -> dict[str, list[BackendOption]]:
    """Options that play a capture, a child per vendor in it; raises `ProfileError` if it is not a capture."""
    options: dict[str, list[BackendOption]] = {}
    _, playable = read_capture(path)
    for vendor, part in playable.items():
        assert part.opened is not None, "it has samples"
        arguments = ("--replay", str(path.absolute()), "--vendor", vendor)
        why = f"{path}: {part.candidate.name}"
        options[vendor] = [BackendOption("replay", part.opened.backend, arguments, why=why)]
    return options


def play(path: Path, vendor: VendorName | None, output: Output, orders: Orders) -> None:
    """Play the part of a vendor, or of the first one, until the orders end; raises `ProfileError`."""
    header, playable = read_capture(path)
    part = playable[vendor] if vendor in playable else next(iter(playable.values()))
    assert part.opened is not None, "it has samples"
    source = {"candidate": part.candidate.name, "captured_at": header.captured_at}
    output.offer(msgspec.structs.replace(part.opened, meta={**part.opened.meta, "replay": source}))
    for sample in played(part.samples, time.monotonic()):
        ahead_s = sample.t_s - time.monotonic()
        if ahead_s < -_LATE_S:
            continue
        if orders.ended.wait(max(0.0, ahead_s)):
            return
        without = (msgspec.structs.replace(gpu, processes=None) for gpu in sample.gpus)
        output.offer(sample if orders.processes else msgspec.structs.replace(sample, gpus=tuple(without)))


def played(samples: Sequence[Sampled], start_s: float) -> Iterator[Sampled]:
    """The samples from `start_s` on (CLOCK_MONOTONIC), endlessly, each stamped with the time at which it is due."""
    period_s = 1.0
    if len(samples) > 1:  # one interval between the last sample and the first of the next round
        period_s = (samples[-1].t_s - samples[0].t_s) * len(samples) / (len(samples) - 1)
    gains = _gains(samples, period_s)
    first_s = samples[0].t_s
    for rounds in itertools.count():
        round_s = start_s + rounds * period_s
        for sample in samples:
            # Subtract first: the difference is small and exact, whereas a sum with a large clock value loses digits.
            gpus = []
            for gpu in sample.gpus:
                counters: dict[str, Any] = {}
                for name, gain in gains.get(gpu.index, {}).items():
                    value = getattr(gpu, name)
                    if value is not None:
                        # Integers grow by integers, rounded down, so that no counter ever falls.
                        counters[name] = value + (gain * rounds if isinstance(value, float) else int(gain * rounds))
                gpus.append(msgspec.structs.replace(gpu, t_s=round_s + (gpu.t_s - first_s), **counters))
            yield msgspec.structs.replace(sample, t_s=round_s + (sample.t_s - first_s), gpus=tuple(gpus))


def _gains(samples: Sequence[Sampled], period_s: float) -> dict[int, dict[str, float]]:
    """How much each counter of each device grows per round, at its mean pace."""
    first: dict[tuple[int, str], tuple[float, float]] = {}
    gains: dict[int, dict[str, float]] = {}
    for gpu in (gpu for sample in samples for gpu in sample.gpus):
        for name in _COUNTERS:
            value = getattr(gpu, name)
            if value is not None:
                first_s, first_value = first.setdefault((gpu.index, name), (gpu.t_s, value))
                pace = max(0.0, value - first_value) / (gpu.t_s - first_s) if gpu.t_s > first_s else 0.0
                gains.setdefault(gpu.index, {})[name] = min(pace * period_s, _MAX_GAINED)
    return gains
