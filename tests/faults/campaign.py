"""The campaign: vramp is hit by faults, alone and in pairs, at random moments, and must survive each.

    python -m tests.faults.campaign --seed 1 --count 1000 --resume FILE     1,000 cases; goes on where FILE ends
    python -m tests.faults.campaign --case 1/123 --keep FOLDER              one of them again

A case is made from its seed and number alone. It runs in a process and namespaces of its own, so that several run side
by side; as root, on Linux, with control groups of version 1, iproute2, iptables and a C compiler.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from loadgen.store.runs import has_result
from tests.faults import checks
from tests.faults.kinds import INTERRUPTED, KILLED, KINDS, Kind, Moment
from tests.faults.place import build_libraries, copy_out, enter_own_place, marked
from tests.faults.subject import Mode, ServerMode, Subject

ENDS_WITHIN_S = 75.0
_CASE_S = 240.0
_MOMENTS: tuple[Moment, ...] = ("start", "load", "stop")


class Planned(NamedTuple):
    """A fault to come."""

    kind: Kind
    moment: Moment
    after_s: float


class Case(NamedTuple):
    id: str
    mode: Mode
    server: ServerMode
    canaries: bool
    strikes: tuple[Planned, ...]


class Outcome(msgspec.Struct, frozen=True):
    """A line of the state file."""

    id: str
    faults: tuple[str, ...]
    moments: tuple[str, ...]
    mode: str
    server: str
    hit: tuple[bool, ...]  # whether there was something to hit
    code: int | None
    wrong: tuple[str, ...]  # nothing: it was survived
    wall_s: float

    @property
    def survived(self) -> bool:
        return not self.wrong


# Which cases there are.


def case_of(seed: int, number: int) -> Case:
    """Every kind in turn, alone and with another; all else is drawn."""
    chance = Random(f"{seed}/{number}")
    first = KINDS[number % len(KINDS)]
    partners = [kind for kind in KINDS if _go_together(first, kind)]
    kinds = [first, chance.choice(partners)] if number // len(KINDS) % 2 else [first]
    modes = [mode for mode in first.modes if all(mode in kind.modes for kind in kinds)]
    # A browser costs three times as much as the rest of a run.
    mode = chance.choices(modes, [1 if mode == "web" else 5 for mode in modes])[0]
    servers = [server for server in first.servers if all(server in kind.servers for kind in kinds)]
    server = chance.choices(servers, [5 if server == "managed" else 1 for server in servers])[0]
    strikes = []
    for kind in kinds:
        moment = chance.choice(kind.moments)
        longest_s = {"start": 0.1 if kind.group == "port" else 1.5, "load": 2.5, "stop": 0.8}[moment]
        strikes.append(Planned(kind, moment, chance.uniform(0.0, longest_s)))
    strikes.sort(key=lambda strike: (_MOMENTS.index(strike.moment), strike.after_s))
    return Case(f"{seed}/{number}", mode, server, chance.random() < 0.2, tuple(strikes))


def _go_together(one: Kind, other: Kind) -> bool:
    apart = one.group != other.group
    return apart and bool(set(one.modes) & set(other.modes)) and bool(set(one.servers) & set(other.servers))


# One case.


def run_case(case: Case, libraries: Path, keep: Path | None) -> Outcome:
    """Run it in this process, which is the case's own."""
    began_s = time.monotonic()
    mark = f"{os.getpid()}-{time.time_ns():x}"
    folder = libraries / "place"  # the same for all: it is mounted for this process alone
    enter_own_place(folder)
    subject = Subject(
        folder,
        mark,
        libraries,
        mode=case.mode,
        server=case.server,
        preload=any(strike.kind.preload for strike in case.strikes),
        canaries=case.canaries,
    )
    hit: list[bool] = [False] * len(case.strikes)
    try:
        subject.start()
        hit = _strike(subject, case)
        subject.finish(ENDS_WITHIN_S)
        wrong = _look(subject, case, hit)
    except Exception as error:  # noqa: BLE001 - a case that cannot be run is reported like one that is not survived
        wrong = [f"the case itself failed: {error!r}", *traceback.format_exc().splitlines()[-6:]]
    finally:
        subject.close()
    if keep is not None and wrong:
        extra = {"said.txt": subject.seen, "wrong.txt": "\n".join(wrong).encode()}
        copy_out(folder, keep / case.id.replace("/", "-"), extra)
    return Outcome(
        id=case.id,
        faults=tuple(strike.kind.name for strike in case.strikes),
        moments=tuple(strike.moment for strike in case.strikes),
        mode=case.mode,
        server=case.server,
        hit=tuple(hit),
        code=subject.code,
        wrong=tuple(wrong),
        wall_s=round(time.monotonic() - began_s, 1),
    )


def _strike(subject: Subject, case: Case) -> list[bool]:
    hit = []
    present: Moment | None = None
    since_s = subject.began_s
    chance = Random(f"{case.id}/strikes")
    for strike in case.strikes:
        if strike.moment != present:
            present = strike.moment
            if present != "start":
                subject.wait(subject.loads, 40.0)
            if present == "stop":
                time.sleep(chance.uniform(0.3, 2.0))
                subject.ask_to_stop()
            since_s = time.monotonic() if present != "start" else subject.began_s
        time.sleep(max(0.0, since_s + strike.after_s - time.monotonic()))
        hit.append(not subject.has_ended() and strike.kind.strike(subject, chance))
    return hit


def _look(subject: Subject, case: Case, hit: Sequence[bool]) -> list[str]:
    kinds = [strike.kind for strike in case.strikes]
    if subject.code is None:
        stuck = marked(subject.mark)
        return [f"hangs: {len(stuck)} processes after {ENDS_WITHIN_S:g} s", *_where(stuck)]
    wrong = checks.nothing_left(lambda: marked(subject.mark))
    said = subject.said
    _free_disk(subject, case)
    wrong += checks.no_traceback(said, subject.folder)
    expected = {0}.union(*(kind.codes for kind in kinds)) | ({INTERRUPTED} if subject.interrupted else set())
    if subject.interrupted and subject.run_folder is not None and has_result(subject.run_folder):
        # All is written and Python is about to end: it puts its handlers away before the process is gone.
        expected |= {-signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGALRM}
    wrong += checks.exit_code(subject.code, expected)
    if case.mode == "cockpit" and subject.keys_arrive and subject.code != KILLED:
        wrong += checks.terminal_restored(said)
    run = subject.run_folder
    document = None
    if run is not None and not subject.removed:
        document, problems = checks.result_of(run)
        wrong += problems
        horizon_s = min(subject.horizon_s, subject.ended_s) - checks.LOST_AT_MOST_S
        wrong += checks.holds_what_was_served(run, subject.completed_by(horizon_s))
    (strike, *others) = case.strikes
    under_load = strike.moment == "load" and not others and all(hit) and subject.code not in (0, KILLED)
    if under_load and strike.kind.says:
        wrong += checks.names_the_cause(strike.kind.says, said, checks.words_of(document))
    if subject.rival is not None and not others:
        codes = sorted((subject.code, subject.rival.wait(timeout=ENDS_WITHIN_S)))
        wrong += [] if codes in ([0, 0], [0, 3]) or subject.interrupted else [f"two vramps ended with {codes}"]
    return wrong


def _where(pids: Iterable[int]) -> Iterator[str]:
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = re.findall(r"^State:\s+(.*)$", Path(f"/proc/{pid}/status").read_text(), re.M)
            yield f"  pid {pid} {state} {words[:120]}"
        except OSError:
            continue


def _free_disk(subject: Subject, case: Case) -> None:
    """What `vramp recover` does is done by an operator who has made room."""
    for path in subject.folder.glob("filler*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    if any(strike.kind.name == "disk: read-only" for strike in case.strikes):
        subprocess.run(
            ["mount", "-o", "remount,bind,rw", str(subject.folder / "work")], check=False, capture_output=True
        )


# All of them.


class Running(NamedTuple):
    case: Case
    until_s: float
    output: Path


def run_all(cases: Sequence[Case], *, side_by_side: int, keep: Path | None) -> Iterator[Outcome]:
    """Run each in a process of its own; yields outcomes as they come."""
    with tempfile.TemporaryDirectory(prefix="vramp-faults-") as name:
        folder = Path(name)
        build_libraries(folder)
        (folder / "place").mkdir()
        waiting, running = list(cases)[::-1], dict[int, Running]()
        try:
            while waiting or running:
                while waiting and len(running) < side_by_side:
                    case = waiting.pop()
                    output = folder / case.id.replace("/", "-")
                    running[_forked(case, folder, keep, output)] = Running(case, time.monotonic() + _CASE_S, output)
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid in running:
                    yield _outcome(running.pop(pid))
                    continue
                for late in [pid for pid, one in running.items() if time.monotonic() > one.until_s]:
                    os.kill(late, signal.SIGKILL)
                time.sleep(0.02)
        finally:
            for pid in running:
                os.kill(pid, signal.SIGKILL)


def _forked(case: Case, libraries: Path, keep: Path | None, output: Path) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        outcome = run_case(case, libraries, keep)
        output.with_suffix(".new").write_bytes(msgspec.json.encode(outcome))
        output.with_suffix(".new").replace(output)
    except BaseException:  # noqa: BLE001 - the child of a fork must never go on as its parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _outcome(one: Running) -> Outcome:
    if one.output.exists():
        return msgspec.json.decode(one.output.read_bytes(), type=Outcome)
    case = one.case
    names = tuple(strike.kind.name for strike in case.strikes)
    moments = tuple(strike.moment for strike in case.strikes)
    why = ("the case itself did not end",)
    return Outcome(case.id, names, moments, case.mode, case.server, (), None, why, _CASE_S)


# The command.


class Row(NamedTuple):
    """What was tried with one kind of fault: alone, and in pairs with it."""

    kind: Kind
    alone: list[Outcome]
    pairs: list[Outcome]

    @property
    def counts(self) -> list[str]:
        each = (self.alone, self.pairs)
        return [str(count) for outcomes in each for count in (len(outcomes), sum(one.survived for one in outcomes))]


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """A row for each kind that was tried, without the cases in which there was nothing left to hit."""
    tried = [
        (name, one) for one in outcomes for name, hit in zip(one.faults, one.hit, strict=False) if hit or one.wrong
    ]
    hit = {kind.name: [one for name, one in tried if name == kind.name] for kind in KINDS}
    both = ((kind, [[one for one in hit[kind.name] if len(one.faults) == size] for size in (1, 2)]) for kind in KINDS)
    return [Row(kind, *parts) for kind, parts in both if any(parts)]


def table(outcomes: Sequence[Outcome]) -> str:
    lines = [f"{'fault':<34}{'alone':>8}{'survived':>10}{'in pairs':>10}{'survived':>10}"]
    lines += ["{:<34}{:>8}{:>10}{:>10}{:>10}".format(row.kind.name, *row.counts) for row in rows_of(outcomes)]
    return "\n".join([*lines, f"{len(outcomes)} cases, {sum(one.survived for one in outcomes)} survived"])


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The table of the manual, with the exit codes that came of the fault alone."""
    lines = [
        "| fault | what is done | alone | survived | in pairs | survived | exit codes, alone |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows_of(outcomes):
        codes = sorted({str(one.code) for one in row.alone})
        lines.append("| " + " | ".join([row.kind.name, row.kind.what, *row.counts, ", ".join(codes)]) + " |")
    return "\n".join(lines)


def read_state(path: Path | None) -> list[Outcome]:
    if path is None or not path.exists():
        return []
    return [msgspec.json.decode(line, type=Outcome) for line in path.read_bytes().splitlines() if line.endswith(b"}")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", metavar="WORDS", help="only cases with a fault whose name holds these words")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="a line per case; those that it holds are not run")
    parser.add_argument("--side-by-side", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="what cases left that were not survived")
    parser.add_argument("--markdown", action="store_true", help="print the table as the manual has it")
    parser.add_argument("--case", metavar="SEED/NUMBER", help="run this one alone")
    return parser


def main() -> None:
    options = _parser().parse_args()
    if options.case is not None:
        seed, number = map(int, options.case.split("/"))
        cases, done = [case_of(seed, number)], []
    else:
        done = read_state(options.resume)
        numbers = range(options.first, options.first + options.count)
        known = {outcome.id for outcome in done}
        cases = [case for number in numbers if (case := case_of(options.seed, number)).id not in known]
    if options.only:
        cases = [case for case in cases if any(options.only in strike.kind.name for strike in case.strikes)]
    for outcome in run_all(cases, side_by_side=options.side_by_side, keep=options.keep):
        done.append(outcome)
        if options.resume is not None:
            with options.resume.open("ab") as file:
                file.write(msgspec.json.encode(outcome) + b"\n")
        reported = " + ".join(
            f"{name} ({moment})" for name, moment in zip(outcome.faults, outcome.moments, strict=True)
        )
        words = "survived" if outcome.survived else "NOT SURVIVED"
        print(
            f"{outcome.id:<8} {words:<13}{outcome.wall_s:>6.1f} s  {outcome.mode}, {outcome.server}: {reported}",
            flush=True,
        )
        for line in outcome.wrong:
            print(f"           {line}", flush=True)
    print(markdown(done) if options.markdown else table(done))
    for outcome in done:
        if not outcome.survived and not options.markdown:
            print(f"again: python -m tests.faults.campaign --case {outcome.id}    {'; '.join(outcome.wrong)[:150]}")
    sys.exit(not all(outcome.survived for outcome in done))


if __name__ == "__main__":
    main()
