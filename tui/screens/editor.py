"""The editor: a profile as text, checked at every pause in typing, saved under a name, or started as it stands.

A shipped file is never written, any other existing one only after a question. A file is written as a whole or not at
all.
"""

from __future__ import annotations

import asyncio
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widgets import TextArea

from loadgen import format as fmt
from loadgen.errors import UNDECODABLE, ProfileError
from loadgen.masking import masked_text
from loadgen.places import write_named
from loadgen.plan.from_profile import stages_of
from loadgen.profile.document import build_profile, default_name, variant_names
from tui import keys
from tui.catalog import Origin, StartChoice, origin_of
from tui.screens.base import FullScreen
from tui.screens.dialogs import AskChoice, AskText, ask
from tui.widgets.rows import Row, Rows, spread, wrapped
from tui.widgets.rows_widgets import Pane

_FROM_WHERE: dict[Origin, str] = {
    "yours": "",
    "site": ", shared on this machine: save your own",
    "shipped": ", shipped: save it under another name",
}
_DEBOUNCE_S = 0.25
_WHERE = "here"
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_TABLE = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_ASSIGNED = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")
Problem = tuple[str, int | None]
"""What keeps the text from being a profile, and its line, from 1."""


class EditorScreen(FullScreen[StartChoice | None]):
    """The text, with its problems beneath; returns what to start, or None."""

    AUTO_FOCUS = "#editor"
    BINDINGS: ClassVar[list[BindingType]] = list(keys.EDITOR)
    HELP_KEYS = (*keys.EDITOR, keys.PALETTE)

    def __init__(self, path: Path, *, origin: Origin) -> None:
        super().__init__()
        self._path = path
        self._origin: Origin = origin
        self._saved = ""
        self._document: dict[str, Any] = {}
        self._problems: Sequence[Problem] = ()

    def compose(self) -> ComposeResult:
        yield Pane(id="editor-header")
        yield TextArea(id="editor", show_line_numbers=True, soft_wrap=False, tab_behavior="focus")
        with VerticalScroll(id="editor-problems", can_focus=False):
            yield Pane(id="problems")
        yield self.key_bar()

    def on_mount(self) -> None:
        try:
            self._saved = self._path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            self.notify(f"{self._path}: cannot be read: {error}", severity="error", timeout=10)
        self._area.load_text(self._saved)
        self.query_one("#editor-header", Pane).show(self._header)
        self._check()

    @property
    def _area(self) -> TextArea:
        return self.query_one(TextArea)

    @property
    def _changed(self) -> bool:
        return self._area.text != self._saved

    @work(exclusive=True, group="check")
    async def on_text_area_changed(self) -> None:
        await asyncio.sleep(_DEBOUNCE_S)
        if not self.was_left:
            self._check()

    def _check(self) -> None:
        self._document, self._problems = check_text(self._area.text, default_name(self._path))
        self.query_one("#problems", Pane).show(partial(problem_rows, self._problems))
        self.query_one("#editor-header", Pane).renew()

    def _header(self, width: int) -> Rows:
        state = "changed" if self._changed else "unchanged"
        left: Row = ((" vramp", "title"), ("  edit ", "text"), (fmt.plain(str(self._path)), "strong"))
        from_where = _FROM_WHERE[self._origin]
        return [spread(left, ((f"{state}{from_where} ", "dim"),), width)]

    # What the keys do.

    def action_start(self) -> None:
        self._check()
        if self._problems:
            self.notify("Cannot be started: see the problems below", severity="warning", timeout=4)
            return
        where = f"{self._path} (edited)" if self._changed else str(self._path)
        self.dismiss(StartChoice(self._document, where))

    def action_save(self) -> None:
        ask(self, AskText("Save as", str, str(proposed_path(self._path))), self._save_as)

    def _save_as(self, text: str) -> None:
        if not text:
            return
        try:
            path = Path(text).expanduser()
            path = path if path.suffix == ".toml" else path.with_name(f"{path.name}.toml")
        except (RuntimeError, ValueError):
            words = f"{text}: a folder, or the home of an unknown user; type a file, such as profiles/mine.toml"
            self.notify(words, severity="error", timeout=10)
            return
        if origin_of(path) == "shipped":
            words = f"{path} is shipped with vramp: choose another name"
            self.notify(words, severity="warning", timeout=6)
        elif os.path.exists(path) and path != self._path:  # noqa: PTH110 - a folder may be denied
            choices = [(None, "keep that file"), (path, "overwrite it")]
            ask(self, AskChoice(f"{path} already exists", choices), self._write)
        else:
            self._write(path)

    def _write(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_named(path, self._area.text.encode())
        except OSError as error:
            self.notify(f"{path}: cannot be written: {error.strerror}", severity="error", timeout=10)
            return
        self._path, self._origin, self._saved = path, origin_of(path), self._area.text
        self._check()
        rest = f", with {fmt.counted(len(self._problems), 'problem')}" if self._problems else ""
        self.notify(f"Saved: {path}{rest}", timeout=4)

    def action_back(self) -> None:
        """Return to the profiles; asks before changes are discarded."""
        if self._changed:
            choices = [(None, "keep editing"), (True, "discard the changes")]
            ask(self, AskChoice("The changes are not saved", choices), lambda _: self.dismiss(None))
        else:
            self.dismiss(None)

    def action_leave(self) -> None:
        """Ctrl+Q leaves the editor, like Esc."""
        self.action_back()

    def interrupt(self) -> None:
        """Ctrl+C copies, as in every editor."""
        self._area.action_copy()


def problem_rows(problems: Sequence[Problem], width: int) -> Rows:
    """Return each problem with its line, or that there is none."""
    if not problems:
        return [((" ok", "good"), ("  valid, with each of its variants", "dim"))]
    rows: Rows = []
    for words, line in problems:
        at = f"line {line}: " if line is not None else ""
        rows += wrapped(f"! {at}{words}", width - 1, "bad")
    return rows


def proposed_path(path: Path) -> Path:
    """Return where to save by default: the operator's own file again, or else a new one next to the others."""
    if origin_of(path) == "yours":
        return path
    folder = Path("profiles") if Path("profiles").is_dir() else Path()
    return folder / f"my-{path.name}"


def check_text(text: str, name: str) -> tuple[dict[str, Any], list[Problem]]:
    """Return the document, empty if it is not TOML, and all problems of it and of its variants.

    `name` is the profile's name if the document has none.
    """
    try:
        document = tomllib.loads(text)
    except UNDECODABLE as error:
        message = masked_text(str(error))
        at = _AT_LINE.search(message)
        if at is None:
            return {}, [(message, max(1, len(text.splitlines())))]
        return {}, [(message[: at.start()].strip(), int(at[1]))]
    document.setdefault("name", name)
    found: dict[str, Problem] = {}
    for variant in (None, *variant_names(document)):
        for words, line in _problems_of(document, variant, text):
            found.setdefault(words.removeprefix(f"variant {variant}: "), (words, line))
    return document, list(found.values())


def _problems_of(document: dict[str, Any], variant: str | None, text: str) -> Iterator[Problem]:
    try:
        stages_of(build_profile(document, where=_WHERE, variant=variant))
    except ProfileError as error:
        prefix = f"variant {variant}: " if variant is not None else ""
        for line in str(error).splitlines():
            words = line.removeprefix(f"{_WHERE}: ")
            key = _KEY.match(words)
            path = key[0].strip(".").split(".") if key is not None else []
            at = line_of(text, ["variants", variant, *path]) if variant is not None and path else None
            yield prefix + masked_text(words), at or line_of(text, path)


def line_of(text: str, path: Sequence[str]) -> int | None:
    """Return the line, from 1, that sets a key, or else that of the nearest table above it that has one."""
    best, best_depth = None, 0
    for number, found in _keys_by_line(text):
        if len(found) > best_depth and found == list(path[: len(found)]):
            best, best_depth = number, len(found)
    return best


def _keys_by_line(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each line that opens a table or sets a key, with its whole path; tables of an array count from 0."""
    table: list[str] = []
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        opened = _TABLE.match(line)
        assigned = _ASSIGNED.match(line)
        if opened is not None:
            table = _parts(opened[2])
            if opened[1] == "[[":
                counts[opened[2]] = counts.get(opened[2], -1) + 1
                table = [*table, str(counts[opened[2]])]
            yield number, table
        elif assigned is not None:
            yield number, [*table, *_parts(assigned[1])]


def _parts(key: str) -> list[str]:
    return [part.strip().strip("\"'") for part in key.split(".")]
