"""The results of a finished run: curve, stages, published figures, files, and the commands to go on with."""

from __future__ import annotations

from pathlib import PurePath

from loadgen import format as fmt
from loadgen.report.notes import account_words, live_notes
from loadgen.searches import SEARCHES
from tui.panels.comparison import baseline_row, published_stages
from tui.panels.curve import curve
from tui.panels.frame import Frame
from tui.panels.stages import stages
from tui.widgets.rows import Row, Rows, Word, cropped, spread, titled, width_of

_MIN_CURVE = 9  # rows below which a curve says nothing
_TABLE_HEADS = 2
_COMMANDS = (
    ("vramp report {}", "the tables; with --html, a page to share"),
    ("vramp compare OTHER {}", "against another run, with confidence"),
    ("vramp replay {}", "play it again"),
)


def results(frame: Frame, width: int, height: int) -> Rows:
    """Draw the verdict, what was found, curve and table as high as they fit, and the commands at the bottom."""
    state: Word = (fmt.plain(frame.snapshot.headline), "good" if frame.snapshot.healthy else "bad")
    if not frame.done:
        state = ("the run is live", "warn")
    above = [titled("results", (state,), width), *_found(frame, width, height)]
    below = [*_notes(frame, width, height // 4), (), *_files(frame, width)]
    room = max(0, height - len(above) - len(below))
    table = min(room, len(frame.snapshot.stages) + _TABLE_HEADS)
    plot = room - table
    if plot > _MIN_CURVE and frame.snapshot.stages:
        above += [*curve(frame, width, plot - 1), ()]
    return [*above, *stages(frame, width, max(1, table))[: max(1, table)], *below]


def _found(frame: Frame, width: int, height: int) -> Rows:
    """Return why the server died, the result of the search, and the differences from published figures."""
    rows: Rows = []
    cause = frame.snapshot.server.diagnosis
    if cause is not None:
        rows += [((f" {fmt.plain(cause.title)}", "bad"),), ((f" → {fmt.plain(cause.remedy)}", "key"),)]
    search = frame.snapshot.search
    if search is not None:
        name = SEARCHES[search.kind].label
        if not search.is_found:
            rows.append(((f"{name}: not resolved: {fmt.plain(search.why)}", "warn"),))
        else:
            rows.append(((f"{name}: {search.words}, by {fmt.counted(search.probes, 'probe')}", "good"),))
    row = baseline_row(frame)
    return [*rows, *(published_stages(frame, width, height // 4) or ([row] if row else []))]


def _notes(frame: Frame, width: int, most: int) -> Rows:
    """Return what became of the requests, and the notes of the stages; the newest ones if there are too many."""
    rows: Rows = []
    if frame.snapshot.requests is not None and frame.snapshot.requests.sent:
        rows.append(((" requests  ", "dim"), (account_words(frame.snapshot.requests), "text")))
    notes = [(stage.number, fmt.plain(str(note))) for stage in frame.snapshot.stages for note in live_notes(stage)]
    left = len(notes) - max(0, most - len(rows))
    rows += [((f" stage {number:<4}", "dim"), (note, "text")) for number, note in notes[max(0, left) :]]
    if left > 0 and rows:
        more: Row = ((f"  {left} more {'note' if left == 1 else 'notes'} in the report", "dim"),)
        rows[-1] = (*cropped(rows[-1], width - width_of(more)), *more)
    return rows


def _files(frame: Frame, width: int) -> Rows:
    path = frame.snapshot.result_path
    title = titled("go on", (frame.key("copy"), (" copies the table", "dim")), width)
    if path is None:
        waits = "no result was written" if frame.done else "the result is written when the run ends"
        return [title, ((f" {waits}", "bad" if frame.done else "dim"),)]
    rows: Rows = [title, ((f" {fmt.plain(path)}", "strong"),)]
    for form, what in _COMMANDS:
        command = form.format(fmt.plain(str(PurePath(path).parent)))
        # A path is copied by hand from here: the explanation is dropped before the path is cut.
        right: Row = ((what, "dim"),) if len(command) + len(what) + 4 < width else ()
        rows.append(spread(((f" {command}", "key"),), right, width))
    return rows
