"""What an import consists of, and its text: a profile in TOML that says where it comes from and what is missing.

Texts from outside get into the TOML only as quoted strings, and into comments only as one harmless line.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from loadgen.format import plain
from loadgen.masking import learn, masked, masked_text
from loadgen.server.vllm.flags import integer
from loadgen.vendors import AMD, NVIDIA, Platform

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_LITERAL = re.compile(r"[^'\x00-\x1f\x7f]*")  # what TOML takes between single quotes
_SURROGATE = re.compile("[\ud800-\udfff]")
_HARMLESS = ("", "true", "false", "none")
_WIDTH = 116
_ISL, _OSL, _LADDER = 1024, 256, [1, 4, 16, 64]


class RecipeChoice(msgspec.Struct, frozen=True):
    """What to import of a source that offers several."""

    hardware: str | None = None
    variant: str | None = None
    strategy: str | None = None
    features: list[str] | None = None
    row: str | None = None
    defines: dict[str, str] = {}
    """Values for the shell variables of a command that the script itself does not set."""


class Origin(NamedTuple):
    name: str  # a path or a URL
    commit: str = ""
    sha256: str = ""
    fetched: str = ""  # the date, for a URL


class Imported(msgspec.Struct):
    """A profile before it is written."""

    kind: str  # what the source is, in words
    name: str
    document: dict[str, Any]
    notes: list[str] = []  # what the source says beyond the keys of a profile
    left_out: list[str] = []  # what was not taken over, and why


def is_secret(name: str, value: str) -> bool:
    """Whether a value must not be written, by its name or its form; from then on it is masked in messages, too."""
    if value.lower() in _HARMLESS or masked(value, name) == value:  # a `pass_config` is no password
        return False
    learn({name: value})
    return True


def environment(variables: Mapping[str, object], left_out: list[str]) -> dict[str, str]:
    """The variables that may be written."""
    kept = {}
    for name, value in variables.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if not _NAME.fullmatch(str(name)):
            left_out.append(f"variable {name!s:.40}: not a variable's name")
        elif is_secret(str(name), text):
            left_out.append(f"the value of {name}, a secret; the server has it if vramp's environment does")
        else:
            kept[str(name)] = text
    return kept


def default_load(args: Mapping[str, Any]) -> dict[str, Any]:
    """A modest ladder for a source without a load, within the server's context."""
    context = integer(args.get("max-model-len"))  # None for -1, too: vLLM takes what fits
    isl, osl = _ISL, _OSL
    if context is not None and 0 < context < isl + osl:
        isl, osl = max(context // 2, 1), max(context // 4, 1)
    return {"isl": isl, "osl": osl, "concurrency": list(_LADDER)}


def docker_variant(image: str, platform: Platform | None) -> dict[str, Any]:
    """The variant that starts the server in an image of vLLM, whose entry point is the server."""
    table: dict[str, Any] = {"image": image, "serve": []}
    if platform == AMD.platform:
        table |= {"devices": ["/dev/kfd", "/dev/dri"], "groups": ["video"], "security_options": ["seccomp=unconfined"]}
    elif platform == NVIDIA.platform:
        table["gpus"] = "all"
    table |= {"ipc": "host", "mounts": ["~/.cache/huggingface:/root/.cache/huggingface"]}
    return {"docker": {"server": {"engine": "docker", "docker": table}}}


def profile_name(*parts: str) -> str:
    """A name for the profile and its file, from those parts that are there."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", "-".join(filter(None, parts))).strip("-.")[:80] or "imported"


def toml_text(imported: Imported, origin: Origin, version: str) -> str:
    """The profile as a file: its origin and what is missing in comments, then its tables."""
    fetched = f", fetched {origin.fetched}" if origin.fetched else ""
    commit = f" at commit {origin.commit}" if origin.commit else ""
    lines = list(_comment(f"Imported by vramp {version} from {origin.name}{commit}{fetched}: {imported.kind}."))
    for title, entries in (("Of the source:", imported.notes), ("Not taken over:", imported.left_out)):
        lines += [*_comment(title)] if entries else []
        lines += [line for entry in entries for line in _comment(entry, "- ")]
    recipe = {"source": origin.name, "commit": origin.commit, "sha256": origin.sha256}
    given = {key: _SURROGATE.sub("?", plain(masked_text(value))) for key, value in recipe.items() if value}
    return "\n".join([*lines, *table_lines("", imported.document | {"recipe": given})]) + "\n"


def _comment(text: str, mark: str = "") -> Iterator[str]:
    shown = _SURROGATE.sub("?", plain(masked_text(text)))
    for number, line in enumerate(textwrap.wrap(shown, _WIDTH - len(mark), break_on_hyphens=False)):
        yield f"# {mark if number == 0 else ' ' * len(mark)}{line}"


def table_lines(path: str, table: Mapping[str, Any], header: str = "") -> Iterator[str]:
    """First the values of a table, then its tables: after a header, TOML has no way back."""
    nested = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            nested[key] = [value]
        elif isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
            nested[key] = value
    if header and (len(nested) < len(table) or not table):
        yield from ("", header)
    yield from (f"{_key(key)} = {_value(value)}" for key, value in table.items() if key not in nested)
    for key, entries in nested.items():
        below = f"{path}{_key(key)}"
        for entry in entries:
            yield from table_lines(f"{below}.", entry, f"[[{below}]]" if entries is table[key] else f"[{below}]")


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _value(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_value, value))}]"
    text = _SURROGATE.sub("?", str(value))
    if '"' in text and _LITERAL.fullmatch(text):
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
