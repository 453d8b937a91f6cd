"""What the picker's screens are made of: a list of painted rows, and a pane that grows with its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.style import Style
from rich.text import Text
from textual.events import Click
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tui.widgets.paint import ROLES, Painted, Row, Rows, Word

_MARGIN: Word = (" ", "text")

Paint = Callable[[int], Rows]  # A width to rows


def blank(width: int) -> Rows:
    return []


class RowList(OptionList):
    """A list whose cursor a click moves; only a second click on the same row, or Enter, chooses it."""

    def on_click(self, event: Click) -> None:
        """Before Textual's own handler, which would choose at the first."""
        if event.chain < 2:
            event.prevent_default()
            clicked = event.style.meta.get("option")
            if isinstance(clicked, int) and not self.get_option_at_index(clicked).disabled:
                self.highlighted = clicked

    @property
    def row_width(self) -> int:
        """The cells of a row, without a blank at both ends."""
        return max(0, self.scrollable_content_region.width - 2)

    def fill(self, rows: Sequence[tuple[str | None, Row]], begin_at: str | None = None) -> None:
        """Show these rows, each with its id, or None for a heading.

        The cursor stays on the row that it was on; one that was on none begins at `begin_at`.
        """
        at = self.highlighted_id or begin_at
        styles = {role: self._style_of(role) for role in ROLES}
        options = [Option(text_of((_MARGIN, *row), styles), id=name, disabled=name is None) for name, row in rows]
        self.set_options(options)
        ids = [name for name, _ in rows]
        first = next((place for place, name in enumerate(ids) if name is not None), None)
        self.highlighted = ids.index(at) if at is not None and at in ids else first

    def _style_of(self, role: str) -> Style:
        """Only what is written: what lies under it is the cursor's."""
        style = self.screen.get_component_rich_style(f"role-{role}")
        return Style(color=style.color, bold=style.bold)

    @property
    def highlighted_id(self) -> str | None:
        option = self.highlighted_option
        return option.id if option is not None else None


def text_of(row: Row, styles: Mapping[str, Style]) -> Text:
    """A row for a widget of Textual's; its words are not parsed as markup."""
    return Text.assemble(*((text, styles[role]) for text, role in row), no_wrap=True)


class Pane(Painted):
    """Rows as high as they are: what is around it scrolls."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._paint: Paint = blank
        self._painted: Rows = []

    def show(self, paint: Paint) -> None:
        """Paint this from now on, at any width."""
        self._paint = paint
        self.on_resize()

    def on_resize(self) -> None:
        """Another width, other rows; another height only lets more of them show."""
        if self.size.width:
            self._painted = self._paint(self.size.width)
            self.styles.height = max(1, len(self._painted))
            self.put(self._painted)
