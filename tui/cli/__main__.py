"""The command line, a contract: scripts depend on its options, its exit codes, and on stdout being data.

A verb's module is imported when it is called, so that `vramp --help` loads neither a validator nor a terminal UI.
Progress and messages go to stderr; tables and nothing else go to stdout.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from loadgen.errors import ProfileError, VrampError
from loadgen.system import raise_open_files, start_lean
from tui.cli.options import INTERRUPTED, READER_GONE, discard_stdout, end_by_signals, print_status
from tui.exhausted import give_up, lacks

if TYPE_CHECKING:
    import argparse

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Verb(NamedTuple):
    """A command of `vramp`; without one, `vramp` opens the cockpit."""

    name: str
    arguments: str
    what: str  # one line for the help
    function: str  # dotted path of a function from words to an exit code

    def __call__(self, words: list[str]) -> int:
        return self._part(self.function)(words) or 0

    def parser(self) -> argparse.ArgumentParser:
        """Make its parser, by the function of the same name with `_parser` appended."""
        parser: argparse.ArgumentParser = self._part(f"{self.function}_parser")()
        return parser

    def _part(self, path: str) -> Callable[..., Any]:
        module, _, name = path.rpartition(".")
        part: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return part


VERBS = (
    Verb("run", "[PROFILE] [options]", "the same without a screen", "tui.cli.run.headless"),
    Verb("ask", "[PROFILE|--url URL] [PROMPT]", "one typed prompt and its streamed answer", "tui.cli.ask.ask"),
    Verb("monitor", "[URL...]", "the cockpit without load: what others send, or GPUs only", "tui.cli.monitor.monitor"),
    Verb(
        "bench",
        "serve|latency|throughput",
        "the published benchmarks, by the names of vllm bench",
        "tui.cli.bench.bench",
    ),
    Verb("sweep", "PROFILE [options]", "the same load on every variant of a server", "tui.cli.sweep.sweep"),
    Verb("check", "[PROFILE]", "the preflight of a profile on this box; starts nothing", "tui.cli.box.check"),
    Verb(
        "report", "RUN [options]", "a finished run: table, Markdown, HTML, CSV, vLLM's JSON", "tui.cli.results.report"
    ),
    Verb("recover", "RUN", "the result of a run that was killed", "tui.cli.results.recover"),
    Verb("compare", "A B [C...]", "runs against the first of them, and a gate for CI", "tui.cli.results.compare"),
    Verb("baseline", "save NAME RUN", "give a run a name to compare with", "tui.cli.results.baseline"),
    Verb("replay", "RUN [--speed N]", "a finished run, played again in the cockpit", "tui.cli.watch.replay"),
    Verb("watch", "[RUN]", "the cockpit on a run in another terminal", "tui.cli.watch.watch"),
    Verb("web", "[PROFILE] [options]", "the same in a browser on this machine", "tui.cli.watch.web"),
    Verb("doctor", "[options]", "what can be measured on this box, and why the rest cannot", "tui.cli.box.doctor"),
    Verb("stop", "[PORT]", "stop a server that was left running", "tui.cli.box.stop"),
    Verb("simulate", "[options]", "the simulated engine alone", "loadgen.simulator.__main__.main"),
    Verb("completion", "bash|zsh|fish", "TAB completion of commands, profiles, runs", "tui.cli.completion.completion"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command `vramp`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_streams()
    end_by_signals()
    start_lean()
    raise_open_files()
    try:
        _require_a_folder()
        try:
            sys.exit(_dispatch(words))
        finally:
            sys.stdout.flush()
    except VrampError as error:
        print_status(f"vramp: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        # Silently: the terminal may be the reason for the interrupt, and take no more output.
        _ignore_more_signals()
        sys.exit(INTERRUPTED)
    except (MemoryError, RuntimeError) as error:
        if (what := lacks(error)) is None:
            raise
        give_up(what)
    except OSError as error:
        if (what := lacks(error)) is not None:
            give_up(what)
        # Errors about our own files have a filename; without one, it is standard output.
        if error.errno in _NO_ROOM and error.filename is None:
            sys.exit(discard_stdout(error))
        if error.errno not in READER_GONE:
            raise
        # The reader of our output or the terminal is gone: nobody is left to read a message.
        _ignore_more_signals()
        sys.exit(INTERRUPTED)


def _ignore_more_signals() -> None:
    """Redirect stdout and stderr to /dev/null, so that nothing is written at exit, either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)


def _dispatch(words: list[str]) -> int:
    for verb in VERBS:
        if words[:1] == [verb.name]:
            return verb(words[1:])
    from tui.cli.run import cockpit

    lines = [f"       {f'vramp {verb.name} {verb.arguments}':<38}{verb.what}" for verb in VERBS]
    return cockpit(words, usage="\n".join(["vramp [PROFILE] [options]", *lines]))


def _require_a_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ProfileError("the current folder no longer exists: change to another") from None


def _open_standard_streams() -> None:
    """Open /dev/null for each closed standard stream, or the journal could get its descriptor.

    Standard output takes any character, whatever its encoding.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a locale may lack a character


if __name__ == "__main__":
    main()
