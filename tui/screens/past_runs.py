"""Past runs: what came of each, and the ways to go on from one: replay it, recover it, watch a live one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widgets import OptionList

from loadgen.errors import ResultError
from loadgen.store.recover import recover
from tui import keys
from tui.catalog import PastRun, past_run, past_runs
from tui.config import keymap_of
from tui.panels import past as panel
from tui.screens.dialogs import AskChoice, Help, ask
from tui.widgets.painted import KeyBar, Pane, RowList, blank
from tui.widgets.rows import ROLE_CLASSES, Rows

_ENDED = ("complete", "stopped", "failed", "server_died")
_AT_ONCE = 20  # runs that are read before the list shows them


class PastScreen(Screen[None]):
    """Runs at the left, newest first; at the right, what came of the one under the cursor."""

    AUTO_FOCUS = "#shelf"
    COMPONENT_CLASSES: ClassVar[set[str]] = set(ROLE_CLASSES)
    BINDINGS: ClassVar[list[BindingType]] = list(keys.PAST)

    class Open(Message):
        """The operator wants to replay or watch this run."""

        def __init__(self, run: PastRun) -> None:
            super().__init__()
            self.run = run

    def __init__(self) -> None:
        super().__init__()
        self._runs: dict[str, PastRun] = {}
        self._left = 0  # not yet read

    def compose(self) -> ComposeResult:
        yield Pane(id="picker-header")
        with Horizontal(id="picker-columns"):
            with Vertical(id="picker-list"):
                yield Pane(id="shelf-head")
                yield RowList(id="shelf")
            with VerticalScroll(id="picker-about"):
                yield Pane(id="picker-detail")
        yield KeyBar(lambda _: [keys.hints(keys.PAST, keymap_of(self.app))], id="hints")

    def on_mount(self) -> None:
        self.query_one("#picker-header", Pane).show(self._header)
        self.query_one("#shelf-head", Pane).show(lambda width: [panel.run_head(self._list.row_width)])

    def on_screen_resume(self) -> None:
        """At first, and back from one of them."""
        self._read()

    def on_resize(self) -> None:
        """Rows depend on the width, which the list knows after it was laid out."""
        self.call_after_refresh(self._fill)

    @property
    def _list(self) -> RowList:
        return self.query_one(RowList)

    @property
    def _run(self) -> PastRun | None:
        name = self._list.highlighted_id
        return self._runs.get(name) if name is not None else None

    @work(exclusive=True, group="list")
    async def _read(self) -> None:
        """The newest are there at once; what is read and will not change is not read again."""
        folders = await asyncio.to_thread(past_runs)
        ended = {run.folder: run for run in self._runs.values() if run.state in _ENDED}
        self._runs = {folder.name: ended[folder] for folder in folders if folder in ended}
        unread = [folder for folder in folders if folder not in ended]
        for begin in range(0, len(unread), _AT_ONCE):
            for run in await asyncio.to_thread(list, map(past_run, unread[begin : begin + _AT_ONCE])):
                self._runs[run.folder.name] = run
            self._left = max(0, len(unread) - begin - _AT_ONCE)
            self.query_one("#picker-header", Pane).on_resize()
            if begin == 0:
                self._fill()
        self._fill()

    def _fill(self) -> None:
        now, width = datetime.now(UTC), self._list.row_width
        newest_first = sorted(self._runs.values(), key=lambda run: run.folder.name, reverse=True)
        rows = [(run.folder.name, panel.run_row(run, now, width)) for run in newest_first]
        self._list.fill(rows or [(None, (("no run below ./runs yet", "dim"),))])
        self.query_one("#shelf-head", Pane).on_resize()
        self.query_one("#picker-header", Pane).on_resize()
        self._show_detail()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        self._show_detail()

    def _show_detail(self) -> None:
        run = self._run
        self.query_one("#picker-detail", Pane).show(blank if run is None else partial(panel.run_detail, run))

    def _header(self, width: int) -> Rows:
        return [panel.header(len(self._runs), self._left, width)]

    # What the keys do.

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_open()

    def action_open(self) -> None:
        """Replay it; for a killed one, ask whether its result shall be made first."""
        run = self._run
        if run is None:
            return
        if run.state != "killed":
            self.post_message(self.Open(run))
            return
        choices = [(True, "recover its result, and replay it"), (False, "only replay it")]
        question = "This run was killed before it wrote its result"
        ask(self, AskChoice(question, choices), partial(self._open, run))

    @work(exclusive=True, group="recover")
    async def _open(self, run: PastRun, recover_first: bool) -> None:
        if not recover_first or await self._recovered(run):
            self.post_message(self.Open(run))

    def action_recover(self) -> None:
        run = self._run
        if run is not None and run.state != "killed":
            self.notify(f"Nothing to recover: {panel.state_word(run)[0]}", timeout=3, markup=False)
        elif run is not None:
            self._recover(run)

    @work(exclusive=True, group="recover")
    async def _recover(self, run: PastRun) -> None:
        await self._recovered(run)

    async def _recovered(self, run: PastRun) -> bool:
        """Whether there is a result now."""
        self.notify(f"Recovering {run.folder.name} …", timeout=2, markup=False)
        try:
            path = await asyncio.to_thread(recover, run.folder)
        except ResultError as error:
            self.notify(str(error), severity="error", timeout=10, markup=False)
            return False
        self.notify(f"Recovered: {path}", timeout=5, markup=False)
        self._read()
        return True

    def action_copy(self) -> None:
        """The commands, by the terminal (OSC 52)."""
        run = self._run
        if run is not None:
            self.app.copy_to_clipboard("".join(f"{command}\n" for command, _ in panel.commands(run)))
            self.notify("Commands copied", timeout=2, markup=False)

    def action_back(self) -> None:
        self.dismiss()

    def action_help(self) -> None:
        self.app.push_screen(Help(keys.table((*keys.PAST, keys.PALETTE), keymap_of(self.app))))

    def action_leave(self) -> None:
        self.app.exit()

    def interrupt(self) -> None:
        self.app.exit()
