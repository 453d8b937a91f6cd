"""A run from its options to its exit code, without a screen: progress on stderr, Ctrl-C to finish, twice to abort.

If nobody reads stderr, lines are lost but the run is not delayed; if it is closed, the run finishes and keeps its
result.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from loadgen.errors import ProfileError
from loadgen.format import count, interval, percent, significant, target
from loadgen.profile import BASE
from loadgen.system import map_large_blocks
from tui.cli.options import (
    INTERRUPTED,
    before_anything_runs,
    end_by_signals,
    end_within_seconds,
    is_loopback,
    print_output,
    print_status,
    printable,
    profile_from,
    variants_from,
)
from tui.exhausted import give_up_where_callbacks_fail
from tui.terminal import NonBlockingWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from loadgen.profile.schema import Profile
    from loadgen.run.operations import Operation
    from loadgen.run.run import Run
    from loadgen.schema.result import Result
    from loadgen.schema.snapshot import Snapshot

    Table = Callable[[Result], str]

State = TypeVar("State")
_EVERY_S = 2.0


async def follow(run: Run, *, spoken: bool = False) -> bool:
    """Drive a run to its end, reporting in sentences if `spoken`; return True if it was interrupted."""
    from tui.cli.spoken import Spoken

    return await drive(run.snapshots(), run.apply, lambda line: (Spoken if spoken else Progress)(line).update)


async def drive(
    states: AsyncIterator[State],
    apply: Callable[[Operation], None],
    progress: Callable[[Callable[[str], None]], Callable[[State], None]],
) -> bool:
    """Pass each state to what `progress` makes of a function that prints a line; return True if it was interrupted."""
    import asyncio

    from loadgen.run.operations import Abort, Stop

    give_up_where_callbacks_fail()
    map_large_blocks()
    interrupts = 0

    def interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            print_line("finishing: the result is kept; again to abort")
            apply(Stop())
        else:
            apply(Abort())

    def finish_unread() -> None:
        if interrupts == 0:
            interrupt()

    loop = asyncio.get_running_loop()
    writer = NonBlockingWriter(
        sys.stderr,
        caught_up=lambda: print_line("lines are missing here: they were not read in time"),
        gone=lambda: loop.call_soon_threadsafe(finish_unread),
    )

    def print_line(text: str) -> None:
        writer.write(printable(text) + "\n")

    # Explicitly: a shell starts background jobs with SIGINT ignored.
    for caught in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(caught, interrupt)
    update = progress(print_line)
    try:
        async for state in states:
            update(state)
    finally:
        await asyncio.to_thread(writer.close)  # signals are handled meanwhile
    return interrupts > 0


class Progress:
    """Prints what is new, and a line of numbers every two seconds."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._phase = ""
        self._stage = 0
        self._events = 0
        self._findings = 0
        self._milestones: set[str] = set()
        self._next_s = 0.0

    def update(self, snapshot: Snapshot) -> None:
        for finding in snapshot.findings[self._findings :]:
            if finding.severity != "info":  # `vramp check` shows all of them
                remedy = f" -> {finding.fix}" if finding.fix else ""
                self._print_line(
                    f"{snapshot.t_s:7.1f} s  preflight {finding.severity}: {finding.id}: {finding.seen}{remedy}"
                )
        self._findings = len(snapshot.findings)
        if snapshot.phase == "starting":
            for milestone in snapshot.server.milestones:
                if milestone.state == "done" and milestone.id not in self._milestones:
                    self._milestones.add(milestone.id)
                    self._print_line(f"{snapshot.t_s:7.1f} s  server: {milestone.label} {milestone.detail}".rstrip())
        for event in snapshot.events[self._events :]:
            self._print_line(f"{event.t_s:7.1f} s  {event.kind}: {event.text}")
        self._events = len(snapshot.events)
        news = (snapshot.phase, snapshot.load.stage) != (self._phase, self._stage)
        if news or (snapshot.t_s >= self._next_s and snapshot.phase not in ("checking", "starting", "done")):
            self._phase, self._stage = snapshot.phase, snapshot.load.stage
            self._next_s = snapshot.t_s + _EVERY_S
            self._print_line(_line(snapshot))


def _line(snapshot: Snapshot) -> str:
    load, point = snapshot.load, snapshot.point
    if load.stage == 0 or snapshot.phase in ("stopping", "done"):
        return f"{snapshot.t_s:7.1f} s  {snapshot.headline}"
    stage = snapshot.stage_words
    if load.concurrency == 0:
        figures, engine = "", snapshot.engine
        if engine is not None:
            ttft = engine.latency_ms.get("ttft")
            figures = (
                f"  running {count(engine.running)}  waiting {count(engine.waiting)}  KV {percent(engine.kv_usage)}"
                f"  {significant(engine.generation_tokens_per_s)} tok/s"
                f"  TTFT p50 {interval(ttft.within.get('p50') if ttft is not None else None)} ms"
            )
        return f"{snapshot.t_s:7.1f} s  {stage}{figures}  {snapshot.headline}"
    if snapshot.phase != "draining":  # which sends nothing
        stage += f"  {target(load.concurrency, load.rate, in_sessions=load.in_sessions)}"
    return (
        f"{snapshot.t_s:7.1f} s  {stage}  held {load.held}"
        f"  {significant(point.output_tokens_per_s)} tok/s  TTFT p50 {significant(point.ttft_p50_ms)} ms"
        f"  TPOT p50 {significant(point.tpot_p50_ms)} ms  {snapshot.headline}"
    )


def make_run(
    document: Mapping[str, Any], where: str, options: argparse.Namespace, *, hold_open: bool, folder: Path | None = None
) -> Run:
    """Make the run of a document under the options, with its files in `folder`; raises `ProfileError`."""
    from loadgen.record.figures import baseline_of
    from loadgen.store.runs import open_result
    from loadgen.telemetry.capture import replay_options

    profile = profile_from(document, where, options)
    variants = variants_from(document, where, options)
    with before_anything_runs():
        baseline = None if options.baseline is None else baseline_of(options.baseline, open_result(options.baseline))
    return open_run(
        profile,
        where,
        options,
        hold_open=hold_open,
        folder=folder,
        variant=options.variant or (BASE if variants else None),
        variants=variants,
        records=options.records,
        baseline=baseline,
        replay=None if options.replay_telemetry is None else replay_options(options.replay_telemetry),
    )


def open_run(profile: Profile, where: str, options: argparse.Namespace, **settings: Any) -> Run:  # noqa: ANN401
    """Make the run of a profile, with the `add_result_options` and the other settings; raises `ProfileError`."""
    from loadgen.run.run import Run
    from loadgen.run.settings import RunSettings

    address = None if options.metrics_port is None else (options.metrics_host, options.metrics_port)
    settings |= {"json_path": options.json, "junit_path": options.junit, "force": options.force}
    if options.alert is not None:
        # Its words as a shell would split them.
        try:
            settings["alert"] = tuple(shlex.split(options.alert))
        except ValueError as error:
            raise ProfileError(f"--alert {options.alert}: {error}") from error
        if not settings["alert"]:
            raise ProfileError("--alert: expected a command, such as --alert 'notify-send vramp'")

    with before_anything_runs():
        run = Run(RunSettings(profile, where=where, metrics_address=address, **settings))
    if run.metrics_port is not None:
        print_status(f"metrics: {run.metrics_port.url}")
        if not is_loopback(options.metrics_host):
            print_status(
                f"warning: {options.metrics_host} is open to other machines: anyone who reaches it can read the figures"
            )
    return run


def run_headless(document: Mapping[str, Any], where: str, options: argparse.Namespace, *, spoken: bool = False) -> int:
    """Run a document without a screen; return the exit code, which is reported if `spoken`."""
    import asyncio

    from tui.cli.spoken import result_words

    run = make_run(document, where, options, hold_open=False)
    interrupted = asyncio.run(follow(run, spoken=spoken))
    code = conclude(run, interrupted=interrupted, table=result_words if spoken else None)
    if spoken:
        print_status(f"vramp ends with exit code {code}.")
    return code


_ONCE_S = 3.0  # rates need two readings of engine and host, a second apart
_ONCE_LATEST_S = 20.0  # for GPUs whose library takes long


def print_once(document: Mapping[str, Any], where: str, options: argparse.Namespace) -> int:
    """Watch for some seconds, print what is there, and leave nothing; return 1 if it needs attention."""
    import asyncio
    import tempfile
    from pathlib import Path

    from loadgen.report.once import once_json, once_text

    to_stdout = options.json == Path("-")
    if options.json is not None and not to_stdout:
        raise ProfileError(f"--once --json {options.json}: --once prints to stdout; leave out the file")
    options.json = None
    with tempfile.TemporaryDirectory(prefix="vramp-once-") as folder:
        run = make_run(document, where, options, hold_open=False, folder=Path(folder))
        snapshot = asyncio.run(_first_whole(run))
    if run.error is not None:
        print_status(f"vramp: {run.error}")
        return run.error.exit_code
    code = print_output(f"{printable((once_json if to_stdout else once_text)(snapshot))}\n")
    return max(code, 0 if snapshot.healthy else 1)


async def _first_whole(run: Run) -> Snapshot:
    """The first snapshot of a run that has every figure, or the one when that takes too long."""
    from loadgen.run.operations import Stop

    found, began_s = None, None
    async for snapshot in run.snapshots():
        if found is not None or snapshot.phase != "running":
            continue
        began_s = snapshot.t_s if began_s is None else began_s
        lasted_s = snapshot.t_s - began_s
        if lasted_s >= (_ONCE_S if run.telemetry_settled else _ONCE_LATEST_S):
            found = snapshot
            run.apply(Stop())
    return found or snapshot


def conclude(run: Run, *, interrupted: bool, table: Table | None = None) -> int:
    """Print the figures of a finished run, as `table` formats them, and its files; return the exit code."""
    from loadgen.report.assessment import shortcomings
    from loadgen.report.junit import run_suite, write_junit
    from loadgen.report.text import text_report

    end_by_signals()
    if interrupted:
        end_within_seconds()
    code = 0
    if run.result is not None:
        if run.settings.junit_path is not None:
            write_junit(run.settings.junit_path, [run_suite(run.result)])
        if run.result.stages:
            code = print_output(f"{printable((table or text_report)(run.result))}\n")
        for path in run.result_paths:
            if path.exists():
                print_status(f"result: {path}")
    for line in [str(run.error)] if run.error is not None else shortcomings(run.result) if run.result else []:
        print_status(f"vramp: {line}")
    return max(code, exit_code(run, interrupted=interrupted))


def exit_code(run: Run, *, interrupted: bool) -> int:
    if run.error is not None:
        return run.error.exit_code
    if interrupted:
        return INTERRUPTED
    from loadgen.report.assessment import shortcomings

    return 1 if run.result is None or shortcomings(run.result) else 0
