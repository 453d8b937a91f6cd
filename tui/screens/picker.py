"""The first screen: the profiles that can be started, and the preflight of the one under the cursor.

Everything that takes time (reading runs, the preflight) is done by a worker that a newer one replaces; the list can be
used from the first frame on. The picker starts nothing itself: it posts the operator's choice to the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import ClassVar

from textual import work
from textual.binding import BindingType
from textual.message import Message

from loadgen.errors import VrampError
from loadgen.masking import masked_text
from loadgen.plan.from_profile import stages_of
from loadgen.profile.document import build_profile
from loadgen.schema.finding import Finding
from loadgen.server.preflight.check import check_profile
from loadgen.store.runs import run_folders
from tui import keys
from tui.catalog import Entry, PastRun, StartChoice, entries, newest_by_profile, past_run
from tui.panels import picker as panel
from tui.screens.base import ListScreen
from tui.screens.dialogs import AskChoice, AskUrl, ask
from tui.screens.editor import EditorScreen
from tui.screens.past_runs import PastScreen
from tui.widgets.rows import Row, Rows
from tui.widgets.rows_widgets import Pane, blank

_DEBOUNCE_S = 0.25  # so that a cursor that only passes a profile does not check the box


class PickerScreen(ListScreen):
    """Profiles on the left; on the right, everything about the one under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.PICKER)
    HELP_KEYS = (*keys.PICKER, keys.PALETTE)

    @dataclass
    class Start(Message):
        """The operator wants this to run."""

        choice: StartChoice

    def __init__(self, *, api_key_env: str | None = None) -> None:
        super().__init__()
        self._api_key_env = api_key_env
        self._entries: dict[str, Entry] = {}
        self._last: Mapping[str, PastRun] = {}
        self._variants: dict[str, str] = {}  # chosen by the operator, by the path of the profile; "" is none
        self._checked: Entry | None = None  # the profile that the findings belong to
        self._findings: Sequence[Finding] | None = None
        self._problem = ""
        self._checking_since_s = monotonic()

    def on_mount(self) -> None:
        self.query_one("#picker-header", Pane).show(lambda width: [panel.header(str(Path.cwd()), width)])
        self.query_one("#rows-head", Pane).show(lambda width: [panel.entry_head(self.list.row_width)])
        self.set_interval(1.0, self._show_preflight)  # how long it takes

    def on_screen_resume(self) -> None:
        """Read again whenever the picker shows: a run or the editor may have added profiles and runs."""
        self._read()

    def on_screen_suspend(self) -> None:
        """Cancel the preflight: a run must have the box for itself."""
        self.workers.cancel_group(self, "preflight")
        if self._findings is None:
            self._checked = None

    @property
    def _entry(self) -> Entry | None:
        name = self.list.highlighted_id
        return self._entries.get(name) if name is not None else None

    # What is on disk.

    @work(exclusive=True, group="list")
    async def _read(self) -> None:
        """Show the profiles at once, and their last runs when these are read; the cursor may have moved by then."""
        found, folders = await asyncio.to_thread(lambda: (entries(), run_folders()))
        if self.was_left:
            return
        last_used = newest_by_profile(folders[-1:])
        self._entries = {str(entry.path): entry for entry in found}
        self.fill(begin_at=next((str(entry.path) for entry in found if entry.name in last_used), None))
        newest = newest_by_profile(reversed(folders))
        names = [entry.name for entry in found if entry.name in newest]
        runs = await asyncio.to_thread(lambda: [past_run(newest[name]) for name in names])
        self._last = dict(zip(names, runs, strict=True))
        if not self.was_left:
            self.fill()

    def fill(self, begin_at: str | None = None) -> None:
        """Fill the list with the rows that pass the filter, the operator's own first."""
        now, width = datetime.now(UTC), self.list.row_width
        wanted = self.wanted
        rows: list[tuple[str | None, Row]] = []
        for origin, heading in panel.ORIGINS.items():
            group = [
                (name, panel.entry_row(entry, self._last.get(entry.name), now, width))
                for name, entry in self._entries.items()
                if entry.origin == origin and wanted in panel.searched(entry).casefold()
            ]
            rows += [(None, ((heading, "title"),)), *group] if group else []
        self.fill_list(rows or [(None, (("nothing matches", "dim"),))], begin_at)

    # The one under the cursor.

    def show_detail(self) -> None:
        """Show what is known of the profile, and check the box for it unless that is done."""
        entry = self._entry
        self.query_one("#picker-detail", Pane).show(blank if entry is None else partial(self._detail, entry))
        if entry != self._checked and self.is_current:
            self._checked = entry
            self._check()

    def _detail(self, entry: Entry, width: int) -> Rows:
        return panel.detail(entry, self._variant(entry), self._last.get(entry.name), datetime.now(UTC), width)

    def _variant(self, entry: Entry) -> str | None:
        return self._variants.get(str(entry.path)) or None

    @work(exclusive=True, group="preflight")
    async def _check(self) -> None:
        entry = self._entry
        self._findings, self._problem, self._checking_since_s = None, "", monotonic()
        self._show_preflight()
        if entry is None or entry.profile is None:
            return
        await asyncio.sleep(_DEBOUNCE_S)
        try:
            profile = build_profile(entry.document, where=str(entry.path), variant=self._variant(entry))
            self._findings = await check_profile(profile, stages_of(profile))
        except VrampError as error:
            self._problem = masked_text(str(error))
        if not self.was_left:
            self._show_preflight()

    def _show_preflight(self) -> None:
        entry = self._entry
        paint = blank if entry is None or entry.profile is None else self._preflight
        self.query_one("#picker-preflight", Pane).show(paint)

    def _preflight(self, width: int) -> Rows:
        return panel.preflight(self._findings, monotonic() - self._checking_since_s, width, self._problem)

    # What the keys do.

    def action_choose(self, url: str | None = None) -> None:
        entry = self._startable()
        if entry is not None:
            self.post_message(self.Start(StartChoice(entry.document, str(entry.path), self._variant(entry), url)))

    def _startable(self) -> Entry | None:
        entry = self._entry
        if entry is not None and entry.profile is None:
            self.notify("This profile cannot be read: e edits it", severity="warning", timeout=4)
            return None
        return entry

    def action_variant(self) -> None:
        entry = self._startable()
        if entry is None:
            return
        if not entry.variants:
            self.notify(f"{entry.name} has no variants", timeout=3)
            return
        choices = [("", "as it is"), *((name, panel.variant_words(entry, name)) for name in entry.variants)]
        ask(self, AskChoice(f"{entry.name}, as", choices), partial(self._set_variant, entry))

    def _set_variant(self, entry: Entry, variant: str) -> None:
        self._variants[str(entry.path)] = variant
        self.show_detail()
        self._check()

    def action_attach(self) -> None:
        entry = self._startable()
        if entry is not None:
            ask(self, AskUrl(entry.name, api_key_env=self._api_key_env), self.action_choose)

    def action_edit(self) -> None:
        entry = self._entry
        if entry is not None:
            editor = EditorScreen(entry.path, origin=entry.origin)
            ask(self, editor, lambda choice: self.post_message(self.Start(choice)))

    def action_past(self) -> None:
        self.app.push_screen(PastScreen())

    def action_read(self) -> None:
        """Read the profiles and check the box again."""
        self._checked = None
        self._read()
