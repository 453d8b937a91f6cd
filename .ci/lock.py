"""Checks that what is installed here is what the locks name, and audits requirements.lock for known vulnerabilities.

Exit code 1 if something differs, is known to be vulnerable, or pip-audit itself fails. Only the audit needs a network;
if the vulnerability database cannot be reached, the last line says so, and that is no failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LOCKS = ("requirements.lock", "requirements-dev.lock")
_AUDIT_TIMEOUT_S = 120
_UNREACHED = "NOT audited: the vulnerability database cannot be reached from here"


def differences() -> list[str]:
    """What uv would change here to have what pyproject.toml and the locks require; vramp itself is in no lock."""
    uv = [sys.executable, "-m", "uv", "pip"]
    check = subprocess.run([*uv, "check", "--python", sys.executable], capture_output=True, text=True, check=False)
    found = check.stderr.splitlines() if check.returncode else []
    command = [*uv, "sync", "--dry-run", "--require-hashes", "--python", sys.executable, *_LOCKS]
    sync = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    changes = [line for line in sync.stderr.splitlines() if line.startswith((" +", " -", " ~"))]
    return found + ([sync.stderr] if sync.returncode else [line for line in changes if " vramp==" not in line])


def audit() -> tuple[str, bool]:
    """Return what pip-audit says of the lock, and whether that is a failure."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--progress-spinner", "off", "-f", "json"]
    command += ["-r", str(ROOT / _LOCKS[0])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_AUDIT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return _UNREACHED, False
    if not done.stdout:  # a traceback: there is no network, or pip-audit has failed
        (*_, last) = ["no output", *done.stderr.splitlines()]
        unreached = "requests.exceptions." in last
        return (_UNREACHED, False) if unreached else (f"NOT audited: pip-audit failed: {last}", True)
    found = json.loads(done.stdout)["dependencies"]
    known = [f"{each['name']} {each['version']}: {vuln['id']}" for each in found for vuln in each.get("vulns", ())]
    if known:
        return "\n".join(["known vulnerabilities (make lock takes newer versions):", *known]), True
    skipped = sum("skip_reason" in each for each in found)
    if skipped:
        return f"NOT audited: {skipped} of {len(found)} packages are not known to the database", False
    return f"audited: no known vulnerability in {len(found)} packages", False


def main() -> int:
    wrong = differences()
    if wrong:
        print(*wrong, sep="\n")
        print("make lock rewrites the locks; make clean, and then make, installs what is in them")
    else:
        print(f"{', '.join(_LOCKS)}: agree with pyproject.toml and with what is installed")
    reported, failed = audit()
    print(reported)
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
