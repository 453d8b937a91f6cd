"""Variants beside each other: rows, differences, and those that never ran."""

import json

import msgspec
import pytest

from loadgen.report.sweep_table import Outcome, sweep_json, sweep_rows, sweep_table
from loadgen.schema.result import StageResult, Throughput
from tests.report.test_text import result, stage, summary_of


def fast(output: float, *, ttft_ms: float = 10.0, label: str = "conc 8", failed: int = 0) -> StageResult:
    one = stage(3, **({"reset": failed} if failed else {}))
    return msgspec.structs.replace(
        one,
        label=label,
        throughput=Throughput(1.0, 2.0, output, 4.0, 5.0),
        latency_ms=one.latency_ms | {"ttft": summary_of(ttft_ms).summary()},
    )


def ran(variant: str, *stages: StageResult) -> Outcome:
    return Outcome(variant=variant, state="complete", reason="the plan is done", result=result(*stages))


BROKEN = Outcome(variant="broken", state="failed", reason="out of memory\nmore of it", result=None)


def test_each_stage_is_compared_with_the_same_of_the_first_variant() -> None:
    rows = sweep_rows(
        [
            ran("a", fast(100.0), fast(200.0, label="conc 16")),
            ran("b", fast(110.0, ttft_ms=5.0), fast(150.0, label="conc 16")),
        ]
    )
    assert [(row.variant, row.stage) for row in rows] == [
        ("a", "conc 8, ISL 4096, OSL 1024"),
        ("a", "conc 16, ISL 4096, OSL 1024"),
        ("b", "conc 8, ISL 4096, OSL 1024"),
        ("b", "conc 16, ISL 4096, OSL 1024"),
    ]
    assert [row.difference_percent.get("output_tokens_per_s") for row in rows] == [
        None,
        None,
        pytest.approx(10.0),
        pytest.approx(-25.0),
    ]
    assert rows[2].difference_percent["ttft_mean_ms"] == pytest.approx(-50.0)
    table = sweep_table(rows).splitlines()
    assert table[0].strip("= ") == "conc 8, ISL 4096, OSL 1024"
    assert [row.is_base for row in rows] == [True, True, False, False]
    assert table[2].split() == "a 1.00 100.00 (100 %) 10.00 (100 %) 10.00 20.00 (100 %) 30.00".split()
    assert table[3].split()[:5] == ["b", "1.00", "110.00", "(+10.0%)", "5.00"]
    assert len(table) == 8


def test_a_variant_without_numbers_is_a_row_and_not_what_others_are_compared_with() -> None:
    rows = sweep_rows([BROKEN, ran("a", fast(100.0)), ran("b", fast(50.0))])
    assert [(row.variant, row.stage is None) for row in rows] == [("broken", True), ("a", False), ("b", False)]
    assert rows[2].difference_percent["output_tokens_per_s"] == pytest.approx(-50.0)
    assert sweep_table(rows).splitlines()[-1] == "broken   no numbers: out of memory"
    assert sweep_table(sweep_rows([BROKEN])) == "broken   no numbers: out of memory"


def test_a_variant_that_broke_off_has_both() -> None:
    broke = Outcome(variant="a", state="server_died", reason="killed " * 40, result=result(fast(10.0, failed=2)))
    table = sweep_table(sweep_rows([broke])).splitlines()
    assert table[2].endswith("  2 failed")
    assert table[3].startswith("a        server_died: killed ") and table[3].endswith("...")


def test_the_same_load_twice_is_two_stages() -> None:
    rows = sweep_rows([ran("a", fast(1.0), fast(2.0)), ran("b", fast(2.0), fast(1.0))])
    assert rows[1].stage == "conc 8, ISL 4096, OSL 1024 (2)"
    assert [row.difference_percent.get("output_tokens_per_s") for row in rows[2:]] == [100.0, -50.0]


def test_json_has_the_rows() -> None:
    rows = sweep_rows([ran("a", fast(0.0)), ran("b", fast(1.0)), BROKEN])
    document = json.loads(sweep_json("p", 7, rows))
    assert (document["schema"], document["profile"], document["seed"]) == ("vramp.sweep-report/1", "p", 7)
    # Nothing is so many percent more than zero.
    assert document["rows"][1]["difference_percent"]["output_tokens_per_s"] is None
    assert (document["rows"][2]["reason"], document["rows"][2]["stage"]) == ("out of memory\nmore of it", None)
