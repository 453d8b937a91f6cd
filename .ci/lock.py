"""Checks the locks against pyproject.toml and what is installed here, and audits requirements.lock for vulnerabilities.

Exit code 1 if something does not agree, is known to be vulnerable, or pip-audit itself fails. Only the audit needs a
network; if the vulnerability database cannot be reached, the last line says so, and that is no failure.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
DEV_LOCK = ROOT / "requirements-dev.lock"
EXTRAS = ("web", "parquet", "cluster", "build")  # covered by the lock in addition to the dependencies
_AUDIT_TIMEOUT_S = 120
_UNREACHED = "NOT audited: the vulnerability database cannot be reached from here"


class Pin(NamedTuple):
    requirement: Requirement  # name, one exact version, perhaps a marker
    hashes: int

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        return next(iter(self.requirement.specifier)).version

    @property
    def here(self) -> bool:
        """Whether it applies to this Python and platform."""
        return self.requirement.marker is None or self.requirement.marker.evaluate()


def read_lock(path: Path = LOCK) -> list[Pin]:
    lines = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    entries = [line.partition(" --hash") for line in lines if line and not line.lstrip().startswith("#")]
    return [Pin(Requirement(pinned), hashes=rest.count("sha256:")) for pinned, _, rest in entries]


def own_requirements(*extras: str) -> list[Requirement]:
    """The dependencies of pyproject.toml, and those of these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(each for name in extras for each in project["optional-dependencies"][name])]
    return [Requirement(line) for line in lines]


def problems(lock: Path, requested: Sequence[Requirement]) -> Iterator[str]:
    """Yield a line for each problem; `make lock` fixes those of the lock, a new environment those of packages."""
    pins = read_lock(lock)
    for pin in pins:
        if not pin.hashes:
            yield f"{lock.name}: {pin.name} has no hash"
    here = {pin.name: pin for pin in pins if pin.here}
    for requirement, by in _closure(requested, here):
        found = here.get(canonicalize_name(requirement.name))
        if found is None:
            yield f"{lock.name}: {requirement.name} is missing, which {by} needs"
        elif not requirement.specifier.contains(found.version, prereleases=True):
            yield f"{lock.name}: {found.name} {found.version}, but {by} needs {requirement.specifier}"
    for pin in here.values():
        version = _installed(pin.name)
        if version != pin.version:
            yield f"installed: {pin.name} {version or 'not at all'}, but {lock.name} has {pin.version}"


def _closure(requested: Sequence[Requirement], here: dict[str, Pin]) -> Iterator[tuple[Requirement, str]]:
    """Yield each requirement that applies here and what requires it, as far as the packages are installed."""
    todo = [(requirement, "pyproject.toml") for requirement in requested]
    seen: set[str] = set()
    while todo:
        requirement, by = todo.pop()
        yield requirement, by
        name = canonicalize_name(requirement.name)
        if str(requirement) in seen or name not in here or _installed(name) is None:
            continue
        seen.add(str(requirement))
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            environments = [{"extra": extra} for extra in ("", *requirement.extras)]
            if needed.marker is None or any(needed.marker.evaluate(each) for each in environments):
                todo.append((needed, f"{name} {_installed(name)}"))


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def audit() -> tuple[str, bool]:
    """Return what pip-audit says of the lock, and whether that is a failure."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--disable-pip",
        *"--progress-spinner off -f json -r".split(),
        str(LOCK),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_AUDIT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return _UNREACHED, False
    if not done.stdout:  # a traceback: there is no network, or pip-audit has failed
        (*_, last) = ["no output", *done.stderr.splitlines()]
        if "requests.exceptions." in last:
            return _UNREACHED, False
        return f"NOT audited: pip-audit failed: {last}", True
    found = json.loads(done.stdout)["dependencies"]
    known = [f"{each['name']} {each['version']}: {vuln['id']}" for each in found for vuln in each.get("vulns", ())]
    skipped = sum("skip_reason" in each for each in found)
    if known:
        return "\n".join(["known vulnerabilities (make lock takes newer versions):", *known]), True
    if skipped:
        return f"NOT audited: {skipped} of {len(found)} packages are not known to the database", False
    return f"audited: no known vulnerability in {len(found)} packages", False


def main() -> int:
    wrong = [*problems(LOCK, own_requirements(*EXTRAS)), *problems(DEV_LOCK, own_requirements("dev"))]
    reported, failed = audit()
    print(*wrong, sep="\n", end="\n" if wrong else "")
    if wrong:
        print("make lock rewrites the locks; make clean, and then make, installs what is in it")
    else:
        print("requirements.lock, requirements-dev.lock: agree with pyproject.toml and with what is installed")
    print(reported)
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
