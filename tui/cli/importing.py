"""What others published: `vramp import` makes a profile of it, `vramp reference` the `[reference]` of one."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx

import loadgen
from loadgen.errors import UNDECODABLE, ProfileError, reported_as
from loadgen.format import counted
from loadgen.masking import masked
from loadgen.places import takes_bytes, write_named
from loadgen.schema.result import SCHEMA, Result
from loadgen.server.recipes.imported import Origin, RecipeChoice, toml_text
from loadgen.server.recipes.read import MAX_BYTES, import_text
from loadgen.server.recipes.reference import reference_of, reference_text
from loadgen.store.foreign.read import TOOLS, read_foreign, records_of
from tui.cli.options import STDOUT, parser_of, print_output, print_status, write_output

_IMPORT_EPILOG = """\
FILE|URL is one of these; - reads standard input:
  a recipe of vllm-project      https://recipes.vllm.ai/openai/gpt-oss-120b --hardware mi300x, or its YAML on GitHub
  rows of InferenceX            configs/amd-master.yaml --row NAME
  a script with a vLLM server   `vllm serve`, its Python module, or `docker run` of its image

The profile goes to stdout, or to --out; what could not be taken over goes to stderr and into the profile's comments.
Nothing of a script is run, and no secret is written. Read a profile before you run it: it names programs and images.

exit codes: 0 done; 1 the profile cannot be written; 2 usage, or nothing to import
"""
_STDIN = "-"
_MAX_REDIRECTS = 3
_TIMEOUT_S = 20.0
_GIT_TIMEOUT_S = 5
_BLOB = re.compile(r"https://github\.com/([^/]+/[^/]+)/(?:blob|raw)/(.+)")
_RAW = re.compile(r"https://raw\.githubusercontent\.com/[^/]+/[^/]+/([0-9a-f]{40})/")
_PAGE = re.compile(r"https://recipes\.vllm\.ai/([^/?#]+/[^/?#]+?)(?:\.json)?/?(?:[?#].*)?")


def import_profile(options: argparse.Namespace) -> int:
    defines = {}
    for text in options.define:
        name, separator, value = text.partition("=")
        if not separator or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ProfileError(f"--define {text}: expected NAME=VALUE, such as TP=8")
        defines[name] = value
    choice = RecipeChoice(
        hardware=options.hardware,
        variant=options.variant,
        strategy=options.strategy,
        features=None if options.features is None else [word for word in options.features.split(",") if word],
        row=options.row,
        defines=defines,
    )
    data, origin = read_source(options.source, choice)
    imported = import_text(data, origin.name, choice)
    for remark in imported.left_out:
        print_status(f"not taken over: {remark}")
    text = toml_text(imported, origin, loadgen.__version__)
    if options.out is None or options.out == STDOUT:
        return print_output(text)
    path = options.out / f"{imported.name}.toml" if options.out.is_dir() else options.out
    with reported_as(f"{path}: the profile cannot be written"):
        if path.exists() and not options.force and not takes_bytes(path):
            raise ProfileError(f"{path}: there is such a file; --force replaces it")
        write_named(path, text.encode())
    print_status(f"profile: {path}")
    return 0


def import_profile_parser() -> argparse.ArgumentParser:
    about = "A profile from a published recipe, a row of a benchmark's configuration, or a command line."
    parser = parser_of("vramp import", about, _IMPORT_EPILOG)
    parser.add_argument("source", metavar="FILE|URL", help="see below")
    parser.add_argument("--hardware", metavar="NAME", help="what to import it for: mi300x, h200, b200, ...")
    parser.add_argument("--variant", metavar="NAME", help="one of a recipe's variants, such as fp8")
    parser.add_argument("--strategy", metavar="NAME", help="one of a recipe's strategies, such as single_node_tep")
    parser.add_argument("--features", metavar="A,B:MODE", help="of a recipe, in place of its own; default: those, too")
    parser.add_argument("--row", metavar="NAME", help="the row of a file that has several")
    parser.add_argument(
        "--define",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a shell variable that a script does not set",
    )
    parser.add_argument("-o", "--out", metavar="PATH", type=Path, help="write it there; into a folder, under its name")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    return parser


def read_source(source: str, choice: RecipeChoice, max_bytes: int = MAX_BYTES) -> tuple[bytes, Origin]:
    """The bytes of a file or a URL, up to one more than `max_bytes`, and their origin; raises `ProfileError`."""
    if "://" in source:
        url = file_url(source, choice)
        data = fetched(url, max_bytes=max_bytes)
        match = _RAW.match(url)
        origin = Origin(url, match[1] if match is not None else "", fetched=datetime.now(UTC).date().isoformat())
    elif source == _STDIN:
        data, origin = sys.stdin.buffer.read(max_bytes + 1), Origin("standard input")
    else:
        path = Path(source)
        try:
            with path.open("rb") as file:
                data = file.read(max_bytes + 1)
        except (OSError, ValueError) as error:
            raise ProfileError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        origin = Origin(source, _commit_of(path, data))
    return data, origin._replace(sha256=hashlib.sha256(data).hexdigest())


def _commit_of(path: Path, data: bytes) -> str:
    """The commit that is checked out where the file is; empty if that is unknown, or the file is another there."""
    git = shutil.which("git")
    if git is None:
        return ""
    command = [git, "-C", str(path.absolute().parent), "rev-parse", "HEAD", f"HEAD:./{path.name}"]
    try:
        found = subprocess.run(command, capture_output=True, check=True, timeout=_GIT_TIMEOUT_S, text=True)
        commit, blob = found.stdout.split()
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    digest = hashlib.new("sha1" if len(blob) == 40 else "sha256", b"blob %d\0" % len(data), usedforsecurity=False)
    digest.update(data)
    return commit if digest.hexdigest() == blob else ""


def file_url(url: str, choice: RecipeChoice) -> str:
    """The URL of the file itself, for the page that shows it on GitHub or on the recipes' site."""
    if match := _BLOB.fullmatch(url):
        return f"https://raw.githubusercontent.com/{match[1]}/{match[2]}"
    if match := _PAGE.fullmatch(url):
        parts = [match[1]]
        parts += ["hw", choice.hardware] if choice.hardware else []
        parts += ["strategies", choice.strategy] if choice.strategy else []
        return f"https://recipes.vllm.ai/{'/'.join(parts)}.json"
    return url


def fetched(url: str, transport: httpx.BaseTransport | None = None, max_bytes: int = MAX_BYTES) -> bytes:
    """What is at this URL, within limits of size and time; raises `ProfileError`."""
    until = time.monotonic() + _TIMEOUT_S
    client = httpx.Client(
        transport=transport,
        timeout=_TIMEOUT_S,
        follow_redirects=True,
        max_redirects=_MAX_REDIRECTS,
        event_hooks={"request": [_require_https]},
    )
    data = bytearray()
    try:
        with client, client.stream("GET", url) as response:
            if not response.is_success:
                raise ProfileError(f"{url}: HTTP {response.status_code}")
            for part in response.iter_bytes():
                data += part
                if len(data) > max_bytes:
                    raise ProfileError(f"{url}: larger than {max_bytes >> 20} MiB, which is nothing that vramp imports")
                if time.monotonic() > until:
                    raise ProfileError(f"{url}: not complete after {_TIMEOUT_S:g} s")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ProfileError(f"{url}: cannot be fetched: {error}") from None
    return bytes(data)


def _require_https(request: httpx.Request) -> None:
    if request.url.scheme != "https":
        raise ProfileError(f"{request.url}: expected https: what is fetched names programs to run")


# `vramp reference`.

_MAX_REFERENCE_BYTES = 64 << 20
_MAX_SCHEMA_AT = 100  # bytes into a result of vramp, whose first key it is
_MAX_VALUES = 200  # characters of a message
_REFERENCE_EPILOG = f"""\
FILE|URL is a file of {TOOLS};
- reads standard input. Rows of InferenceX's API:
  vramp reference 'https://inferencex.semianalysis.com/api/v1/benchmarks?model=...' --where hardware=mi300x ...

The table goes to stdout, to append to a profile that has none: vramp reference rows.json >> my-profile.toml
It names the source, the commit of a file in a git checkout or of a raw URL on GitHub, and how the tool defines its
figures. A run of the profile shows the figures next to its own, at the same load and lengths.

exit codes: 0 done; 1 the table cannot be written; 2 usage, or no figures in the file
"""


def reference(options: argparse.Namespace) -> int:
    data, origin = read_source(options.source, RecipeChoice(), _MAX_REFERENCE_BYTES)
    if len(data) > _MAX_REFERENCE_BYTES:
        limit = f"{_MAX_REFERENCE_BYTES >> 20} MiB"
        raise ProfileError(f"{options.source}: larger than {limit}; keep only the records you need")
    where = {}
    for text in options.where:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ProfileError(f"--where {text}: expected KEY=VALUE, such as precision=fp8")
        where[key] = value
    result = _result(data, origin, where)

    commit = f" at commit {origin.commit}" if origin.commit else ""
    when = f", fetched {origin.fetched}" if origin.fetched else ""
    table = reference_of(result, options.cite or f"{origin.name}{commit}{when}, sha256 {origin.sha256}")
    if not table["points"]:
        raise ProfileError(f"{options.source}: no load with a number of streams or a rate, and figures")
    print_status(f"{counted(len(table['points']), 'load')} with figures, measured by {result.measured_by}")
    return write_output(reference_text(table), options.out)


def reference_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp reference", "What others measured, as the [reference] of a profile.", _REFERENCE_EPILOG)
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
        there = []
        for key in where:
            values = ", ".join(sorted({_text(record[key]) for record in records if key in record}))
            there.append(f"{key} is {values[:_MAX_VALUES]}" if values else f"none has the key {key}")
        raise ProfileError(f"--where {conditions}: no record has this; {'; '.join(there)}")
    return b"\n".join(json.dumps(record).encode() for record in kept)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
