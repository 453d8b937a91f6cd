"""A stage that is not complete: what it waits for, what E2E needs, lower bounds, and its requests."""

from typing import Any

import msgspec
import pytest

from loadgen.schema.engine import EngineView
from loadgen.schema.finding import Verdict
from loadgen.schema.hardware_result import ComputeResult
from loadgen.schema.result import FirstWave, SloCheck, Target
from loadgen.schema.snapshot import Snapshot
from tests.tui.painted import frame_of, lines
from tests.tui.panels.test_curve import steps
from tests.tui.scenes import watching
from tests.tui.scripted import NO_REQUESTS, running, summary
from tui.panels import header, health, latency, load, messages, results, stages
from tui.panels.curve import curve

replace = msgspec.structs.replace
WAITS = "not measured before the streams of a higher load had ended"
CARRIED_IN = replace(NO_REQUESTS, carried_in=56)
RAMP = Target(1, None, None, moves=(1.0, 64.0))


def with_stage(*, waits_for: str = "", **changes: Any) -> Snapshot:
    now = running()
    stages = (*now.stages[:-1], replace(now.stages[-1], **changes))
    return replace(now, stages=stages, load=replace(now.load, waits_for=waits_for))


def test_a_strip_has_the_needs_in_its_title() -> None:
    unsure = {"ttft_p99": SloCheck(1500.0, 940.0, met=True, needs=120)}
    all_three = with_stage(e2e_needs_s=9.2, slo=unsure, requests=CARRIED_IN)
    for snapshot, width, words in (
        (with_stage(waits_for=WAITS), 80, WAITS),
        (with_stage(e2e_needs_s=9.2), 80, "─ E2E needs 10 s more: e  by plan"),
        (all_three, 90, "E2E needs 10 s more: e  ttft_p99 needs 120 more requests  56 carried in  by plan"),
        (with_stage(), 80, "─ by plan"),
    ):
        assert words in lines(load.load, snapshot, width, 4)[0]
    assert lines(load.load, all_three, 80, 4)[0].endswith("by plan")


def test_a_tall_panel_has_rows_for_the_needs_and_its_numbers_stay() -> None:
    plain, waits = (lines(load.load, with_stage(waits_for=words), 38, 8) for words in ("", WAITS))
    assert len(plain) == len(waits) == 8 and plain[:5] == waits[:5]
    assert " ".join(line.strip() for line in waits[5:7]) == WAITS
    needs = lines(load.load, with_stage(e2e_needs_s=9.2, requests=CARRIED_IN), 38, 8)
    assert [line.strip() for line in needs[5:7]] == ["E2E needs 10 s more: e", "56 carried in"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"e2e_needs_s": 9.2, "requests": CARRIED_IN}, "─ E2E needs 10 s more"), ({"waits_for": WAITS}, " not measured")],
)
def test_a_low_panel_has_the_first_need(changes: dict[str, Any], words: str) -> None:
    assert words in lines(load.load, with_stage(**changes), 32, 5)[0]


def test_a_key_is_named_only_where_it_can_be_used() -> None:
    needy = with_stage(e2e_needs_s=9.0)
    endless = replace(needy, load=replace(needy.load, stage_progress=None))
    for frame in (frame_of(needy, operator="watcher"), frame_of(endless)):
        assert "E2E needs 9 s more  by plan" in lines(load.load, frame, 80, 4)[0]


def test_an_unknown_e2e_has_no_number() -> None:
    (row,) = (line for line in lines(latency.latency, with_stage(e2e_needs_s=9.2), 80, 8) if line[:3] == "E2E")
    assert row.startswith("E2E   s needs 10 s more ") and row[43] == "│"


@pytest.mark.parametrize("middle", [0.9, 15.0, 2310.0, 99_900.0])
def test_a_lower_bound_has_its_sign_and_every_number_its_place(middle: float) -> None:
    bounded = replace(summary(middle), censored=3, lower_bounds=("mean", "p99", "p999", "max"))
    known, waiting = (
        with_stage(latency_ms={**running().stages[-1].latency_ms, "ttft": one}) for one in (summary(middle), bounded)
    )
    for panel in (latency.latency, stages.stages):
        before, after = (lines(panel, one, 80, 8) for one in (known, waiting))
        assert any("≥" in line for line in after)
        assert [line.replace("≥", " ") for line in after] == before


def ramping(**changes: Any) -> Snapshot:
    now = running(10.0)
    fields: dict[str, Any] = {"label": "ramp 1 to 64", "target": RAMP, "curve": steps(8, 16, 32, direction="up")}
    stage = replace(now.stages[0], **fields | changes)
    return replace(now, stages=(stage,), load=replace(now.load, concurrency=16, held=15))


def test_a_ramp_has_its_ends_and_the_figures_of_the_present_load() -> None:
    row = lines(stages.stages, ramping(), 80, 4)[-1].split()
    assert row[:4] == ["▸", "1", "1→64", "15.0"] and row[5] == "917" and row[7:11] == ["324", "680", "-", "-"]
    over = lines(stages.stages, ramping(stop_reason="over"), 80, 4)[-1].split()
    assert over[:3] == ["1", "1→64", "7.98"]
    assert over[5:10] == ["59.5", *["-"] * 4]  # the output over the streams held, and no latency
    assert "ramp 1 to 64" in lines(header.header, ramping(), 160, 1)[0]
    long = ramping(target=replace(RAMP, moves=(100.0, 1024.0)))
    assert lines(stages.stages, long, 80, 4)[-1].split()[2] == "→1024"


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, "15 of 16"),
        ({"stop_reason": "over"}, " 7.98"),
        ({"target": replace(RAMP, concurrency=None, rate=2.0)}, " 15"),
    ],
)
def test_a_ramp_has_the_streams_wanted_now(changes: dict[str, Any], held: str) -> None:
    (row,) = (line for line in lines(health.client, ramping(**changes), 38, 8) if "held, of wanted" in line)
    assert row.endswith(held)


def test_the_failures_view_accounts_for_every_request() -> None:
    sent = running().stages[-1].requests
    requests = replace(sent, failed=3, completed=509, unsent=4, scheduled=580, open=64)
    shown = lines(messages.failures, with_stage(requests=requests), 80, 20)
    assert shown[1] == " run      360 sent = 320 completed + 40 open"
    assert shown[2] == " stage 4  580 scheduled, 4 never sent; 576 sent = 509 completed + 3 failed + 64"
    assert len(lines(messages.failures, running(stages=(), requests=None), 80, 20)) == 1


def test_the_results_have_the_notes_of_the_stages() -> None:
    first = running().stages[0]
    ended = running(stages=(replace(first, e2e_inconclusive="E2E: inconclusive: it takes 16.8 s"),))
    shown = "\n".join(lines(results.results, ended, 120, 40))
    assert " requests  360 sent = 320 completed + 40 open" in shown
    assert " stage 1   E2E: inconclusive: it takes 16.8 s" in shown
    noted = replace(first, inconclusive="it ended early", first_wave=FirstWave(8, True, None), tail_share=0.5)
    low = "\n".join(lines(results.results, running(stages=(noted,) * 3), 80, 18))
    assert "Tail: for 50%" in low and "more notes in the report" in low and low.count("it ended early") == 1


def test_the_engine_view_has_the_share_of_the_peak_if_it_is_known() -> None:
    compute = ComputeResult(52.3, "bf16", 1307.4, 4.0)
    known, unknown = (lines(health.engine, running(compute=one), 120, 12) for one in (compute, None))
    assert known[-1] == " MFU 4.00 %: 52.3 TFLOP/s a GPU by the engine's own estimate, of 1,307 in bf16, dense"
    assert unknown == known[:-1]


def test_long_verdict_is_shortened_in_the_header() -> None:
    why = "read lag p99 33 ms: the client read late, as the cores are full; load.realtime = true lets them go first"
    now = running(headline=f"client-limited, not trustworthy: {why}", healthy=False)
    now = replace(now, client=replace(now.client, limited=True, why=why))
    (shown,) = lines(header.header, now, 160, 1)
    assert "vLLM 0.32.0" in shown and shown.rstrip().endswith("client-limited, not trustworthy: read lag p99 33 ms")
    assert why in " ".join(line.strip() for line in lines(health.client, now, 38, 20))
    assert len(lines(health.client, now, 38, 8)) == 8


def test_verdicts_are_wrapped_where_all_have_room() -> None:
    long = running(verdicts=(Verdict("canary", "stage 1", "word " * 40 + "end", bad=False),))
    assert lines(health.verdicts, long, 80, 8)[-1].endswith("end")
    assert len(lines(health.verdicts, long, 80, 2)) == 2


def test_an_attached_server_has_its_engine_but_no_uptime_and_no_log() -> None:
    now = running()
    server = replace(now.server, engine="attach", log_tail=())
    now = replace(now, server=server, engine=replace(now.engine or EngineView(), kind="vllm"))
    (shown,) = lines(header.header, now, 240, 1)
    assert "vllm 0.32.0 ready" in shown and " up " not in shown
    assert "vramp did not start this server" in lines(messages.log, now, 80, 4)[1]


def test_without_any_load_there_is_no_curve() -> None:
    shown = lines(curve, watching(60.0), 120, 20)
    assert len(shown) == 2 and "vramp has sent no load yet" in shown[1]
