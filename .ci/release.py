"""Builds a release into dist/: sdist, wheel, SBOM, licences, SHA256SUMS.

The wheel is built from the sdist, which proves that this is complete. Both are built twice and must be identical: their
timestamps are those of the commit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
_MET = {
    "amdsmi": "MIT (the text of its LICENSE; its metadata name none)",
    "asyncssh": "EPL-2.0 OR GPL-2.0-or-later (used unchanged, and only with the extra `cluster`)",
    "certifi": "MPL-2.0 (for its file of certificates, which is used unchanged)",
    "partd": "BSD-3-Clause (the text of its LICENSE; its metadata name none)",
    "pathspec": "MPL-2.0 (used unchanged, and only with the extra `build`)",
    "shtab": "MPL-2.0 (used unchanged)",
}
"""Licences that were reviewed by hand: missing from the metadata, or asking for more than a notice."""
_PERMISSIVE = re.compile(r"\b(0BSD|Apache|BSD|CC0|ISC|MIT|MIT-0|PSF|Python|Zlib)\b")


def main() -> None:
    DIST.mkdir(exist_ok=True)
    for old in DIST.iterdir():
        old.unlink()
    os.environ["SOURCE_DATE_EPOCH"] = _epoch()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        for one, other in zip(_build(Path(first)), _build(Path(second)), strict=True):
            if one.read_bytes() != other.read_bytes():
                sys.exit(f"{one.name}: two builds differ")
            shutil.copy(one, DIST)
        (wheel,) = DIST.glob("*.whl")
        sbom = _sbom(wheel, Path(first) / "environment")
    document = json.dumps(sbom, indent=1)
    (DIST / f"{wheel.name.split('-py3')[0]}.cdx.json").write_text(document + "\n", encoding="utf-8")
    (DIST / "LICENCES.txt").write_text("\n".join(_licence_lines(sbom)) + "\n", encoding="utf-8")
    write_sums(DIST)
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:>10,}  {path.relative_to(ROOT)}")


def write_sums(folder: Path) -> None:
    """Write the SHA256SUMS of all files in a folder, as `sha256sum --check` reads it."""
    paths = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def _epoch() -> str:
    """Return the time of the commit, or in an unpacked sdist that of its files."""
    command = ["/usr/bin/env", "git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or str(int((ROOT / "pyproject.toml").stat().st_mtime))


def _build(folder: Path) -> list[Path]:
    """Build the sdist, and the wheel from it, with the hatchling that is installed here."""
    options = ["--quiet", "--offline", "--no-build-isolation", "--python", sys.executable]
    _uv("build", *options, "--out-dir", str(folder))
    return sorted(folder.glob("vramp-*"))


def _sbom(wheel: Path, environment: Path) -> dict[str, Any]:
    """Return a CycloneDX document of an environment that has only the wheel and what the lock pins."""
    python = str(environment / "bin" / "python")
    _uv("venv", "--quiet", "--python", sys.executable, str(environment))
    _uv("pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", "requirements.lock")
    _uv("pip", "install", "--quiet", "--python", python, "--no-deps", str(wheel))
    command = ["cyclonedx_py", "environment", "--output-reproducible", "--pyproject", "pyproject.toml", python]
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=True)
    return _completed(json.loads(done.stdout), wheel)


def _uv(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", *words], cwd=ROOT, check=True)


def _completed(document: dict[str, Any], wheel: Path) -> dict[str, Any]:
    """Return the document with the wheel as its subject, and without the folders in which it was made."""
    document["metadata"]["component"] |= {
        "version": wheel.name.split("-")[1],
        "purl": f"pkg:pypi/vramp@{wheel.name.split('-')[1]}",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
    }
    for component in document["components"]:
        reported = component.get("externalReferences", [])
        component["externalReferences"] = [each for each in reported if not each["url"].startswith("file:")]
    return document


def _licence_lines(sbom: dict[str, Any]) -> list[str]:
    """Return the licence of each component; exits if one is neither permissive nor was reviewed."""
    components = sorted(sbom["components"], key=lambda each: each["name"].lower())
    found = {
        f"{each['name']} {each['version']}": _MET.get(each["name"].lower()) or _licence(each) for each in components
    }
    unexpected = [f"{name}: {words or 'no licence'}" for name, words in found.items() if not _allowed(words)]
    if unexpected:
        sys.exit("\n".join(["licences to review, and to note in .ci/release.py:", *unexpected]))
    head = "# Licences of what vramp installs with all its extras, from the metadata of each package. vramp: Apache-2.0"
    return [head, *(f"{name:<28} {words}" for name, words in found.items())]


def _licence(component: dict[str, Any]) -> str:
    reported = (each.get("expression") or " ".join(each["license"].values()) for each in component.get("licenses", []))
    short = (words.removeprefix("declared ").removeprefix("License :: OSI Approved :: ") for words in reported)
    return "; ".join(dict.fromkeys(short))


def _allowed(words: str) -> bool:
    """Whether all licences that apply together are permissive, in at least one of the alternatives."""
    either = re.split(r" OR ", words)
    parts = (re.split(r" AND |; ", one) for one in either)
    return words in _MET.values() or any(all(_PERMISSIVE.search(part) for part in each) for each in parts)


if __name__ == "__main__":
    main()
