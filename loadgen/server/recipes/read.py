"""Recognises what a text is, and imports it: JSON and YAML of the recipes, YAML of InferenceX, or a script.

Pure functions of the text: what is fetched or opened, and where the profile goes, is up to the caller.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from loadgen.errors import UNDECODABLE, ProfileError
from loadgen.profile.document import build_profile, variant_names
from loadgen.server.recipes.commands import import_command
from loadgen.server.recipes.fields import with_text_keys
from loadgen.server.recipes.imported import Choice, Imported
from loadgen.server.recipes.inferencex import import_row, is_rows
from loadgen.server.recipes.recipe import import_merged, import_recipe, is_merged, is_recipe

MAX_BYTES = 1 << 20
_MAX_SCRIPT = 1 << 18  # characters
_MAX_DEPTH = 32  # tables and lists of YAML within each other
_SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is eight times as fast
_HTML = re.compile(r"\s*<(?:!doctype|html|head|body|\?xml)", re.IGNORECASE)
_KEY = re.compile(r"^[\w.-]+:(?:\s|$)", re.MULTILINE)
_BINARY = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


_SCRIPTS = ("sh", "bash", "md", "txt")
_FIELDS = {"--define": "defines"} | {f"--{name}": name for name in ("variant", "strategy", "features", "row")}
_OF_RECIPES = ("variant", "strategy", "features")
_CHOICES: dict[object, tuple[str, ...]] = {
    import_recipe: _OF_RECIPES,
    import_merged: _OF_RECIPES,
    import_row: ("row",),
    import_command: ("defines",),
}
"""Which options mean something for a format, besides the hardware."""


class _NotThis(ProfileError):
    """The text is no JSON, or no YAML of a known kind; without an ending that says so, it may be a script."""


def import_text(data: bytes, name: str, choice: Choice) -> Imported:
    """The profile in a text, by its contents and the ending of its name; raises `ProfileError` for any other text."""
    imported = _imported(_decoded(data, name), name, choice)
    document = {"name": imported.name} | imported.document
    for variant in (None, *variant_names(document)):
        build_profile(document, where=name, variant=variant)
    return imported


def _imported(text: str, name: str, choice: Choice) -> Imported:
    ending = name.rpartition(".")[2].lower()
    if _HTML.match(text):
        raise ProfileError(f"{name}: a page of HTML; give the file itself, such as GitHub's raw one")
    if ending in ("yaml", "yml"):
        return _from_yaml(text, name, choice)
    if ending == "json":
        return _from_json(text, name, choice)
    if ending not in _SCRIPTS and text.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(_NotThis):
            return _from_json(text, name, choice)
    if ending not in _SCRIPTS and _KEY.search(text):
        with contextlib.suppress(_NotThis):
            return _from_yaml(text, name, choice)
    if len(text) > _MAX_SCRIPT:
        raise ProfileError(f"{name}: more than {_MAX_SCRIPT >> 10} KiB, which is no script with a command")
    return _explained(name, import_command, text, choice)


def _from_json(text: str, name: str, choice: Choice) -> Imported:
    try:
        document = json.loads(text)
    except UNDECODABLE as error:
        raise _NotThis(f"{name}: not valid JSON: {error}") from None
    if not isinstance(document, Mapping) or not is_merged(document):
        raise ProfileError(f"{name}: JSON, but not of recipes.vllm.ai for a model and its hardware")
    return _explained(name, import_merged, document, choice)


def _from_yaml(text: str, name: str, choice: Choice) -> Imported:
    try:
        _require_shallow(text)
        document = with_text_keys(yaml.load(text, Loader=_SAFE))  # noqa: S506 - it is the safe one
    except (yaml.YAMLError, *UNDECODABLE) as error:
        raise _NotThis(f"{name}: not valid YAML: {' '.join(str(error).split())[:300]}") from None
    if isinstance(document, Mapping) and is_recipe(document):
        return _explained(name, import_recipe, document, choice)
    if isinstance(document, Mapping) and is_rows(document):
        return _explained(name, import_row, document, choice)
    raise _NotThis(f"{name}: YAML, but neither a recipe of vllm-project nor rows of InferenceX")


def _require_shallow(text: str) -> None:
    """Raise `ValueError` before a parser gets lost in what is nested without end."""
    depth = 0
    for token in yaml.scan(text, Loader=_SAFE):
        name = type(token).__name__
        depth += name.endswith("StartToken") - name.endswith("EndToken")
        if depth > _MAX_DEPTH:
            raise ValueError(f"more than {_MAX_DEPTH} tables or lists within each other")


def _explained(name: str, convert: Any, source: object, choice: Choice) -> Imported:  # noqa: ANN401 - one of three
    for option, field in _FIELDS.items():
        if getattr(choice, field) and field not in _CHOICES[convert]:
            raise ProfileError(f"{name}: {option}: there is nothing of this to choose in it")
    try:
        imported: Imported = convert(source, choice)
    except ProfileError as error:
        raise ProfileError(f"{name}: {error}") from None
    return imported


def _decoded(data: bytes, name: str) -> str:
    if len(data) > MAX_BYTES:
        raise ProfileError(f"{name}: larger than {MAX_BYTES >> 20} MiB, which is no recipe")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ProfileError(f"{name}: not UTF-8 text") from None
    if _BINARY.search(text):
        raise ProfileError(f"{name}: it has control characters, so it is no text")
    return text
