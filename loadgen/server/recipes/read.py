"""Recognises what a text is, and imports it: JSON and YAML of the recipes, YAML of InferenceX, or a script.

Pure functions of the text: what is fetched or opened, and where the profile goes, is up to the caller.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import yaml

from loadgen.errors import UNDECODABLE, ProfileError
from loadgen.profile.document import build_profile, variant_names
from loadgen.server.recipes.commands import import_command
from loadgen.server.recipes.fields import with_text_keys
from loadgen.server.recipes.imported import Imported, RecipeChoice
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
_YAML = ("yaml", "yml")
_OPTIONS = {"--define": "defines"} | {f"--{name}": name for name in ("variant", "strategy", "features", "row")}
_OF_RECIPES = ("variant", "strategy", "features")
_FORMATS = (
    (is_merged, import_merged, _OF_RECIPES),
    (is_recipe, import_recipe, _OF_RECIPES),
    (is_rows, import_row, ("row",)),
)
"""How documents are recognised and imported, and which options mean something for them, besides the hardware."""


def import_text(data: bytes, name: str, choice: RecipeChoice) -> Imported:
    """The profile in a text, by its contents and the ending of its name; raises `ProfileError` for any other text."""
    try:
        if len(data) > MAX_BYTES:
            raise ProfileError(f"larger than {MAX_BYTES >> 20} MiB, which is no recipe")
        text = data.decode("utf-8-sig")
        if _BINARY.search(text):
            raise ProfileError("it has control characters, so it is no text")
        imported = _imported(text, name.rpartition(".")[2].lower(), choice)
    except UnicodeDecodeError:
        raise ProfileError(f"{name}: not UTF-8 text") from None
    except ProfileError as error:
        raise ProfileError(f"{name}: {error}") from None
    document = {"name": imported.name} | imported.document
    for variant in (None, *variant_names(document)):
        build_profile(document, where=name, variant=variant)
    return imported


def _imported(text: str, ending: str, choice: RecipeChoice) -> Imported:
    if _HTML.match(text):
        raise ProfileError("a page of HTML; give the file itself, such as GitHub's raw one")
    is_json = ending == "json" or (ending not in (*_SCRIPTS, *_YAML) and text.lstrip()[:1] in ("{", "["))
    is_yaml = ending in _YAML or (ending not in (*_SCRIPTS, "json") and _KEY.search(text) is not None)
    try:
        document = json.loads(text) if is_json else None
        if is_yaml and not is_json:
            _require_shallow(text)
            document = with_text_keys(yaml.load(text, Loader=_SAFE), {})  # noqa: S506 - it is the safe one
    except (yaml.YAMLError, *UNDECODABLE) as error:
        if ending in ("json", *_YAML):
            reason = " ".join(str(error).split())[:300]
            raise ProfileError(f"not valid {'JSON' if is_json else 'YAML'}: {reason}") from None
        document = None
    for recognises, convert, options in _FORMATS:
        if isinstance(document, Mapping) and recognises(document):
            _require_meaningful(choice, options)
            return convert(document, choice)
    if ending in ("json", *_YAML) or (is_json and document is not None):
        raise ProfileError("neither a recipe of vllm-project or recipes.vllm.ai nor rows of InferenceX")
    if len(text) > _MAX_SCRIPT:
        raise ProfileError(f"more than {_MAX_SCRIPT >> 10} KiB, which is no script with a command")
    _require_meaningful(choice, ("defines",))
    return import_command(text, choice)


def _require_shallow(text: str) -> None:
    """Raise `ValueError` before a parser gets lost in what is nested without end."""
    depth = 0
    for token in yaml.scan(text, Loader=_SAFE):
        name = type(token).__name__
        depth += name.endswith("StartToken") - name.endswith("EndToken")
        if depth > _MAX_DEPTH:
            raise ValueError(f"more than {_MAX_DEPTH} tables or lists within each other")


def _require_meaningful(choice: RecipeChoice, fields: tuple[str, ...]) -> None:
    for option, field in _OPTIONS.items():
        if getattr(choice, field) and field not in fields:
            raise ProfileError(f"{option}: there is nothing of this to choose in it")
