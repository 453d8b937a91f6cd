"""Reads the fields of a document from outside: each of the kind that is expected, or an error that names it.

Nothing here shows a value: YAML can make one that is larger than memory as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.errors import ProfileError

Fields = Mapping[str, Any]


def table(fields: Fields, key: str) -> Fields:
    """A table, empty if there is none."""
    found = fields.get(key)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise ProfileError(f"{key}: expected a table")
    return found


def text(fields: Fields, key: str) -> str:
    """A text or a number as text, empty if there is none."""
    found = fields.get(key)
    if found is None:
        return ""
    if not isinstance(found, str | int | float):
        raise ProfileError(f"{key}: expected a text")
    return _text(found)


def words(fields: Fields, key: str) -> list[str]:
    """A list of texts, empty if there is none."""
    found = fields.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(word, str | int | float) for word in found):
        raise ProfileError(f"{key}: expected a list of texts")
    return [_text(word) for word in found]


def tables(fields: Fields, key: str) -> list[Fields]:
    """A list of tables, empty if there is none."""
    found = fields.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(entry, Mapping) for entry in found):
        raise ProfileError(f"{key}: expected a list of tables")
    return found


def unknown(fields: Fields, known: list[str]) -> list[str]:
    """A remark for each key that is not known."""
    return [f"{key:.60}: a key that vramp does not know" for key in fields if key not in known]


def with_text_keys(document: Any) -> Any:  # noqa: ANN401 - any of YAML's types
    """The document with texts for keys; what YAML's aliases share stays shared."""
    return _copied(document, {})


def _copied(value: Any, made: dict[int, Any]) -> Any:  # noqa: ANN401 - any of YAML's types
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, Mapping):
        copy: Any = made.setdefault(id(value), {})
        for key, entry in value.items():
            copy[_text(key) if isinstance(key, str | int | float) else ""] = _copied(entry, made)
        return copy
    if isinstance(value, list):
        copy = made.setdefault(id(value), [])
        copy.extend(_copied(entry, made) for entry in value)
        return copy
    return value


def _text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
