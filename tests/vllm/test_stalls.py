"""A real vLLM whose engine, or whose worker, is stopped under load: the verdict, the evidence, and that it goes on."""

from __future__ import annotations

import re

import psutil
import pytest

from loadgen.metrics import stall
from loadgen.run import evidence
from loadgen.run.operations import Stop
from loadgen.schema.snapshot import Snapshot
from tests.run.driving import finish, flowing, in_turn, run_of
from tests.vllm.engine import here

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
LOAD = ["load.duration=600s", "load.warmup=0", "load.concurrency=4", "canary.enabled=false"]
TWO_WORKERS = ["server.args.tensor-parallel-size=2", "server.env.VLLM_CPU_OMP_THREADS_BIND=0|1"]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "MIN_STALL_S", 10.0)
    monkeypatch.setattr(stall, "TIMES_LONGEST", 0.0)
    monkeypatch.setattr(evidence, "_BETWEEN_PAGES_S", 1.0)


def process_called(word: str) -> psutil.Process:
    return next(one for one in psutil.Process().children(recursive=True) if word in " ".join(one.cmdline()))


def said(text: str, snapshot: Snapshot) -> bool:
    return any(text in event.text for event in snapshot.events)


@pytest.mark.parametrize(("victim", "flags"), [("EngineCore", []), ("Worker_TP1", TWO_WORKERS)])
async def test_a_stopped_process_is_a_stall_until_it_goes_on(victim: str, flags: list[str]) -> None:
    stopped: list[psutil.Process] = []

    def suspend(_: object) -> None:
        stopped.append(process_called(victim))
        stopped[0].suspend()

    act = in_turn(
        (flowing, suspend),
        (lambda now: said("evidence: ", now), lambda _: stopped[0].resume()),
        (lambda now: said("it goes on", now), Stop()),
    )
    run = run_of(here(*LOAD, *flags))
    try:
        result = await finish(run, act)
    finally:
        for process in stopped:
            if process.is_running():
                process.resume()
    folder = run.folder / "evidence"
    page = (folder / "evidence.md").read_text()
    assert re.search(r"- none of \d+ counters of /metrics moved in 1 s\n", page)
    assert f"- process {stopped[0].pid} VLLM::" in page and "is stopped, by a signal" in page
    [event] = [one.text for one in result.events if one.text.endswith("it goes on")]
    assert re.match(r"stalled for \d+ s: ", event)
    bursts = result.stages[0].bursts
    assert bursts is None or not bursts.held_back, bursts
    assert (result.state, [one for one in result.verdicts if one.id == "stalled"]) == ("stopped", [])
    assert result.stages[0].requests.failed == 0
