"""The phases on the simulator: what each leaves behind, and what is left out with which reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.profile.schema import Telemetry
from loadgen.run.accept.phases import BOX_EVIDENCE, left_s
from loadgen.run.operations import Stop
from loadgen.schema.accept_view import AcceptView
from loadgen.schema.certificate import BoxSeen, Counted, FactFound, PhaseBegan, PhaseEnded, ProbesRun, RunMade
from loadgen.store.acceptance import CERTIFICATE, LINES, certificate_of
from loadgen.store.runs import read_result
from loadgen.telemetry.examine import Pace
from tests.accept.simulated import acceptance, carried_out, lines_of, profile
from tests.engines import simulator
from tests.run.driving import left_behind
from tests.tui.cli.test_doctor import install, nccl, nvml, tools

__all__ = ["nvml", "tools"]  # fixtures


async def test_box_and_silicon_leave_facts_and_reasons() -> None:
    one = acceptance(profile("box", "silicon"))
    await carried_out(one)
    facts = {line.figure: line for line in lines_of(one.folder, FactFound)}
    assert facts["gpus"].value == 0.0 and facts["driver"].value is None and facts["driver"].reason
    assert len(lines_of(one.folder, BoxSeen)) == 1
    assert json.loads((one.folder / BOX_EVIDENCE).read_bytes())["examination"]["versions"]["kernel"]
    ends = {end.phase: end for end in lines_of(one.folder, PhaseEnded)}
    assert ends["box"].state == "done"
    assert ends["silicon"].state == "skipped" and "GPU" in ends["silicon"].reason


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize(
    ("gpus", "installed", "state", "reason"),
    [
        ("idle", True, "done", ""),
        ("idle", False, "skipped", "nccl: none of all_reduce_perf"),
        ("busy", True, "skipped", "the GPUs are in use: gpu 0: python4000"),
    ],
)
async def test_tools_run_on_free_gpus(
    gpus: str, installed: bool, state: str, reason: str, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.run.accept.phases.PACE", Pace(watch_s=0.1, interval_s=0.05, open_s=20))
    monkeypatch.setenv("NVML_STUB", gpus)
    if installed:
        install(tools, "all_reduce_perf", nccl(450.0))
    one = acceptance(profile("silicon").model_copy(update={"telemetry": Telemetry(mode="nvml")}))
    view = await carried_out(one)
    (end,) = lines_of(one.folder, PhaseEnded)
    assert end.state == state and end.reason.startswith(reason)
    states = {result.name: result.state for line in lines_of(one.folder, ProbesRun) for result in line.results}
    assert states.get("nccl") == ("pass" if state == "done" else None)
    assert view.certificate.phases[0].state == ("pass" if state == "done" else "skipped")


async def test_each_run_has_a_start_and_prompts_of_its_own() -> None:
    one = acceptance(profile("performance", starts=2))
    assert left_s(one) == 1.0
    await carried_out(one)
    assert left_s(one) == 0.0
    # More starts add to what there is.
    await carried_out(acceptance(profile("performance", starts=3), one.folder))
    made = lines_of(one.folder, RunMade)
    assert [(line.folder, line.start) for line in made] == [(f"{n:02}-performance", n) for n in (1, 2, 3)]
    results = [read_result(one.folder / line.folder / "result.json") for line in made]
    assert {result.state for result in results} == {"complete"}
    assert len({result.profile["load"]["seed"] for result in results}) == 3
    assert len(lines_of(one.folder, PhaseEnded)) == 2 and left_behind() == []


@pytest.mark.parametrize(("args", "right"), [({}, 6), ({"fault": "wrong:after=0"}, 0)])
async def test_questions_are_answered_under_load(args: dict[str, Any], right: int) -> None:
    one = acceptance(profile("output", args=args))
    await carried_out(one)
    answers = lines_of(one.folder, Counted)
    assert {line.subject for line in answers} == {f"question {number}" for number in range(1, 7)}
    assert (sum(line.count for line in answers), sum(line.trials for line in answers)) == (right, 6)
    result = read_result(one.folder / "01-output" / "result.json")
    assert result.state == "complete" and result.canary is not None
    assert result.stages[0].others is not None and not result.stages[0].others.seen


async def test_a_server_that_fails_twice_ends_its_phase_and_those_after_it() -> None:
    one = acceptance(profile("start", "performance", "burn-in", args={"fail-startup": "no memory for this"}))
    view = await carried_out(one)
    assert [line.folder for line in lines_of(one.folder, RunMade)] == ["01-start", "02-start"]
    first, *others = lines_of(one.folder, PhaseEnded)
    assert (first.phase, first.state) == ("start", "failed") and "no memory for this" in first.reason
    assert [(end.phase, end.state) for end in others] == [("performance", "skipped"), ("burn-in", "skipped")]
    assert view.certificate.verdict == "fail"
    # Going on does not try it again; naming the phase does.
    again = acceptance(profile("start", args={"fail-startup": "no memory for this"}), one.folder)
    await carried_out(again)
    assert len(lines_of(one.folder, RunMade)) == 2


async def test_an_attached_server_is_measured_once() -> None:
    with simulator() as running:
        parts = profile("start", "performance")
        server = parts.server.model_copy(update={"engine": "attach", "url": running.url, "args": {}})
        one = acceptance(parts.model_copy(update={"server": server}))
        await carried_out(one)
    start, performance = lines_of(one.folder, PhaseEnded)
    assert (start.state, start.reason) == ("skipped", "vramp did not start this server")
    assert performance.state == "done"
    assert [(line.folder, line.start) for line in lines_of(one.folder, RunMade)] == [("01-performance", 1)]
    # As if it was killed right before the end of the phase was written down: nothing is measured again.
    (one.folder / CERTIFICATE).unlink()
    log = one.folder / LINES
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-2]))
    assert [end.phase for end in lines_of(one.folder, PhaseEnded)] == ["start"]
    await carried_out(acceptance(one.settings.profile, one.folder))
    assert [end.phase for end in lines_of(one.folder, PhaseEnded)] == ["start", "start", "performance"]
    assert len(lines_of(one.folder, RunMade)) == 1
    assert "01-performance/summary.json" in certificate_of(one.folder).files


async def test_stopping_keeps_what_was_measured() -> None:
    one = acceptance(profile("burn-in", burn_in="60s"))

    def stop_in_the_run(view: AcceptView) -> None:
        if view.snapshot is not None and view.snapshot.stages and view.snapshot.stages[-1].requests.completed:
            one.apply(Stop())

    view = await carried_out(one, stop_in_the_run)
    assert view.over and view.ending
    assert lines_of(one.folder, PhaseBegan) and not lines_of(one.folder, PhaseEnded)
    (made,) = lines_of(one.folder, RunMade)
    result = read_result(one.folder / made.folder / "result.json")
    assert result.state == "stopped" and result.stages[0].requests.completed
    assert view.certificate.verdict == "inconclusive" and left_behind() == []
