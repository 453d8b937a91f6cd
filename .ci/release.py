"""Builds a release into dist/: sdist, wheel, SBOM, licences, SHA256SUMS.

The wheel is built from the unpacked sdist, which proves that the sdist is complete. Both are built twice and must be
identical: their timestamps are those of the commit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
_LICENCES = "LICENCES.txt"
_MET = {
    "amdsmi": "MIT (the text of its LICENSE; its metadata name none)",
    "asyncssh": "EPL-2.0 OR GPL-2.0-or-later (used unchanged, and only with the extra `cluster`)",
    "certifi": "MPL-2.0 (for its file of certificates, which is used unchanged)",
    "partd": "BSD-3-Clause (the text of its LICENSE; its metadata name none)",
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
        built, again = _build(Path(first)), _build(Path(second))
        for one, other in zip(built, again, strict=True):
            if one.read_bytes() != other.read_bytes():
                sys.exit(f"{one.name}: two builds differ")
            (DIST / one.name).write_bytes(one.read_bytes())
        sbom = _sbom(DIST / built[1].name, Path(first))
    (DIST / f"{built[1].name.split('-py3')[0]}.cdx.json").write_text(
        json.dumps(sbom, indent=1) + "\n", encoding="utf-8"
    )
    (DIST / _LICENCES).write_text("\n".join(_licence_lines(sbom)) + "\n", encoding="utf-8")
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
    done = subprocess.run(
        ["/usr/bin/env", "git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or str(int((ROOT / "pyproject.toml").stat().st_mtime))


def _build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder), cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=source)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def _sbom(wheel: Path, folder: Path) -> dict[str, Any]:
    """Return a CycloneDX document of an environment that has only the wheel and what the lock pins."""
    environment = folder / "environment"
    python = environment / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    _run(*uv, "venv", "--quiet", "--python", sys.executable, str(environment))
    _run(
        *uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        str(python),
        "--require-hashes",
        "-r",
        "requirements.lock",
        cwd=ROOT,
    )
    _run(*uv, "pip", "install", "--quiet", "--python", str(python), "--no-deps", str(wheel))
    command = [
        "-m",
        "cyclonedx_py",
        "environment",
        "--output-reproducible",
        "--pyproject",
        "pyproject.toml",
        str(python),
    ]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True)
    return _completed(json.loads(done.stdout), wheel)


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


def _run(*command: str, cwd: Path | None = None) -> None:
    subprocess.run(
        command,
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if "hatchling" in command else None,
        check=True,
    )


if __name__ == "__main__":
    main()
