"""The folder of an acceptance: its lines, its runs, the certificate made from them, and whether that still is theirs.

A certificate rests on every file in the folder but itself and what is rendered from it; it names them with checksums.
Checksums find what changed by accident or by hand, not a forger who makes the certificate again: for that, keep a copy.

`accept.jsonl` has what the acceptance was asked for and has done, line by line. A line is on the disk before the next
step begins, so that an acceptance can continue after a crash of vramp or of the machine. The file is locked while vramp
works in its folder; the beginning of a line that a crash cut off is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from loadgen.errors import UNDECODABLE, ProfileError, ResultError, reported_as
from loadgen.format import counted
from loadgen.masking import masked
from loadgen.places import read_whole, write_whole
from loadgen.plan.from_profile import stages_of
from loadgen.profile.schema import Profile
from loadgen.record.acceptance import AcceptEvidence, certificate_from, evidence_of, values_like
from loadgen.record.demands import BoxValues, criteria_of
from loadgen.record.figures import LoadShape
from loadgen.schema.certificate import (
    AcceptBegan,
    AcceptLine,
    BoxIdentity,
    Certificate,
    Demand,
    RunMade,
)
from loadgen.schema.result import RESULT, Result
from loadgen.store.growing import GrowingFile, writing
from loadgen.store.journal import JOURNAL, has_older_parts
from loadgen.store.recover import folded
from loadgen.store.runs import has_result, read_result

LINES = "accept.jsonl"
CERTIFICATE = "certificate.json"
_RENDERED = "certificate."  # the beginning of the names of the certificate and of what is made from it
MAX_FILES_NAMED = 20
_FROM_JOURNAL = ("state", "stages", "server", "verdicts")  # of a result: what criteria rest on


class AcceptLog(GrowingFile):
    """The lines so far, and room for more."""

    def __init__(self, folder: Path) -> None:
        """Open the file in a folder; raises `ResultError`, also while another vramp has it open."""
        super().__init__(folder / LINES, "the record of the acceptance", "ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ResultError(f"{folder}: another vramp works in this folder; wait for it, or end it") from None
        except OSError:
            pass  # a filesystem without locks
        written = read_whole(self.path)
        with writing(self.path, self._what):
            os.truncate(self.path, written.rfind(b"\n") + 1)
        self.lines = read_lines(folder) if written.rfind(b"\n") >= 0 else []

    def write(self, line: AcceptLine) -> None:
        """Append a line, without secrets, and wait until the disk has it; raises `ResultError`."""
        line = masked(line)
        self.append(msgspec.json.encode(line) + b"\n")
        with writing(self.path, self._what):
            os.fsync(self._file)
        self.lines.append(line)


class LiveRun(NamedTuple):
    """A run that goes on, as if it ended now."""

    made: RunMade
    result: Result


def read_lines(folder: Path) -> list[AcceptLine]:
    """The lines of an acceptance, without a torn last one; raises `ResultError`."""
    path = folder / LINES
    with reported_as(f"{path}: cannot be read"):
        texts = read_whole(path).split(b"\n")[:-1]
    lines = []
    for number, text in enumerate(texts, start=1):
        with reported_as(f"{path}:{number}: not a line of an acceptance", UNDECODABLE):
            lines.append(msgspec.json.decode(text, type=AcceptLine))
    if not lines or not isinstance(lines[0], AcceptBegan):
        raise ResultError(f"{path}: does not begin with the first line of an acceptance")
    return lines


def read_evidence(folder: Path, live: Sequence[LiveRun] = ()) -> AcceptEvidence:
    """All that an acceptance has left, and what runs that go on have measured so far; raises `ResultError`."""
    lines = [*read_lines(folder), *(run.made for run in live)]
    results = {run.made.folder: run.result for run in live}
    for run in {line.folder for line in lines if isinstance(line, RunMade)} - results.keys():
        path = PurePosixPath(run)
        if path.is_absolute() or ".." in path.parts:
            raise ResultError(f"{folder / LINES}: names a run outside its folder: {run}")
        if not has_result(folder / run):
            raise ResultError(
                f"{folder / run}: has no result, though {LINES} says that this run was made: put it back from a copy, "
                "or begin a new acceptance"
            )
        results[run] = read_result(folder / run / RESULT)
    return evidence_of(lines, results)


def certificate_of(folder: Path, live: Sequence[LiveRun] = ()) -> Certificate:
    """The certificate of what is known so far; raises `ResultError`."""
    return certificate_from(read_evidence(folder, live), {} if live else _checksums(folder))


def write_certificate_json(folder: Path) -> Certificate:
    """Make the certificate of a folder, and write it there; raises `ResultError`."""
    certificate = certificate_of(folder)
    path = folder / CERTIFICATE
    with reported_as(f"{path}: cannot be written"):
        write_whole(path, _document(certificate))
    return certificate


def read_certificate(folder: Path) -> Certificate:
    """The certificate in a folder, as it was written; raises `ResultError`."""
    return _decoded(folder, _bytes_of(folder))


def verify(folder: Path) -> list[str]:
    """How the certificate differs from what its evidence says now; empty if in nothing. Raises `ResultError`."""
    written = _bytes_of(folder)
    certificate = _decoded(folder, written)
    problems = _changed_files(certificate.files, _checksums(folder))
    try:
        evidence = read_evidence(folder)
    except ResultError as error:
        return [*problems, str(error)]
    again = certificate_from(evidence, certificate.files)
    if not problems and _document(again) != written and again == certificate:
        problems.append(f"{CERTIFICATE}: its bytes are not those that vramp writes")
    return [*problems, *_changed_fields(certificate, again), *_changed_results(folder, evidence.results)]


def require_unchanged(folder: Path) -> None:
    """Raise `ResultError` if what the last certificate rests on is not there any more, or was edited.

    An acceptance that goes on adds lines and runs. A certificate made from what is left would hide the change.
    """
    read_evidence(folder)
    if not (folder / CERTIFICATE).is_file():
        return
    now = _checksums(folder)
    written = _bytes_of(folder)
    with _decoding(folder):  # of any version
        fields = msgspec.json.decode(written, type=dict[str, msgspec.Raw])
        rests_on = msgspec.json.decode(fields.get("files", b"{}"), type=dict[str, str])
    for name, checksum in rests_on.items():
        if name == LINES:
            digest = hashlib.sha256()
            same = False
            for line in read_whole(folder / LINES).splitlines(keepends=True):
                digest.update(line)
                same = same or digest.hexdigest() == checksum
        else:  # what lies next to the runs, such as box.json, is written again
            same = "/" not in name or now.get(name) == checksum
        if not same:
            raise ResultError(
                f"{folder / name}: is not the file that {CERTIFICATE} was made from: put that back from a copy, or "
                "begin a new acceptance; --verify names all differences"
            )


def _bytes_of(folder: Path) -> bytes:
    path = folder / CERTIFICATE
    with reported_as(f"{path}: cannot be read"):
        return read_whole(path)


def _decoding(folder: Path) -> AbstractContextManager[None]:
    return reported_as(f"{folder / CERTIFICATE}: not a certificate of this version of vramp", UNDECODABLE)


def _decoded(folder: Path, document: bytes) -> Certificate:
    with _decoding(folder):
        return msgspec.json.decode(document, type=Certificate)


def _document(certificate: Certificate) -> bytes:
    return msgspec.json.format(msgspec.json.encode(certificate), indent=1) + b"\n"


def _checksums(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file; of what has no bytes of its own, such as a link or an empty folder, what it is."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith(_RENDERED):
            continue
        with reported_as(f"{path}: cannot be read"):
            if path.is_symlink():
                found[name] = f"link to {path.readlink()}"
            elif path.is_dir():
                if not any(path.iterdir()):
                    found[name] = "empty folder"
            elif path.is_file():  # not the socket of a run that was killed, which no copy of the folder has
                with path.open("rb") as file:
                    found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    problems = [f"{name}: is missing" for name in before if name not in now]
    problems += [f"{name}: has changed" for name in before if name in now and before[name] != now[name]]
    problems += [f"{name}: was not there" for name in now if name not in before]
    if len(problems) > MAX_FILES_NAMED:
        problems[MAX_FILES_NAMED:] = [f"and {counted(len(problems) - MAX_FILES_NAMED, 'more file')}"]
    return problems


def _changed_fields(written: Certificate, again: Certificate) -> Iterator[str]:
    """The fields of the certificate that its evidence does not give."""
    for name in Certificate.__struct_fields__:
        before, now = getattr(written, name), getattr(again, name)
        if before == now:
            continue
        if isinstance(before, str | float) and isinstance(now, str | float):
            yield f"{CERTIFICATE}: {name} is {before}, the evidence says {now}"
        elif isinstance(before, tuple) and len(before) != len(now):
            yield f"{CERTIFICATE}: {name} has {len(before)} entries, the evidence gives {len(now)}"
        elif isinstance(before, tuple):
            differing = sum(one != other for one, other in zip(before, now, strict=True))
            yield f"{CERTIFICATE}: {name}: {differing} of {len(now)} are not what the evidence says"
        else:
            yield f"{CERTIFICATE}: {name} is not what the evidence says"


def _changed_results(folder: Path, results: Mapping[str, Result]) -> Iterator[str]:
    """The results that the journals of their runs do not give; the journals of long runs are thinned, and say less."""
    for run, result in sorted(results.items()):
        journal = folder / run / JOURNAL
        if not journal.is_file() or has_older_parts(journal):
            continue
        try:
            again = folded(journal)
        except ResultError as error:
            yield f"{run}/{JOURNAL}: {error}"
            continue
        if any(getattr(again, name) != getattr(result, name) for name in _FROM_JOURNAL):
            yield f"{run}/{RESULT}: its journal gives another result"


def demands_of(
    profile: Profile, like: Sequence[Path] = (), box: BoxIdentity | None = None
) -> tuple[tuple[Demand, ...], tuple[str, ...], tuple[str, ...]]:
    """What a profile demands, what will not be tested, and the boxes that bounds are taken from.

    `box` is the one to be judged, if it is known already: the others must have the same GPUs. Raises `ProfileError` for
    a profile that gives nothing to judge by, and for folders of `like` that do not fit.
    """
    if profile.plan.search is not None or profile.plan.ramp is not None:
        raise ProfileError(
            f"{profile.name}: plan: an acceptance measures at constant loads, not by a search or a ramp: give "
            "load.concurrency or [[stages]]"
        )
    loads = {
        LoadShape(
            stage.concurrency,
            stage.rate,
            stage.arrival if stage.rate is not None else None,
            stage.isl,
            stage.osl,
            pass_number=stage.pass_number,
            in_sessions=stage.work.sessions is not None,
        ): stage.requests
        for stage in stages_of(profile)
        if not stage.no_load
    }
    sent = {load.words: requests for load, requests in loads.items() if requests is not None}
    names, values = _other_boxes(profile, like, box) if like else ((), {})
    demands, not_tested = criteria_of(profile, list(loads), values, sent=sent)
    return demands, not_tested, names


def _other_boxes(
    profile: Profile, folders: Sequence[Path], box: BoxIdentity | None
) -> tuple[tuple[str, ...], BoxValues]:
    """The names of the boxes, and what they measured."""
    values: dict[tuple[str, str], list[list[float]]] = {}
    names: dict[tuple[str, float], str] = {}
    gpus = None if box is None else _gpus(box)
    for folder in folders:
        evidence = _passed(profile, folder)
        assert evidence.box is not None
        here = _gpus(evidence.box)
        gpus = here if gpus is None else gpus
        if here != gpus:
            raise ProfileError(f"--like {folder}: is a box with {here}, this one has {gpus}")
        begun = evidence.box.host, evidence.began.unix_s
        if begun in names:
            raise ProfileError(f"--like {folder}: is an acceptance that is named twice: each counts once")
        versions = {"vLLM": evidence.box.vllm_version, "driver": evidence.box.driver}
        words = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        names[begun] = f"{evidence.box.host}, {folder.name}{f' ({words})' if words else ''}"
        for key, starts in values_like(evidence).items():
            values.setdefault(key, []).append(starts)
    if not any(len(boxes) > 1 for boxes in values.values()):
        raise ProfileError("--like: one box shows no spread: name at least two, better eight")
    return tuple(names.values()), values


def _passed(profile: Profile, folder: Path) -> AcceptEvidence:
    """The evidence of a box that passed with the same profile, if its certificate is that of its evidence."""
    try:
        certificate = read_certificate(folder)
        problems = verify(folder)
        evidence = read_evidence(folder)
    except ResultError as error:
        raise ProfileError(f"--like {folder}: {error}") from error
    if certificate.verdict != "pass":
        raise ProfileError(f"--like {folder}: its verdict is {certificate.verdict}; bounds come from boxes that passed")
    if problems:
        raise ProfileError(f"--like {folder}: its certificate is not that of its evidence: {problems[0]}")
    if certificate.profile != profile.name:
        raise ProfileError(f"--like {folder}: was judged by the profile {certificate.profile}, not {profile.name}")
    if evidence.box is None:
        raise ProfileError(f"--like {folder}: does not say what box it is")
    return evidence


def _gpus(box: BoxIdentity) -> str:
    kinds = sorted({gpu.name for gpu in box.gpus})
    return f"{len(box.gpus)} x {' and '.join(kinds)}" if kinds else "no GPU"
