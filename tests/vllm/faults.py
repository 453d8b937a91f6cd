"""The processes of a run on a real vLLM are killed, alone and in pairs, at random moments.

    python -m tests.vllm.faults --seed 1 --count 40 --resume FILE     goes on where FILE ends
    python -m tests.vllm.faults --case 1/7                            one of them again

What has to hold is what `tests.faults` holds the simulator to. Where vramp and its guard are killed together nobody is
left to end the server: then `vramp stop` has to find and end it. Cases run one after the other, in half a minute each.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

import msgspec

from tests.faults import checks
from tests.faults.place import ROOT, VARIABLE, marked, started_alone
from tests.tui.pseudo_terminal import Terminal, in_a_terminal
from tests.vllm.engine import HERE, PROFILE

Role = Literal["vramp", "guard", "API server", "EngineCore", "worker"]
Moment = Literal["start", "load", "stop"]

_WORDS: dict[bytes, Role] = {
    b"loadgen.server.process.guard": "guard",
    b"loadgen.worker": "worker",
    b"VLLM::": "EngineCore",
    b"\0serve\0": "API server",
}
_ROLES: tuple[Role, ...] = ("vramp", "guard", "API server", "EngineCore", "worker")
_SIGNALS = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGSTOP": signal.SIGSTOP}
_SPANS_S: dict[Moment, float] = {"start": 12.0, "load": 6.0, "stop": 0.4}
_APART_S = 0.2  # a second fault; later there is nothing left to hit, because vramp has answered the first
_CODES = {0, 1, 3, 130}
_STARTS_WITHIN_S, _APPEARS_WITHIN_S, _ENDS_WITHIN_S = 600.0, 60.0, 150.0
_SHOWN_S = 20.0
_LOAD = (
    *("load.concurrency=[2,6]", "load.duration=5s", "load.warmup=0", "server.stop_timeout_s=5"),
    "load.stall_timeout_s=20",  # a server that is stopped for good would be waited for five minutes
)


class Strike(NamedTuple):
    role: Role
    signal: str
    after_s: float


class Case(NamedTuple):
    id: str
    on_screen: bool
    moment: Moment
    max_failures: tuple[Strike, ...]

    @property
    def words(self) -> str:
        reported = " + ".join(f"{strike.role}: {strike.signal}" for strike in self.max_failures)
        return f"{reported}, during {self.moment}, {'cockpit' if self.on_screen else 'headless'}"


class Outcome(msgspec.Struct, frozen=True):
    """A line of the state file."""

    id: str
    words: str
    hit: tuple[bool, ...]
    code: int | None
    wrong: tuple[str, ...]  # nothing: it was survived
    wall_s: float


def case_of(seed: int, number: int) -> Case:
    """Every process in turn; every other case hits a second one right after. Signals but kill -9 are rare."""
    chance = Random(f"{seed}/{number}")
    roles = [_ROLES[number % len(_ROLES)]]
    if number // len(_ROLES) % 2:
        roles.append(chance.choice([role for role in _ROLES if role != roles[0]]))
    # Workers start when the server is ready.
    moment = chance.choice([moment for moment in _SPANS_S if moment != "start" or "worker" not in roles])
    at_s = chance.uniform(0.0, _SPANS_S[moment])
    max_failures: list[Strike] = []
    for role in roles:
        # A vramp that is stopped for good is the operator's own doing (Ctrl+Z), and goes on when he wants.
        names = [name for name in _SIGNALS if name != "SIGSTOP" or role not in ("vramp", "guard")]
        name = chance.choices(names, [8 if name == "kill -9" else 1 for name in names])[0]
        max_failures.append(Strike(role, name, at_s + chance.uniform(0.0, _APART_S) * len(max_failures)))
    return Case(f"{seed}/{number}", chance.random() < 0.4, moment, tuple(max_failures))


class Subject:
    """A run in a folder of its own, from the outside."""

    def __init__(self, pid: int, folder: Path, mark: str, terminal: Terminal | None) -> None:
        self.pid, self.folder, self.mark = pid, folder, mark
        self._terminal = terminal
        self.code: int | None = None

    def find(self, role: Role) -> list[int]:
        if role == "vramp":
            return [] if self.ended() else [self.pid]
        return [pid for pid, words in marked(self.mark).items() if _role_of(words) == role]

    def ended(self) -> bool:
        if self._terminal is not None:
            self._read(self._terminal)
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def _read(self, terminal: Terminal) -> None:
        try:
            terminal.read_waiting()
        except OSError:  # its other side is closed
            self._terminal = None
        (self.folder / "said.txt").write_bytes(terminal.seen)

    def wait(self, until: Callable[[], object], within_s: float) -> bool:
        until_s = time.monotonic() + within_s
        while not until():
            if self.ended() or time.monotonic() > until_s:
                return False
            time.sleep(0.05)
        return True

    @property
    def said(self) -> str:
        return (self.folder / "said.txt").read_text(errors="replace")

    @property
    def run_folder(self) -> Path | None:
        return next(iter((self.folder / "runs").glob("*")), None)

    def loads(self) -> bool:
        run = self.run_folder
        try:
            return run is not None and b'"StageStarted"' in (run / "journal.jsonl").read_bytes()
        except FileNotFoundError:  # the folder comes first
            return False

    def ask_to_stop(self) -> None:
        if not self.ended():
            os.kill(self.pid, signal.SIGINT)


def _role_of(words: bytes) -> Role | None:
    return next((role for part, role in _WORDS.items() if part in words), None)


@contextmanager
def running(case: Case, folder: Path, mark: str) -> Iterator[Subject]:
    overrides = [word for override in (*HERE, *_LOAD) for word in ("--set", override)]
    verb = [] if case.on_screen else ["run"]
    command = [sys.executable, "-m", "tui.cli", *verb, str(PROFILE), *overrides]
    environment = _environment(folder, mark)
    if case.on_screen:
        with in_a_terminal(command, folder, environment) as terminal:
            yield Subject(terminal.pid, folder, mark, terminal)
    else:
        with (folder / "said.txt").open("wb") as output:
            process = started_alone(command, folder, environment, output.fileno())
        process.returncode = 0  # `Subject.ended` reaps it
        yield Subject(process.pid, folder, mark, None)


def _environment(folder: Path, mark: str) -> dict[str, str]:
    return {VARIABLE: mark, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}


def run_case(case: Case, keep: Path | None) -> Outcome:
    began_s = time.monotonic()
    mark = f"{os.getpid()}-{time.time_ns():x}"
    folder = Path(tempfile.mkdtemp(prefix="vramp-vllm-faults-"))
    hit: list[bool] = []
    with running(case, folder, mark) as subject:
        try:
            hit = _strike(subject, case)
            if case.on_screen:
                # A cockpit shows why the server died until the operator leaves.
                subject.wait(lambda: False, _SHOWN_S)
                subject.ask_to_stop()
            subject.wait(lambda: False, _ENDS_WITHIN_S)
            wrong = _look(subject, case)
        finally:
            for pid in marked(mark):
                os.kill(pid, signal.SIGKILL)
    if keep is not None and wrong:
        folder.rename(keep / case.id.replace("/", "-"))
    return Outcome(case.id, case.words, tuple(hit), subject.code, tuple(wrong), round(time.monotonic() - began_s, 1))


def _strike(subject: Subject, case: Case) -> list[bool]:
    if case.moment != "start" and not subject.wait(subject.loads, _STARTS_WITHIN_S):
        return [False]
    if case.moment == "stop":
        subject.ask_to_stop()
    began_s = time.monotonic()
    hit = []
    for strike in case.max_failures:
        subject.wait(partial(_is_past, began_s + strike.after_s), _STARTS_WITHIN_S)
        subject.wait(partial(subject.find, strike.role), _APPEARS_WITHIN_S if case.moment == "start" else 0.0)
        pids = subject.find(strike.role)
        for pid in pids:
            os.kill(pid, _SIGNALS[strike.signal])
        hit.append(bool(pids))
    return hit


def _is_past(at_s: float) -> bool:
    return time.monotonic() >= at_s


def _look(subject: Subject, case: Case) -> list[str]:
    if subject.code is None:
        return [f"hangs: {_ENDS_WITHIN_S:g} s later there are {marked(subject.mark)}"]
    killed = {strike.role for strike in case.max_failures if strike.signal == "kill -9"}
    wrong = []
    if {"vramp", "guard"} <= killed:
        wrong += _stopped_by_hand(subject)
    wrong += checks.nothing_left(lambda: marked(subject.mark))
    wrong += checks.no_traceback(subject.said, subject.folder)
    wrong += checks.exit_code(subject.code, _CODES | ({-signal.SIGKILL} if "vramp" in killed else set()))
    if case.on_screen and "vramp" not in killed:
        wrong += checks.terminal_restored(subject.said)
    if subject.run_folder is not None:
        wrong += checks.result_of(subject.run_folder)[1]
    return wrong


def _stopped_by_hand(subject: Subject) -> list[str]:
    """`vramp stop` ends what two kills at once have left."""
    if not marked(subject.mark):
        return []
    stop = [sys.executable, "-m", "tui.cli", "stop"]
    environment = os.environ | _environment(subject.folder, f"{subject.mark}-stop")
    done = subprocess.run(stop, cwd=subject.folder, env=environment, capture_output=True, text=True, timeout=60)
    return [] if done.returncode == 0 else [f"vramp stop: {done.returncode}: {done.stderr[-300:]}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--resume", type=Path, metavar="FILE", help="a line per case; those that it holds are not run")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="what cases left that were not survived")
    parser.add_argument("--case", metavar="SEED/NUMBER", help="run this one alone")
    options = parser.parse_args()
    done: list[Outcome] = []
    if options.resume is not None and options.resume.exists():
        done = [msgspec.json.decode(line, type=Outcome) for line in options.resume.read_bytes().splitlines()]
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    names = [options.case] if options.case else [f"{options.seed}/{number}" for number in range(options.count)]
    for name in names:
        if name in {outcome.id for outcome in done}:
            continue
        outcome = run_case(case_of(*map(int, name.split("/"))), options.keep)
        done.append(outcome)
        if options.resume is not None:
            with options.resume.open("ab") as file:
                file.write(msgspec.json.encode(outcome) + b"\n")
        verdict = "survived" if not outcome.wrong else "NOT SURVIVED"
        print(
            f"{outcome.id:<6} {verdict:<13}{outcome.wall_s:>6.1f} s  exit {outcome.code}  {outcome.words}", flush=True
        )
        for line in outcome.wrong:
            print(f"         {line}", flush=True)
    survived = sum(not outcome.wrong for outcome in done)
    unhit = sum(not all(outcome.hit) for outcome in done)
    print(f"{len(done)} cases, {survived} survived; in {unhit} something had ended before it could be hit")
    sys.exit(survived != len(done))


if __name__ == "__main__":
    main()
