"""A certificate as sections of a document, as JUnit suites and as CTRF; the page is made of the same sections.

INCONCLUSIVE is neither passed nor failed: JUnit has it skipped with its reason, CTRF as `other`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from loadgen.criteria import PHASES, Direction
from loadgen.errors import reported_as
from loadgen.format import exact, significant
from loadgen.masking import masked
from loadgen.places import write_named
from loadgen.record.acceptance import title
from loadgen.record.demands import edge_of
from loadgen.report.document import Section, Table
from loadgen.report.junit import Case, Suite
from loadgen.report.notes import Note
from loadgen.report.tabular import Bad, Column, Value, json_text, one_line
from loadgen.schema.certificate import Certificate, Criterion, Demand, Outcome, PhaseRecord, PhaseState

CTRF_VERSION = "0.0.0"
_COUNTED: dict[Outcome, str] = {"pass": "passed", "fail": "failed", "inconclusive": "inconclusive"}
_BOUNDS: dict[Direction, str] = {"at_most": "<= ", "at_least": ">= ", "equal": "", "none_of": ""}
_STATES: dict[PhaseState, tuple[Literal["passed", "failure", "skipped"], str]] = {
    "pass": ("passed", "passed"),
    "fail": ("failure", "failed"),
    "inconclusive": ("skipped", "other"),
    "skipped": ("skipped", "skipped"),
}
"""In JUnit and in CTRF."""


class Place(NamedTuple):
    """The interval of a criterion, drawn from -1 to 1: the last good value is at 0, good values are below."""

    low: float
    observed: float
    high: float
    bound: float  # without the margin


def place_of(criterion: Criterion) -> Place | None:
    """None for a criterion that has no interval."""
    if criterion.low is None or criterion.high is None or not isinstance(criterion.observed, int | float):
        return None
    edge, bound = edge_of(criterion.demand), float(criterion.demand.bound or 0.0)
    side = 1 if criterion.demand.direction == "at_most" else -1
    ends = sorted(side * (value - edge) for value in (criterion.low, criterion.high))
    reach = max(abs(ends[0]), abs(ends[1]), abs(bound - edge)) or 1.0
    return Place(
        ends[0] / reach, side * (criterion.observed - edge) / reach, ends[1] / reach, side * (bound - edge) / reach
    )


def demanded(demand: Demand) -> str:
    """A bound with its unit and margin."""
    if demand.bound is None:
        return "none"
    if isinstance(demand.bound, str):
        return demand.bound
    margin = f", margin {exact(demand.margin)}" if demand.margin else ""
    return f"{_BOUNDS[demand.direction]}{exact(demand.bound)} {demand.unit}".strip() + margin


def criterion_line(criterion: Criterion) -> str:
    """A criterion as a line in the terminal."""
    needs = f"; it would take {criterion.needs}" if criterion.needs else ""
    demand = criterion.demand
    outcome, of = f"{criterion.outcome.upper():<12}", f"{demand.phase}: {title(demand)}"
    return one_line(f"{outcome}  {of}: {criterion.reason} (demanded: {demanded(demand)}){needs}")


def certificate_sections(certificate: Certificate) -> list[Section]:
    """Everything that every format shows, without empty sections."""
    by_phase = {
        phase.name: [one for one in certificate.criteria if one.demand.phase == phase.name]
        for phase in certificate.phases
    }
    about = (
        "As long as starts differ as normal values do, a box exactly as good as demanded fails with a probability of "
        f"at most {certificate.false_fail:g}, and one that is not good enough in some criterion passes with at most "
        f"{1 - certificate.pass_confidence:.2g}."
    )
    found = [
        Section("Verdict", notes=[Note("", reason) for reason in certificate.reasons], about=about),
        Section("Phases", [Table(_PHASE, certificate.phases)]),
        *(
            Section(f"Criteria: {name}", [Table(_CRITERION, criteria)], about=PHASES[name])
            for name, criteria in by_phase.items()
        ),
        Section("Not tested", notes=[Note("", words) for words in certificate.not_tested]),
        Section("Box", notes=list(_box(certificate))),
    ]
    return [section for section in found if not section.is_empty]


def headline(certificate: Certificate) -> str:
    """The verdict in a line: its phases unless all were carried out, box, profile, model, and counts of outcomes."""
    box = certificate.box
    where = "box not identified" if box is None else box.host
    carried_out = [phase.name for phase in certificate.phases if phase.state != "skipped"]
    about = f" for {', '.join(carried_out)} only" if 0 < len(carried_out) < len(PHASES) else ""
    model = f", {certificate.model}" if certificate.model else ""
    counts = Counter(one.outcome for one in certificate.criteria)
    words = ", ".join(f"{counts[outcome]} {word}" for outcome, word in _COUNTED.items() if counts[outcome])
    of = f"{where}, profile {certificate.profile}{model} ({words or 'no criterion'})"
    return one_line(f"{certificate.verdict.upper()}{about}: {of}")


def _box(certificate: Certificate) -> Iterator[Note]:
    box = certificate.box
    if box is not None:
        named = {"host": box.host, "CPU": box.cpu, "kernel": box.kernel, "driver": box.driver, "vLLM": box.vllm_version}
        yield from (Note(name, value) for name, value in (named | box.versions).items() if value)
        for gpu in box.gpus:
            firmware = [f"{name} {version}" for name, version in gpu.firmware.items()]
            yield Note(f"GPU {gpu.index}", ", ".join(filter(None, [gpu.name, gpu.uuid, gpu.bdf, *firmware])))
    yield from (Note("held against", name) for name in certificate.like)
    yield from (Note("run by", name) for name in [certificate.by] if name)
    yield Note("from", f"{certificate.started_at} to {certificate.finished_at}, vramp {certificate.vramp_version}")


def _outcome(outcome: PhaseState) -> Value:
    return Bad(outcome) if outcome == "fail" else outcome


def _observed(criterion: Criterion) -> str:
    value = criterion.observed
    if not isinstance(value, int | float):
        return value or ""
    if criterion.demand.rule == "events":
        return f"{value:.0f}"
    return f"{significant(value)} {criterion.demand.unit}".strip()


def _interval(criterion: Criterion) -> str:
    if criterion.low is None or criterion.high is None:
        return ""
    return f"{significant(criterion.low)} to {significant(criterion.high)}"


def samples(criterion: Criterion) -> str:
    """How many it is of: of requests, in each start."""
    if not criterion.requests:
        return "" if criterion.samples is None else f"{criterion.samples:,}"
    least, most = min(criterion.requests), max(criterion.requests)
    return f"{least:,} a start" if least == most else f"{least:,} to {most:,} a start"


def _said(criterion: Criterion) -> str:
    needs = [f"it would take {criterion.needs}"] if criterion.needs else []
    return "; ".join([criterion.reason, *criterion.details, *needs])


_PHASE: tuple[Column[PhaseRecord], ...] = (
    Column("phase", lambda phase: phase.name, words=True),
    Column("", lambda phase: _outcome(phase.state), words=True),
    Column("attempts", lambda phase: phase.attempts),
    Column("runs", lambda phase: len(phase.runs)),
    Column("why", lambda phase: phase.reason, words=True),
)
_CRITERION: tuple[Column[Criterion], ...] = (
    Column("criterion", lambda one: title(one.demand), words=True),
    Column("", lambda one: _outcome(one.outcome), words=True),
    Column("demanded", lambda one: demanded(one.demand), words=True),
    Column("measured", _observed, words=True),
    Column("interval", _interval, words=True),
    Column("starts", lambda one: one.starts or None),
    Column("samples", samples, words=True),
    Column("why", _said, words=True),
    Column("bound from", lambda one: one.demand.source, words=True),
)


def _tests(certificate: Certificate) -> Iterator[tuple[PhaseRecord, list[tuple[str, PhaseState, str]]]]:
    """The tests in JUnit and in CTRF, with state and message: for each phase, one for itself and one per criterion."""
    for phase in certificate.phases:
        criteria = [one for one in certificate.criteria if one.demand.phase == phase.name]
        of_criteria = [(title(one.demand), one.outcome, f"{one.outcome}: {_said(one)}") for one in criteria]
        yield phase, [(f"phase {phase.name}", phase.state, phase.reason), *of_criteria]


def certificate_suites(certificate: Certificate) -> list[Suite]:
    """One suite per phase."""
    return [
        Suite(
            f"{certificate.profile}: {phase.name}",
            [Case(phase.name, name, _STATES[state][0], message) for name, state, message in tests],
            phase.started_at or "",
            _seconds(phase),
        )
        for phase, tests in _tests(certificate)
    ]


def ctrf_json(certificate: Certificate) -> str:
    """Common Test Report Format; the duration of a test is that of its phase."""
    tests = [_test(phase, *test) for phase, of_phase in _tests(certificate) for test in of_phase]
    states = [test["status"] for test in tests]
    summary = {"tests": len(tests)} | {
        state: states.count(state) for state in ("passed", "failed", "skipped", "pending", "other")
    }
    times = {"start": _unix_ms(certificate.started_at), "stop": _unix_ms(certificate.finished_at)}
    results = {
        "tool": {"name": "vramp", "version": certificate.vramp_version},
        "summary": summary | times,
        "tests": tests,
    }
    extra = {"verdict": certificate.verdict, "profile": certificate.profile}
    document = {"reportFormat": "CTRF", "specVersion": CTRF_VERSION, "results": results, "extra": extra}
    return json_text(masked(document))


def write_ctrf(path: Path, certificate: Certificate) -> None:
    """Write a certificate as CTRF; raises `ResultError`."""
    with reported_as(f"--ctrf {path}: cannot be written"):
        write_named(path, ctrf_json(certificate).encode())


def _test(phase: PhaseRecord, name: str, state: PhaseState, message: str) -> dict[str, Any]:
    duration_ms = round(1000 * (_seconds(phase) or 0.0))
    test: dict[str, Any] = {"name": name, "status": _STATES[state][1], "duration": duration_ms, "suite": phase.name}
    if state != "pass":
        test["message"] = message
    return test | {"extra": {"outcome": state}}


def _unix_ms(moment: str) -> int:
    return round(1000 * datetime.fromisoformat(moment).timestamp())


def _seconds(phase: PhaseRecord) -> float | None:
    if phase.started_at is None or phase.finished_at is None:
        return None
    return (_unix_ms(phase.finished_at) - _unix_ms(phase.started_at)) / 1000
