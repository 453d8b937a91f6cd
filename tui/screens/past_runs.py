"""The screen of past runs: shows the outcome of each, and replays, recovers or watches one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec
from textual import work
from textual.binding import BindingType
from textual.message import Message

from loadgen.errors import ResultError
from loadgen.report.history import ListedRun, Trend, best_load, read_run, runs_listed, summary_of, trends
from loadgen.store.index import IndexEntry
from loadgen.store.recover import recover
from loadgen.store.runs import RUNS
from tui import keys
from tui.catalog import PastRun, past_run
from tui.config import keymap_of
from tui.panels import past as panel
from tui.screens.base import ListScreen
from tui.screens.dialogs import AskChoice, ask
from tui.widgets.rows import Row
from tui.widgets.rows_widgets import Pane, blank

_FIGURES = ("output_tok_s", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "e2e_p50")
_READ_EVERY_S = 0.5
_MAX_ROWS = 1000


class PastScreen(ListScreen):
    """Runs on the left, newest first; on the right, the outcome of the one under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.PAST)
    HELP_KEYS = (*keys.PAST, keys.PALETTE)

    @dataclass
    class Open(Message):
        """The operator wants to replay or watch this run."""

        run: PastRun

    def __init__(self) -> None:
        super().__init__()
        self._runs: dict[str, tuple[PastRun, IndexEntry]] = {}  # by folder
        self._detail: tuple[str, PastRun, list[Trend]] | None = None  # of the run that was read last
        self._figure = 0
        self._reading = False

    def on_mount(self) -> None:
        header = self.query_one("#picker-header", Pane)
        header.show(lambda width: [panel.header(len(self._runs), width, reading=self._reading)])
        self.query_one("#rows-head", Pane).show(lambda width: [panel.run_head(self.list.row_width)])
        self.set_interval(_READ_EVERY_S, self._show_arrived)

    def on_screen_resume(self) -> None:
        self._detail = None
        self._read()

    @property
    def _run(self) -> PastRun | None:
        found = self._runs.get(self.list.highlighted_id or "")
        return found[0] if found is not None else None

    @work(exclusive=True, group="list")
    async def _read(self) -> None:
        """Read the runs through the index; those that are not in it are listed as they arrive."""
        self._reading = True
        root = RUNS.resolve()

        def read(path: Path) -> IndexEntry | None:
            entry = read_run(path)
            if entry is not None:
                name = str(RUNS / path.relative_to(root))
                self._runs[name] = _listed(name, summary_of(entry), entry)
            return entry

        found = await asyncio.to_thread(runs_listed, RUNS, details=True, read=read)
        self._runs = {name: _listed(name, summary, entry) for name, summary, entry in found}
        self._reading, self._detail = False, None  # a trend over some of the runs is none
        if not self.was_left:
            self.fill(to_newest=True)

    def _show_arrived(self) -> None:
        if self._reading:
            self.fill(to_newest=True)

    def fill(self, *, to_newest: bool = False) -> None:
        """Fill the list; with `to_newest`, a cursor on the first run moves to one that has arrived above it."""
        if to_newest and self.list.highlighted == 0:
            self.list.highlighted = None
        now, width, wanted = datetime.now(UTC), self.list.row_width, self.wanted
        found = sorted(self._runs.items(), key=lambda item: (item[1][0].started_at, item[0]), reverse=True)
        shown = [
            (name, run)
            for name, (run, _) in found
            if wanted in f"{run.profile} {run.model} {run.box} {run.engine} {run.state}".casefold()
        ]
        rows: list[tuple[str | None, Row]] = [(name, panel.run_row(run, now, width)) for name, run in shown[:_MAX_ROWS]]
        if len(shown) > _MAX_ROWS:
            key = keys.key_of("past.filter", keymap_of(self.app))
            rows.append((None, ((f"{len(shown) - _MAX_ROWS:,} older ones: {key} filters them", "dim"),)))
        self.query_one("#picker-header", Pane).renew()
        self.fill_list(rows or [(None, (("nothing matches" if found else "no run in ./runs yet", "dim"),))])

    def show_detail(self) -> None:
        """Show what the index has of the run, and read the rest unless that is done."""
        name, run, trend = self.list.highlighted_id, self._run, None
        if run is not None and self._detail is not None and self._detail[0] == name:
            run, found = self._detail[1:]
            trend = found[self._figure % len(found)] if found else None
        elif name is not None:
            self._read_detail(name)
        self.query_one("#picker-detail", Pane).show(
            blank if run is None else partial(panel.run_detail, run, keymap=keymap_of(self.app), trend=trend)
        )

    @work(exclusive=True, group="detail")
    async def _read_detail(self, name: str) -> None:
        whole = await asyncio.to_thread(past_run, Path(name))
        run, entry = self._runs.get(name, (None, None))
        if run is None or entry is None:
            return
        alike = [(other, *rest) for other, rest in list(self._runs.items()) if _group(rest[0]) == _group(run)]
        load, found = best_load(entry), []
        if load is not None and not self._reading:
            found = await asyncio.to_thread(
                lambda: [trend for figure in _FIGURES for trend in trends(alike, figure, load=load)]
            )
        self._detail = name, run if run.is_acceptance else whole, found
        if not self.was_left:
            self.show_detail()

    # What the keys do.

    def action_choose(self) -> None:
        """Replay or watch the run; for a killed one, ask whether to recover its result first."""
        run = self._run
        if run is None:
            return
        if run.is_acceptance:
            self.notify("An acceptance: its runs, which are listed too, can be replayed", timeout=4)
            return
        if run.state != "killed":
            self.post_message(self.Open(run))
            return
        choices = [(True, "recover its result, and replay it"), (False, "only replay it")]
        question = "This run was killed before it wrote its result"
        ask(
            self,
            AskChoice(question, choices),
            lambda first: self._recover(run, then_open=True) if first else self.post_message(self.Open(run)),
        )

    def action_recover(self) -> None:
        run = self._run
        if run is not None and run.state != "killed":
            self.notify(f"Nothing to recover: {panel.state_word(run)[0]}", timeout=3)
        elif run is not None:
            self._recover(run)

    @work(exclusive=True, group="recover")
    async def _recover(self, run: PastRun, *, then_open: bool = False) -> None:
        self.notify(f"Recovering {run.folder.name} …", timeout=2)
        try:
            path = await asyncio.to_thread(recover, run.folder)
        except ResultError as error:
            self.notify(str(error), severity="error", timeout=10)
            return
        self.notify(f"Recovered: {path}", timeout=5)
        self._read()
        if then_open:
            self.post_message(self.Open(run))

    def action_trend(self) -> None:
        self._figure += 1
        self.show_detail()

    def action_copy(self) -> None:
        run = self._run
        if run is not None:
            self.app.copy_to_clipboard("".join(f"{command}\n" for command, _ in panel.commands(run)))
            self.notify("Commands copied", timeout=2)

    def action_back(self) -> None:
        """Clear the filter first."""
        if self.wanted:
            self.action_clear()
        else:
            self.dismiss()


def _listed(name: str, summary: ListedRun, entry: IndexEntry) -> tuple[PastRun, IndexEntry]:
    return PastRun(**msgspec.structs.asdict(summary), folder=Path(name)), entry


def _group(run: PastRun) -> tuple[str, str, str]:
    """Whose figures can be in one trend."""
    return run.profile, run.model, run.box
