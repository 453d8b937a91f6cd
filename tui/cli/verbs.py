"""The commands of `vramp`: what each is called, takes and does, and the function that runs it.

A command's module is imported when it is called, so that `vramp --help` loads neither a validator nor a terminal UI.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import argparse


class Verb(NamedTuple):
    """A command of `vramp`; without one, `vramp` opens the cockpit."""

    name: str
    arguments: str
    help: str  # one line
    function: str  # dotted path of a function from the options of its parser to an exit code

    def __call__(self, words: list[str]) -> int:
        exit_code: int | None = self._import(self.function)(self.parser().parse_args(words))
        return exit_code or 0

    def parser(self) -> argparse.ArgumentParser:
        """Make its parser, by the function of the same name with `_parser` appended."""
        parser: argparse.ArgumentParser = self._import(f"{self.function}_parser")()
        return parser

    def _import(self, path: str) -> Callable[..., Any]:
        module, _, name = path.rpartition(".")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function


COCKPIT = Verb("", "[PROFILE] [options]", "the cockpit", "tui.cli.run.cockpit")
"""What `vramp` runs without the name of a command."""

VERBS = (
    Verb("run", "[PROFILE] [options]", "a run without a screen", "tui.cli.run.headless"),
    Verb("ask", "[PROFILE] [PROMPT]", "send one prompt, stream its answer", "tui.cli.ask.ask"),
    Verb("monitor", "[URL...]", "the cockpit without load, on servers that others use", "tui.cli.run.monitor"),
    Verb("bench", "serve|latency|throughput", "the benchmarks of vllm bench", "tui.cli.bench.bench"),
    Verb("sweep", "PROFILE [options]", "the same load on every variant of a server", "tui.cli.sweep.sweep"),
    Verb(
        "accept",
        "PROFILE [options]",
        "may this box go into service? PASS, FAIL or INCONCLUSIVE",
        "tui.cli.accept.accept",
    ),
    Verb("check", "[PROFILE]", "would this profile start on this box? Starts nothing", "tui.cli.box.check"),
    Verb("import", "FILE|URL", "a published recipe or command as a profile", "tui.cli.importing.import_profile"),
    Verb("reference", "FILE|URL", "what others measured, for a profile's [reference]", "tui.cli.importing.reference"),
    Verb("runs", "[FOLDER] [options]", "the runs below a folder, and trends over them", "tui.cli.results.runs"),
    Verb("report", "RUN [options]", "a finished run as text, Markdown, HTML or CSV", "tui.cli.results.report"),
    Verb("recover", "RUN", "make the result of a run that was killed", "tui.cli.results.recover"),
    Verb("compare", "A B [C...]", "compare runs with the first; a gate for CI", "tui.cli.results.compare"),
    Verb("baseline", "save NAME RUN", "keep a run under a name, to compare with", "tui.cli.results.baseline"),
    Verb("replay", "RUN [--speed N]", "play a finished run again in the cockpit", "tui.cli.watch.replay"),
    Verb("watch", "[RUN]", "the cockpit on a run in another terminal", "tui.cli.watch.watch"),
    Verb("web", "[PROFILE] [options]", "the cockpit in a browser on this machine", "tui.cli.watch.web"),
    Verb("doctor", "[options]", "what vramp can measure on this box, and why not", "tui.cli.box.doctor"),
    Verb("stop", "[PORT]", "stop a server that was left running", "tui.cli.box.stop"),
    Verb("simulate", "[options]", "the simulated engine alone", "loadgen.simulator.__main__.main"),
    Verb("completion", "bash|zsh|fish", "TAB completion for a shell", "tui.cli.manual.completion"),
)


def usage() -> str:
    """The usage of `vramp`: a line for each command."""
    lines = [f"       {f'vramp {verb.name} {verb.arguments}':<38}{verb.help}" for verb in VERBS]
    return "\n".join([f"vramp {COCKPIT.arguments}", *lines])
