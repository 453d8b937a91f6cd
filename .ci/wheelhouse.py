"""Fills build/wheelhouse: the wheel of dist/ and what it needs, for machines without a network.

    python .ci/wheelhouse.py [--extras web,cluster] [--pythons 3.11,3.12] [--machine aarch64] [--glibc 2.28]

Versions and hashes are those of requirements.lock. The wheels are for that glibc or a later one, whatever this machine
has. The Pythons need not be installed here.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from release import DIST, ROOT, write_sums

WHEELHOUSE = ROOT / "build" / "wheelhouse"
TOOLS = ROOT / "build" / "test-wheels"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Wheels of vramp and of what it needs, for machines without a network."
    )
    parser.add_argument("--extras", default="web,parquet,cluster", help="(default: %(default)s; none: --extras '')")
    parser.add_argument("--pythons", default=",".join(PYTHONS), help="(default: %(default)s)")
    parser.add_argument("--machine", default=platform.machine(), help="CPU architecture (default: this one)")
    parser.add_argument("--glibc", default="2.28", help="the oldest to support (default: %(default)s)")
    parser.add_argument("--tools", action="store_true", help="also what make test-dist needs, in build/test-wheels")
    options = parser.parse_args()
    shutil.rmtree(WHEELHOUSE, ignore_errors=True)
    WHEELHOUSE.mkdir(parents=True)
    (wheel,) = DIST.glob("*.whl")
    shutil.copy(wheel, WHEELHOUSE)
    extras = [name for name in options.extras.split(",") if name]
    for python in options.pythons.split(","):
        _fetch(_resolved(python, extras, options.machine, options.glibc), python, options.machine, options.glibc)
    write_sums(WHEELHOUSE)
    if options.tools:
        TOOLS.mkdir(exist_ok=True)
        _pip("download", "--only-binary=:all:", "--dest", str(TOOLS), "pip", "pytest")
    wheels = [path.stat().st_size for path in WHEELHOUSE.glob("*.whl")]
    reported = f"{len(wheels)} wheels, {sum(wheels) / 1e6:.0f} MB, for Python {options.pythons}"
    print(f"{WHEELHOUSE.relative_to(ROOT)}: {reported}")


def _resolved(python: str, extras: Sequence[str], machine: str, glibc: str) -> Path:
    """Write the part of the lock that one Python needs with these extras into a requirements file with hashes."""
    path = WHEELHOUSE.parent / f"requirements-{python}-{machine}.txt"
    tag = f"{machine}-manylinux_{glibc.replace('.', '_')}"
    requested = [word for name in extras for word in ("--extra", name)]
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    command += ["--generate-hashes", "--python-version", python, "--python-platform", tag, *requested]
    command += ["--constraint", "requirements.lock", "pyproject.toml", "--output-file", str(path)]
    path.unlink(missing_ok=True)
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return path


def _fetch(requirements: Path, python: str, machine: str, glibc: str) -> None:
    minor = int(glibc.partition(".")[2])
    tags = [f"manylinux_2_{older}_{machine}" for older in range(minor, 16, -1)]
    tags += [f"{name}_{machine}" for name in ("manylinux2014", "manylinux_2_12", "manylinux2010", "manylinux_2_5")]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    command = ["download", "--no-deps", "--require-hashes", "--only-binary=:all:", *platforms]
    _pip(*command, "--python-version", python, "--dest", str(WHEELHOUSE), "-r", str(requirements))


def _pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-qq", *words], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
