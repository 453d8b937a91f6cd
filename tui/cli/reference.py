"""`vramp reference`: what others measured, as the `[reference]` of a profile."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from loadgen.errors import UNDECODABLE, ProfileError
from loadgen.format import counted
from loadgen.masking import masked
from loadgen.schema.result import SCHEMA, Result
from loadgen.server.recipes.imported import Origin, RecipeChoice
from loadgen.server.recipes.reference import reference_of, reference_text
from loadgen.store.foreign.read import TOOLS, read_foreign, records_of
from tui.cli.importing import read_source
from tui.cli.options import parser_of, print_status, write_output

_MAX_BYTES = 64 << 20
_MAX_SCHEMA_AT = 100  # bytes into a result of vramp, whose first key it is
_MAX_VALUES = 200  # characters of a message
_EPILOG = f"""\
FILE|URL is a file of {TOOLS};
- reads standard input. Rows of InferenceX's API:
  vramp reference 'https://inferencex.semianalysis.com/api/v1/benchmarks?model=...' --where hardware=mi300x ...

The table goes to stdout, to append to a profile that has none: vramp reference rows.json >> my-profile.toml
It names the source, the commit of a file in a git checkout or of a raw URL on GitHub, and how the tool defines its
figures. A run of the profile shows the figures next to its own, at the same load and lengths.

exit codes: 0 done; 1 the table cannot be written; 2 usage, or no figures in the file
"""


def reference(options: argparse.Namespace) -> int:
    data, origin = read_source(options.source, RecipeChoice(), _MAX_BYTES)
    if len(data) > _MAX_BYTES:
        raise ProfileError(f"{options.source}: larger than {_MAX_BYTES >> 20} MiB; keep only the records you need")
    result = _result(data, origin, dict(_condition(text) for text in options.where))
    table = reference_of(result, options.cite or _source_words(origin))
    if not table["points"]:
        raise ProfileError(f"{options.source}: no load with a number of streams or a rate, and figures")
    print_status(f"{counted(len(table['points']), 'load')} with figures, measured by {result.measured_by}")
    return write_output(reference_text(table), options.out)


def reference_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp reference", "What others measured, as the [reference] of a profile.", _EPILOG)
    parser.add_argument("source", metavar="FILE|URL", help="see below")
    parser.add_argument(
        "--where",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="of a file with several records, only those with this value; may be repeated",
    )
    parser.add_argument("--cite", metavar="TEXT", help="the source in words, in place of the file's name and commit")
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, help="write it there")
    return parser


def _condition(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ProfileError(f"--where {text}: expected KEY=VALUE, such as precision=fp8")
    return key, value


def _result(data: bytes, origin: Origin, where: dict[str, str]) -> Result:
    """The result in a file of another tool; raises `ProfileError`."""
    try:
        kept = _selected(data, where) if where else data
        result = read_foreign(kept, origin.name)
    except (*UNDECODABLE, OverflowError) as error:
        raise ProfileError(f"{origin.name}: not a file of {TOOLS}: {error}") from None
    if result is None:
        is_own = SCHEMA.encode() in data[:_MAX_SCHEMA_AT]
        hint = "; a run of vramp is kept for comparisons with `vramp baseline save`" if is_own else ""
        raise ProfileError(f"{origin.name}: not a file of {TOOLS}{hint}")
    return masked(result)  # type: ignore[no-any-return]


def _selected(data: bytes, where: dict[str, str]) -> bytes:
    """The records that have all these values, a line each; raises `ProfileError` if there are none."""
    records = [found for record in records_of(data) if isinstance(found := json.loads(record), dict)]
    kept = [record for record in records if all(_text(record.get(key)) == value for key, value in where.items())]
    if not kept:
        conditions = " ".join(f"{key}={value}" for key, value in where.items())
        there = "; ".join(_values_words(records, key) for key in where)
        raise ProfileError(f"--where {conditions}: no record has this; {there}")
    return b"\n".join(json.dumps(record).encode() for record in kept)


def _values_words(records: list[dict[str, Any]], key: str) -> str:
    values = ", ".join(sorted({_text(record[key]) for record in records if key in record}))
    return f"{key} is {values[:_MAX_VALUES]}" if values else f"none has the key {key}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _source_words(origin: Origin) -> str:
    commit = f" at commit {origin.commit}" if origin.commit else ""
    fetched = f", fetched {origin.fetched}" if origin.fetched else ""
    return f"{origin.name}{commit}{fetched}, sha256 {origin.sha256}"
