"""What is made of the parsers of all verbs: the manual page, and `vramp completion SHELL`.

`python -m tui.cli.manual > docs/vramp.1` (`make docs`) writes the page. It is kept in the repository because the wheel
includes it and a build has only hatchling.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from shlex import quote

import shtab

import loadgen
from loadgen.store.runs import RUNS
from tui.catalog import PROFILE_FOLDERS
from tui.cli.options import parser_of
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


# `vramp completion`.

_EPILOG = """\
bash:  vramp completion bash > ~/.local/share/bash-completion/completions/vramp
zsh:   vramp completion zsh > ~/.zfunc/_vramp       with ~/.zfunc in fpath before compinit
fish:  vramp completion fish > ~/.config/fish/completions/vramp.fish
"""

# The names are listed by the shell, because starting vramp at every press of TAB would take a quarter of a second.
_PROFILES = f"ls {' '.join(quote(str(folder)) for folder, _ in PROFILE_FOLDERS)} 2>/dev/null | sed -n 's/[.]toml$//p'"
_RUNS = f"ls {RUNS} 2>/dev/null; echo last"
_PREAMBLE = {
    "bash": f"""\
_vramp_profiles() {{ compgen -W "$({_PROFILES})" -- "$1"; compgen -f -X '!*.toml' -- "$1"; compgen -d -- "$1"; }}
_vramp_runs() {{ compgen -W "$({_RUNS})" -- "$1"; compgen -f -- "$1"; }}
_shtab_vramp_pos_0_COMPGEN=_vramp_profiles
""",
    "zsh": f"""\
_vramp_profiles() {{ compadd -- ${{(f)"$({_PROFILES})"}}; _files -g '*.toml'; }}
_vramp_runs() {{ compadd -- ${{(f)"$({_RUNS})"}}; _files; }}
functions[_vramp_verbs]=$functions[_shtab_vramp_commands]
_shtab_vramp_commands() {{ _vramp_verbs; _vramp_profiles; }}
functions[_vramp_words]=$functions[_shtab_vramp]
_shtab_vramp() {{
  if [[ $CURRENT -gt 2 && $words[2] != -* ]] && (( ! ${{+parameters[_shtab_vramp_$words[2]_options]}} )); then
    _arguments -C -s ${{_shtab_vramp_options:#*(->vramp|_shtab_vramp_commands)}} ':PROFILE:_vramp_profiles'
  else
    _vramp_words
  fi
}}
""",
    "fish": f"""\
function _vramp_profiles; {_PROFILES}; __fish_complete_suffix .toml; end
function _vramp_runs; {_RUNS}; __fish_complete_path (commandline -ct); end
""",
}
# A profile may stand in place of a command. For zsh that is above, because its script calls itself on the last line.
_APPENDED = {
    "fish": """\
complete -c vramp -n '_shtab_vramp_using; and test $_shtab_vramp_npos -eq 0' -ka "(_vramp_profiles)"
""",
}
_PROFILE = {"bash": "_vramp_profiles", "zsh": "_vramp_profiles", "fish": "(_vramp_profiles)"}
_RUN = {"bash": "_vramp_runs", "zsh": "_vramp_runs", "fish": "(_vramp_runs)"}
_BY_METAVAR = {
    **dict.fromkeys(("PROFILE", "P"), _PROFILE),
    **dict.fromkeys(("RUN", "A", "B"), _RUN),
    **dict.fromkeys(("FILE", "PATH"), shtab.FILE),
    "FOLDER": shtab.DIRECTORY,
}
"""Completers by the metavar of an argument."""


def completion(options: argparse.Namespace) -> int:
    script = shtab.complete(completed(whole_parser()), options.shell, preamble=_PREAMBLE[options.shell])
    print(script, _APPENDED.get(options.shell, ""), sep="\n", end="")
    return 0


def completion_parser() -> argparse.ArgumentParser:
    about = "Completion of commands, options, profiles and runs, as a script for a shell to read."
    parser = parser_of("vramp completion", about, _EPILOG)
    parser.add_argument("shell", choices=tuple(_PREAMBLE), help="the shell that reads it")
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """Return all verbs in one parser, for shtab to read; parsing is done by the parser of each verb."""
    whole = COCKPIT.parser()
    for action in whole._get_positional_actions():  # the profile: here its place is the verb's
        whole._remove_action(action)
    verbs = whole.add_subparsers(metavar="COMMAND", title="commands")
    for verb in VERBS:
        verbs.choices[verb.name] = verb.parser()  # argparse has no method to add an existing parser
        verbs._choices_actions.append(argparse.Action([], verb.name, help=verb.help))
    return whole


def completed(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return the parser with completers attached to its arguments."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                completed(each)
        elif action.metavar in _BY_METAVAR:
            vars(action)["complete"] = _BY_METAVAR[action.metavar]  # where shtab looks
    return parser


if __name__ == "__main__":
    sys.stdout.write(manual_page())
