"""From a TOML file to a profile: read it, apply variant and overrides, and explain errors by file, key and value."""

from __future__ import annotations

import copy
import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from loadgen.errors import UNDECODABLE, ProfileError
from loadgen.masking import learn
from loadgen.places import require_trusted
from loadgen.profile.schema import Profile, tables

_TYPE = re.compile(r"(int|float|str|bool)$|constrained-|list\[")  # what pydantic tried, in the place of an error
_MAX_DEPTH = 32  # tables and lists within each other; a profile has 6, and what walks a document has a frame for each


def load_profile(path: Path, overrides: Iterable[str] = (), *, variant: str | None = None) -> Profile:
    """Read, vary, override and validate a profile.

    `overrides` are `key.path=value` texts; a value is TOML, or else a plain string. Raises `ProfileError`.
    """
    return build_profile(load_document(path), where=str(path), overrides=overrides, variant=variant)


def load_document(path: Path) -> dict[str, Any]:
    """Read a profile's TOML without validating it; its default name comes from the file.

    Raises `ProfileError`, also where another user can change it.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            try:
                require_trusted(os.fstat(file.fileno()), path)
            except PermissionError as error:
                why = "a profile names programs that vramp runs: read it first"
                raise ProfileError(f"{path}: {error.strerror} ({why})") from None
            document = tomllib.loads(file.read())
    except FileNotFoundError:
        raise ProfileError(_no_such_profile(path)) from None
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProfileError(f"{path}: is not UTF-8 text; a profile is a TOML file") from None
    except UNDECODABLE as error:
        raise ProfileError(f"{path}: not valid TOML: {error}") from None
    _require_shallow(document, where=str(path))
    document.setdefault("name", default_name(path))
    return document


def default_name(path: Path) -> str:
    """What a profile is called that gives itself no name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", path.stem)


def build_profile(
    document: Mapping[str, Any], *, where: str, overrides: Iterable[str] = (), variant: str | None = None
) -> Profile:
    """Validate a document, after applying its variant and then the overrides; `where` names its origin in messages.

    Raises `ProfileError`.
    """
    _require_shallow(document, where=where)
    chosen = apply_variant(document, variant, where=where)
    values = [_apply_override(chosen, override) for override in overrides]
    _require_shallow(chosen, where=where)
    learn(chosen)  # learn its secrets before any error message shows a value
    try:
        return Profile.model_validate(chosen)
    except ValidationError as error:
        # An override may read as a number or a boolean where a text belongs: `server.env.X=1` is the text 1.
        wanted = [
            [str(part) for part in details["loc"]]
            for details in error.errors()
            if details["type"] == "string_type" and not isinstance(details["input"], dict | list)
        ]
        texts = [f"{'.'.join(path)}={json.dumps(text)}" for path, text in values if path in wanted]
        if not texts:
            raise ProfileError("\n".join(_explain(where, details) for details in error.errors())) from None
    return build_profile(chosen, where=where, overrides=texts)


def _require_shallow(document: Mapping[str, Any], *, where: str) -> None:
    level: list[Any] = [document]
    for _ in range(_MAX_DEPTH):
        entries = [entry for table in level for entry in (table.values() if isinstance(table, Mapping) else table)]
        level = [entry for entry in entries if isinstance(entry, Mapping | list)]
        if not level:
            return
    raise ProfileError(f"{where}: more than {_MAX_DEPTH} tables or lists within each other")


def variant_names(document: Mapping[str, Any]) -> list[str]:
    """The names of a document's variants, in its order."""
    variants = document.get("variants", {})
    return list(variants) if isinstance(variants, Mapping) else []


def apply_variant(document: Mapping[str, Any], variant: str | None, *, where: str) -> dict[str, Any]:
    """The document with `variant` laid over it, and without its table of variants.

    A variant is written like a profile: tables are merged, everything else replaces; its list `unset` removes keys,
    such as `"server.args.max-num-seqs"`. Raises `ProfileError`.
    """
    base: dict[str, Any] = copy.deepcopy(dict(document))
    variants = base.pop("variants", {})
    if not isinstance(variants, dict) or not all(isinstance(entry, dict) for entry in variants.values()):
        raise ProfileError(f"{where}: variants: expected tables, such as [variants.latency.server.args]")
    if variant is None:
        return base
    if variant not in variants:
        offered = f"it has: {', '.join(variants)}" if variants else "it has none"
        raise ProfileError(f"{where}: no variant {variant!r}; {offered}")
    overlay = variants[variant]
    unset = overlay.pop("unset", [])
    if not isinstance(unset, list):
        raise ProfileError(f"{where}: variants.{variant}.unset = {unset!r}: expected a list of keys")
    for key in unset:
        _unset(base, str(key), where=f"{where}: variants.{variant}.unset")
    merged: dict[str, Any] = _merged(base, overlay)
    merged["name"] = f"{base.get('name', 'unnamed')}+{variant}"
    return merged


def _merged(base: Any, overlay: Any) -> Any:  # noqa: ANN401 - any of TOML's types
    if not isinstance(base, dict) or not isinstance(overlay, dict):
        return overlay
    return base | {key: _merged(base.get(key), value) for key, value in overlay.items()}


def _unset(document: dict[str, Any], key: str, *, where: str) -> None:
    if not _has(document, key):
        raise ProfileError(f"{where}: {key}: is not set, so it cannot be unset")
    *parents, last = key.split(".")
    del reduce(dict.__getitem__, parents, document)[last]


def unset_keys(document: dict[str, Any], keys: Iterable[str], *, before: Mapping[str, Any]) -> None:
    """Remove keys from a document that has its variant; raises `ProfileError`.

    One that only the variant removed is no mistake: a sweep has the same options for each of its variants.
    """
    for key in keys:
        if _has(document, key) or not _has(before, key):
            _unset(document, key, where="--unset")


def _has(document: Mapping[str, Any], key: str) -> bool:
    table: Any = document
    for part in key.split("."):
        if not isinstance(table, Mapping) or part not in table:
            return False
        table = table[part]
    return True


def _apply_override(document: dict[str, Any], override: str) -> tuple[list[str], str]:
    """Set a key; its path, and its value as it was typed."""
    key, separator, text = override.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not separator or not all(path):
        raise ProfileError(f"--set {override}: expected key.path=value, such as load.isl=4096")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except UNDECODABLE:
        value = text
    try:
        _assign(document, path, value)
    except ValueError as error:
        raise ProfileError(f"--set {override}: {error}") from None
    return path, text.strip()


def _assign(document: dict[str, Any], path: list[str], value: object) -> None:
    table: Any = document
    for depth, part in enumerate(path):
        known = ".".join(path[:depth])
        if not isinstance(table, dict | list):
            raise ValueError(f"{known} is a value, not a table")
        if isinstance(table, list) and (not part.isdigit() or int(part) >= len(table)):
            raise ValueError(f"{known} has {len(table)} entries, counted from 0; there is no {part!r}")
        index: Any = int(part) if isinstance(table, list) else part
        if depth == len(path) - 1:
            table[index] = value
        else:
            table = table.setdefault(part, {}) if isinstance(table, dict) else table[index]


def _no_such_profile(path: Path) -> str:
    folder = path.parent if path.parent.is_dir() else Path()
    names = [entry.name for entry in folder.glob("*.toml")]
    near = difflib.get_close_matches(path.name, names, n=1)
    if near:
        return f"{path}: no such profile; did you mean {folder / near[0]}?"
    listed = ", ".join(sorted(Path(name).stem for name in names))
    return f"{path}: no such profile" + (f"; {folder} has: {listed}" if listed else "")


def _explain(where: str, details: ErrorDetails) -> str:
    location = [part for part in details["loc"] if not _TYPE.match(str(part))]
    key = ".".join(map(str, location))
    if details["type"] == "extra_forbidden":
        return f"{where}: {key}: unknown key{_nearest(location)}"
    if details["type"] == "missing":
        return f"{where}: {key}: is missing"
    message = details["msg"].removeprefix("Value error, ")
    if details["type"] == "model_type":
        message = f"expected a table, such as [{key}]"
    if not key:
        return f"{where}: {message}"
    shown = ""
    if not isinstance(details["input"], dict | BaseModel):
        try:
            shown = f" = {details['input']!r}"
        except ValueError:
            shown = " = an integer of thousands of digits"
    return f"{where}: {key}{shown}: {message[:1].lower()}{message[1:]}"


def _nearest(location: list[int | str]) -> str:
    parents = [str(part) for part in location[:-1] if not isinstance(part, int)]
    model = tables().get(".".join(parents))
    known = list(model.model_fields) if model is not None else []
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    return f"; did you mean {'.'.join([*parents, near[0]])}?" if near else f"; known keys: {', '.join(known)}"
