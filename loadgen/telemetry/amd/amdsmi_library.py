"""The amdsmi wrapper and its library: imported, checked for compatibility, and called.

The wrapper binds every symbol of the library at import and lays out its structures by hand, so mismatched versions fail
in strange ways (KeyError, AttributeError), or worse, the library writes beyond the end of a structure. Invariants: a
pair is used only if it is known to match; buffers that the library fills have spare room, so that a structure that grew
within a major version overruns nothing; what the wrapper prints during import goes to fd 2.

ROCm ships a wrapper next to its library, and that pair matches by construction; the installed package matches only ROCm
7.0 to 7.2. So `amdsmi_options` puts ROCm's own first unless the installed one has its version; it imports and loads
nothing, and lists none twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.errors import TelemetryError
from loadgen.telemetry.amd.kernel import rocm_version
from loadgen.telemetry.backends import BackendOption, package_version
from loadgen.telemetry.readings import ODD_FAILURES, Missing

_WRAPPER = "share/amd_smi"
_ROOM_BYTES = 32 * 1024  # many times the largest known table, 3.9 kB
_STABLE_MAJOR = 26  # within it, the fields that are read did not move: structures only grew at their end
_LIBRARY_OF = {(7, 0): (26, 0), (7, 1): (26, 1), (7, 2): (26, 2), (7, 13): (26, 4), (7, 14): (26, 5)}
"""The library version for a wrapper that is numbered like ROCm; ROCm's own wrappers are numbered like the library."""
_LIBRARY_NUMBERED = 20
_ADVICE = {
    "DRIVER_NOT_LOADED": "load the amdgpu driver; in a container, pass /dev/kfd and /dev/dri",
    "NO_DRV": "load the amdgpu driver; in a container, pass /dev/kfd and /dev/dri",
    "NO_PERM": "add this user to the groups render and video",
    "BUSY": "another program holds the devices; try again",
}


@dataclass(frozen=True, slots=True)
class AmdsmiFacts:
    """Facts about wrapper and library that are known without calling them."""

    wrapper: str  # its version; empty if unknown
    wrapper_path: str
    library_path: str
    rocm: str  # the version of the ROCm that the library belongs to; empty if unknown

    def __str__(self) -> str:
        return f"amdsmi {self.wrapper or 'of unknown version'}"


@dataclass(frozen=True, slots=True)
class Library:
    module: Any
    wrapper: Any
    found: AmdsmiFacts
    version: tuple[int, int, int]

    @property
    def tells_partitions(self) -> bool:
        """Whether the partitions' part of the table is where the wrapper expects it, as later tables have grown."""
        made_for = _made_for(self.found.wrapper)
        return made_for == self.version[:2] or (made_for is not None and max(made_for, self.version[:2]) <= (26, 2))

    def ask(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - each function has an answer of its own
        """The value of an interface function, or `Missing` with its status."""
        function = getattr(self.module, name, None)
        if function is None:
            return Missing(f"{self.found} has no {name}")
        try:
            return function(*arguments)
        except self.module.AmdSmiException as error:
            return Missing(status_of(error))
        except ODD_FAILURES as error:  # such as for a value that the wrapper does not know
            return Missing(f"{name}: {type(error).__name__} {error}")

    def gpu_metrics(self, handle: object) -> ctypes.Structure | Missing:
        """The metrics table by the raw call; the interface's function is slower and leaves no spare room."""
        try:
            table = _roomy(self.wrapper.amdsmi_gpu_metrics_t)
            status = self.wrapper.amdsmi_get_gpu_metrics_info(handle, ctypes.byref(table))
        except ODD_FAILURES as error:
            return Missing(f"amdsmi_get_gpu_metrics_info: {type(error).__name__} {error}")
        return Missing(status_of(self.module.AmdSmiLibraryException(status))) if status else table

    def close(self) -> None:
        self.ask("amdsmi_shut_down")


def open_library() -> Library:
    """Import and initialise; raises `TelemetryError` with the exact mismatch or status."""
    try:
        with _stdout_to_stderr():
            module = importlib.import_module("amdsmi")
    except ModuleNotFoundError as error:
        raise TelemetryError(f"The Python package {error.name} is not installed: pip install amdsmi") from error
    except (KeyError, AttributeError, ImportError, OSError) as error:
        raise TelemetryError(_why_not(error)) from error
    found = _find()
    wrapper = importlib.import_module("amdsmi.amdsmi_wrapper")
    try:
        module.amdsmi_init()
        reported = _roomy(wrapper.amdsmi_version_t)
        failed = wrapper.amdsmi_get_lib_version(ctypes.byref(reported))
    except module.AmdSmiException as error:
        status = status_of(error)
        advice = f": {_ADVICE[status]}" if status in _ADVICE else ""
        raise TelemetryError(f"amdsmi_init of {found} says {status}{advice}") from error
    except ODD_FAILURES as error:  # newer wrappers load the library at the first call
        raise TelemetryError(_why_not(error)) from error
    if failed:
        raise TelemetryError(f"amdsmi_get_lib_version gave status {failed}: compatibility cannot be checked")
    version = (reported.major, reported.minor, reported.release)
    problem = mismatch(found, version)
    if problem:
        raise TelemetryError(problem)
    return Library(module, wrapper, found, version)


def mismatch(found: AmdsmiFacts, library: tuple[int, int, int]) -> str | None:
    """Why this wrapper must not be used with this library; None if they match."""
    made_for = _made_for(found.wrapper)
    if made_for and (made_for == library[:2] or made_for[0] == library[0] == _STABLE_MAJOR):
        return None
    of_rocm = f" of ROCm {found.rocm}" if found.rocm else ""
    return f"{_needs(found)}, found library {'.'.join(map(str, library))}{of_rocm}: {_remedy(found)}"


def _made_for(wrapper: str) -> tuple[int, int] | None:
    """Major and minor version of the library that a wrapper was made for; None if unknown."""
    match = re.match(r"(\d+)\.(\d+)", wrapper)
    if not match:
        return None
    own = (int(match[1]), int(match[2]))
    return own if own[0] >= _LIBRARY_NUMBERED else _LIBRARY_OF.get(own)


def status_of(error: Exception) -> str:
    """The name of the status that the library returned, such as NOT_SUPPORTED."""
    info = getattr(error, "get_error_info", None)
    words = str(info(False) if info else error).split() or [type(error).__name__]
    return words[0].removeprefix("AMDSMI_STATUS_")


def _why_not(error: Exception) -> str:
    found = _find()
    if not found.library_path:
        where = os.environ.get("ROCM_HOME") or os.environ.get("ROCM_PATH") or "/opt/rocm"
        return (
            f"{found} finds no libamd_smi.so (in {where}/lib and by the dynamic linker): "
            "install amd-smi-lib, or set ROCM_PATH"
        )
    symbol = re.search(r"undefined symbol: (\w+)", str(error))
    what = f"the library has no {symbol[1]}" if symbol else f"{type(error).__name__} {error}"
    return f"{_needs(found)}, found {found.rocm or found.library_path}: {what}; {_remedy(found)}"


def _needs(found: AmdsmiFacts) -> str:
    if found.wrapper.startswith("7.0."):
        return f"{found} needs ROCm 7.0 to 7.2"
    made_for = _made_for(found.wrapper)
    return f"{found} needs library {made_for[0]}.{made_for[1]}" if made_for else f"{found} fits no library known"


def _remedy(found: AmdsmiFacts) -> str:
    return f"use the wrapper next to the library, PYTHONPATH={Path(found.library_path).parent.parent}/share/amd_smi"


def _find() -> AmdsmiFacts:
    spec = importlib.util.find_spec("amdsmi")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    version = None
    if folder:
        with contextlib.suppress(OSError):
            version = re.search(r"""__version__\s*=\s*["']([^"']+)""", (folder / "_version.py").read_text())
    # ctypes keeps a loaded library even if binding its symbols failed.
    loaded = re.search(r"/.*libamd_smi.*", Path("/proc/self/maps").read_text())
    library = Path(loaded[0]) if loaded else None
    return AmdsmiFacts(
        wrapper=version[1] if version else "",
        wrapper_path=str(folder or ""),
        library_path=str(library or ""),
        rocm=rocm_version(library.parent.parent) if library else "",
    )


def _roomy(layout: type[ctypes.Structure]) -> Any:  # noqa: ANN401 - a structure of the wrapper
    """A structure with all bits set ("not available") and spare room behind it."""
    return layout.from_buffer(bytearray(b"\xff" * _ROOM_BYTES))


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect fd 1 to fd 2 temporarily, including what C code writes."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def amdsmi_options(
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    *,
    installed: str | None = None,
    packages: Sequence[str] = tuple(sys.path),
) -> list[BackendOption]:
    """The options in order: ROCm's own wrappers and the installed one (of version `installed`).

    `root` is the file system's root, for tests; the values of variables are used as they are.
    """
    installed = installed or package_version("amdsmi")
    roots = _rocm_roots(environ, root, packages)
    own = [_own(environ, rocm) for rocm in roots if (rocm / _WRAPPER / "amdsmi").is_dir()]
    if installed is None:
        return own
    libraries = [rocm for rocm in roots if (rocm / "lib/libamd_smi.so").exists()]
    named = environ.get("ROCM_HOME") or environ.get("ROCM_PATH")
    env = {} if named or not libraries else _library_of(environ, libraries[0])
    library = f"with the library of ROCm {rocm_version(libraries[0])}".rstrip() if libraries else "no ROCm was found"
    package = BackendOption(f"amdsmi {installed}", "amdsmi", env=env, why=f"the installed package, {library}")
    # Wrappers of one release (7.0 and 7.0.2) are equal.
    same = bool(libraries) and rocm_version(libraries[0]).split(".")[:2] == installed.split(".")[:2]
    return [package, *own] if same or not own else [*own, package]


def _rocm_roots(environ: Mapping[str, str], root: Path, packages: Sequence[str]) -> list[Path]:
    """Each folder that may hold a ROCm, once: from the variables, the usual places, Python packages."""
    named = [Path(environ[name]) for name in ("ROCM_HOME", "ROCM_PATH") if environ.get(name)]
    usual = [root / "opt/rocm"]
    for pattern in ("rocm/core-*", "rocm-*"):
        numbered = (root / "opt").glob(pattern)
        usual += sorted(numbered, key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)], reverse=True)
    bundled = [Path(folder) / "_rocm_sdk_core" for folder in packages]
    found: dict[Path, Path] = {}
    for path in [*named, *usual, *bundled]:
        if path.is_dir():
            found.setdefault(path.resolve(), path)
    return list(found.values())


def _own(environ: Mapping[str, str], rocm: Path) -> BackendOption:
    path = os.pathsep.join(filter(None, (str(rocm / _WRAPPER), environ.get("PYTHONPATH", ""))))
    version = rocm_version(rocm)
    return BackendOption(
        name=f"amdsmi of {rocm}",
        backend="amdsmi",
        env={"PYTHONPATH": path, **_library_of(environ, rocm)},
        why=f"the wrapper that ROCm{' ' + version if version else ''} ships next to its library",
    )


def _library_of(environ: Mapping[str, str], rocm: Path) -> dict[str, str]:
    """Point the wrapper to this ROCm's library; ROCM_HOME, if set, takes precedence over ROCM_PATH."""
    names = ("ROCM_PATH", "ROCM_HOME") if environ.get("ROCM_HOME") else ("ROCM_PATH",)
    return dict.fromkeys(names, str(rocm))
