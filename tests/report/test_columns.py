"""The curve of a load that moves, in every format: by the streams held, with counts, up and down apart, without E2E."""

import csv
import io

import msgspec

from loadgen.report.columns import CURVE, SHAPE, moving_points, run_curve
from loadgen.report.csv import csv_report
from loadgen.report.html.charts import latency_by_held, throughput_by_held
from loadgen.report.html.run_page import html_report
from loadgen.report.tabular import html_table
from loadgen.report.text import markdown_report, text_report
from loadgen.report.vllm_json import vllm_documents
from loadgen.schema.result import CurvePoint, Hits, Result, StageResult, Target
from tests.report.test_text import result, rows, stage, stage_of_sessions, summary_of

replace = msgspec.structs.replace


def point(load: float, direction: str = "", isl: int = 512) -> CurvePoint:
    return CurvePoint(
        isl=isl,
        osl=128,
        load=load,
        direction=direction,  # type: ignore[arg-type]  # one of three, as the caller says
        held=load - 0.02,
        measured_s=6.0,
        output_tokens_per_s=40.0 * load,
        output_tokens_per_s_per_user=40.0,
        ttft_ms=summary_of(*[100 + load] * 3).summary(),
        itl_ms=summary_of(*[10 + load / 10] * 5).summary(),
    )


def ramp(index: int, *points: CurvePoint) -> StageResult:
    first, last = points[0].load, points[-1].load
    target = Target(int(first), None, None, moves=(first, last))
    return replace(stage(80), index=index, label=f"ramp {first:g} to {last:g}", curve=points, target=target)


UP = ramp(0, point(1, "up"), point(64, "up"))
DOWN = ramp(1, point(64, "down"), point(1, "down"))


def both() -> Result:
    return replace(result(UP, DOWN), curve=(*DOWN.curve, *UP.curve))


def test_a_ramp_is_a_table_by_the_streams_held() -> None:
    lines = text_report(both()).splitlines()
    (row,) = (line.split() for line in lines if line.startswith("512/128  64 up"))
    assert row == "512/128 64 up 64.0 2560.0 40.0 164.0 164.0 3 16.40 16.40 5".split()
    assert sum("64 down" in line for line in lines) == 1
    assert not any(line.startswith(("E2E", "TTFT")) for line in lines)


def test_a_run_by_hand_has_one_row_for_each_load() -> None:
    again = [replace(stage(8), index=index, target=Target(load, None, None)) for index, load in enumerate((8, 16, 8))]
    by_hand = replace(result(*again), curve=(point(8), point(16)))
    assert run_curve(by_hand) == moving_points(by_hand) == by_hand.curve
    assert "By the streams held" in text_report(by_hand)
    ladder = replace(by_hand, stages=by_hand.stages[:2])
    assert run_curve(ladder) == moving_points(ladder) == ()
    assert "By the streams held" not in text_report(ladder)
    assert run_curve(both()) == () and moving_points(both()) == both().curve


def test_markdown_and_page_have_it_too() -> None:
    text = markdown_report(both())
    assert "| 512/128 | 64 up | 64.0 | 2,560.0 | 40.0 | 164.0 | 164.0 | 3 | 16.40 | 16.40 | 5 |" in text
    assert "E2E p50" not in text
    assert "<td class='text'>64 down</td>" in html_table([*SHAPE, *CURVE], moving_points(both()))
    assert html_table([*SHAPE, *CURVE], moving_points(result(stage(8)))) == ""
    assert "it moves: see the figures by load" in html_report(both())


def test_a_script_reads_a_row_for_each_step() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_report([both()]))))
    assert [(row["stage"], row["step"], row["direction"], row["concurrency"]) for row in rows] == [
        ("1", "", "", ""),
        ("1", "1", "up", "1"),
        ("1", "2", "up", "64"),
        ("2", "", "", ""),
        ("2", "1", "down", "64"),
        ("2", "2", "down", "1"),
    ]
    assert (rows[0]["ttft_p50_ms"], rows[0]["e2e_p50_ms"], rows[0]["completed"]) == ("", "", "80")
    assert (float(rows[2]["itl_p99_ms"]), rows[2]["itl_count"], rows[2]["completed"]) == (16.4, "5", "")
    by_rate = replace(UP, target=Target(None, 2.0, "poisson", moves=(1.0, 64.0)))
    assert list(csv.DictReader(io.StringIO(csv_report([result(by_rate)]))))[1]["rate_per_s"] == "1"


def test_what_is_of_no_single_load_is_no_key_of_vllms() -> None:
    (document, _) = vllm_documents(both())
    assert "mean_ttft_ms" not in document and document["completed"] == 80


def test_up_and_down_have_other_signs_and_lines() -> None:
    figure = latency_by_held(both().curve, "itl").to_plotly_json()["data"]
    signs = [(trace["marker"]["symbol"], trace["line"]["dash"], list(trace["x"])) for trace in figure]
    assert signs == [
        ("triangle-down", "dash", [0.98, 63.98]),
        ("triangle-down", "dash", [0.98, 63.98]),
        ("triangle-up", "solid", [0.98, 63.98]),
        ("triangle-up", "solid", [0.98, 63.98]),
    ]
    assert figure[0]["customdata"] == ["1 down, of 5", "64 down, of 5"]
    assert [list(trace["y"]) for trace in throughput_by_held(both().curve).data] == [[40, 2560]] * 2
    names = [f"512/128 {way} {name}" for way in ("down", "up") for name in ("p99", "p50")]
    assert [trace["name"] for trace in figure] == names


def test_steps_of_sessions_have_their_hits() -> None:
    steps = [
        replace(
            point(load, "up"), hits=Hits(measured=measured, engine=None, infinite=0.95, pool=None, pool_tokens=None)
        )
        for load, measured in ((8, 0.9), (40, 0.19))
    ]
    played = replace(stage_of_sessions(), curve=steps, target=Target(8, None, None, moves=(8, 40)))
    lines = rows(text_report(replace(result(played), curve=steps)))
    assert any(line.startswith("By live sessions") for line in lines)
    assert "load measured % without limit %" in lines
    assert "40 up 19.0 95.0" in lines
