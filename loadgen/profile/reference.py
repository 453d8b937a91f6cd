"""Writes `docs/profile.md`, the reference of all profile keys, from the types, defaults and docstrings of the fields.

The docstrings are read from the source here, not by pydantic, which would do so at every start of every process.
"""

from __future__ import annotations

import ast
import inspect
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from loadgen import distributions
from loadgen.profile.load import Load, StageSettings
from loadgen.profile.schema import tables

_PAGE = Path("docs/profile.md")
_LISTS = ("stages", "reference.points", "reference.ratios", "accept.criteria")  # arrays of tables
_HEAD = """\
# Profile reference

<!-- Made by `make docs` from the fields in loadgen/profile and their docstrings: change them there. -->

A profile is a TOML file that says how the server starts or where it is, what load to send, and what to expect. Only
`server.engine` is required, plus `model` or `url` where the engine needs one. `vramp check PROFILE` validates a profile
without starting anything.

- An unknown key is refused, with the nearest known key as a suggestion. So is a value of the wrong type, with the file
  and the key.
- `--set load.isl=4096` overrides any key on the command line. The file applies first, then its variant, then overrides.
- `--unset server.args.max-num-seqs` leaves a key out. `--set server.env.X=1` sets the text `1`: variables
  are text.
- A duration is a number of seconds, or text with a unit: `30`, `"500ms"`, `"30s"`, `"2m"`, `"1h"`.
- `concurrency` is a closed loop: vramp holds that many streams open. `rate` is an open loop: requests are sent when
  they are due, whatever the server does.
- A key without a default can be left out; its description says what happens then.

The profiles that ship with vramp contain examples of nearly every key. [Loads and searches](loads.md) explains what the
loads and searches do.
"""
_LENGTHS = """
## Lengths

`isl` and `osl` take one of these:

```text
{grammar}
```
"""
_VARIANTS = """
## `[variants.NAME]`

A variant is written like a profile and merged into it: tables are merged, any other value replaces the profile's, and
the list `unset` removes keys. `vramp PROFILE --variant NAME` runs one variant, `vramp sweep PROFILE` runs all of them.

```toml
[variants.latency]
description = "one stream at a time"
unset = ["server.args.max-num-seqs"]
load.concurrency = 1
```
"""


def profile_reference() -> str:
    grammar = "\n".join(line.strip() for line in (distributions.__doc__ or "").splitlines() if line.startswith("    "))
    sections = [_section(path, model) for path, model in tables().items()]
    return "".join([_HEAD, *sections, _VARIANTS, _LENGTHS.format(grammar=grammar)])


def _section(path: str, model: type[BaseModel]) -> str:
    title = f"`{_heading(path)}`" if path else "The top of the file"
    nodes, meanings = model.model_json_schema()["properties"], _meanings(model)
    rows = []
    for name, field in model.model_fields.items():
        if name not in meanings and (model is not StageSettings or name not in Load.model_fields):
            raise ValueError(f"{model.__name__}.{name}: has no description; write a docstring under the field")
        meaning = meanings.get(name, "As in [`[load]`](#load).")
        cells = (f"`{name}`", _kind(nodes[name], path, name), _default(field, nodes[name]), meaning)
        rows.append(f"| {' | '.join(cells)} |\n")
    head = "| Key | Value | Default | Meaning |\n|---|---|---|---|\n"
    return f"\n## {title}\n\n{inspect.cleandoc(model.__doc__ or '')}\n\n{head}{''.join(rows)}"


def _heading(*path: str) -> str:
    """A table's name as the file writes it: `[load.prefix]`, `[[stages]]`."""
    dotted = ".".join(filter(None, path))
    return f"[[{dotted}]]" if dotted in _LISTS else f"[{dotted}]"


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """The docstring under each field."""
    (parsed,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(parsed, ast.ClassDef)
    return {
        field.target.id: " ".join(str(doc.value.value).split())
        for field, doc in pairwise(parsed.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
    }


def _kind(node: dict[str, Any], path: str, name: str) -> str:
    """What a value may be: its type and bounds, or its choices."""
    if "format" in node:
        return str(node["format"])
    if "enum" in node:
        return ", ".join(f'`"{choice}"`' for choice in node["enum"])
    if "$ref" in node:
        return f"table `{_heading(path, name)}`"
    if "anyOf" in node:
        kinds = dict.fromkeys(_kind(part, path, name) for part in node["anyOf"] if part.get("type") != "null")
        return " or ".join(kinds)
    match node.get("type"):
        case "array" if "prefixItems" in node:
            return f"[{', '.join(_kind(part, path, name) for part in node['prefixItems'])}]"
        case "array" if "$ref" in node["items"]:
            return f"tables `{_heading(path, name)}`"
        case "array":
            return f"list of {_kind(node['items'], path, name)}" if node.get("items") else "list"
        case "object":
            values = node.get("additionalProperties")
            return f"table of {_kind(values, path, name)}" if isinstance(values, dict) and values else "table"
        case "string":
            return "text"
        case str() as kind:
            words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
            for bound, word in words.items():
                if (value := node.get(bound)) is not None:
                    number = f"2^{int(value).bit_length() - 1}" if value > 1e15 else f"{value:,}".removesuffix(".0")
                    kind += f" {word} {number}"
            return kind
    return "anything"


def _default(field: FieldInfo, node: dict[str, Any]) -> str:
    if field.is_required():
        return "required"
    if field.default is None or isinstance(field.default, BaseModel) or field.default == "":
        return ""
    text = json.dumps(field.default)
    if str(node.get("format", "")).startswith("duration"):
        text = f'"{field.default:g}s"'
    return f"`{text}`"


if __name__ == "__main__":
    _PAGE.write_text(profile_reference(), encoding="utf-8")
