"""The screen of past runs: shows the outcome of each, and replays, recovers or watches one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar

from textual import work
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import OptionList

from loadgen.errors import ResultError
from loadgen.store.recover import recover
from loadgen.store.runs import run_folders
from tui import keys
from tui.catalog import PastRun, past_run
from tui.panels import past as panel
from tui.screens.base import ListScreen
from tui.screens.dialogs import AskChoice, ask
from tui.widgets.rows_widgets import Pane, blank

_ENDED = ("complete", "stopped", "failed", "server_died")
_AT_ONCE = 20  # runs that are read before the list is filled


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
        self._runs: dict[str, PastRun] = {}
        self._left = 0  # not yet read

    def on_mount(self) -> None:
        header = self.query_one("#picker-header", Pane)
        header.show(lambda width: [panel.header(len(self._runs), self._left, width)])
        self.query_one("#rows-head", Pane).show(lambda width: [panel.run_head(self.list.row_width)])

    def on_screen_resume(self) -> None:
        self._read()

    @property
    def _run(self) -> PastRun | None:
        name = self.list.highlighted_id
        return self._runs.get(name) if name is not None else None

    @work(exclusive=True, group="list")
    async def _read(self) -> None:
        """Read the runs, the newest first; those that have ended are not read again."""
        folders = (await asyncio.to_thread(run_folders))[::-1]
        ended = {run.folder: run for run in self._runs.values() if run.state in _ENDED}
        self._runs = {folder.name: ended[folder] for folder in folders if folder in ended}
        unread = [folder for folder in folders if folder not in ended]
        for begin in range(0, len(unread), _AT_ONCE):
            for run in await asyncio.to_thread(list, map(past_run, unread[begin : begin + _AT_ONCE])):
                self._runs[run.folder.name] = run
            self._left = max(0, len(unread) - begin - _AT_ONCE)
            self.query_one("#picker-header", Pane).renew()
            if begin == 0:
                self.fill()
        self.fill()

    def fill(self) -> None:
        now, width = datetime.now(UTC), self.list.row_width
        newest_first = sorted(self._runs.values(), key=lambda run: run.folder.name, reverse=True)
        rows = [(run.folder.name, panel.run_row(run, now, width)) for run in newest_first]
        self.list.fill(rows or [(None, (("no run in ./runs yet", "dim"),))])
        self.query_one("#rows-head", Pane).renew()
        self.query_one("#picker-header", Pane).renew()
        self.show_detail()

    def show_detail(self) -> None:
        run = self._run
        self.query_one("#picker-detail", Pane).show(blank if run is None else partial(panel.run_detail, run))

    # What the keys do.

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_open()

    def action_open(self) -> None:
        """Replay or watch the run; for a killed one, ask whether to recover its result first."""
        run = self._run
        if run is None:
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

    def action_copy(self) -> None:
        run = self._run
        if run is not None:
            self.app.copy_to_clipboard("".join(f"{command}\n" for command, _ in panel.commands(run)))
            self.notify("Commands copied", timeout=2)

    def action_back(self) -> None:
        self.dismiss()
