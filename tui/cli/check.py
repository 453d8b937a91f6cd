"""`vramp check`: what stands in the way of a profile on this box. It reads, and changes nothing."""

from __future__ import annotations

import argparse

from loadgen.format import harmless
from tui.cli.options import add_profile_options, profile_of

BLOCKED = 3  # the server could not be started: the exit code that a run would have


def check(words: list[str]) -> int:
    """Print the findings; `BLOCKED` if one of them blocks."""
    options = _parser().parse_args(words)
    import asyncio

    from loadgen.plan.from_profile import stages_of
    from loadgen.report.findings import findings_json, findings_text
    from loadgen.server.preflight.check import check_profile

    profile, _ = profile_of(options)
    findings = asyncio.run(check_profile(profile, stages_of(profile), recorded=options.installation))
    print(harmless(findings_json(findings) if options.json else findings_text(findings)))
    return BLOCKED if any(finding.severity == "blocks" for finding in findings) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramp check",
        description="What stands in the way of a profile on this box. It reads, and changes nothing.",
        epilog=f"exit codes: 0 nothing blocks; 2 usage or profile; {BLOCKED} something blocks",
    )
    add_profile_options(parser)
    group = parser.add_argument_group("check")
    group.add_argument("--json", action="store_true", help="findings as a JSON list")
    group.add_argument(
        "--installation", metavar="0.32.0", help="check against what is recorded of this vLLM version, not this box"
    )
    return parser
