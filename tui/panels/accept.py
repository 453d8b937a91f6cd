"""An acceptance: a row for each phase and criterion, and for the one under the cursor all that is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loadgen import format as fmt
from loadgen.criteria import PHASES
from loadgen.record.acceptance import title
from loadgen.report.certificate import demanded, place_of, samples
from loadgen.schema.accept_view import AcceptView
from loadgen.schema.certificate import Criterion, PhaseRecord
from tui.keys import key_of
from tui.widgets.rows import Row, Rows, hanging, padded, spread, titled, wrapped

_ROLES = {"pass": "good", "fail": "bad", "inconclusive": "warn", "skipped": "dim", "running": "key", "waiting": "dim"}
_STATE_CELLS = 13
_BAR_CELLS = 21
_MIN_NAME_CELLS = 24


def header(view: AcceptView, width: int) -> Row:
    """Return the profile, the verdict so far, and what goes on."""
    # More evidence cannot change a failure in a phase that is over, or by an event.
    has_failed = any(
        one.outcome == "fail" and (one.demand.direction == "none_of" or one.demand.phase != view.phase)
        for one in view.certificate.criteria
    )
    verdict = view.certificate.verdict if view.over or has_failed else "inconclusive"
    word = "no verdict yet" if verdict == "inconclusive" and not view.over else verdict.upper()
    goes_on = "ending" if view.ending else f"phase {view.phase}" if view.phase is not None else "judging"
    left = f", at least {fmt.duration(view.left_s)} left" if view.left_s and not view.ending else ""
    return spread(
        ((" vramp accept", "title"), (f"  {fmt.plain(view.certificate.profile)}  ", "text"), (word, _ROLES[verdict])),
        (("over " if view.over else f"{goes_on}{left} ", "dim"),),
        width,
    )


def head(width: int) -> Row:
    name = padded("phase, and what it must show", _name_cells(width))
    return ((f"{'outcome':<{_STATE_CELLS}}{name}measured", "dim"),)


def rows(view: AcceptView, width: int) -> Iterator[tuple[str, Row]]:
    """Yield the rows of the list, each with an id: a phase, and below it its criteria."""
    criteria = view.certificate.criteria
    shapes = {demand.load.partition(",")[2] for demand in (one.demand for one in criteria) if demand.load}
    known = f",{shapes.pop()}" if len(shapes) == 1 else ""  # not repeated where all loads have it
    for phase in view.certificate.phases:
        state = _state(view, phase)
        live = view.snapshot.headline if view.snapshot is not None and state == "running" else ""
        words = live or (phase.reason if state == "skipped" else "")
        outcome = (f"{state:<{_STATE_CELLS}}", _ROLES[state])
        yield phase.name, (outcome, (f"{phase.name}  ", "strong"), (fmt.plain(words), "dim"))
        for number, criterion in enumerate(criteria):
            if criterion.demand.phase == phase.name:
                name = fmt.plain(title(criterion.demand).removesuffix(known))
                word = {"pass": "PASS", "fail": "FAIL"}.get(criterion.outcome, "open")
                yield (
                    f"criterion {number}",
                    (
                        (f"{word:<{_STATE_CELLS}}", _ROLES[criterion.outcome]),
                        (padded(f"  {name}", _name_cells(width) - 1) + " ", "text"),
                        *bar(criterion, _BAR_CELLS),
                        (f" {observed(criterion)}", "text"),
                    ),
                )


def _state(view: AcceptView, phase: PhaseRecord) -> str:
    """The outcome of a phase, or whether it goes on or is still to come."""
    if phase.name == view.phase:
        return "running"
    return "waiting" if phase.finished_at is None and not view.over else phase.state


def _name_cells(width: int) -> int:
    return max(_MIN_NAME_CELLS, min(40, width - _STATE_CELLS - _BAR_CELLS - 12))


def observed(criterion: Criterion) -> str:
    value = criterion.observed
    if value is None:
        return fmt.UNKNOWN
    if criterion.demand.direction == "none_of" and not isinstance(value, str):
        return fmt.counted(round(value), "event")
    return fmt.plain(value) if isinstance(value, str) else f"{fmt.significant(value)} {criterion.demand.unit}".rstrip()


def bar(criterion: Criterion, cells: int) -> Row:
    """Return the interval as a line, what was measured as a dot, and the last good value, in the middle, as a stroke.

    What is good lies on the left, whatever the figure; the bound without its margin is a dotted stroke.
    """
    place = place_of(criterion)
    if place is None:
        return ((" " * cells, "text"),)
    low, dot, high, bound = (round((at + 1) / 2 * (cells - 1)) for at in place)
    role = _ROLES[criterion.outcome]
    line = [("╌", "rule")] * low + [("━", role)] * (high + 1 - low) + [("╌", "rule")] * (cells - 1 - high)
    line[bound] = ("┊", "strong")
    line[cells // 2] = ("│", "strong")
    line[dot] = ("●", role)
    return tuple(line)


def phase_detail(view: AcceptView, phase: PhaseRecord, width: int, keymap: Mapping[str, str]) -> Rows:
    """Return what a phase is for, how it went, and its runs."""
    state = _state(view, phase)
    snapshot = view.snapshot if state == "running" else None
    live: Rows = []
    if snapshot is not None:
        live = [((f" {view.run}/", "strong"), (f"  {key_of('accept.watch', keymap)} watches it", "dim"))]
        live += wrapped(snapshot.headline, width - 1, "text")
    return [
        titled(phase.name, ((state, _ROLES[state]),), width),
        *wrapped(PHASES[phase.name], width - 1, "dim"),
        (),
        *(() if state in ("running", "waiting") else wrapped(phase.reason, width - 1, "text")),
        *live,
        *(((f" {fmt.plain(folder)}/", "text"),) for folder in phase.runs),
    ]


def criterion_detail(criterion: Criterion, width: int) -> Rows:
    """Return how a criterion was judged, from what, and what it would take."""
    demand = criterion.demand
    interval = f"{fmt.significant(criterion.low)} to {fmt.significant(criterion.high)} {demand.unit}"
    has_interval = criterion.low is not None or criterion.high is not None
    known = (
        ("measured", observed(criterion)),
        ("interval", interval if has_interval else criterion.no_interval),
        ("demanded", demanded(demand)),
        ("source", demand.source),
        ("starts", str(criterion.starts) if criterion.starts else ""),
        ("samples", samples(criterion)),
    )
    facts = [
        row for label, value in known if value for row in hanging(((f" {label:<10}", "dim"),), value, width - 1, "text")
    ]
    return [
        titled(fmt.plain(title(demand)), ((criterion.outcome.upper(), _ROLES[criterion.outcome]),), width),
        (),
        ((" ", "text"), *bar(criterion, min(60, width - 2))),
        (),
        *wrapped(criterion.reason, width - 1, "text"),
        (),
        *facts,
        (),
        *wrapped(criterion.needs, width - 1, "key"),
    ]
