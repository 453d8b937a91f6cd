"""`vramp runs`: the runs below a folder, and the trend of a figure over them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from loadgen.errors import ProfileError, ResultError
from loadgen.record.figures import FIGURES
from loadgen.report.history import ListedRun, Trend, parsed_version, runs_listed, trends
from loadgen.report.history_document import NamedRun, runs_json, runs_text, trend_text
from loadgen.store.runs import RUNS
from tui.cli.options import parser_of, print_status, printable, write_output

_LAST = 50
_EPILOG = f"""\
Runs, acceptances and results of other tools (as result.json) below FOLDER, at any depth, newest first. The four filters
take any part of a name, in upper or lower case; --vllm takes the beginning of a version: 0.31 is also 0.31.2.

--trend FIGURE shows the figure at each load that two runs or more of one profile, model and box have, with the interval
of each run and the mean of each version of vLLM. A difference between versions is judged from two runs of each on;
--since VERSION compares all runs since that version with all before it. FIGURE is one of
  {", ".join(FIGURES)}

What was read is kept in an index in the user's cache folder (XDG_CACHE_HOME), which can be deleted at any time.

exit codes: 0 done; 1 there is no run, or the output cannot be written; 2 usage
"""


def runs(options: argparse.Namespace) -> int:
    if options.since is not None and parsed_version(options.since) is None:
        raise ProfileError(f"--since {options.since}: not a version; expected one such as 0.31")
    if (options.since or options.load) and options.trend is None:
        raise ProfileError("--since and --load go with --trend FIGURE")
    root = Path(options.folder)
    if not root.is_dir():
        raise ResultError(f"{root}: no such folder; runs are in ./runs, or name another folder")
    filters = {name: part for name in ("profile", "box", "model", "vllm") if (part := getattr(options, name))}
    listed = runs_listed(root, details=options.trend is not None, note=lambda text: print_status(f"vramp: {text}"))
    found = [run for run in listed if _passes(run[1], filters)]
    if not found:
        raise ResultError(f"{root}: no run in or below it{' that the filters let through' if filters else ''}")
    shown: list[Trend] = []
    if options.trend is not None:
        shown = trends(found, options.trend, options.since, options.load)
        if not shown:
            raise ResultError(f"--trend {options.trend}: no two of {len(found)} runs have it at one load")
    return write_output(_rendered(root, [(name, summary) for name, summary, _ in found], shown, options), options.out)


def runs_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp runs", "The runs below a folder, and the trend of a figure over them.", _EPILOG)
    parser.add_argument("folder", nargs="?", metavar="FOLDER", default=str(RUNS), help="default: runs")
    parser.add_argument("--profile", metavar="PART", help="only runs of such a profile")
    parser.add_argument("--box", metavar="PART", help="only runs on such GPUs")
    parser.add_argument("--model", metavar="PART", help="only runs of such a model")
    parser.add_argument("--vllm", metavar="VERSION", help="only runs of this version")
    parser.add_argument("--last", metavar="N", type=int, default=_LAST, help=f"list so many; 0: all (default: {_LAST})")
    parser.add_argument("--trend", metavar="FIGURE", choices=FIGURES, help="its trend in place of the list; see below")
    parser.add_argument("--load", metavar="LOAD", help="of the trend, only at this load: 64, or one in its words")
    parser.add_argument("--since", metavar="VERSION", help="of the trend, compare runs since this version with earlier")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything as one document")
    form.add_argument("--html", action="store_true", help="one file with charts, for a browser")
    parser.add_argument("--out", metavar="PATH", type=Path, help="write it there")
    return parser


def _passes(summary: ListedRun, filters: dict[str, str]) -> bool:
    version = filters.get("vllm")
    if version is not None and not f"{summary.version}.".replace("+", ".").startswith(f"{version.removesuffix('.')}."):
        return False
    return all(part.lower() in getattr(summary, name).lower() for name, part in filters.items() if name != "vllm")


def _rendered(root: Path, found: Sequence[NamedRun], shown: Sequence[Trend], options: argparse.Namespace) -> str:
    if options.json:
        return runs_json(str(root), found, shown) + "\n"
    last = found[: options.last] if options.last > 0 else found
    if options.html:
        from loadgen.report.html.history_page import history_page

        return history_page(str(root), last, shown)
    return printable((trend_text(shown) if shown else runs_text(last, len(found) - len(last))) + "\n")
