"""`vramp report`: a run that is over, as a table, Markdown, CSV, one HTML file, or what vLLM's benchmark writes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import ProfileError, ResultError
from loadgen.format import harmless

if TYPE_CHECKING:
    from loadgen.metrics.result import Result

_STDOUT = Path("-")
_HTML_NAME = "report.html"
_EPILOG = """\
RUN is the folder of a run, a result.json, a name or its beginning in runs/, or: last

Data goes to stdout, or to --out; the HTML file goes to report.html in the run's folder, and to stdout with --out -.
--vllm-json prints an object (a list of them if there are several stages); with --out DIR it writes one file a stage.

exit codes: 0 done; 1 the run cannot be read, or the report not be written; 2 usage
"""


def report(words: list[str]) -> int:
    """Show the runs in the form that is asked for."""
    options = _parser().parse_args(words)
    if len(options.runs) > 1 and not options.csv:
        raise ProfileError("vramp report: takes one run; --csv takes several, and `vramp compare` sets them beside")
    from loadgen.store.runs import open_result

    results = [open_result(text) for text in options.runs]
    if options.html:
        _html(results[0], options.runs[0], options.out)
    elif options.vllm_json:
        _vllm_json(results[0], options.out)
    else:
        _put(_text(results, options), options.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramp report",
        description="A run that is over, as a table or in the form that somebody else needs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="see below; several with --csv")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="tables for GitHub")
    form.add_argument("--html", action="store_true", help="one file with charts, for a browser and for paper")
    form.add_argument("--csv", action="store_true", help="one row a stage")
    form.add_argument("--vllm-json", action="store_true", help="as `vllm bench serve --save-result` writes it")
    parser.add_argument("--out", metavar="PATH", type=Path, help="write it there")
    return parser


def _text(results: list[Result], options: argparse.Namespace) -> str:
    if options.csv:
        from loadgen.report.csv import csv_report

        return csv_report(results)
    if options.markdown:
        from loadgen.report.markdown import markdown_report

        return markdown_report(results[0]) + "\n"
    from loadgen.report.curve import curve_table
    from loadgen.report.table import result_table

    tables = [result_table(results[0]), curve_table(results[0])]
    return harmless("".join(f"{table}\n" for table in tables if table))


def _html(result: Result, run: str, out: Path | None) -> None:
    from loadgen.report.html.document import html_report
    from loadgen.store.runs import find_run

    found = find_run(run)
    folder = found.parent if found.is_file() else found
    path = folder / _HTML_NAME if out is None else out
    _put(html_report(result), path)
    if path != _STDOUT:
        print(harmless(f"report: {path}"), file=sys.stderr)


def _vllm_json(result: Result, folder: Path | None) -> None:
    from loadgen.report.vllm_json import vllm_documents, vllm_file_names

    documents = vllm_documents(result)
    if not documents:
        raise ResultError(f"{result.run_id}: there is no stage in which a request was sent: nothing to write")
    if folder is None or folder == _STDOUT:
        _put(json.dumps(documents[0] if len(documents) == 1 else documents, allow_nan=False) + "\n", None)
        return
    _make_folder(folder)
    for name, document in zip(vllm_file_names(documents), documents, strict=True):
        _put(json.dumps(document, allow_nan=False), folder / name)
        print(harmless(f"report: {folder / name}"), file=sys.stderr)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultError(f"--out {folder}: must be a folder for --vllm-json: {error.strerror}") from error


def _put(text: str, path: Path | None) -> None:
    """To a file, or to stdout; raises `ResultError`."""
    if path is None or path == _STDOUT:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultError(f"{path}: the report cannot be written: {error.strerror}") from error
