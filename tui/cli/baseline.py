"""`vramp baseline`: results kept under a name, to compare others with."""

from __future__ import annotations

import argparse

from loadgen.format import harmless

_EPILOG = """\
RUN is the folder of a run, a result.json, a name or its beginning in runs/, or: last
A baseline is a copy of the whole result, and its name goes wherever a RUN goes: vramp compare NAME last

exit codes: 0 done; 1 the run or the baseline cannot be read; 2 usage
"""


def baseline(words: list[str]) -> int:
    options = _parser().parse_args(words)
    from loadgen.store.runs import open_result, remove_baseline, save_baseline

    match options.what:
        case "save":
            path = save_baseline(options.name, open_result(options.run), replace=options.replace)
            print(harmless(f"baseline {options.name}: {path}"))
        case "remove":
            remove_baseline(options.name)
        case "show":
            _show(options.name)
        case _:
            _list()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramp baseline",
        description="Keep a run under a name, to compare others with.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_subparsers(dest="what", required=True, metavar="save|list|show|remove")
    save = what.add_parser("save", help="keep the result of a run under a name")
    save.add_argument("name", metavar="NAME")
    save.add_argument("run", metavar="RUN")
    save.add_argument("--replace", action="store_true", help="in place of the one that has the name")
    what.add_parser("list", help="all of them")
    for verb, words in (("show", "the table of its result"), ("remove", "forget it")):
        what.add_parser(verb, help=words).add_argument("name", metavar="NAME")
    return parser


def _show(name: str) -> None:
    from loadgen.report.table import result_table
    from loadgen.store.runs import read_result, require_baseline

    print(harmless(result_table(read_result(require_baseline(name)))))


def _list() -> None:
    from loadgen.errors import ResultError
    from loadgen.report.cells import hardware_of, model_of
    from loadgen.store.runs import baselines, read_result

    for name, path in baselines().items():
        try:
            result = read_result(path)
            words = f"{result.started_at}  {model_of(result)} on {hardware_of(result)}, {len(result.stages)} stages"
        except ResultError as error:
            words = str(error)
        print(harmless(f"{name:<24}{words}"))
