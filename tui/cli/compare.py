"""`vramp compare`: runs against the first of them, and a gate for CI."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from loadgen.errors import ProfileError, ResultError
from loadgen.format import harmless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadgen.report.compare import RunComparison
    from loadgen.report.compare_gate import Limit

_EPILOG = """\
RUN is the folder of a run, a result.json, a name or its beginning in runs/, last, or the name of a baseline.

Stages are matched by concurrency or rate, ISL and OSL. A figure of B is called better or worse only where the interval
of its difference excludes zero, where it is off by 2 % at least, and where nothing speaks against the stage. Runs that
are not alike (another model, another kind of requests, no common ISL and OSL) are refused; --force compares them.

--fail-if LIMIT, as often as needed: FIGURE>+NUMBER% or FIGURE<-NUMBER%, for latencies also in ms or s:
  'ttft_p99>+10%'   'output_tok_s<-5%'   'tpot_p50>+2ms'   (in quotes: < and > mean something to the shell)
  figures: output_tok_s, req_s, goodput, j_per_token, and ttft, tpot, itl, e2e with _mean, _p50, _p90, _p99
  broken where the measured difference is beyond the limit and its interval excludes zero; with --strict, where the
  measured difference alone is beyond it

exit codes: 0 done; 1 a limit is broken, there is nothing to compare, or a run cannot be read; 2 usage, or not alike
"""


def compare(words: list[str]) -> int:
    """Compare the runs with the first; 0 if no limit is broken."""
    options = _parser().parse_args(words)
    from loadgen.report.compare import compare_runs
    from loadgen.report.compare_gate import parse_limit
    from loadgen.store.runs import LAST, open_result

    if not 50 <= options.confidence < 100:
        raise ProfileError(f"--confidence {options.confidence:g}: expected 50 to 99.99 percent")
    limits = [parse_limit(text) for text in options.fail_if]
    found = [(name, open_result(name)) for name in (options.a, *options.others)]
    # The newest run has a name of its own, by which it is still known tomorrow.
    a, *others = [(result.run_id if name == LAST else name, result) for name, result in found]
    confidence = options.confidence / 100
    comparisons = [compare_runs(a, b, confidence=confidence, any_shape=options.force) for b in others]
    for comparison in comparisons:
        _require_comparable(comparison, force=options.force)
    print(harmless(_text(comparisons, options)))
    broken = [_held_against(comparison, limits, strict=options.strict) for comparison in comparisons]
    return 1 if any(broken) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramp compare",
        description="Runs against the first of them: what differs, and how sure that is.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", help="the RUN that the others are compared with")
    parser.add_argument("others", metavar="B", nargs="+", help="one RUN or more")
    parser.add_argument("--fail-if", metavar="LIMIT", action="append", default=[], help="see below; 1 if one is broken")
    parser.add_argument("--strict", action="store_true", help="limits go by the measured difference, evident or not")
    parser.add_argument("--force", action="store_true", help="compare what is not alike too, and say so")
    parser.add_argument("--confidence", metavar="PERCENT", type=float, default=99.0, help="of each interval (99)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="tables for GitHub")
    form.add_argument("--json", action="store_true", help="one document with everything")
    return parser


def _require_comparable(comparison: RunComparison, *, force: bool) -> None:
    """Raise `ProfileError` for runs that are not alike, `ResultError` where no stages match."""
    a, b = comparison.a.name, comparison.b.name
    # Of a run that never came to its load, not even the model is known.
    empty = not comparison.stages and not (comparison.only_a and comparison.only_b)
    if comparison.unlike and not force and not empty:
        reasons = "; ".join(comparison.unlike)
        raise ProfileError(f"{b} is not the like of {a}: {reasons}; --force compares them all the same")
    if not comparison.stages:
        only_a, only_b = (", ".join(loads) or "nothing" for loads in (comparison.only_a, comparison.only_b))
        more = "" if force or empty else "; --force matches stages of another shape by their load alone"
        raise ResultError(f"nothing to compare: {a} has measured {only_a}; {b} has measured {only_b}{more}")


def _text(comparisons: Sequence[RunComparison], options: argparse.Namespace) -> str:
    from loadgen.report.compare_table import compare_json, compare_markdown, compare_table

    if options.json:
        return compare_json(comparisons)
    form, between = (compare_markdown, "\n\n") if options.markdown else (compare_table, "\n")
    return between.join(form(comparison) for comparison in comparisons)


def _held_against(comparison: RunComparison, limits: Sequence[Limit], *, strict: bool) -> bool:
    """Say which limits are broken; whether any is."""
    from loadgen.report.compare_gate import breaches
    from loadgen.report.compare_table import difference_words

    found = breaches(comparison, limits, strict=strict)
    for breach in found:
        difference, interval, _ = difference_words(breach.found)
        words = f"{breach.limit} is broken by {comparison.b.name}, {breach.stage}: {difference} ({interval})"
        print(harmless(f"vramp: {words}"), file=sys.stderr)
    return bool(found)
