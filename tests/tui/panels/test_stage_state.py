"""What the cockpit says of a stage that is not whole: what it waits for, what E2E needs, lower bounds, requests."""

from typing import Any

import msgspec
import pytest

from loadgen.schema.engine import EngineView
from loadgen.schema.finding import Verdict
from loadgen.schema.hardware_result import ComputeResult
from loadgen.schema.result import FirstWave, SloCheck, Target
from loadgen.schema.snapshot import Snapshot
from tests.tui.painted import texts
from tests.tui.panels.test_curve import steps
from tests.tui.scenes import watching
from tests.tui.scripted import NO_REQUESTS, running, summary
from tui.charts.timeline import Timeline
from tui.panels import header, health, latency, load, messages, results, stages
from tui.panels.curve import curve
from tui.panels.frame import Frame, Wanted
from tui.widgets.rows import Rows, cropped

replace = msgspec.structs.replace
WAITS = "not measured before the streams of a higher load had ended"
CARRIED_IN = msgspec.structs.replace(NO_REQUESTS, carried_in=56)


def at(snapshot: Snapshot) -> Frame:
    timeline = Timeline()
    timeline.add(snapshot)
    return Frame(snapshot, Wanted(), timeline=timeline)


def with_stage(*, waits_for: str = "", **changes: Any) -> Snapshot:
    now = running()
    stages = (*now.stages[:-1], replace(now.stages[-1], **changes))
    return replace(now, stages=stages, load=replace(now.load, waits_for=waits_for))


def lines(rows: Rows, width: int) -> list[str]:
    return texts([cropped(row, width) for row in rows])


def load_lines(snapshot: Snapshot, width: int, height: int) -> list[str]:
    return lines(load.load(at(snapshot), width, height)[: height if height >= 8 else 5], width)


def test_a_strip_says_it_in_its_title() -> None:
    assert WAITS in load_lines(with_stage(waits_for=WAITS), 80, 4)[0]
    assert "─ E2E needs 10 s more: e  by plan" in load_lines(with_stage(e2e_needs_s=9.2), 80, 4)[0]
    unsure = {"ttft_p99": SloCheck(1500.0, 940.0, met=True, needs=120)}
    both = with_stage(e2e_needs_s=9.2, slo=unsure, requests=CARRIED_IN)
    assert (
        "E2E needs 10 s more: e  ttft_p99 needs 120 more requests  56 carried in  by plan" in load_lines(both, 90, 4)[0]
    )
    assert load_lines(both, 80, 4)[0].endswith("by plan")
    assert load_lines(with_stage(), 80, 4)[0].endswith("─ by plan")


def test_a_tall_panel_has_lines_for_it_in_the_place_of_hints_and_its_numbers_stay() -> None:
    plain = load_lines(with_stage(), 38, 8)
    waits = load_lines(with_stage(waits_for=WAITS), 38, 8)
    assert len(plain) == len(waits) == 8 and plain[:5] == waits[:5]
    assert " ".join(line.strip() for line in waits[5:7]) == WAITS
    needs = load_lines(with_stage(e2e_needs_s=9.2, requests=CARRIED_IN), 38, 8)
    assert [line.strip() for line in needs[5:7]] == ["E2E needs 10 s more: e", "56 carried in"]
    everything = with_stage(waits_for=f"{WAITS} and its first wave had its first tokens", requests=CARRIED_IN)
    assert len(load_lines(everything, 38, 8)) == 8


def test_a_low_panel_says_the_first_thing() -> None:
    assert (
        "─ E2E needs 10 s more"
        in load_lines(with_stage(e2e_needs_s=9.2, requests=replace(NO_REQUESTS, carried_in=5)), 32, 5)[0]
    )
    assert " not measured before" in load_lines(with_stage(waits_for=WAITS), 32, 5)[0]


def test_who_only_looks_is_shown_no_key() -> None:
    watched = Frame(with_stage(e2e_needs_s=9.0), Wanted(), operator="watcher")
    title = lines(load.load(watched, 80, 4), 80)[0]
    assert "E2E needs 9 s more  by plan" in title
    endless = with_stage(e2e_needs_s=9.0)
    endless = replace(endless, load=replace(endless.load, stage_progress=None))
    assert "E2E needs 9 s more  by plan" in load_lines(endless, 80, 4)[0]


def test_what_is_not_known_of_e2e_is_no_number() -> None:
    (row,) = (line for line in lines(latency.latency(at(with_stage(e2e_needs_s=9.2)), 80, 8), 80) if line[:3] == "E2E")
    assert row.startswith("E2E   s needs 10 s more ") and row[43] == "│"


@pytest.mark.parametrize("middle", [0.9, 15.0, 2310.0, 99_900.0])
def test_a_lower_bound_has_its_sign_and_every_number_its_place(middle: float) -> None:
    bounded = replace(summary(middle), censored=3, lower_bounds=("mean", "p99", "p999", "max"))
    known = with_stage(latency_ms={**running().stages[-1].latency_ms, "ttft": summary(middle)})
    waiting = with_stage(latency_ms={**running().stages[-1].latency_ms, "ttft": bounded})
    for panel in (latency.latency, stages.stages):
        before, after = (lines(panel(at(one), 80, 8), 80) for one in (known, waiting))
        assert any("≥" in line for line in after)
        assert [line.replace("≥", " ") for line in after] == before


RAMP = Target(1, None, None, moves=(1.0, 64.0))


def ramping(**changes: Any) -> Snapshot:
    now = running(10.0)
    fields: dict[str, Any] = {"label": "ramp 1 to 64", "target": RAMP, "curve": steps(8, 16, 32, direction="up")}
    stage = replace(now.stages[0], **fields | changes)
    return replace(now, stages=(stage,), load=replace(now.load, concurrency=16, held=15))


def test_a_ramp_says_what_it_is_and_where() -> None:
    row = lines(stages.stages(at(ramping()), 80, 4), 80)[-1].split()
    assert row[:4] == ["▸", "1", "1→64", "15.0"] and row[5] == "917" and row[7:11] == ["324", "680", "-", "-"]
    over = lines(stages.stages(at(ramping(stop_reason="over")), 80, 4), 80)[-1].split()
    assert over[:3] == ["1", "1→64", "7.98"]
    assert over[5:10] == ["59.5", *["-"] * 4]  # the output over the streams held, and no latency
    assert "ramp 1 to 64" in lines(header.header(at(ramping()), 160, 1), 160)[0]
    long = ramping(target=replace(RAMP, moves=(100.0, 1024.0)))
    assert lines(stages.stages(at(long), 80, 4), 80)[-1].split()[2] == "→1024"


def test_the_failures_view_accounts_for_every_request() -> None:
    sent = running().stages[-1].requests
    requests = replace(sent, failed=3, completed=509, unsent=4, scheduled=580, open=64)
    shown = lines(messages.failures(at(with_stage(requests=requests)), 80, 20), 80)
    assert shown[1] == " run      360 sent = 320 completed + 40 open"
    assert shown[2] == " stage 4  580 scheduled, 4 never sent; 576 sent = 509 completed + 3 failed + 64"
    assert shown[3] == "          open"
    assert len(lines(messages.failures(at(running(stages=(), requests=None)), 80, 20), 80)) == 1


def test_the_results_say_what_figures_are_of() -> None:
    first = running().stages[0]
    ended = running(stages=(replace(first, e2e_inconclusive="E2E: inconclusive: it takes 16.8 s"),))
    shown = "\n".join(lines(results.results(at(ended), 120, 40), 120))
    assert " requests  360 sent = 320 completed + 40 open" in shown
    assert " stage 1   E2E: inconclusive: it takes 16.8 s" in shown
    noted = replace(first, inconclusive="it ended early", first_wave=FirstWave(8, True, None), tail_share=0.5)
    low = "\n".join(lines(results.results(at(running(stages=(noted,) * 3)), 80, 18), 80))
    assert "Tail: for 50%" in low and "more notes in the report" in low and low.count("it ended early") == 1


def test_a_ramp_holds_what_is_wanted_now() -> None:
    def held(snapshot: Snapshot) -> str:
        return next(line for line in lines(health.client(at(snapshot), 38, 8), 38) if "held, of wanted" in line)

    assert held(ramping()).endswith("15 of 16")
    assert held(ramping(stop_reason="over")).endswith(" 7.98")
    assert held(ramping(target=replace(RAMP, concurrency=None, rate=2.0))).endswith(" 15")


def test_the_engine_view_tells_the_share_of_the_peak_where_it_can() -> None:
    compute = ComputeResult(52.3, "bf16", 1307.4, 4.0)
    shown = [lines(health.engine(at(running(compute=one)), 120, 12), 120) for one in (compute, None)]
    assert shown[0][-1] == " MFU 4.00 %: 52.3 TFLOP/s a GPU by the engine's own estimate, of 1,307 in bf16, dense"
    assert shown[1] == shown[0][:-1]


def test_a_long_verdict_leaves_the_header_its_items_and_the_client_panel_says_it_whole() -> None:
    why = "read lag p99 33 ms: the client read late, as the cores are full; load.realtime = true lets them go first"
    now = running(headline=f"client-limited, not trustworthy: {why}", healthy=False)
    now = replace(now, client=replace(now.client, limited=True, why=why))
    (shown,) = lines(header.header(at(now), 160, 1), 160)
    assert "vLLM 0.32.0" in shown and shown.rstrip().endswith("client-limited, not trustworthy: read lag p99 33 ms")
    reported = " ".join(line.strip() for line in lines(health.client(at(now), 38, 20), 38))
    assert why in reported
    assert len(lines(health.client(at(now), 38, 8), 38)) == 8


def test_verdicts_are_wrapped_where_all_have_room() -> None:
    long = Verdict("canary", "stage 1", "word " * 40 + "end", bad=False)
    now = running(verdicts=(long,))
    assert lines(health.verdicts(at(now), 80, 8), 80)[-1].endswith("end")
    assert len(lines(health.verdicts(at(now), 80, 2), 80)) == 2


def test_an_attached_server_shows_its_engine_no_uptime_and_why_there_is_no_log() -> None:
    now = running()
    server = replace(now.server, engine="attach", log_tail=())
    engine = replace(now.engine or EngineView(), kind="vllm")
    now = replace(now, server=server, engine=engine)
    (shown,) = lines(header.header(at(now), 240, 1), 240)
    assert "vllm 0.32.0 ready" in shown and " up " not in shown
    assert "vramp did not start this server" in lines(messages.log(at(now), 80, 4), 80)[1]


def test_without_any_load_the_curve_says_so() -> None:
    shown = lines(curve(at(watching(60.0)), 120, 20), 120)
    assert len(shown) == 2 and "vramp has sent no load yet" in shown[1]
