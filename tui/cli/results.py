"""Commands on finished runs: `vramp report`, `recover`, `baseline`, `compare` and `runs`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from loadgen.errors import ProfileError, ResultError, reported_as
from loadgen.format import counted
from loadgen.places import PRIVATE, named_mode
from loadgen.record.figures import FIGURES, stages_by_load
from loadgen.record.subject import hardware_of, known_time, model_of
from loadgen.record.summary import summary_json, summary_of
from loadgen.report.certificate import boxes_document, compare_boxes
from loadgen.report.compare import (
    HeldAgainst,
    RunComparison,
    compare_runs,
    hold_against,
    parse_limit,
    with_meant_shapes,
)
from loadgen.report.compare_document import compare_json, compare_markdown, compare_text, held_words
from loadgen.report.csv import csv_report
from loadgen.report.history import ListedRun, Trend, parsed_version, runs_listed, trends
from loadgen.report.history_document import runs_json, runs_text, trend_text
from loadgen.report.inferencex import inferencex_rows
from loadgen.report.junit import compare_suite, write_junit
from loadgen.report.llm_d import llm_d_reports
from loadgen.report.tabular import json_text
from loadgen.report.text import markdown_report, sections_markdown, sections_text, text_report
from loadgen.report.vllm_json import safe_file_name, vllm_documents, vllm_file_names, with_requests
from loadgen.schema.result import RESULT, Result
from loadgen.store.acceptance import CERTIFICATE, read_certificate, verify
from loadgen.store.foreign.read import TOOLS
from loadgen.store.recover import recover as recovered
from loadgen.store.rows import read_rows
from loadgen.store.runs import (
    LAST,
    RUNS,
    baselines,
    find_run,
    open_journal,
    open_result,
    read_result,
    remove_baseline,
    require_baseline,
    save_baseline,
)
from tui.cli.options import (
    RUN_WORDS,
    STDOUT,
    parser_of,
    print_output,
    print_status,
    print_text,
    printable,
    write_output,
)

_RUN_IS = f"RUN is {RUN_WORDS}"
_OR_FOREIGN = f"or a file of {TOOLS}"


# `vramp report`: as a table, Markdown, CSV, one HTML file, or what vLLM's benchmark writes.

_REPORT_EPILOG = f"""\
{_RUN_IS}; a result.json too,
{_OR_FOREIGN}

Data goes to stdout, or to --out; the HTML file goes to report.html in the run's folder, and to stdout with --out -;
that of another file goes next to it, as guidellm-report.html for guidellm.json.
--vllm-json and --llm-d print an object (a list of them if there are several stages); with --out DIR they write one file
a stage. --detailed adds what `--save-detailed` does, without gaps and texts, for a run with --records. What a row of
InferenceX needs and a run does not know is null there.

exit codes: 0 done; 1 the run cannot be read, or the report not be written; 2 usage
"""


def report(options: argparse.Namespace) -> int:
    if len(options.runs) > 1 and not options.csv:
        raise ProfileError("vramp report: takes one run; --csv takes several, and `vramp compare` compares them")

    results = [open_result(text) for text in options.runs]
    if options.html:
        from loadgen.report.html.run_page import html_report

        found = find_run(options.runs[0])
        name = "report.html" if found.is_dir() or found.name == RESULT else f"{found.stem}-report.html"
        return _write_page(html_report(results[0]), name, options.runs[0], options.out)
    if options.detailed and not options.vllm_json:
        raise ProfileError("vramp report: --detailed goes with --vllm-json")
    if options.vllm_json or options.llm_d:
        return _write_documents(results[0], options)
    return write_output(_report_text(results, options), options.out)


def report_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp report", "A finished run as tables, or in another format.", _REPORT_EPILOG)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="see below; several with --csv")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="tables for GitHub")
    form.add_argument("--html", action="store_true", help="one file with charts, for a browser and for paper")
    form.add_argument("--csv", action="store_true", help="one row a stage")
    form.add_argument("--json", action="store_true", help="the summary, as summary.json of the run's folder")
    form.add_argument("--vllm-json", action="store_true", help="in the format of `vllm bench serve --save-result`")
    form.add_argument("--llm-d", action="store_true", help="as llm-d's benchmark report 0.2, in JSON")
    form.add_argument("--inferencex", action="store_true", help="closed-loop stages as rows of InferenceX")
    parser.add_argument("--detailed", action="store_true", help="with --vllm-json: each request, from records")
    parser.add_argument("--out", metavar="PATH", type=Path, help="write it there")
    return parser


def _report_text(results: list[Result], options: argparse.Namespace) -> str:
    if options.inferencex:
        rows = inferencex_rows(results[0])
        if not rows:
            raise ResultError(f"{results[0].run_id}: no stage of a closed loop was measured: nothing to write")
        return json.dumps(rows, allow_nan=False, indent=1) + "\n"
    if options.json:
        return summary_json(summary_of(results[0])).decode()
    if options.csv:
        return csv_report(results)
    if options.markdown:
        return markdown_report(results[0]) + "\n"
    return printable(f"{text_report(results[0])}\n")


def _write_page(text: str, name: str, run: str, out: Path | None) -> int:
    """Write a page to `out`, or under its name to the run's folder; return the exit code."""
    if out == STDOUT:
        return print_output(text)
    found = find_run(run)
    folder = found.parent if found.is_file() else found
    path = folder / name if out is None else out
    write_output(text, path, mode=PRIVATE if out is None else None)
    print_status(f"report: {path}")
    return 0


def _write_documents(result: Result, options: argparse.Namespace) -> int:
    """Print the object of the only stage, or a list of several; or write a file each to a folder."""
    folder, run = options.out, options.runs[0]
    if options.llm_d:
        documents = llm_d_reports(result)
        names = [safe_file_name(f"benchmark_report_v0.2-{document['run']['uid']}.json") for document in documents]
    else:
        documents = vllm_documents(result)
        if options.detailed:
            found = find_run(run)
            documents = with_requests(documents, read_rows(found.parent if found.is_file() else found))
        names = vllm_file_names(documents)
    if not documents:
        raise ResultError(f"{run}: there is no stage in which a request was sent: nothing to write")

    if folder is None or folder == STDOUT:
        whole = documents[0] if len(documents) == 1 else documents
        return write_output(json.dumps(whole, allow_nan=False) + "\n", None)
    with reported_as(f"--out {folder}: must be a folder"):
        folder.mkdir(parents=True, exist_ok=True)
    for name, document in zip(names, documents, strict=True):
        write_output(json.dumps(document, allow_nan=False), folder / name, mode=named_mode())
        print_status(f"report: {folder / name}")
    return 0


# `vramp recover`: from the journal.


def recover(options: argparse.Namespace) -> int:
    """Write the result of a run that was killed, and print its table as the run would have."""
    path = recovered(open_journal(options.run).parent, force=options.force)
    result = read_result(path)
    if result.stages:
        print_text(text_report(result))
    print_status(f"result: {path}")
    return 0


def recover_parser() -> argparse.ArgumentParser:
    codes = "exit codes: 0 the result is written; 1 it cannot be made; 2 usage"
    parser = parser_of("vramp recover", "Make the result of a run that was killed, from its journal.", codes)
    parser.add_argument("run", metavar="RUN", help=RUN_WORDS)
    parser.add_argument("--force", action="store_true", help="even if the run has a complete result")
    return parser


# `vramp baseline`: results kept under a name, to compare others with.

_BASELINE_EPILOG = f"""\
{_RUN_IS}; a result.json too
A baseline is a copy of the whole result, and its name goes wherever a RUN goes: vramp compare NAME last

exit codes: 0 done; 1 the run or the baseline cannot be read; 2 usage
"""


def baseline(options: argparse.Namespace) -> int:
    match options.what:
        case "save":
            path = save_baseline(options.name, open_result(options.run), replace=options.replace)
            print_text(f"baseline {options.name}: {path}")
        case "remove":
            remove_baseline(options.name)
        case "show":
            print_text(text_report(read_result(require_baseline(options.name))))
        case _:
            for name, path in baselines().items():
                try:
                    result = read_result(path)
                    began, stages = known_time(result.started_at) or "no date", counted(len(result.stages), "stage")
                    words = f"{began}  {model_of(result)} on {hardware_of(result)}, {stages}"
                except ResultError as error:
                    words = str(error)
                print_text(f"{name:<24}{words}")
    return 0


def baseline_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp baseline", "Keep a run under a name, to compare others with.", _BASELINE_EPILOG)
    what = parser.add_subparsers(dest="what", required=True, metavar="save|list|show|remove")
    save = what.add_parser("save", help="keep the result of a run under a name")
    save.add_argument("name", metavar="NAME")
    save.add_argument("run", metavar="RUN")
    save.add_argument("--replace", action="store_true", help="replace a baseline of that name")
    what.add_parser("list", help="all of them")
    for verb, words in (("show", "the table of its result"), ("remove", "remove it")):
        what.add_parser(verb, help=words).add_argument("name", metavar="NAME")
    return parser


# `vramp compare`: runs against the first of them, and a gate for CI.

_COMPARE_EPILOG = f"""\
{_RUN_IS}; a result.json or the name of a baseline too,
{_OR_FOREIGN}, which keep their figures and say how they define them

Stages are matched by concurrency or rate, ISL and OSL. A figure of B is called better or worse only where the interval
of its difference excludes zero, where it is off by 2 % at least, and where the stage is sound. Runs that
are not alike (another model, another kind of requests, no common ISL and OSL) are refused; --force compares them.

--fail-if LIMIT, as often as needed: FIGURE>+NUMBER% or FIGURE<-NUMBER%, for latencies also in ms or s:
  'ttft_p99>+10%'   'output_tok_s<-5%'   'tpot_p50>+2ms'   (in quotes: < and > mean something to the shell)
  figures: output_tok_s, total_tok_s, req_s, goodput, j_per_token, hits, interactivity;
  and ttft, tpot, itl, e2e with _mean, _p50, _p90, _p99
  broken where the measured difference is beyond the limit and its interval excludes zero; with --strict, where the
  measured difference alone is beyond it; also where B failed to measure a load or a figure that A has

Folders of `vramp accept` are compared by their certificates: a row a box, its rank among all, and the figures in which
it is worse than the others by more than chance explains.

--html plots tok/s per GPU against tok/s per user with all runs in one chart, including loads that only one run has;
it is written to compare.html in the folder of the last RUN, or to --out.

exit codes: 0 done; 1 a limit is broken, there is nothing to compare, or a run cannot be read; 2 usage, or not alike
"""


def compare(options: argparse.Namespace) -> int:
    """Compare the runs with the first; return 0 if no limit is broken."""
    folders = [Path(name) for name in (options.a, *options.others)]
    accepted = [folder for folder in folders if (folder / CERTIFICATE).is_file()]
    if len(accepted) == len(folders):
        return _compare_boxes(folders, options)
    if accepted:
        other = next(folder for folder in folders if folder not in accepted)
        raise ProfileError(f"{accepted[0]} is an acceptance, {other} is not: compare either acceptances or runs")
    if not 50 <= options.confidence <= 99.99:
        raise ProfileError(f"--confidence {options.confidence}: expected 50 to 99.99 percent")
    limits = [parse_limit(text) for text in options.fail_if]
    found = [(name, open_result(name)) for name in (options.a, *options.others)]
    tools = [result.measured_by for _, result in found if result.measured_by is not None]
    if limits and tools and not options.strict:
        raise ProfileError(
            f"--fail-if: the file of {tools[0]} does not record how its values spread, so no difference is evidence; "
            "with --strict the measured difference alone decides"
        )
    # `last` may be another run tomorrow.
    named = [(result.run_id if name == LAST else name, result) for name, result in found]
    a, *others = with_meant_shapes(named)
    comparisons = [compare_runs(a, b, confidence=options.confidence / 100, any_shape=options.force) for b in others]
    for comparison, (_, b) in zip(comparisons, others, strict=True):
        # One chart can show both where they share a shape.
        shapes = [{(load.isl, load.osl) for load in stages_by_load(result)} for result in (a[1], b)]
        charted = options.html and not shapes[0].isdisjoint(shapes[1])
        _require_comparable(comparison, force=options.force, charted=charted)
    held = [hold_against(comparison, limits, strict=options.strict) for comparison in comparisons]
    if options.junit is not None:
        suites = [compare_suite(comparison, found) for comparison, found in zip(comparisons, held, strict=True)]
        write_junit(options.junit, suites)

    code = _write_comparisons([a, *others], comparisons, options)
    broken = [_print_broken(comparison, found) for comparison, found in zip(comparisons, held, strict=True)]
    return max(code, *broken)


def _write_comparisons(
    runs: list[tuple[str, Result]], comparisons: list[RunComparison], options: argparse.Namespace
) -> int:
    if options.html:
        from loadgen.report.html.compare import compare_page

        page = compare_page(runs, comparisons)
        return _write_page(page, "compare.html", options.others[-1], options.out)

    form, between = (compare_markdown, "\n\n") if options.markdown else (compare_text, "\n")
    text = compare_json(comparisons) if options.json else between.join(map(form, comparisons))
    return write_output(printable(f"{text}\n"), options.out)


def _compare_boxes(folders: Sequence[Path], options: argparse.Namespace) -> int:
    """Compare boxes by their certificates; returns the exit code."""
    refused = next((flag for flag in ("fail_if", "junit", "html") if getattr(options, flag)), None)
    if refused is not None:
        raise ProfileError(f"--{refused.replace('_', '-')}: is for runs; certificates have verdicts of their own")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ProfileError("compare: a folder is named twice: each box counts once")
    for folder in folders:
        if problems := verify(folder):
            print_status(f"vramp: {folder}: its certificate is not that of its evidence: {problems[0]}")
    sections = compare_boxes({str(folder): read_certificate(folder) for folder in folders}, force=options.force)
    if options.json:
        text = json_text(boxes_document(sections))
    elif options.markdown:
        text = sections_markdown(sections)
    else:
        text = sections_text(sections, 120)
    return write_output(printable(f"{text}\n"), options.out)


def compare_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp compare", "How runs differ from the first, with confidence intervals.", _COMPARE_EPILOG)
    parser.add_argument("a", metavar="A", help="the RUN that the others are compared with")
    parser.add_argument("others", metavar="B", nargs="+", help="one RUN or more")
    parser.add_argument("--fail-if", metavar="LIMIT", action="append", default=[], help="see below; 1 if one is broken")
    parser.add_argument(
        "--junit", metavar="FILE", type=Path, help="write the limits of --fail-if as tests for CI systems"
    )
    parser.add_argument(
        "--strict", action="store_true", help="compare the measured difference with the limits, significant or not"
    )
    parser.add_argument("--force", action="store_true", help="compare runs even if they are not alike")
    parser.add_argument(
        "--confidence", metavar="PERCENT", type=float, default=99.0, help="confidence of the intervals (default: 99)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="tables for GitHub")
    form.add_argument("--json", action="store_true", help="everything as one document")
    form.add_argument("--html", action="store_true", help="one file with all runs in one chart, for a browser")
    parser.add_argument("--out", metavar="PATH", type=Path, help="write it there")
    return parser


def _require_comparable(comparison: RunComparison, *, force: bool, charted: bool) -> None:
    """Raise `ProfileError` for runs that are not alike, `ResultError` where no stages match and no picture has both."""
    a, b = comparison.a.name, comparison.b.name
    # If a run ended before its load, not even the model is known.
    empty = not comparison.stages and not (comparison.only_a and comparison.only_b)
    if comparison.unlike and not force and not empty:
        reasons = "; ".join(comparison.unlike)
        raise ProfileError(f"{b} is not comparable with {a}: {reasons}; --force compares them anyway")
    if not comparison.stages and not charted:
        only_a, only_b = (", ".join(loads) or "nothing" for loads in (comparison.only_a, comparison.only_b))
        more = "" if force or empty else "; --force matches stages of another shape by their load alone"
        raise ResultError(f"nothing to compare: {a} has measured {only_a}; {b} has measured {only_b}{more}")


def _print_broken(comparison: RunComparison, held: Sequence[HeldAgainst]) -> bool:
    """Print which limits are broken or in doubt; return whether any is broken."""
    for one in held:
        if one.outcome != "kept":
            what = "broken by" if one.outcome == "broken" else "in doubt for"
            print_status(f"vramp: {one.limit} is {what} {comparison.b.name}, {one.stage}: {held_words(one)}")
    return any(one.outcome == "broken" for one in held)


# `vramp runs`: the runs below a folder, and the trend of a figure over them.

_LAST = 50
_RUNS_EPILOG = f"""\
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

    named = [(name, summary) for name, summary, _ in found]
    last = named[: options.last] if options.last > 0 else named
    if options.json:
        text = runs_json(str(root), named, shown) + "\n"
    elif options.html:
        from loadgen.report.html.history_page import history_page

        text = history_page(str(root), last, shown)
    else:
        text = printable((trend_text(shown) if shown else runs_text(last, len(named) - len(last))) + "\n")
    return write_output(text, options.out)


def runs_parser() -> argparse.ArgumentParser:
    parser = parser_of("vramp runs", "The runs below a folder, and the trend of a figure over them.", _RUNS_EPILOG)
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
