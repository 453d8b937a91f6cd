"""What a panel writes: rows of words, each with a role.

A role is a name of `ROLES`, styled in `app.tcss`; a panel never names a colour. Words are plain strings and are never
parsed as markup. Numbers are padded by the panels, so that they keep their place.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, chop_cells

from loadgen import format as fmt

Word = tuple[str, str]  # a text and its role
Row = tuple[Word, ...]
Rows = list[Row]

ROLES = (
    *("text", "strong", "dim", "rule", "title", "key", "good", "warn", "bad"),
    *("throughput", "p50", "p99", "held", "running", "waiting", "kv", "busy", "power", "heat", "hbm"),  # series
    *("before", "mark", "found"),  # what else is on the charts
)
ROLE_CLASSES = frozenset(f"role-{role}" for role in ROLES)

GAP = 2  # cells between panels side by side


def target(name: str) -> Word:
    """Return a word without width: a click to the right of it means `name`, up to the next such word."""
    return ("", name)


def target_at(row: Row, column: int) -> str:
    """Return the target of a click on a column; empty if there is none."""
    found, at = "", 0
    for text, role in row:
        if at > column:
            break
        at += cell_len(text)
        if not text and role not in ROLES:
            found = role
    return found


def in_role(row: Row, role: str) -> Row:
    """Return a row with all words in one role, and its targets kept."""
    return tuple((text, role) if text or was in ROLES else (text, was) for text, was in row)


def width_of(row: Row) -> int:
    """Return the cells that a row takes; some characters take two, others none."""
    return sum(len(text) if text.isascii() else cell_len(text) for text, _ in row)


def padded(text: str, width: int) -> str:
    """Return a text of exactly `width` cells: cut with an ellipsis, or filled up with blanks."""
    if cell_len(text) > width:
        text = _beginning(text, width - 1) + "…"[: max(0, width)]
    return text + " " * (width - cell_len(text))


def _beginning(text: str, width: int) -> str:
    if text.isascii() or width <= 0:
        return text[: max(0, width)]
    return chop_cells(text, width)[0]


def in_cells(text: str, width: int) -> list[str]:
    """Split a text into cells, as far as it fits; the second cell of a wide character is empty."""
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
    """Join two rows: the right one ends at the edge, and the left one is cut to fit."""
    room = width - width_of(right) - (1 if right else 0)
    left = cropped(left, max(0, room))
    return (*left, (" " * max(0, width - width_of(left) - width_of(right)), "text"), *right)


def cropped(row: Row, width: int) -> Row:
    """Return a row cut to a width, with an ellipsis if it was cut."""
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
    """Merge neighbouring words of one role."""
    found: list[Word] = []
    for text, role in words:
        if found and found[-1][1] == role:
            found[-1] = (found[-1][0] + text, role)
        else:
            found.append((text, role))
    return tuple(found)


def titled(title: str, legend: Row, width: int) -> Row:
    """Return the first row of a panel: its title on a rule, with the legend at the right end."""
    legend = cropped(legend, max(0, width - len(title) - 1))
    rule = max(0, width - len(title) - 1 - width_of(legend))
    line = "─" * rule if not legend or rule < 2 else "─" * (rule - 1) + " "
    return ((f"{title} ", "title"), (line.replace("─", " ") if rule < 3 else line, "rule"), *legend)


def bar(share: float | None, width: int, role: str) -> Row:
    """Return a bar that can be read without colour."""
    filled = 0 if share is None else round(min(max(share, 0.0), 1.0) * width)
    return (("━" * filled, role), ("╌" * (width - filled), "rule"))


def facts(gap: str, *found: tuple[str, str, str]) -> Row:
    """Return labels followed by their values: ` running 48  waiting 3`."""
    words: list[Word] = []
    for label, value, role in found:
        words += [(f"{gap if words else ' '}{label} ", "dim"), (value, role)]
    return tuple(words)


def pairs(found: Iterable[tuple[str, str, str]], width: int) -> Rows:
    """Return a row for each label, with its value, in a role, at the right end."""
    return [
        spread(((f" {label}", "dim"),), cropped(((value, role),), width - 4), width - 1) for label, value, role in found
    ]


def wrapped(text: str, width: int, role: str, indent: int = 1, most: int | None = None) -> Rows:
    """Wrap a text from outside, none for an empty one; of more than `most` rows, the last has all that is left."""
    room = max(20, width - indent)
    lines = [
        line for part in text.splitlines() for line in textwrap.wrap(fmt.plain(part), room, break_on_hyphens=False)
    ]
    if most is not None and len(lines) > most:
        lines[most - 1 :] = [" ".join(lines[most - 1 :])]
    return [cropped(((" " * indent, "text"), (line, role)), width) for line in lines]


def hanging(head: Row, text: str, width: int, role: str, most: int | None = None) -> Rows:
    """Wrap a text from outside to the right of a head."""
    first, *others = wrapped(text, width, role, width_of(head), most) or [()]
    return [(*head, *first[1:]), *others]


def whole_groups(groups: Sequence[Rows], room: int, rest: str) -> Rows:
    """Return as many whole groups of rows as fit, the first in any case; a last row counts the rest."""
    rows: Rows = []
    for number, group in enumerate(groups):
        if rows and len(rows) + len(group) > room:
            return [*rows, ((f" … {len(groups) - number} {rest}", "dim"),)]
        rows += group
    return rows


def side_by_side(panels: Sequence[tuple[Rows, int]], height: int) -> Rows:
    """Put panels, given as rows and width, side by side."""
    found: Rows = []
    for y in range(min(height, max((len(rows) for rows, _ in panels), default=0))):
        words: list[Word] = []
        for rows, width in panels:
            row = cropped(rows[y], width) if y < len(rows) else ()
            words += [*row, (" " * (width - width_of(row)), "text"), (" " * GAP, "text")]
        found.append(tuple(words[:-1]))
    return found


def widths_of(width: int, count: int) -> list[int]:
    """Divide a width among some panels; what is left over goes to the first ones."""
    room = width - GAP * (count - 1)
    return [room // count + (number < room % count) for number in range(count)]
