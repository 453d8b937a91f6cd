"""Installs the wheelhouse into empty environments, by pip and by uv, without a network, and runs the smoke tests there.

Each Python of wheelhouse.PYTHONS that uv finds here is tried; `uv python install VERSION` fetches a missing one, which
is reported, and is no failure. Needs `unshare` (util-linux), as root or with user namespaces. Exit code 1 if something
failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from release import DIST, ROOT
from wheelhouse import PYTHONS, TOOLS, WHEELHOUSE

_SMOKE = ("tests/__init__.py", "tests/test_smoke.py", "tests/tui/__init__.py", "tests/tui/pseudo_terminal.py")
_VRAMP = "vramp[web,parquet,cluster]"
# A new network namespace has only a loopback, which is down.
_CUT_OFF = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", 1, b""))  # SIOCSIFFLAGS: IFF_UP
os.execvp(sys.argv[1], sys.argv[1:])
"""


def main() -> int:
    found = {version: _find(version) for version in PYTHONS}
    tries = [(version, python, name) for version, python in found.items() if python is not None for name in _INSTALLERS]
    # Most of the time is spent waiting, for a run or for the disk.
    with ThreadPoolExecutor(os.cpu_count()) as side_by_side:
        passed = list(side_by_side.map(lambda each: _tried(*each), tries))
    for version in (version for version, python in found.items() if python is None):
        print(f"python {version}: not found here: not tried")
    print(f"{passed.count(True)} passed, {passed.count(False)} failed")
    return 0 if passed and all(passed) else 1


def _tried(version: str, python: str, installer: str) -> bool:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vramp-dist-") as folder:
        problem = _try(python, Path(folder), _INSTALLERS[installer])
    reported = problem or "installed without a network, a run on the simulator, smoke tests passed"
    print(f"python {version} by {installer}: {reported} ({time.monotonic() - began_s:.0f} s)", flush=True)
    return not problem


def _find(version: str) -> str | None:
    words = "-m uv python find --no-python-downloads --no-project --system".split()
    found = subprocess.run([sys.executable, *words, version], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def _try(python: str, folder: Path, install: Callable[[str, Path], list[list[str]]]) -> str:
    """Return what went wrong; empty if nothing did."""
    environment, work = folder / "environment", folder / "work"
    for name in _SMOKE:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, work / name)
    here = environment / "bin"
    page = environment / "share" / "man" / "man1" / "vramp.1"
    simulator = ["run", "simulator", "--concurrency", "4", "--requests", "50", "--isl", "16", "--osl", "8"]
    steps = [
        *install(python, environment),
        [str(here / "vramp"), *simulator],
        [str(here / "python"), "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "tests/test_smoke.py"],
        ["test", "-s", str(page)],
    ]
    for step in steps:
        done = subprocess.run(
            _without_network(step), cwd=work, env=_environment(folder), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            return f"FAILED: {' '.join(step)}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return ""


def _by_pip(python: str, environment: Path) -> list[list[str]]:
    """Install with the downloaded pip, because Debian's Python comes without one."""
    (pip,) = TOOLS.glob("pip-*.whl")
    install = [str(environment / "bin" / "python"), f"{pip}/pip", "install", "--quiet", "--no-index", "--no-cache-dir"]
    return [
        [python, "-m", "venv", "--without-pip", str(environment)],
        [*install, "--find-links", str(WHEELHOUSE), _VRAMP],
        [*install, "--find-links", str(TOOLS), "pytest"],
    ]


def _by_uv(python: str, environment: Path) -> list[list[str]]:
    uv = [sys.executable, "-m", "uv", "--offline", "--no-cache"]
    install = [*uv, "pip", "install", "--quiet", "--no-index", "--python", str(environment / "bin" / "python")]
    return [
        [*uv, "venv", "--quiet", "--python", python, str(environment)],
        [*install, "--find-links", str(WHEELHOUSE), _VRAMP],
        [*install, "--find-links", str(TOOLS), "pytest"],
    ]


_INSTALLERS = {"pip": _by_pip, "uv": _by_uv}


def _without_network(command: list[str]) -> list[str]:
    names = ["--net"] if os.geteuid() == 0 else ["--net", "--map-root-user"]
    return ["unshare", *names, sys.executable, "-c", _CUT_OFF, *command]


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment without this shell's package index, virtual environment and module path."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TERM")}
    return {**kept, "HOME": str(folder), "TMPDIR": str(folder)}


if __name__ == "__main__":
    if not WHEELHOUSE.is_dir() or not any(DIST.glob("*.whl")):
        sys.exit("there is no wheelhouse: make wheelhouse")
    sys.exit(main())
