"""The bases of the screens below the dialogs: those with roles and help, and those with a list and its details."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Input, OptionList

from tui import keys
from tui.config import keymap_of
from tui.screens.dialogs import Answer, Help, drop_outdated
from tui.widgets.rows import ROLE_CLASSES, Row
from tui.widgets.rows_widgets import KeyBar, Pane, RowList


class FullScreen(Screen[Answer]):
    """A screen with the roles that `RowsWidget` needs."""

    COMPONENT_CLASSES: ClassVar[set[str]] = set(ROLE_CLASSES)
    HELP_KEYS: ClassVar[Sequence[Binding]] = ()

    @property
    def was_left(self) -> bool:
        """Whether the screen, or the app, was left while a worker waited: there may be no widget to change."""
        return not self.is_attached or self not in self.app.screen_stack

    def on_resize(self, event: Resize) -> None:
        drop_outdated(self.app, event)

    def key_bar(self) -> KeyBar:
        return KeyBar(lambda _: [keys.hints(self.HELP_KEYS, keymap_of(self.app))], id="hints")

    def action_help(self) -> None:
        self.app.push_screen(Help(keys.table(self.HELP_KEYS, keymap_of(self.app))))

    def action_leave(self) -> None:
        self.app.exit()

    def interrupt(self) -> None:
        self.app.exit()


class ListScreen(FullScreen[None]):
    """A list on the left, and everything about the item under the cursor on the right."""

    AUTO_FOCUS = "#rows"

    def compose(self) -> ComposeResult:
        """Compose list and details; the filter and what a screen does not use stay hidden."""
        yield Pane(id="picker-header")
        with Horizontal(id="picker-columns"):
            with Vertical(id="picker-list"):
                yield Input(placeholder="filter: a part of name or model", id="picker-filter")
                yield Pane(id="rows-head")
                yield RowList(id="rows")
            with VerticalScroll(id="picker-about"):
                yield Pane(id="picker-detail")
                yield Pane(id="picker-preflight")
        yield self.key_bar()

    @property
    def list(self) -> RowList:
        return self.query_one(RowList)

    def fill(self) -> None:
        """Fill the list with rows of its present width."""
        raise NotImplementedError

    def show_detail(self) -> None:
        """Show what is known of the item under the cursor."""
        raise NotImplementedError

    @property
    def wanted(self) -> str:
        """The text of the filter, casefolded."""
        return self.query_one("#picker-filter", Input).value.strip().casefold()

    def action_filter(self) -> None:
        field = self.query_one("#picker-filter", Input)
        field.add_class("-shown")
        field.focus()

    def on_input_changed(self) -> None:
        self.fill()

    def on_input_submitted(self) -> None:
        if not self.wanted:
            self.action_clear()
        self.list.focus()

    def action_clear(self) -> None:
        field = self.query_one("#picker-filter", Input)
        field.clear()
        field.remove_class("-shown")
        self.list.focus()

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self.fill)

    def fill_list(self, rows: Sequence[tuple[str | None, Row]], begin_at: str | None = None) -> None:
        """Show these rows and what depends on them, as `RowList.fill` does."""
        self.list.fill(rows, begin_at)
        self.query_one("#rows-head", Pane).renew()
        self.show_detail()

    def action_choose(self) -> None:
        """Act on the item under the cursor."""
        raise NotImplementedError

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_choose()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        self.show_detail()
