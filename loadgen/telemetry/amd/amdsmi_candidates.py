"""The ways to start a child that measures with amdsmi: which wrapper, beside which library.

ROCm ships a wrapper beside its library, and that pair fits by construction; the installed package fits only ROCm 7.0
to 7.2. So ROCm's own comes first unless it has the installed one's version. Invariants: nothing is imported and nothing
loaded here; an option is only a name and the environment that leads a child to it; none is listed twice.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from loadgen.telemetry.amd.amdsmi_library import rocm_version
from loadgen.telemetry.options import BackendOption

_WRAPPER = "share/amd_smi"
_LIBRARY = "lib/libamd_smi.so"


def installed_amdsmi() -> str | None:
    """The version of the amdsmi package in this Python; None if there is none."""
    try:
        return importlib.metadata.version("amdsmi")
    except importlib.metadata.PackageNotFoundError:
        return None


def amdsmi_options(
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    *,
    installed: str | None = None,
    packages: Sequence[str] = tuple(sys.path),
) -> list[BackendOption]:
    """In the order in which to try them: ROCm's own wrappers, and the installed one (of version `installed`).

    `root` stands for the file system in tests; the values of variables are looked up as they are.
    """
    installed = installed or installed_amdsmi()
    roots = list(_rocm_roots(environ, root, packages))
    own = [_own(environ, rocm) for rocm in roots if (rocm / _WRAPPER / "amdsmi").is_dir()]
    if installed is None:
        return own
    libraries = [rocm for rocm in roots if (rocm / _LIBRARY).exists()]
    package = _installed(environ, installed, libraries)
    same = bool(libraries) and _release(rocm_version(libraries[0])) == _release(installed)
    return [package, *own] if same or not own else [*own, package]


def _rocm_roots(environ: Mapping[str, str], root: Path, packages: Sequence[str]) -> Iterator[Path]:
    """Each folder that may hold a ROCm, once: what the variables say, the usual places, Python packages."""
    named = [Path(environ[name]) for name in ("ROCM_HOME", "ROCM_PATH") if environ.get(name)]
    opt = root / "opt"
    usual = [opt / "rocm", *_newest_first(opt.glob("rocm/core-*")), *_newest_first(opt.glob("rocm-*"))]
    bundled = [Path(folder) / "_rocm_sdk_core" for folder in packages]
    seen = set()
    for path in [*named, *usual, *bundled]:
        real = path.resolve()
        if path.is_dir() and real not in seen:
            seen.add(real)
            yield path


def _newest_first(paths: Iterator[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)], reverse=True)


def _own(environ: Mapping[str, str], rocm: Path) -> BackendOption:
    path = os.pathsep.join(filter(None, (str(rocm / _WRAPPER), environ.get("PYTHONPATH", ""))))
    version = rocm_version(rocm)
    return BackendOption(
        name=f"amdsmi of {rocm}",
        backend="amdsmi",
        env={"PYTHONPATH": path, **_library_of(environ, rocm)},
        why=f"the wrapper that ROCm{' ' + version if version else ''} ships beside its library",
    )


def _installed(environ: Mapping[str, str], version: str, libraries: Sequence[Path]) -> BackendOption:
    named = environ.get("ROCM_HOME") or environ.get("ROCM_PATH")
    env = {} if named or not libraries else _library_of(environ, libraries[0])
    beside = f"with the library of ROCm {rocm_version(libraries[0])}".rstrip() if libraries else "no ROCm was found"
    return BackendOption(f"amdsmi {version}", "amdsmi", env=env, why=f"the installed package, {beside}")


def _library_of(environ: Mapping[str, str], rocm: Path) -> dict[str, str]:
    """Lead the wrapper to this ROCm's library; ROCM_HOME, if set, goes before ROCM_PATH."""
    names = ("ROCM_PATH", "ROCM_HOME") if environ.get("ROCM_HOME") else ("ROCM_PATH",)
    return dict.fromkeys(names, str(rocm))


def _release(version: str) -> list[str]:
    """7.0 of 7.0.2: wrappers of one release are alike."""
    return version.split(".")[:2]
