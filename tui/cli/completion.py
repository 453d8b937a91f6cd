"""`vramp completion SHELL`: prints a script made from the parsers of all verbs."""

from __future__ import annotations

import argparse
from shlex import quote

import shtab

from loadgen.store.runs import RUNS
from tui.catalog import PROFILE_FOLDERS
from tui.cli.options import parser_of
from tui.cli.verbs import COCKPIT, VERBS

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
