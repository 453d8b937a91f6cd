"""Widgets that draw rows: `Painted` itself, a pane as high as its rows, a list, the key bar; and their background."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.containers import Container
from textual.events import Click
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from loadgen.format import plain
from tui.keys import Hint
from tui.widgets.rows import ROLES, Row, Rows, Word, target_at, width_of


class _Styles(NamedTuple):
    """The style of each role on a screen, and what the styles were made from."""

    theme: str
    rules: tuple[object, ...]
    by_role: Mapping[str, Style]


_STYLES: WeakKeyDictionary[Screen[Any], _Styles] = WeakKeyDictionary()
_RESTYLED: WeakSet[Screen[Any]] = WeakSet()
"""Screens whose styles may have changed."""


def filtered(widget: Widget, style: Style) -> Style:
    """Return a style as the terminal can show it: in greys under NO_COLOR."""
    segments = [Segment(" ", style)]
    for line_filter in widget.get_line_filters():
        segments = line_filter.apply(segments, widget.background_colors[1])
    return segments[0].style or style


class Line(Strip):
    """A strip that is freed with its last reference.

    Textual's own caches itself when it is divided and stays whole: a reference cycle, and with some hundred of them a
    second a large heap before the garbage collector runs.
    """

    __slots__ = ()

    def divide(self, cuts: Iterable[int]) -> Sequence[Strip]:
        """Return its parts up to each of these cells."""
        ends = list(cuts)
        return [self] if ends == [self.cell_length] else super().divide(ends)


def blank_lines(widget: Widget, crop: Region) -> list[Strip]:
    """Return lines of the background colour, for a widget without border, padding or title.

    Textual would look for those on each line after every layout. One strip serves for all lines, because it caches how
    it was last divided around the widgets on it.
    """
    style = filtered(widget, Style(bgcolor=widget.background_colors[1].rich_color))
    return [Line.blank(crop.width, style)] * crop.height


class Ground(Container):
    """The background for other widgets."""

    # Nothing scrolls: by Textual's default, each new size would lay out and paint the whole screen once more.
    virtual_size = Reactive(Size(0, 0), repaint=False)

    def render_lines(self, crop: Region) -> list[Strip]:
        return blank_lines(self, crop)


class Painted(Widget):
    """A widget of rows: new rows refresh only the lines that they change, without a new layout.

    Its screen must have `ROLE_CLASSES` as component classes.
    """

    ALLOW_MAXIMIZE = True
    virtual_size = Reactive(Size(0, 0), repaint=False)  # as on `Ground`

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._rows: Rows = []  # including those below the edge
        self._drawn_size: Size | None = None  # of the rows; None: they must be made again
        self._strips: dict[int, Strip] = {}  # by row, as they were rendered
        self._strip_width = 0
        self._strip_styles: Mapping[str, Style] = {}

    def rows(self, width: int, height: int) -> Rows:
        """Return what to draw now, at this size."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draw the present rows; those below the edge are cut."""
        size = self.size
        changed = self._take_rows(size)
        if changed:
            self.refresh(*[Region(0, y, size.width, 1) for y in changed])

    def draw_later(self) -> None:
        """Draw when its lines are asked for next, as it is about to get another size."""
        self._drawn_size = None

    def forget(self) -> None:
        """Free the memory of a widget that is out of sight; its lines are made again when they are asked for."""
        self._drawn_size, self._rows = None, []
        self._strips.clear()

    def _take_rows(self, size: Size) -> list[int]:
        """Make the rows for this size; return which visible lines have changed."""
        before = self._rows
        self._drawn_size = size
        self._rows = self.rows(*size) if size else []
        changed = [
            y
            for y in range(max(len(before), len(self._rows)))
            if y >= len(before) or y >= len(self._rows) or before[y] != self._rows[y]
        ]
        for y in changed:
            self._strips.pop(y, None)
        return [y for y in changed if y < size.height]

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the rows, most from the cache: Textual asks for all of them whenever a cell of the screen changes.

        Textual would look on each row for borders, padding, opacity and links, which these widgets do not have. Its
        resize message comes only after a frame, which would be empty: therefore rows are made here.
        """
        size = self.size  # Textual looks it up in its map of the screen each time
        if self._drawn_size != size:
            self._take_rows(size)
        width, styles = size.width, self._styles_by_role()
        if width != self._strip_width or styles is not self._strip_styles:
            self._strip_width, self._strip_styles = width, styles
            self._strips.clear()
        for y in crop.line_range:
            if y not in self._strips:
                self._strips[y] = self._strip_of(y, styles)
        strips = [self._strips[y] for y in crop.line_range]
        return strips if crop.column_span == (0, width) else [strip.crop(*crop.column_span) for strip in strips]

    def _strip_of(self, y: int, styles: Mapping[str, Style]) -> Strip:
        """Render a row, padded to the width."""
        row = self._rows[y] if y < len(self._rows) else ()
        segments = [Segment(shown(text), styles[role]) for text, role in row if text]
        padded = Strip(segments).adjust_cell_length(self._strip_width, styles["text"])
        return Line(padded, self._strip_width)

    def target_at(self, x: int, y: int) -> str:
        """Return the target at a cell, as named by `rows.target`; empty if there is none."""
        return target_at(self._rows[y], x) if 0 <= y < len(self._rows) else ""

    def notify_style_update(self) -> None:
        """Mark the screen, because its styles may have changed."""
        if self.is_attached:
            _RESTYLED.add(self.screen)
        super().notify_style_update()

    def _styles_by_role(self) -> Mapping[str, Style]:
        """Return the screen's styles, cached for all its widgets; Textual drops its own cache at every refresh."""
        screen, theme = self.screen, self.app.theme
        known = _STYLES.get(screen)
        if known is not None and known.theme == theme and screen not in _RESTYLED:
            return known.by_role
        _RESTYLED.discard(screen)
        of_roles = [screen.get_component_styles(f"role-{role}") for role in ROLES]
        rules = (screen.background_colors, *((each.color, each.text_style) for each in of_roles))
        # A screen that comes back is styled again, most often with the same rules.
        if known is None or known.theme != theme or known.rules != rules:
            of_role = screen.get_component_rich_style
            by_role = {role: filtered(self, of_role(f"role-{role}")) for role in ROLES}
            known = _STYLES[screen] = _Styles(theme, rules, by_role)
        return known.by_role


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
        options = [Option(text_of(((" ", "text"), *row), styles), id=name, disabled=name is None) for name, row in rows]
        self.set_options(options)
        ids = [name for name, _ in rows]
        first = next((place for place, name in enumerate(ids) if name is not None), None)
        self.highlighted = ids.index(at) if at is not None and at in ids else first

    @property
    def highlighted_id(self) -> str | None:
        option = self.highlighted_option
        return option.id if option is not None else None


def text_of(row: Row, styles: Mapping[str, Style]) -> Text:
    """Return a row as rich text for a Textual widget; its words are not parsed as markup."""
    return Text.assemble(*((shown(text), styles[role]) for text, role in row), no_wrap=True)


def shown(text: str) -> str:
    """Return a word as it may reach the terminal, whether or not its panel has thought of control characters."""
    return text if text.isprintable() else plain(text)


class Pane(Painted):
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


class KeyBar(Painted):
    """Shows keys and takes clicks on them."""

    def __init__(self, hints: Callable[[int], Sequence[Sequence[Hint]]], *, id: str) -> None:
        """Take `hints`, which makes the rows for a height, the most needed keys first."""
        super().__init__(id=id)
        self._hints = hints

    def rows(self, width: int, height: int) -> Rows:
        return [tuple(word for word, _ in row) for row in self._rows_of_words(width, height)]

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
