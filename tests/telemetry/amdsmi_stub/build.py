"""Builds the stub into a folder that looks like a ROCm: lib/libamd_smi.so and .info/version."""

import subprocess
import sys
from pathlib import Path

from tests.c_library import build_library

_HERE = Path(__file__).parent


def build_rocm(folder: Path, *, version: str = "7.0.2", without: str | None = None) -> Path:
    """A ROCm whose library has every symbol that the installed wrapper binds, or all but one."""
    generated = folder / "generated"
    generated.mkdir(parents=True)
    layout = subprocess.run(
        [sys.executable, _HERE / "layout.py", _HERE / "stub.c"], capture_output=True, text=True, check=True
    ).stdout
    (generated / "layout.h").write_text(layout)
    (folder / "lib").mkdir()
    library = folder / "lib/libamd_smi.so"
    renamed = [f"-D{without}=renamed_away"] if without else []
    build_library(library, _HERE / "stub.c", "-O1", "-Wall", "-Wno-unused-variable", f"-I{generated}", *renamed)
    (folder / ".info").mkdir()
    (folder / ".info/version").write_text(f"{version}-56\n")
    return folder
