"""Reads the fields of a document from outside: each of the kind that is expected, or an error that names it.

Nothing here shows a value: YAML can make one that is larger than memory as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.errors import ProfileError

Fields = Mapping[str, Any]
_SCALARS = str | int | float


def table(fields: Fields, key: str) -> Fields:
    """A table, empty if there is none."""
    return _found(fields, key, isinstance(fields.get(key), Mapping), "a table") or {}


def text(fields: Fields, key: str) -> str:
    """A text or a number as text, empty if there is none."""
    found = _found(fields, key, isinstance(fields.get(key), _SCALARS), "a text")
    return "" if found is None else scalar_text(found)


def words(fields: Fields, key: str) -> list[str]:
    """A list of texts, empty if there is none."""
    return [scalar_text(word) for word in _list(fields, key, _SCALARS, "texts")]


def tables(fields: Fields, key: str) -> list[Fields]:
    """A list of tables, empty if there is none."""
    return _list(fields, key, Mapping, "tables")


def unknown(fields: Fields, known: list[str]) -> list[str]:
    """A remark for each key that is not known."""
    return [f"{key:.60}: a key that vramp does not know" for key in fields if key not in known]


def with_text_keys(value: Any, copies: dict[int, Any]) -> Any:  # noqa: ANN401 - any of YAML's types
    """The document with texts for keys; what YAML's aliases share stays shared, by its entry in `copies`."""
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, Mapping):
        table = copies.setdefault(id(value), {})
        for key, entry in value.items():
            table[scalar_text(key) if isinstance(key, _SCALARS) else ""] = with_text_keys(entry, copies)
        return table
    if isinstance(value, list):
        entries = copies.setdefault(id(value), [])
        entries.extend(with_text_keys(entry, copies) for entry in value)
        return entries
    return value


def scalar_text(value: str | float) -> str:
    """A value of TOML, YAML or JSON as a command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _list(fields: Fields, key: str, kind: Any, expected: str) -> list[Any]:  # noqa: ANN401 - of isinstance
    entries = fields.get(key)
    fits = isinstance(entries, list) and all(isinstance(entry, kind) for entry in entries)
    return _found(fields, key, fits, f"a list of {expected}") or []


def _found(fields: Fields, key: str, fits: bool, expected: str) -> Any:  # noqa: ANN401 - what the caller expects
    found = fields.get(key)
    if found is not None and not fits:
        raise ProfileError(f"{key}: expected {expected}")
    return found
