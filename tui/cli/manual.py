"""The manual page, made from the parsers of all verbs: `python -m tui.cli.manual > docs/vramp.1` (`make docs`).

It is kept in the repository because the wheel includes it and a build has only hatchling.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import loadgen
from tui.cli.verbs import COCKPIT, VERBS

_FILES = (
    ("./profiles, /etc/vramp/profiles.d", "profiles by name, searched before the shipped ones"),
    ("./runs", "a folder for each run: result.json, journal.jsonl, histograms.hlog, server.log"),
    ("~/.config/vramp", "keys and theme of the cockpit"),
    ("~/.local/state/vramp", "servers that are running, baselines"),
    ("~/.cache/vramp", "what is known of vLLM installations"),
)
_SEE_ALSO = "The manual is in docs/ of the source, the options of profiles in docs/profile.md."


def manual_page() -> str:
    """Return the page as troff source, in the macros of man(7)."""
    commands = [("vramp", COCKPIT.arguments, COCKPIT.parser())]
    commands += [(f"vramp {verb.name}", verb.arguments, verb.parser()) for verb in VERBS]
    lines = [
        f'.TH VRAMP 1 "" "vramp {loadgen.__version__}" "User Commands"',
        *(".SH NAME", f"vramp \\- {_plain(COCKPIT.parser().description or '')}"),
        *(".SH SYNOPSIS", ".nf", *(_plain(f"{name} {arguments}") for name, arguments, _ in commands), ".fi"),
    ]
    for name, arguments, parser in commands:
        lines += [f'.SH "{name.upper()}"', f".B {_plain(name)}", _plain(arguments), *_described(parser)]
    lines += [".SH FILES", *(line for name, words in _FILES for line in _entry(name, words))]
    return "\n".join([*lines, ".SH SEE ALSO", _plain(_SEE_ALSO), ""])


def _described(parser: argparse.ArgumentParser) -> Iterator[str]:
    if parser.description:
        yield from (".PP", _plain(parser.description))
    for group in parser._action_groups:
        actions = [each for each in group._group_actions if each.help != argparse.SUPPRESS and each.dest != "help"]
        kinds = [each for each in actions if isinstance(each, argparse._SubParsersAction)]
        shown = [each for each in actions if each not in kinds]
        if shown and group.title not in ("positional arguments", "options"):
            yield from (".PP", f"{_plain(group.title or '')}:")
        for action in shown:
            words = parser._get_formatter()._expand_help(action) if action.help else ""
            yield from _entry(_invocation(action), words)
        for kind in kinds:
            for name, each in kind.choices.items():
                yield from (f'.SS "{_plain(f"{parser.prog} {name}")}"', *_described(each))
    if parser.epilog:
        yield from (".PP", ".nf", *map(_plain, parser.epilog.strip().splitlines()), ".fi")


def _entry(name: str, words: str) -> Iterator[str]:
    yield from (".TP", f".B {_plain(name)}", _plain(words) or "\\&")


def _invocation(action: argparse.Action) -> str:
    """Return `--json FILE` or `--records [jsonl|parquet]`; for a positional argument, its name alone."""
    choices = "|".join(map(str, action.choices)) if action.choices is not None else action.dest.upper()
    value = action.metavar if isinstance(action.metavar, str) else choices
    if not action.option_strings:
        return value
    if action.nargs == 0:
        return ", ".join(action.option_strings)
    return f"{', '.join(action.option_strings)} {f'[{value}]' if action.nargs == '?' else value}"


def _plain(text: str) -> str:
    """Escape a line of text for troff."""
    line = " ".join(text.split("\n")).replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{line}" if line.startswith(".") else line


if __name__ == "__main__":
    sys.stdout.write(manual_page())
