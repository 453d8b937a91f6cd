"""Boxes of one kind compared by their certificates: which of them is unlike the others, by rank and not by eye.

In each figure that all boxes have, the values of a box at its starts are ranked among those of all boxes (Wilcoxon's
rank sum, exact). A box is an outlier in a figure if it ranks so badly that it would hardly do so by chance; all boxes
and figures share one rate of false alarms (Holm), so that boxes that are alike show one in a hundred comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb
from statistics import fmean
from typing import NamedTuple

from loadgen.errors import ProfileError
from loadgen.metrics.acceptance import FALSE_FAIL, holm, rank_sum_chance
from loadgen.record.acceptance import title
from loadgen.report.document import Section, Table
from loadgen.report.notes import Note
from loadgen.report.tabular import Bad, Column, Value, judged
from loadgen.schema.certificate import Certificate, Criterion


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
    found = []
    for what, values in (
        ("profile", [one.profile for one in boxes.values()]),
        ("model", [one.model for one in boxes.values()]),
        ("GPUs", [_gpus(one) for one in boxes.values()]),
    ):
        if len(set(values)) > 1:
            found.append(f"{what} {' and '.join(str(value) for value in dict.fromkeys(values))}")
    return ", ".join(found)


def _gpus(certificate: Certificate) -> str:
    gpus = certificate.box.gpus if certificate.box is not None else ()
    return f"{len(gpus)} x {' and '.join(sorted({gpu.name for gpu in gpus}))}" if gpus else "none"


def _rows(boxes: Mapping[str, Certificate], figures: Sequence[str]) -> list[BoxRow]:
    known = {name: {title(one.demand): one for one in box.criteria} for name, box in boxes.items()}
    pairs = [(name, figure) for name in boxes for figure in figures]
    badness = {(name, figure): _badness(known[name][figure]) for name, figure in pairs}
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


def _badness(one: Criterion) -> list[float]:
    """The values of a criterion, turned so that higher is worse."""
    return [value if one.demand.direction == "at_most" else -value for value in one.values]


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
