"""Acceptances as they could have gone: lines and results, with known truth, without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.record.acceptance import certificate_from, evidence_of
from loadgen.schema.certificate import (
    AcceptBegan,
    AcceptLine,
    BoxIdentity,
    BoxSeen,
    Certificate,
    Counted,
    Criterion,
    GpuIdentity,
    Judged,
    PhaseBegan,
    PhaseEnded,
    RunMade,
)
from loadgen.schema.result import RESULT, Result
from loadgen.store.acceptance import LINES, demands_of
from loadgen.store.runs import write_result
from tests.metrics.served import run_of, served

LOAD = "conc 16, ISL 512, OSL 128"
BOX = BoxIdentity(host="box-1", gpus=(GpuIdentity(0, "Simulated GPU"),), vllm_version="0.32.0")
SLO = {"ttft_p99": "150ms"}


def profile(slo: Mapping[str, object] = SLO, **accept: Any) -> Profile:
    document = {
        "name": "box",
        "server": {"engine": "simulator"},
        "load": {"isl": 512, "osl": 128, "concurrency": 16, "duration": "30s"},
        "slo": dict(slo),
        "accept": {"phases": ["performance"], "starts": 3, **accept},
    }
    return build_profile(document, where="box.toml")


def began(parts: Profile, like: Sequence[Path] = (), **changes: Any) -> AcceptBegan:
    demands, not_tested, names = demands_of(parts, like, BOX)
    assert parts.accept is not None
    first = AcceptBegan(
        unix_s=1.7e9,
        vramp_version="1",
        name=parts.name,
        profile={},
        phases=tuple(parts.accept.phases),
        demands=demands,
        starts=parts.accept.starts,
        burn_in_s=parts.accept.burn_in,
        boot_id="b",
        booted_unix_s=1.6e9,
        like=names,
        not_tested=not_tested,
    )
    return msgspec.structs.replace(first, **changes)


def measured(seed: int, scale: float = 1.0) -> Result:
    """A whole run whose times are this multiple of the usual ones."""
    return run_of(served(seed, scale=scale), finished_at="2026-01-01T00:01:00.000Z")


def box(
    scales: Sequence[float], *, like: Sequence[Path] = (), **accept: Any
) -> tuple[list[AcceptLine], dict[str, Result]]:
    """The performance phase of a box whose starts take these multiples of the usual times."""
    results = {f"performance-{start}": measured(start, scale) for start, scale in enumerate(scales, start=1)}
    lines: list[AcceptLine] = [began(profile(**accept), like), BoxSeen(1.7e9, BOX), PhaseBegan(1.7e9, "performance")]
    lines += [
        RunMade(unix_s=1.7e9 + start, phase="performance", folder=folder, start=start)
        for start, folder in enumerate(results, start=1)
    ]
    return [*lines, PhaseEnded(unix_s=1.7e9 + 9, phase="performance", state="done"), Judged(1.7e9 + 10)], results


def certified(lines: Sequence[AcceptLine], results: Mapping[str, Result]) -> Certificate:
    return certificate_from(evidence_of(lines, results), {})


def criterion(certificate: Certificate, figure: str) -> Criterion:
    return next(one for one in certificate.criteria if one.demand.figure == figure)


def written(folder: Path, lines: Sequence[AcceptLine], results: Mapping[str, Result]) -> Path:
    """The folder that such an acceptance leaves."""
    for name, result in results.items():
        write_result(result, folder / name / RESULT)
    folder.mkdir(exist_ok=True)
    (folder / LINES).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return folder


def of_phase(phase: Any, *lines: AcceptLine, state: Any = "done", **accept: Any) -> list[AcceptLine]:
    """An acceptance with one phase that left these lines."""
    first = began(profile(**{"phases": [phase], **accept}))
    return [
        first,
        PhaseBegan(1.7e9, phase),
        *lines,
        PhaseEnded(unix_s=1.7e9 + 9, phase=phase, state=state),
        Judged(1.7e9),
    ]


def counts(phase: Any, figure: str, count: int, **more: Any) -> Counted:
    return Counted(unix_s=1.7e9, phase=phase, figure=figure, count=count, **more)
