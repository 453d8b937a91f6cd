"""`vramp run --plain-events`: sentences, each said once; and a real run, heard up to its exit code."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.schema.finding import Verdict
from loadgen.schema.snapshot import Snapshot
from tests.tui.cli.commands import Said
from tests.tui.cli.test_terminal import TOML
from tests.tui.scripted import running, starting, with_gpus
from tui.cli.spoken import Spoken

QUEUEING = Verdict("queueing", "gpu 0", "queueing: 16.0 requests waiting on average", bad=False)


def heard(*snapshots: Snapshot) -> list[str]:
    lines: list[str] = []
    spoken = Spoken(lines.append)
    for snapshot in snapshots:
        spoken.update(snapshot)
    return lines


def test_what_stays_as_it_is_is_reported_once() -> None:
    once, twice = heard(with_gpus()), heard(with_gpus(), with_gpus(), with_gpus())
    assert twice == once
    assert "Attention, gpu 5: THROTTLED thermal 18%." in once
    assert all(line[0].isupper() and line.endswith((".", "!", "?")) and "\n" not in line for line in once)


def test_a_stage_that_is_over_is_reported_with_its_figures_and_units() -> None:
    reported = [line for line in heard(running(30.0), running(200.0)) if line.startswith("Stage")]
    assert reported[0] == "Stage 1 of 4 begins: 8 streams held open, 4096 input and 1024 output tokens a request."
    assert reported[1].startswith(
        "Stage 1 ends after 60 seconds, over: 64 requests completed, 0 failed; 458 output tokens per second;"
    )
    assert "time to first token median 252, 99th percentile 529 milliseconds" in reported[1]
    assert reported[1].endswith("its limits are met.")
    assert reported[-1].startswith("Stage 4 of 4 begins: 64 streams")


def test_a_moving_load_is_reported_by_its_ends() -> None:
    def moving(**target: Any) -> str:
        (stage, *_) = (snapshot := running(30.0)).stages
        ramp = replace(stage, target=replace(stage.target, moves=(1.0, 64.0), **target))
        return next(line for line in heard(replace(snapshot, stages=[ramp])) if line.startswith("Stage 1"))

    assert "begins: from 1 to 64 streams held open, 4096 input" in moving()
    assert "begins: from 1 to 64 requests per second, 4096 input" in moving(concurrency=None, rate=20.0)


def test_verdict_that_flickers_is_reported_once() -> None:
    def at(t_s: float, *verdicts: Verdict) -> Snapshot:
        return msgspec.structs.replace(running(200.0, verdicts=verdicts), t_s=t_s)

    flickering = heard(at(200, QUEUEING), at(202), at(203, QUEUEING), at(206))
    assert sum("queueing: 16.0" in line for line in flickering) == 1
    assert not any("No longer" in line for line in flickering)
    assert heard(at(200, QUEUEING), at(202), at(206))[-1] == "No longer true, gpu 0: queueing."


def test_failures_are_reported_as_they_grow_and_not_each_by_itself() -> None:
    def at(t_s: float, count: int) -> Snapshot:
        return msgspec.structs.replace(running(200.0, errors={"http_5xx": (count, ["503: busy"])}), t_s=t_s)

    reported = [line for line in heard(at(200, 1), at(201, 5), at(205, 8), at(211, 12)) if "failed so far" in line]
    assert reported == [
        "1 request failed so far with http_5xx: 503: busy.",
        "12 requests failed so far with http_5xx: 503: busy.",
    ]


def test_the_servers_milestones_and_its_death_are_reported() -> None:
    ready = starting()
    done = tuple(msgspec.structs.replace(one, state="done") for one in ready.server.milestones)
    reported = heard(
        ready, msgspec.structs.replace(ready, server=msgspec.structs.replace(ready.server, milestones=done))
    )
    assert "Server vLLM is starting." in reported
    assert reported.count("Server: process started is done.") == 1
    assert "Server: graph capture is done." in reported


def test_a_real_run_is_heard_from_start_to_exit_code(tmp_path: Path, said: Said) -> None:
    (tmp_path / "p.toml").write_text(
        TOML.replace("concurrency = 2\nduration = '60s'", "concurrency = [2, 4]\nrequests = 8")
    )
    ended = said("run", "p.toml", "--plain-events")
    lines = ended.err.splitlines()
    assert ended.code == 0, ended.err
    assert "Stage 2 of 2 begins: 4 streams held open, 16 input and 8 output tokens a request." in lines
    assert sum(" ends after " in line and "8 requests completed, 0 failed" in line for line in lines) == 2
    assert "The run is over." in lines
    assert lines[-1] == "vramp ends with exit code 0."
    assert ended.out == "The run is complete: 2 stages, 0 failed requests. vramp report prints its table.\n"
    assert all(character >= " " for character in "".join(lines))
