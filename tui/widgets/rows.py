"""What a panel writes: rows of words, each with a role.

A role is a name of `ROLES`, styled in `app.tcss`; a panel never names a colour. Words are plain strings and are never
parsed as markup. Numbers are padded by the panels, so that they keep their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, chop_cells

Word = tuple[str, str]  # A text and its role
Row = tuple[Word, ...]

ROLES = (
    "text",
    "strong",
    "dim",
    "rule",
    "title",
    "key",
    "good",
    "warn",
    "bad",
    "throughput",
    "p50",
    "p99",
    "held",
    "running",
    "waiting",
    "kv",
    "busy",
    "power",
    "heat",
    "hbm",
    "before",
    "mark",
    "found",
)

ROLE_CLASSES = frozenset(f"role-{role}" for role in ROLES)

Rows = list[Row]

GAP = 2  # cells between panels side by side


def width_of(row: Row) -> int:
    """The cells that a row takes; some characters take two, others none."""
    return sum(len(text) if text.isascii() else cell_len(text) for text, _ in row)


def padded(text: str, width: int) -> str:
    """A text on exactly so many cells: cut with a sign that it was, or filled up with blanks."""
    if cell_len(text) > width:
        text = _beginning(text, width - 1) + "…"[: max(0, width)]
    return text + " " * (width - cell_len(text))


def _beginning(text: str, width: int) -> str:
    """As much of a text as has room."""
    if text.isascii() or width <= 0:
        return text[: max(0, width)]
    return chop_cells(text, width)[0]


def in_cells(text: str, width: int) -> list[str]:
    """A text cell by cell, as much as has room: a wide character leaves its second cell empty."""
    cells: list[str] = []
    for character in text:
        taken = cell_len(character)
        if len(cells) + taken > width:
            break
        if taken:
            cells += [character, *[""] * (taken - 1)]
        elif cells:
            cells[-1] += character
    return cells


def spread(left: Row, right: Row, width: int) -> Row:
    """Two rows in one: the right one ends at the edge and wins over what does not fit of the left."""
    room = width - width_of(right) - (1 if right else 0)
    left = cropped(left, max(0, room))
    return (*left, (" " * max(0, width - width_of(left) - width_of(right)), "text"), *right)


def cropped(row: Row, width: int) -> Row:
    """A row cut at a width, with a sign that it was."""
    if width_of(row) <= width:
        return row
    kept: list[Word] = []
    room = max(0, width - 1)
    for text, role in row:
        kept.append((_beginning(text, room), role))
        room -= width_of(((text, role),))
        if room <= 0:
            break
    return (*kept, ("…"[:width], "dim"))


def joined(words: Iterable[Word]) -> Row:
    """Neighbours of one role as one word."""
    found: list[Word] = []
    for text, role in words:
        if found and found[-1][1] == role:
            found[-1] = (found[-1][0] + text, role)
        else:
            found.append((text, role))
    return tuple(found)


def titled(title: str, legend: Row, width: int) -> Row:
    """The first row of a panel: its title on a rule, with what belongs to it at the right end."""
    legend = cropped(legend, max(0, width - len(title) - 1))
    rule = max(0, width - len(title) - 1 - width_of(legend))
    line = "─" * rule if not legend or rule < 2 else "─" * (rule - 1) + " "
    return ((f"{title} ", "title"), (line.replace("─", " ") if rule < 3 else line, "rule"), *legend)


def bar(share: float | None, width: int, role: str) -> Row:
    """A bar that can be read without colour."""
    filled = 0 if share is None else round(min(max(share, 0.0), 1.0) * width)
    return (("━" * filled, role), ("╌" * (width - filled), "rule"))


def beside(panels: Sequence[tuple[Rows, int]], height: int) -> Rows:
    """Rows of panels, given with their widths, as rows across all of them."""
    return [_across(panels, y) for y in range(min(height, max((len(rows) for rows, _ in panels), default=0)))]


def widths_of(width: int, count: int) -> list[int]:
    """How wide each of some panels is; what is left over goes to the first ones."""
    room = width - GAP * (count - 1)
    return [room // count + (number < room % count) for number in range(count)]


def _across(panels: Sequence[tuple[Rows, int]], y: int) -> Row:
    words: list[Word] = []
    for number, (rows, width) in enumerate(panels):
        row = cropped(rows[y], width) if y < len(rows) else ()
        last = number == len(panels) - 1
        words += [*row, (" " * (width - width_of(row) + (0 if last else GAP)), "text")]
    return tuple(words)
