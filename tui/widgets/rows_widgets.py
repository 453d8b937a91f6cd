"""Widgets that draw rows: `RowsWidget` itself, a pane as high as its rows, a list, the key bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, zip_longest

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.events import Click
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from loadgen.format import plain
from tui.keys import Hint
from tui.widgets.rows import ROLES, Row, Rows, Word, cropped, target_at, width_of


class RowsWidget(Widget):
    """A widget of rows: new rows refresh only the lines that they change, without a new layout.

    Its screen must have `ROLE_CLASSES` as component classes.
    """

    ALLOW_MAXIMIZE = True

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._rows: Rows = []  # including those below the edge
        self._drawn_size: Size | None = None  # of the rows

    def rows(self, width: int, height: int) -> Rows:
        """Return what to draw now, at this size."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draw the present rows; those below the edge are cut."""
        before, size = self._rows, self.size
        self._make_rows(size)
        if before and not size:  # out of sight now: no old line may show when it comes back
            self.refresh()
        pairs = islice(zip_longest(before, self._rows), size.height)
        changed = [Region(0, y, size.width, 1) for y, (old, new) in enumerate(pairs) if old != new]
        if changed:
            self.refresh(*changed)

    def _make_rows(self, size: Size) -> None:
        self._drawn_size = size
        self._rows = self.rows(*size) if size else []

    def render_line(self, y: int) -> Strip:
        """Return a row, cut or padded to the width."""
        size = self.size
        if self._drawn_size != size:  # Textual's resize message comes only after a frame, which would be empty
            self._make_rows(size)
        row = cropped(self._rows[y], size.width) if y < len(self._rows) else ()
        style_of = self.screen.get_component_rich_style
        segments = [Segment(shown(text), style_of(f"role-{role}")) for text, role in row if text]
        return Strip(segments).adjust_cell_length(size.width, style_of("role-text"))

    def target_at(self, x: int, y: int) -> str:
        """Return the target at a cell, as named by `rows.target`; empty if there is none."""
        return target_at(self._rows[y], x) if 0 <= y < len(self._rows) else ""


RowsAtWidth = Callable[[int], Rows]


def blank(width: int) -> Rows:
    return []


class RowList(OptionList):
    """A list in which a click moves the cursor; only a double click or Enter chooses a row."""

    def on_click(self, event: Click) -> None:
        """Run before Textual's own handler, which would choose at the first click."""
        if event.chain < 2:
            event.prevent_default()
            clicked = event.style.meta.get("option")
            if isinstance(clicked, int) and not self.get_option_at_index(clicked).disabled:
                self.highlighted = clicked

    @property
    def row_width(self) -> int:
        """The width of a row, without a blank at both ends."""
        return max(0, self.scrollable_content_region.width - 2)

    def fill(self, rows: Sequence[tuple[str | None, Row]], begin_at: str | None = None) -> None:
        """Show these rows, each with its id, or None for a heading.

        The cursor stays on its row; if it was on none, it starts at `begin_at`.
        """
        at = self.highlighted_id or begin_at
        roles = {role: self.screen.get_component_rich_style(f"role-{role}") for role in ROLES}
        # Only the foreground: the background belongs to the cursor.
        styles = {role: Style(color=style.color, bold=style.bold) for role, style in roles.items()}
        ids = [name for name, _ in rows]
        texts = [
            Text.assemble((" ", styles["text"]), *((shown(text), styles[role]) for text, role in row), no_wrap=True)
            for row in (cropped(row, self.row_width) for _, row in rows)
        ]
        self.set_options(Option(text, id=name, disabled=name is None) for name, text in zip(ids, texts, strict=True))
        first = next((place for place, name in enumerate(ids) if name is not None), None)
        self.highlighted = ids.index(at) if at is not None and at in ids else first

    @property
    def highlighted_id(self) -> str | None:
        option = self.highlighted_option
        return option.id if option is not None else None


def shown(text: str) -> str:
    """Return a word as it may reach the terminal, whether or not its panel has thought of control characters."""
    return text if text.isprintable() else plain(text)


class Pane(RowsWidget):
    """A widget as high as its rows, for a container that scrolls."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._rows_at: RowsAtWidth = blank
        self._made: tuple[int, Rows] | None = None  # with their width

    def show(self, rows_at: RowsAtWidth) -> None:
        """Paint this from now on, at any width."""
        self._rows_at = rows_at
        self.renew()

    def renew(self) -> None:
        """Paint again, because the content has changed."""
        count = len(self._rows)
        self._made = None
        if self.size.width:
            self.draw()
            if len(self._rows) != count:
                self.refresh(layout=True)

    def rows(self, width: int, height: int) -> Rows:
        if self._made is None or self._made[0] != width:
            self._made = (width, self._rows_at(width))
        return self._made[1]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the height during the layout of the screen, which then needs no second one."""
        return max(1, len(self.rows(width, 0)))


class KeyBar(RowsWidget):
    """Shows keys and takes clicks on them."""

    def __init__(self, hints: Callable[[int], Sequence[Sequence[Hint]]], *, id: str) -> None:
        """Take `hints`, which makes the rows for a height, the most needed keys first."""
        super().__init__(id=id)
        self._hints = hints

    def rows(self, width: int, height: int) -> Rows:
        return [tuple(word for word, _ in row[:-1]) for row in self._rows_of_words(width, height)]

    async def on_click(self, event: Click) -> None:
        """Act as if the key had been pressed; the label of a single key counts as the key."""
        rows = self._rows_of_words(*self.size)
        column = 0
        for word, action in rows[event.y] if 0 <= event.y < len(rows) else ():
            cells = width_of((word,))
            if column <= event.x < column + cells and action:
                await self.screen.run_action(action)
            column += cells

    def _rows_of_words(self, width: int, height: int) -> list[list[tuple[Word, str]]]:
        """Return the words of the hints that fit, each with its action."""
        rows: list[list[tuple[Word, str]]] = []
        for hints in self._hints(height):
            rows.append([])
            room = width + 1
            for words in map(_words, hints):
                cells = width_of(tuple(word for word, _ in words))
                if cells <= room:
                    rows[-1] += words
                    room -= cells
        return rows


def _words(hint: Hint) -> list[tuple[Word, str]]:
    action = hint.keys[0][1] if len(hint.keys) == 1 else ""
    return [
        ((" ", "text"), ""),
        *(((key, "key"), action) for key, action in hint.keys),
        ((f" {hint.label}", hint.role), action),
        ((" ", "text"), ""),
    ]
