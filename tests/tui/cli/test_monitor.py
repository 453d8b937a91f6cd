"""`vramp monitor` as scripts see it: next to a vramp that drives the same engine, and on what cannot be watched."""

import json
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from loadgen.run.operations import SetConcurrency, Stop
from loadgen.run.run import Run
from loadgen.schema.result import Result
from loadgen.schema.snapshot import Snapshot
from loadgen.server.process.ports import holder_of
from tests.engines import MANAGED, NOBODY, Simulator, profile
from tests.run.driving import finish, in_turn, run_of
from tests.tui.cli.commands import SMALL, Said, start, vramp, wait_for
from tui.cli.options import INTERRUPTED, profile_from
from tui.cli.run import _monitor_document, monitor_parser


def test_it_sees_the_load_that_another_vramp_sends(engine: Simulator, tmp_path: Path) -> None:
    driver = start(tmp_path, "run", "--url", engine.url, "--concurrency", "4", "--duration", "1m", *SMALL)
    path = tmp_path / "seen.json"
    try:
        wait_for(driver, "held 4")
        watching = start(tmp_path, "monitor", engine.url, "--duration", "1m", "--every", "2s", "--json", str(path))
        try:
            for _ in range(3):  # lines are 2 s apart, as stages are: two of these are whole by then
                wait_for(watching, "no load; others: ")
        finally:
            watching.send_signal(signal.SIGINT)
            _, reported = watching.communicate()
    finally:
        driver.kill()
        driver.communicate()
    assert watching.returncode == INTERRUPTED, reported
    seen = json.loads(path.read_text())
    assert seen["kind"] == "monitor"
    whole = seen["stages"][:2]
    assert [stage["label"] for stage in whole] == ["no load", "no load"]
    for stage in whole:
        assert stage["requests"]["sent"] == 0
        assert stage["engine"]["generation_tokens"] > 0


async def test_server_owner_without_load_lets_another_run_drive(tmp_path: Path, said: Said) -> None:
    monitor = run_of(profile(MANAGED, load={"concurrency": 0, "requests": None}))
    drivers: list[subprocess.Popen[str]] = []
    seen: list[float] = []

    def address() -> tuple[str, str]:
        url = monitor._session.servers.url
        return url, url.rpartition(":")[2]

    def watches(snapshot: Snapshot) -> bool:
        return bool(snapshot.stages) and snapshot.load.stage_elapsed_s > 0.3

    def is_refused(snapshot: Snapshot) -> bool:
        return any("load refused" in event.text for event in snapshot.events)

    def loaded(snapshot: Snapshot) -> bool:
        return len(snapshot.stages) == 2 and snapshot.stages[-1].requests.completed > 3

    def another_drives(_: Run) -> None:
        url, port = address()
        refused = said("stop", port)
        assert refused.code == 3 and f"the server on port {port} is run by a vramp (pid " in refused.err
        words = ("--concurrency", "2", "--duration", "1m", "--json", "driven.json")
        drivers.append(start(tmp_path, "run", "--url", url, *words, *SMALL))

    def others_are_seen(snapshot: Snapshot) -> bool:
        others = snapshot.others.generation_tokens_per_s if snapshot.others is not None else None
        # Its first requests, before its stage, are others' traffic, too.
        begun = any(b'"StageStarted"' in each.read_bytes() for each in tmp_path.glob("runs/*-attach/journal.jsonl"))
        if others and begun and holder_of("drives", "localhost", int(address()[1])):
            seen.append(others)
        return bool(seen)

    def a_second_is_refused(_: Run) -> None:
        second = vramp(tmp_path, "run", "--url", address()[0], "--concurrency", "1", "--requests", "1", *SMALL)
        assert second.returncode == 3 and "is already driven by a vramp (pid" in second.stderr
        monitor.apply(SetConcurrency(0))

    def is_let_go(snapshot: Snapshot) -> bool:
        driven, runs = (bool(holder_of(right, "localhost", int(address()[1]))) for right in ("drives", "runs"))
        return len(snapshot.stages) == 3 and not driven and runs

    act = in_turn(
        (watches, another_drives),
        (others_are_seen, SetConcurrency(2)),
        (is_refused, lambda _: drivers[0].send_signal(signal.SIGINT)),
        (lambda _: drivers[0].poll() is not None, SetConcurrency(2)),
        (loaded, a_second_is_refused),
        (is_let_go, SetConcurrency(1)),
        (lambda snapshot: len(snapshot.stages) == 4 and snapshot.stages[-1].requests.completed > 0, Stop()),
    )
    try:
        result = await finish(monitor, act)
    finally:
        for driver in drivers:
            driver.kill()
            driver.communicate()
    assert [stage.target.concurrency for stage in result.stages] == [0, 2, 0, 1]
    refused = next(event.text for event in result.events if "load refused" in event.text)
    assert f"is already driven by a vramp (pid {drivers[0].pid} " in refused
    driven = json.loads((tmp_path / "driven.json").read_text())
    assert driven["stages"][0]["requests"]["completed"] > 0


@pytest.mark.parametrize(
    ("words", "code", "reported"),
    [
        (["--duration", "1s", NOBODY], 3, "nothing listens there"),
        (["--duration", "1s", "ftp://x"], 2, "url must look like http://host:port"),
        (["--duration", "1s", NOBODY, "--server", "simulator"], 2, "either a URL"),
        (["--duration", "1s", "--variant", "fast"], 2, "--variant is one of a profile's"),
        (["--every", "0s"], 2, "plan.every"),
        (["--once", "--json", NOBODY], 2, "is a URL, not a file"),
        (["--telemetry", "sim"], 2, 'telemetry "sim" needs the simulator'),
        (["--once", NOBODY], 3, "nothing listens there"),
        ([NOBODY, "--once", "--json", "file"], 2, "--json"),
        ([NOBODY, "--alert", ""], 2, "--alert"),
        ([NOBODY, "--alert", "'"], 2, "--alert"),
    ],
)
def test_mistakes_have_a_message_and_an_exit_code(words: list[str], code: int, reported: str, said: Said) -> None:
    done = said("monitor", *words)
    assert (done.code, done.out) == (code, "") and reported in done.err


def test_a_profile_brings_its_server_and_what_it_would_send_but_no_load() -> None:
    options = monitor_parser().parse_args(["--server", "simulator", "--duration", "1m", "--every", "10s"])
    document, where = _monitor_document(options)
    parts = profile_from(document, where, options)
    assert parts.server.engine == "simulator"
    assert (parts.load.concurrency, parts.load.rate, parts.plan.every) == ([0], [], 10.0)


def test_a_duration_and_a_metrics_port(engine: Simulator, tmp_path: Path, said: Said) -> None:
    done = said("monitor", engine.url, "--duration", "1s", "--metrics-port", "0", "--json", "o.json")
    assert done.code == 0, done.err
    assert "metrics: http://127.0.0.1:" in done.err
    assert msgspec.json.decode((tmp_path / "o.json").read_bytes(), type=Result).kind == "monitor"
    assert engine.truth()["requests"]["received"] == 0


def test_once_prints_one_snapshot_and_leaves_nothing(engine: Simulator, tmp_path: Path, said: Said) -> None:
    done = said("monitor", engine.url, "--once", "--json")
    seen = json.loads(done.out)
    assert (done.code, seen["schema"], seen["healthy"]) == (0, "vramp.monitor/1", True)
    assert (seen["server"]["state"], seen["engine"]["running"], seen["host"]["cores"] > 0) == ("ready", 0, True)
    assert list(tmp_path.iterdir()) == []
