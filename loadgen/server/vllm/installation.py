"""What a vLLM installation supports: the flags of `vllm serve` and the environment variables that it reads.

Both change with every release, and vLLM takes ten seconds to report an unknown flag. So an installation is queried
once: its own Python imports it and describes the real parser; the answer is cached until the installation changes.
Installations that cannot be queried (in a container, on another machine) are judged by records, made with

    python -m loadgen.server.vllm.installation PYTHON > loadgen/server/vllm/installations/VERSION.json

where PYTHON belongs to an installation. A version without a build for this machine is recorded from its wheel: unpack
it into a folder, name that folder in PYTHONPATH, and let PYTHON belong to the version before. The records are of the
CPU build; the ROCm and CUDA builds have the same parser and read the same variables.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import signal
import sys
import textwrap
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from loadgen.errors import UNDECODABLE, ServerError
from loadgen.places import expanded, home_folder, write_whole
from loadgen.server.process.log import clean_line, telling_lines

_RECORDED = Path(__file__).parent / "installations"
_FORMAT = 2  # part of the cache's key: raise it when Installation or the script below changes
_ANSWER = b"vramp-installation "
_ASK_TIMEOUT_S = 180.0

# A flag takes JSON if its type turns an empty JSON object into something other than text or a list.
_SCRIPT = """
import json, sys
import vllm, vllm.envs
from vllm.entrypoints.cli import serve

def made(action, text):
    try:
        return action.type(text)
    except Exception:
        return None

def takes_json(action):
    return not isinstance(made(action, "{}"), (str, list, type(None)))

def in_any_case(action):
    return any(made(action, choice.upper()) == choice != choice.upper() for choice in map(str, action.choices or []))

def takes(action):
    return {None: "one", 0: "nothing", "?": "optional"}.get(action.nargs, "several")

def described(action):
    return {
        "names": accepted[action],
        "takes": takes(action),
        "repeats": "Append" in type(action).__name__,
        "json": takes_json(action),
        "choices": [str(choice) for choice in action.choices or []],
        "any_case": in_any_case(action),
    }

def key(action):
    return next((name[2:] for name in accepted.get(action, []) if name.startswith("--")), None)

parser = serve.ServeSubcommand().subparser_init(serve.FlexibleArgumentParser().add_subparsers())
accepted = {}  # since 0.33 an action's own option_strings lack those that the help does not show
for name, action in parser._option_string_actions.items():
    accepted.setdefault(action, []).append(name)
flags = {key(action): described(action) for action in parser._actions if key(action)}
answer = {"version": vllm.__version__, "flags": flags, "variables": sorted(vllm.envs.environment_variables)}
sys.stdout.write("\\nvramp-installation " + json.dumps(answer) + "\\n")
"""


class FlagInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    names: list[str]  # every spelling, with dashes: `--enable-lora`, `--no-enable-lora`, `-tp`
    takes: Literal["nothing", "one", "optional", "several"] = "one"
    repeats: bool = False  # it may be given several times, with one value each
    json: bool = False
    choices: list[str] = []
    any_case: bool = False  # its choices also accept capitals, and dashes for underscores


class Installation(msgspec.Struct, frozen=True):
    version: str
    flags: dict[str, FlagInfo]  # by long name without dashes: `max-model-len`
    variables: list[str]


def recorded_versions() -> list[str]:
    from packaging.version import Version  # not before the first frame

    return sorted((path.stem for path in _RECORDED.glob("*.json")), key=Version)


def recorded_installation(version: str) -> Installation:
    """The recorded installation of a version, `0.32.0` or `0.32.0+rocm`; raises `ServerError` if there is none."""
    release = version.partition("+")[0]
    if release not in recorded_versions():
        raise ServerError(f"vLLM {version}: its flags are not recorded; there are: {', '.join(recorded_versions())}")
    return msgspec.json.decode((_RECORDED / f"{release}.json").read_bytes(), type=Installation)


def record_of(known: Installation) -> str:
    """The text of a record: JSON with a line per flag, and wrapped variables: `diff` shows what a version changed."""
    flags = ",\n".join(f"{_json(name)}: {_json(info)}" for name, info in known.flags.items())
    variables = textwrap.fill(", ".join(map(_json, known.variables)), 120)
    return f'{{"version": {_json(known.version)},\n"flags": {{\n{flags}\n}},\n"variables": [\n{variables}\n]}}\n'


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def newest_recorded() -> Installation:
    return recorded_installation(recorded_versions()[-1])


def python_of(command: str) -> Path | None:
    """The Python that runs a `vllm` command; None if unknown.

    `command` is a path, a name on PATH, or the folder of a Python environment.
    """
    path = Path(expanded(command))
    if os.path.isdir(path):  # noqa: PTH112 - `Path.is_dir` raises for what no file can be called
        path = path / "bin" / "vllm"
    search = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    found = shutil.which(path, path=search)
    if found is None:
        return None
    executable = Path(found).absolute()
    named = _interpreter(executable)
    siblings = (executable.parent / name for name in ("python3", "python"))
    candidates = [named] if named else [python for python in siblings if next(_installed(python), None)]
    return next((python for python in candidates if os.access(python, os.X_OK)), None)


def installed_version(python: Path) -> str | None:
    """The version of this Python's vLLM from its metadata, without importing it; None if it has no vLLM."""
    metadata = next(_installed(python), None)
    return None if metadata is None else metadata.name.removesuffix(".dist-info").partition("-")[2]


async def ask_installation(python: Path, *, cache: Path, timeout_s: float = _ASK_TIMEOUT_S) -> Installation:
    """What this Python's vLLM supports, from `cache` if it was queried before.

    Takes milliseconds or, the first time, as long as importing vLLM. Raises `ServerError` if the query fails.
    """
    entry = _cache_entry(python, cache)
    if entry is None:
        return await _requested(python, timeout_s)
    with contextlib.suppress(OSError, *UNDECODABLE):  # missing or incomplete: query again
        return msgspec.json.decode(entry.read_bytes(), type=Installation)
    known = await _requested(python, timeout_s)
    with contextlib.suppress(OSError):  # it will be queried again next time
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(entry, msgspec.json.encode(known))
    return known


def _interpreter(executable: Path) -> Path | None:
    """The Python in a script's shebang, also in the form used for paths too long for one."""
    try:
        with executable.open("rb") as file:
            head = file.read(2000)
    except OSError:
        return None  # executable but not readable
    match = re.match(rb"#!\s*(\S*python[\d.]*)\s|#!/bin/sh\n'''exec' \"?(\S*?python[\d.]*)\"? ", head)
    if match is not None:
        return Path(os.fsdecode(match[1] or match[2]))
    match = re.match(rb"#!\s*/usr/bin/env\s+(?:-S\s+)?(python[\d.]*)\s", head)
    found = shutil.which(os.fsdecode(match[1])) if match is not None else None
    return Path(found) if found else None


def _installed(python: Path) -> Iterator[Path]:
    """The metadata folders of vLLM on this Python's search path."""
    root = python.absolute().parent.parent  # not resolved: the python of a virtual environment is a link
    for base in (root, root / "local", home_folder() / ".local"):
        for packages in ("site-packages", "dist-packages"):
            yield from base.glob(f"lib*/python3*/{packages}/vllm-*.dist-info")


def _cache_entry(python: Path, cache: Path) -> Path | None:
    """The cache file for this installation in its present state; None if changes to it could go unnoticed."""
    stamps = [str(_FORMAT), str(python.absolute())]
    for metadata in sorted(_installed(python)):
        # Not the folder: its time also changes when the first import writes bytecode there.
        package = metadata.with_name("vllm") / "__init__.py"
        if not package.is_file():
            return None  # an editable installation: its code is elsewhere and changes unnoticed
        stamps += [f"{path} {path.stat().st_mtime_ns}" for path in (metadata, package)]
    if len(stamps) == 2:
        return None
    return cache / f"{hashlib.sha256(chr(10).join(stamps).encode()).hexdigest()[:24]}.json"


async def _requested(python: Path, timeout_s: float) -> Installation:
    """Query the vLLM of this Python, in a process that imports it offline from an empty folder."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = (os.path.abspath(python), "-c", _SCRIPT)  # noqa: ASYNC240, PTH100 - touches no disk, follows no link
    try:
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, cwd="/", stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
    except OSError as error:
        raise ServerError(f"{python}: cannot be run to query its vLLM: {error.strerror}") from None
    try:
        async with asyncio.timeout(timeout_s):
            output, log = await process.communicate()
    except TimeoutError:
        raise ServerError(f"{python}: its vLLM did not describe its flags within {timeout_s:g} s") from None
    finally:
        if process.returncode is None:  # end everything that it started: it has a process group of its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
    answers = [line for line in output.splitlines() if line.startswith(_ANSWER)]
    try:
        return msgspec.json.decode(answers[-1].removeprefix(_ANSWER), type=Installation)
    except (IndexError, *UNDECODABLE):
        why = telling_lines([clean_line(line) for line in log.splitlines()], limit=1)
        raise ServerError(f"{python}: its vLLM could not be queried: {' '.join(why) or 'no answer'}") from None


if __name__ == "__main__":
    try:
        sys.stdout.write(record_of(asyncio.run(_requested(Path(sys.argv[1]), _ASK_TIMEOUT_S))))
    except ServerError as error:
        sys.exit(f"error: {error}")
