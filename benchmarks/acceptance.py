"""How often `vramp accept` is wrong: boxes exactly as good as demanded that fail, and defects that it finds or misses.

Boxes are drawn from a model, ten thousand for each row, and judged by the code that judges real ones: twelve figures
over several starts, a share of 200 answers, and two trends of a burn-in. Windows within a start depend on each other
(AR(1), 0.9 from one to the next, 1 % each, 60 of them), and starts differ by 1 %, in the way that the row names. Where
a row goes on, an inconclusive box starts its server again and again, up to eight times, and is judged each time.

The first table has boxes that lie exactly on the edge in everything: none should fail more often than FALSE_FAIL. The
second has boxes that are well within but for one figure on its edge, which should not pass more often than FALSE_PASS.
The third has defects, where what is normal is within the edge by 2 %, unless the row says otherwise.
`--table edge`, `one` or `defects` makes one of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.running import Table, read_options
from loadgen.metrics.acceptance import (
    FALSE_FAIL,
    Trial,
    holm,
    level_of,
    of_shares,
    of_trend,
    outcome_of,
    over_starts,
    prediction_limit,
)
from loadgen.metrics.difference import share_interval
from loadgen.report.tabular import Column
from loadgen.schema.certificate import Outcome, Spread

FIGURES, ANSWERS, TRENDS, BLOCKS = 12, 200, 2, 24
SHARE, GROWTH = 0.9, 0.1  # demanded of answers, and allowed in a burn-in
START_SPREAD, WINDOW_SPREAD, WINDOWS, ALIKE = 0.01, 0.01, 60, 0.9
WITHIN = 0.1  # how far a good figure is from its edge
MAX_STARTS = 8
AT_ONCE = 250  # boxes, which are drawn together
Noise = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return random.standard_normal(shape)


def _heavy(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = random.standard_t(3, shape) / math.sqrt(3)
    return drawn


def _skewed(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = random.exponential(1.0, shape) - 1
    return drawn


def _common(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return np.broadcast_to(random.standard_normal((*shape[:-2], 1, shape[-1])), shape)


def _rare(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """One start in ten is better than the others, in every figure."""
    is_better = np.broadcast_to(random.random((*shape[:-2], 1, shape[-1])) < 0.1, shape)
    drawn: NDArray[np.float64] = (0.1 - is_better.astype(np.float64)) / 0.3
    return drawn


NOISES: dict[str, Noise] = {
    "normal": _normal,
    "heavy tails (t, 3 degrees)": _heavy,
    "skewed (exponential)": _skewed,
    "the same in every figure": _common,
    "one start in ten better, in every figure": _rare,
}


@dataclass(frozen=True)
class Row:
    """How boxes are made and judged."""

    noise: str = "normal"
    starts: int = 3
    goes_on: bool = False
    spread: float | None = None  # stated
    others: int = 0  # boxes that bounds are taken from
    worse: Sequence[float] = (0.0,) * FIGURES  # by how much each figure is beyond its edge
    answers: float = SHARE
    growth: float = GROWTH
    what: str = ""


class Outcomes(NamedTuple):
    row: Row
    boxes: int
    counts: Counter[Outcome]

    def percent(self, outcome: Outcome) -> float:
        return 100 * self.counts[outcome] / self.boxes

    def interval(self, outcome: Outcome) -> str:
        low, high = share_interval(self.counts[outcome] / self.boxes, self.boxes, 0.95)
        return f"{100 * low:.2f} to {100 * high:.2f}"


COLUMNS = (
    Column[Outcomes](
        "boxes that differ from start to start", lambda one: one.row.what or one.row.noise, words=True, width=52
    ),
    Column[Outcomes](
        "starts", lambda one: f"{one.row.starts}{' to 8' if one.row.goes_on else ''}", words=True, width=8
    ),
    Column[Outcomes]("FAIL, %", lambda one: one.percent("fail")),
    Column[Outcomes]("95 % interval", lambda one: one.interval("fail"), width=16),
    Column[Outcomes]("INCONCLUSIVE, %", lambda one: one.percent("inconclusive"), decimals=1),
    Column[Outcomes]("PASS, %", lambda one: one.percent("pass")),
    Column[Outcomes]("95 % interval", lambda one: one.interval("pass"), width=16),
)


def _windows(random: np.random.Generator, shape: tuple[int, ...], count: int) -> NDArray[np.float64]:
    """Windows that depend on the one before, each with a standard deviation of 1."""
    steps = random.standard_normal((*shape, count)) * math.sqrt(1 - ALIKE**2)
    steps[..., 0] /= math.sqrt(1 - ALIKE**2)
    for at in range(1, count):
        steps[..., at] += ALIKE * steps[..., at - 1]
    return steps


def figures_of(row: Row, random: np.random.Generator, boxes: int, starts: int) -> NDArray[np.float64]:
    """Figures by box and start, as multiples of what is normal: more is worse."""
    shape = (boxes, FIGURES, starts)
    within = WINDOW_SPREAD * _windows(random, shape, WINDOWS).mean(axis=-1)
    apart = START_SPREAD * random.standard_normal((boxes, FIGURES, 1)) if row.others else 0.0
    found: NDArray[np.float64] = 1 + START_SPREAD * NOISES[row.noise](random, shape) + within + apart
    return found


def trends_of(row: Row, random: np.random.Generator, boxes: int) -> NDArray[np.float64]:
    windows = 1 + WINDOW_SPREAD * _windows(random, (boxes, TRENDS), BLOCKS * WINDOWS // 3)
    blocks = windows.reshape(boxes, TRENDS, BLOCKS, -1).mean(axis=-1)
    grown: NDArray[np.float64] = 100 * blocks * (1 + row.growth) ** ((np.arange(BLOCKS) + 0.5) / BLOCKS)
    return grown


def bounds_of(row: Row, random: np.random.Generator) -> list[tuple[float, Spread | None]]:
    """The edge of each figure and what is known of its spread: as stated, or from other boxes of the same kind."""
    if not row.others:
        return [(1.0, None if row.spread is None else Spread(row.spread, None, "stated"))] * FIGURES
    values = figures_of(row, random, row.others, row.starts)
    means, freedom = values.mean(axis=-1), row.others * (row.starts - 1)
    pooled = np.sqrt(values.var(axis=-1, ddof=1).mean(axis=0)) / means.mean(axis=0)
    edges = [prediction_limit(means[:, at].tolist(), FALSE_FAIL / 2 / FIGURES, upper=True) for at in range(FIGURES)]
    return [(edge, Spread(float(share), freedom, "others")) for edge, share in zip(edges, pooled, strict=True)]


def judged(
    row: Row, values: NDArray[np.float64], bounds: Sequence[tuple[float, Spread | None]], others: Sequence[Trial]
) -> Outcome:
    """The verdict on one box; `others` are its trials for the figures over starts."""
    for look, starts in enumerate(range(row.starts, values.shape[1] + 1), start=1):
        level = level_of(look, fail=FALSE_FAIL / 2 if row.others else FALSE_FAIL)
        measured = zip(values[:, :starts].tolist(), bounds, strict=True)
        trials = [over_starts(one, edge, lower_is_better=True, known=known) for one, (edge, known) in measured]
        trials += others
        held = holm([trial.p_good for trial in trials], level.fail)
        found = {outcome_of(trial, one, level) for trial, one in zip(trials, held, strict=True)}
        if "fail" in found or found == {"pass"}:
            return "fail" if "fail" in found else "pass"
    return "inconclusive"


def verdicts(row: Row, random: np.random.Generator, boxes: int) -> Iterator[Outcome]:
    values = figures_of(row, random, boxes, MAX_STARTS if row.goes_on else row.starts)
    values += np.array(row.worse)[:, None]
    trends, right = trends_of(row, random, boxes), random.binomial(ANSWERS, row.answers, boxes)
    for box in range(boxes):
        others = [of_shares([int(right[box])], [ANSWERS], SHARE)]
        others += [of_trend(series.tolist(), GROWTH) for series in trends[box]]
        yield judged(row, values[box], bounds_of(row, random), others)


def tell(title: str, rows: Sequence[Row], boxes: int, seed: int) -> None:
    print(f"\n{title}")
    table = Table(COLUMNS)
    for row in rows:
        random = np.random.default_rng(seed)
        counts = Counter[Outcome]()
        for _ in range(boxes // AT_ONCE):
            counts.update(verdicts(row, random, AT_ONCE))
        table.add(Outcomes(row, counts.total(), counts))


ON_EDGE = [
    *(Row(noise, starts) for noise in NOISES for starts in (2, 3, 5)),
    *(Row(noise, goes_on=True) for noise in NOISES),
    Row(spread=START_SPREAD * 2, what="normal, spread stated as 2 %"),
    Row(spread=START_SPREAD * 2, noise="heavy tails (t, 3 degrees)", what="heavy tails, spread stated as 2 %"),
    Row(others=8, what="normal, bounds from 8 boxes that differ by 1 %"),
]
_GOOD = (-WITHIN,) * (FIGURES - 1)
ONE_ON_EDGE = [
    *(Row(noise, starts, worse=(0.0, *_GOOD), answers=0.99, growth=-0.05) for noise in NOISES for starts in (2, 3)),
    *(Row(noise, goes_on=True, worse=(0.0, *_GOOD), answers=0.99, growth=-0.05) for noise in NOISES),
]


_FINE: dict[str, Any] = {"answers": 0.97, "growth": 0.0}


def _defect(what: str, slower: float, margin: float = 0.02, **more: Any) -> Row:
    """Figures that are normally within their edge by the margin, all worse by a defect."""
    return Row(what=what, worse=(slower - margin,) * FIGURES, **(_FINE | {"starts": 5} | more))


DEFECTS = [
    *(_defect("none", 0.0, starts=starts) for starts in (3, 5, 8)),
    _defect("none, margin 5 %", 0.0, 0.05),
    _defect("none, margin 5 %", 0.0, 0.05, starts=3),
    _defect("none, spread stated as 1.5 %", 0.0, spread=0.015),
    *(_defect("5 % slower", 0.05, starts=starts) for starts in (3, 5, 8)),
    _defect("5 % slower, spread stated as 1.5 %", 0.05, spread=0.015, starts=3),
    _defect("10 % slower, margin 5 %", 0.1, 0.05),
    _defect("20 % slower", 0.2, starts=3),
    _defect("none, bounds from 8 boxes", 0.0, 0.0, others=8),
    _defect("10 % slower, bounds from 8 boxes", 0.1, 0.0, others=8),
    _defect("20 % of the answers wrong", 0.0, answers=0.8),
    _defect("latency grows by 20 % in the burn-in", 0.0, growth=0.2),
    _defect("latency grows by 30 % in the burn-in", 0.0, growth=0.3),
]

TABLES = {
    "edge": ("Exactly on the edge in everything", ON_EDGE),
    "one": ("Good, with one figure exactly on its edge", ONE_ON_EDGE),
    "defects": ("Defects", DEFECTS),
}

if __name__ == "__main__":
    options = read_options(__doc__, boxes=10_000, seed=1, table="")
    for name, (title, rows) in TABLES.items():
        if options.table in ("", name):
            tell(title, rows, options.boxes, options.seed)
