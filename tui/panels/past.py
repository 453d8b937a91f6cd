"""Past runs: a row for each in the list, and for the one under the cursor its outcome and the commands for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from loadgen import format as fmt
from loadgen.report.columns import PAST_RUN_COLUMNS
from loadgen.report.history import Trend
from tui.catalog import PastRun
from tui.keys import key_of
from tui.panels.stages import cell_words, fitted, head_words
from tui.widgets.rows import Row, Rows, Word, bar, padded, spread, titled, wrapped

_ROLES = {"complete": "good", "pass": "good", "stopped": "text", "goes on": "warn", "inconclusive": "warn"}
"""The roles of states; the others are bad."""
_STATE_CELLS = 12
_BEST_CELLS = 25
_DATE_FROM = 72  # from this width on, the list shows the date and not only the age

_LOAD_CELLS = 10
_TREND_RUNS = 8


def ago(then: datetime | None, now: datetime) -> str:
    """Return how long ago it was, in one unit, or the date after 30 days."""
    if then is None:
        return fmt.UNKNOWN
    seconds = (now - then).total_seconds()
    for unit_s, below_s, name in ((60, 3600, "min"), (3600, 86400, "h"), (86400, 30 * 86400, "d")):
        if seconds < below_s:
            return "just now" if seconds < 60 else f"{int(seconds // unit_s)} {name} ago"
    return f"{then:%Y-%m-%d}"


def state_word(run: PastRun) -> Word:
    return (run.state.replace("_", " "), _ROLES.get(run.state, "bad"))


def best_words(run: PastRun) -> str:
    """Return throughput and load of the best stage; empty if nothing was measured."""
    return f"{fmt.number(run.output_tokens_per_s)} tok/s at {run.load}" if run.load else ""


def header(count: int, width: int, *, reading: bool) -> Row:
    """Return the title with the number of runs, and whether more are being read."""
    known = fmt.counted(count, "run") + (", reading more" if reading else "")
    return spread(((" vramp", "title"), ("  past runs", "text")), ((f"{known} ", "dim"),), width)


def run_head(width: int) -> Row:
    when, name = _columns(width)
    return ((f"{'when':<{when}}{'profile':<{name}}{'state':<{_STATE_CELLS}}best", "dim"),)


def run_row(run: PastRun, now: datetime, width: int) -> Row:
    when, name = _columns(width)
    date = f"{run.started.astimezone():%m-%d %H:%M}  " if run.started is not None and width >= _DATE_FROM else ""
    word, role = state_word(run)
    return (
        (f"{date + ago(run.started, now):<{when}}", "dim"),
        (padded(fmt.plain(run.profile), name - 1) + " ", "text"),
        (f"{word:<{_STATE_CELLS}}", role),
        (best_words(run), "throughput"),
    )


def _columns(width: int) -> tuple[int, int]:
    when = 25 if width >= _DATE_FROM else 12
    return when, max(12, width - when - _STATE_CELLS - _BEST_CELLS)


def run_detail(run: PastRun, width: int, keymap: Mapping[str, str], trend: Trend | None = None) -> Rows:
    """Return the reason, stages, trend and files of a run, and the commands for it."""
    return [
        titled(fmt.plain(run.profile), (state_word(run),), width),
        *wrapped(run.reason, width - 1, "dim"),
        (),
        *_stages(run, width, keymap),
        (),
        *(_trend(trend, str(run.folder), width, keymap) if trend is not None else ()),
        titled("files", (), width),
        ((f" {fmt.plain(str(run.folder))}/", "text"),),
        (),
        titled("commands", (), width),
        # An explanation that does not fit is dropped: the command is needed whole.
        *(
            ((f" {command}", "key"), (f"   {what}" if len(command) + len(what) + 4 <= width else "", "dim"))
            for command, what in commands(run)
        ),
    ]


def _stages(run: PastRun, width: int, keymap: Mapping[str, str]) -> Rows:
    if run.is_acceptance:
        return []
    if run.stages is None:
        return [((" reading …", "dim"),)]
    if not run.stages:
        recovers = f"no result yet: {key_of('past.open', keymap)} offers to recover it"
        words = {"killed": recovers, "goes on": "no result yet: it is live"}
        return [((f" {words.get(run.state, 'no stage was measured')}", "dim"),)]
    figures = fitted(PAST_RUN_COLUMNS, width - _LOAD_CELLS, gap=1)
    head = f"{'load':>{_LOAD_CELLS}}" + "".join(text for text, _ in head_words(figures, gap=1))
    rows: Rows = [((head, "dim"),)]
    for stage in run.stages:
        rows.append(((f"{stage.load_words:>{_LOAD_CELLS}}", "text"), *cell_words(figures, [stage], "text", gap=1)))
    return rows


def _trend(trend: Trend, run: str, width: int, keymap: Mapping[str, str]) -> Rows:
    """Return the last runs of a trend, and how versions differ; the run itself is marked."""
    most = max(point.value for point in trend.points)
    values = [fmt.number(point.value) for point in trend.points]
    cells = max(map(len, values))
    other = f"{key_of('past.trend', keymap)}: another figure"
    rows: Rows = [titled(trend.title, ((other, "dim"),), width), ((f" at {trend.load}", "dim"),)]
    for point, value in list(zip(trend.points, values, strict=True))[-_TREND_RUNS:]:
        head = f"{'▸' if point.run == run else ' '}{point.started_at[5:16].replace('T', ' ')} {point.version:<10.10} "
        figure = f"{value:>{cells}}  " if point.counts else f"({value})"
        beam = bar(point.value / most if most else None, max(0, width - len(head) - len(figure) - 1), "throughput")
        rows.append(((head, "dim"), (figure, "text" if point.counts else "dim"), *beam))
    for one in trend.versions:
        if one.difference is not None:
            word = one.note or one.difference.word
            rows += wrapped(f"since {one.version}: {one.difference_words}: {word}", width - 1, "text")
    if not_counted := trend.why_not_counted:
        rows += wrapped(f"( ) not counted: {not_counted}", width - 1, "warn", most=2)
    return [*rows, ()]


def commands(run: PastRun) -> list[tuple[str, str]]:
    folder = fmt.plain(str(run.folder))
    if run.is_acceptance:
        return [(f"vramp accept --verify {folder}", "check its certificate")]
    if run.state == "goes on":
        return [(f"vramp watch {folder}", "watch it")]
    if run.state in ("killed", "unreadable"):
        return [(f"vramp recover {folder}", "recover its result")]
    return [
        (f"vramp report {folder}", "tables; --html: a page to share"),
        (f"vramp compare OTHER {folder}", "against another run"),
        (f"vramp replay {folder}", "play it again"),
    ]
