"""A certificate as sections of a document, of which its page is made, and the certificates of several boxes compared.

Boxes of one kind are compared by rank and not by eye: in each figure that all boxes have, the values of a box at its
starts are ranked among those of all boxes (Wilcoxon's rank sum, exact). A box is an outlier in a figure if it ranks so
badly that it would hardly do so by chance; all boxes and figures share one rate of false alarms (Holm), so that boxes
that are alike show one in a hundred comparisons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import comb
from statistics import fmean
from typing import NamedTuple

from loadgen.criteria import PHASES, Direction
from loadgen.errors import ProfileError
from loadgen.format import exact, significant
from loadgen.metrics.acceptance import FALSE_FAIL, holm, rank_sum_chance
from loadgen.record.acceptance import title
from loadgen.record.demands import edge_of
from loadgen.report.document import Section, Table
from loadgen.report.notes import Note
from loadgen.report.tabular import Bad, Column, Value, judged, one_line
from loadgen.schema.certificate import Certificate, Criterion, Demand, Outcome, PhaseRecord, PhaseState

_COUNTED: dict[Outcome, str] = {"pass": "passed", "fail": "failed", "inconclusive": "inconclusive"}
_BOUNDS: dict[Direction, str] = {"at_most": "<= ", "at_least": ">= ", "equal": "", "none_of": ""}


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


def reason_words(criterion: Criterion) -> str:
    """The reason for an outcome, with its details and what more it would take."""
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
    Column("why", reason_words, words=True),
    Column("bound from", lambda one: one.demand.source, words=True),
)


# Boxes.


class BoxRow(NamedTuple):
    name: str
    certificate: Certificate
    mean_rank: float | None  # over all figures; 1 is the best of all boxes
    outlier_in: Sequence[str] | None  # None: so few starts that no rank would be beyond chance
    values: Mapping[str, float]  # by figure


def compare_boxes(boxes: Mapping[str, Certificate], *, force: bool = False) -> list[Section]:
    """The boxes as rows, and what may be said of them; raises `ProfileError` for boxes that are not alike."""
    unlike = _unlike(boxes)
    if unlike and not force:
        raise ProfileError(f"the boxes are not alike: {unlike}; --force compares them anyway")
    every = [{title(one.demand): None for one in box.criteria if one.values} for box in boxes.values()]
    figures = [figure for figure in every[0] if all(figure in others for others in every)]
    rows = _rows(boxes, figures)
    name = Column[BoxRow]("box", lambda row: row.name, words=True)
    ranked: list[Column[BoxRow]] = [
        name,
        Column(
            "verdict", lambda row: judged(row.certificate.verdict, good=row.certificate.verdict != "fail"), words=True
        ),
        Column(f"mean rank of {len(boxes)}", lambda row: row.mean_rank, decimals=1),
        Column("worse than the others in", _outlier, words=True),
    ]
    shown = [Column[BoxRow](figure, lambda row, figure=figure: row.values[figure]) for figure in figures]  # type: ignore[misc]
    about = (
        "By the rank sum of a box's starts among all, exact, with Holm's correction: boxes that are alike "
        f"show an outlier with a probability of at most {FALSE_FAIL:g}."
    )
    return [
        Section("Boxes", [Table(ranked, rows)], [Note("not alike", unlike)] if unlike else [], about),
        Section("Figures, means over starts", [Table([name, *shown], rows if figures else [])]),
    ]


def _outlier(row: BoxRow) -> Value:
    if row.outlier_in is None:
        return "unknown: too few starts, or no figure in common"
    return Bad(", ".join(row.outlier_in)) if row.outlier_in else "nothing that chance does not explain"


def _unlike(boxes: Mapping[str, Certificate]) -> str:
    """Differences between the boxes that make their figures incomparable; empty if there are none."""
    gpus = []
    for certificate in boxes.values():
        names = [gpu.name for gpu in certificate.box.gpus] if certificate.box is not None else []
        gpus.append(f"{len(names)} x {' and '.join(sorted(set(names)))}" if names else "none")

    found = []
    for what, values in (
        ("profile", [one.profile for one in boxes.values()]),
        ("model", [one.model for one in boxes.values()]),
        ("GPUs", gpus),
    ):
        if len(set(values)) > 1:
            found.append(f"{what} {' and '.join(str(value) for value in dict.fromkeys(values))}")
    return ", ".join(found)


def _rows(boxes: Mapping[str, Certificate], figures: Sequence[str]) -> list[BoxRow]:
    known = {name: {title(one.demand): one for one in box.criteria} for name, box in boxes.items()}
    pairs = [(name, figure) for name in boxes for figure in figures]
    badness = {}  # the values, turned so that higher is worse
    for name, figure in pairs:
        one = known[name][figure]
        sign = 1 if one.demand.direction == "at_most" else -1
        badness[name, figure] = [sign * value for value in one.values]
    chances = []
    for name, figure in pairs:
        others = [value for other in boxes if other != name for value in badness[other, figure]]
        chances.append(rank_sum_chance(badness[name, figure], others) if others else 1.0)

    held = dict(zip(pairs, holm(chances, FALSE_FAIL), strict=True))
    starts = {pair: len(values) for pair, values in badness.items()}
    means = {pair: fmean(values) for pair, values in badness.items()}
    rows = []
    for name, box in boxes.items():
        worse = [figure for figure in figures if held[name, figure].is_rejected]
        least = [1 / comb(sum(starts[one, figure] for one in boxes), starts[name, figure]) for figure in figures]
        can_tell = any(chance <= FALSE_FAIL / len(pairs) for chance in least)
        ranks = [_rank(means[name, figure], [means[one, figure] for one in boxes]) for figure in figures]
        rank = fmean(ranks) if ranks else None
        values = {figure: fmean(known[name][figure].values) for figure in figures}
        rows.append(BoxRow(name, box, rank, worse if worse or can_tell else None, values))
    return rows


def _rank(own: float, means: Sequence[float]) -> float:
    """The place of a box in one figure, by its mean; the same place for equal ones."""
    return sum(mean < own for mean in means) + (means.count(own) + 1) / 2


def boxes_document(sections: Sequence[Section]) -> dict[str, object]:
    rows: Sequence[BoxRow] = sections[0].tables[0].rows
    return {
        "schema": "vramp.boxes/1",
        "boxes": [
            {
                "name": row.name,
                "verdict": row.certificate.verdict,
                "mean_rank": row.mean_rank,
                "outlier_in": None if row.outlier_in is None else list(row.outlier_in),
                "figures": dict(row.values),
            }
            for row in rows
        ],
    }
