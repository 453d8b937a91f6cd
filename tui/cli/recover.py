"""`vramp recover`: the result of a run that was killed, from its journal."""

from __future__ import annotations

import argparse
import sys

from loadgen.format import harmless


def recover(words: list[str]) -> int:
    """Write the result, and print its table as the run would have."""
    options = _parser().parse_args(words)
    from loadgen.report.table import result_table
    from loadgen.store.recover import recover as recovered
    from loadgen.store.runs import open_journal, read_result

    path = recovered(open_journal(options.run).parent, force=options.force)
    result = read_result(path)
    if result.stages:
        print(harmless(result_table(result)))
    print(harmless(f"result: {path}"), file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramp recover",
        description="Make the result of a run that was killed, from the journal in its folder.",
        epilog="exit codes: 0 the result is written; 1 it cannot be made; 2 usage",
    )
    parser.add_argument("run", metavar="RUN", help="a run's folder, its name in runs/ or the beginning of it, or: last")
    parser.add_argument("--force", action="store_true", help="also where there is the result of a whole run")
    return parser
