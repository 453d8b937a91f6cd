"""Compiles the stand-ins for the vendors' libraries."""

import shutil
import subprocess
import sys
from pathlib import Path


def build_library(library: Path, source: Path, *flags: str) -> None:
    """With the machine's compiler, or else with the one of the package ziglang, which `make` then installs."""
    found = shutil.which("cc")
    compiler = [found] if found is not None else [sys.executable, "-m", "ziglang", "cc"]
    subprocess.run([*compiler, "-shared", "-fPIC", *flags, "-o", library, source], check=True)
