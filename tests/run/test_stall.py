"""Each class of stall, on a simulator that hangs: the verdict, the evidence, and what is done about it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from loadgen.metrics import stall
from loadgen.run import engine_watch, evidence
from loadgen.run import run as run_module
from loadgen.run.operations import SetConcurrency, Stop, TakeEvidence
from loadgen.run.run import Run
from loadgen.schema.result import Result
from loadgen.schema.snapshot import Snapshot
from loadgen.store.recover import folded
from tests.engines import attach, profile, simulator
from tests.run.driving import Act, finish, flowing, in_turn, noted, once, run_of

LOAD = {"requests": None, "duration": "60s", "concurrency": 4}
WORDS = {
    "kernel": ("a kernel that does not end", "99% GPU busy"),
    "collective": ("a collective that does not end", "running"),
    "lost_wakeup": ("waits for an event that does not come", "0% GPU busy"),
    "scheduler": ("the scheduler admits nothing", "0 running"),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stall is called after a second, and the engine's rates are of the latest moments."""
    monkeypatch.setattr(stall, "MIN_STALL_S", 1.5)
    monkeypatch.setattr(stall, "TIMES_LONGEST", 0.0)
    monkeypatch.setattr(stall, "MAX_STEP_S", 3.0)
    monkeypatch.setattr(engine_watch, "_PERIOD_S", 0.5)
    monkeypatch.setattr(engine_watch, "WINDOW_S", 1.5)
    monkeypatch.setattr(evidence, "_BETWEEN_PAGES_S", 0.1)


def hanging(fault: str, **server: Any) -> Any:
    engine = {"engine": "simulator", "args": {"preset": "fast", "fault": fault}, **server}
    return profile(engine, load=LOAD, telemetry={"mode": "sim"})


def texts(found: Snapshot | Result) -> list[str]:
    return [event.text for event in found.events]


def longest_ms(found: Snapshot | Result) -> float:
    """The longest wait for a first token or between two."""
    latency = found.stages[0].latency_ms
    return max(latency[name].max or 0.0 for name in ("ttft", "itl"))


def has_evidence(snapshot: Snapshot) -> bool:
    return any(text.startswith("evidence: ") for text in texts(snapshot))


def stalled(snapshot: Snapshot) -> str:
    return next((one.text for one in snapshot.verdicts if one.id == "stalled"), "")


async def shown(parts: Any, act: Act, **settings: Any) -> tuple[Path, Result, list[Snapshot]]:
    seen: list[Snapshot] = []
    run = run_of(parts, **settings)
    result = await finish(run, noted(seen, act))
    return run.folder, result, seen


@pytest.mark.parametrize("kind", WORDS)
async def test_each_class_of_stall_is_named_and_leaves_its_evidence(kind: str) -> None:
    words, seen = WORDS[kind]
    stop = once(lambda now: has_evidence(now) and words in stalled(now) and seen in stalled(now), Stop())
    folder, result, snapshots = await shown(hanging(f"{kind}:nth=30"), stop)
    at_stall = next(one for one in snapshots if words in stalled(one) and seen in stalled(one))
    assert (at_stall.headline, at_stall.healthy) == (stalled(at_stall), False)
    page = (folder / "evidence" / "evidence.md").read_text()
    assert page.startswith("# stalled for ")
    assert "counters of /metrics moved in 0.1 s" in page
    for name in ("samples.jsonl", "metrics.txt", "server.log", "tasks.txt", "gpus.txt"):
        assert (folder / "evidence" / name).stat().st_size > 0
    assert f"evidence: {folder / 'evidence' / 'evidence.md'}" in texts(result)
    bad = [one.bad for one in result.verdicts if one.id == "stalled"]
    # Only this kind may hear that its requests were given up, before the run ends.
    heard = any(text.endswith("its requests have ended") for text in texts(result))
    assert bad == [True] or (kind == "scheduler" and heard)
    # The operator ended it: the stacks of its threads are in its log.
    assert "Fatal Python error: Aborted" in (folder / "server.log").read_text()
    assert [one.text for one in folded(folder / "journal.jsonl").verdicts] == [one.text for one in result.verdicts]


async def test_a_stall_that_clears_is_an_event_with_its_length() -> None:
    cleared = once(
        lambda now: any(text.endswith("it goes on") for text in texts(now)) and longest_ms(now) > 5_000, Stop()
    )
    folder, result, _ = await shown(hanging("kernel:nth=600,seconds=7"), cleared)
    assert [one for one in result.verdicts if one.id == "stalled"] == []
    [event] = [text for text in texts(result) if text.endswith("it goes on")]
    assert re.match(r"stalled for [2-7] s: requests are open", event)
    assert (folder / "evidence" / "evidence.md").exists()
    assert "Fatal Python error" not in (folder / "server.log").read_text()
    assert longest_ms(result) > 5_000


async def test_a_stalled_server_is_started_again_and_in_the_end_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_RESTARTS", 1)
    folder, result, _ = await shown(hanging("kernel:nth=30", on_stall="restart"), lambda *_: None)
    said = texts(result)
    taken = [number for number, text in enumerate(said) if text.startswith("evidence: ")]
    (restarted,) = (number for number, text in enumerate(said) if text.startswith("restart by server.on_stall"))
    assert len(taken) == 2 and taken[0] < restarted < taken[1]
    assert "Fatal Python error: Aborted" in (folder / "server.log").read_text()
    assert len(result.environment["server_starts"]) == 2
    assert result.stages[0].stop_reason == 'the server was restarted by server.on_stall = "restart"'
    verdicts = {one.id for one in result.verdicts}
    assert "stalled" in verdicts and "hbm-used-before-start" not in verdicts
    assert result.state == "server_died"
    assert "; server.on_stall has restarted it 1 times within 60 minutes: look at the evidence" in result.reason


async def test_the_operator_takes_evidence_a_few_times_and_a_full_disk_costs_only_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evidence, "MAX_A_RUN", 3)

    async def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    def fill_disk(run: Run) -> None:
        monkeypatch.setattr(evidence, "take_evidence", full)
        run.apply(TakeEvidence())

    requests = in_turn(
        (flowing, TakeEvidence()),
        (has_evidence, TakeEvidence()),
        (lambda now: sum(text.startswith("evidence: ") for text in texts(now)) == 2, fill_disk),
        (lambda now: any("No space left" in text for text in texts(now)), TakeEvidence()),
        (lambda now: "evidence refused: this run has taken it 3 times" in texts(now), Stop()),
    )
    folder, result, snapshots = await shown(hanging("reset:share=0"), requests)
    assert (folder / "evidence" / "evidence.md").read_text().startswith("# taken by the operator\n")
    assert (folder / "evidence-2" / "evidence.md").exists()
    assert any(text.endswith("evidence-3: no evidence: No space left on device") for text in texts(result))
    assert not any(map(stalled, snapshots)) and result.state == "stopped"


async def test_one_of_two_servers_that_stalls_is_named_and_leaves_its_evidence() -> None:
    with simulator() as healthy, simulator("--fault", "kernel:nth=30") as engine:
        urls = [healthy.url, engine.url]
        parts = profile({"engine": "attach", "urls": urls}, load={**LOAD, "workers": 2})
        act = once(lambda now: has_evidence(now) and bool(stalled(now)), Stop())
        folder, _, snapshots = await shown(parts, act)
    words = "instance 1 stalled for "
    assert next(stalled(one) for one in snapshots if stalled(one)).startswith(words)
    page = (folder / "evidence" / "evidence.md").read_text()
    assert page.startswith(f"# {words}")
    assert all(url in (folder / "evidence" / "metrics.txt").read_text() for url in urls)


async def test_somebody_elses_server_stalls_without_load_of_ours() -> None:
    with simulator("--fault", "kernel:nth=3") as engine:
        ask = {"model": "simulator", "prompt": [1] * 16, "max_tokens": 5000, "stream": True}
        monitor = attach(engine, load={**LOAD, "concurrency": 0})
        streams = [engine.client.stream("POST", "/v1/completions", json=ask) for _ in range(3)]
        for stream in streams:
            stream.__enter__()
        act = in_turn((has_evidence, SetConcurrency(0)), (lambda now: bool(stalled(now)), Stop()))
        folder, result, _ = await shown(monitor, act)
        for stream in streams:
            stream.__exit__(None, None, None)
    assert (
        "the end of the server's log: vramp did not start this server" in (folder / "evidence/evidence.md").read_text()
    )
    assert result.kind == "monitor"
