"""The variants of a sweep: rows, differences from the first, and those that never ran."""

import json

import msgspec
import pytest

from loadgen.report.compare_document import VariantOutcome, sweep_json, sweep_rows, sweep_text
from loadgen.schema.result import StageResult, Throughput
from tests.report.test_notes import short_stage
from tests.report.test_text import result, stage, summary_of


def fast(output: float, *, ttft_ms: float = 10.0, label: str = "conc 8", failed: int = 0) -> StageResult:
    one = stage(3, **({"reset": failed} if failed else {}))
    return msgspec.structs.replace(
        one,
        label=label,
        throughput=Throughput(1.0, 2.0, output, 4.0, 5.0),
        latency_ms=one.latency_ms | {"ttft": summary_of(ttft_ms).summary()},
    )


def ran(variant: str, *stages: StageResult) -> VariantOutcome:
    return VariantOutcome(variant=variant, state="complete", reason="the plan is done", result=result(*stages))


BROKEN = VariantOutcome(variant="broken", state="failed", reason="out of memory\nmore of it", result=None)


def test_each_stage_is_compared_with_the_same_of_the_first_variant() -> None:
    first = ran("a", fast(100.0), fast(200.0, label="conc 16"))
    rows = sweep_rows([first, ran("b", fast(110.0, ttft_ms=5.0), fast(150.0, label="conc 16"))])
    titles = ["conc 8, ISL 4096, OSL 1024", "conc 16, ISL 4096, OSL 1024"]
    assert [(row["variant"], row["stage"]) for row in rows] == [(name, title) for name in "ab" for title in titles]
    differences = [row["difference_percent"].get("output_tokens_per_s") for row in rows]
    assert differences == [None, None, pytest.approx(10.0), pytest.approx(-25.0)]
    assert rows[2]["difference_percent"]["ttft_mean_ms"] == pytest.approx(-50.0)
    assert [row["is_base"] for row in rows] == [True, True, False, False]
    table = sweep_text(rows).splitlines()
    assert table[0].strip("- ") == "conc 8, ISL 4096, OSL 1024"
    assert table[2].split() == "a 1.00 100.00 (100 %) 10.00 (100 %) 10.00 20.00 (100 %) 30.00".split()
    assert table[3].split()[:5] == ["b", "1.00", "110.00", "(+10.0%)", "5.00"]
    assert len(table) == 8


def test_a_variant_without_numbers_is_a_row_and_not_the_base() -> None:
    rows = sweep_rows([BROKEN, ran("a", fast(100.0)), ran("b", fast(50.0))])
    assert [(row["variant"], row["stage"] is None) for row in rows] == [("broken", True), ("a", False), ("b", False)]
    assert rows[2]["difference_percent"]["output_tokens_per_s"] == pytest.approx(-50.0)
    assert sweep_text(rows).splitlines()[-1] == "broken: no numbers: out of memory"
    assert rows[0].keys() == rows[1].keys()


def test_a_variant_that_broke_off_has_figures_and_a_reason() -> None:
    broke = VariantOutcome(variant="a", state="server_died", reason="killed " * 40, result=result(fast(10.0, failed=2)))
    table = sweep_text(sweep_rows([broke])).splitlines()
    assert table[2].endswith("  2 failed")
    assert table[4].startswith("a: server_died: killed ") and table[4].endswith("...")


def test_the_same_load_twice_is_two_stages() -> None:
    rows = sweep_rows([ran("a", fast(1.0), fast(2.0)), ran("b", fast(2.0), fast(1.0))])
    assert rows[1]["stage"] == "conc 8, ISL 4096, OSL 1024 (2)"
    assert [row["difference_percent"].get("output_tokens_per_s") for row in rows[2:]] == [100.0, -50.0]


def test_a_lower_bound_is_not_compared() -> None:
    first, second = (msgspec.structs.replace(one, label="x") for one in (stage(80), short_stage()))
    rows = sweep_rows([ran("a", first), ran("b", second)])
    assert rows[1]["difference_percent"]["ttft_mean_ms"] is None
    assert rows[1]["difference_percent"]["tpot_mean_ms"] is not None
    last = sweep_text(rows).splitlines()[-1]
    assert ">= " in last and last.endswith("1 failed  9 never sent  60 carried over")


def test_json_has_the_rows() -> None:
    document = json.loads(sweep_json("p", 7, sweep_rows([ran("a", fast(0.0)), ran("b", fast(1.0)), BROKEN])))
    assert (document["schema"], document["profile"], document["seed"]) == ("vramp.sweep-report/1", "p", 7)
    # Nothing is so many percent more than zero.
    assert document["rows"][1]["difference_percent"]["output_tokens_per_s"] is None
    assert (document["rows"][2]["reason"], document["rows"][2]["stage"]) == ("out of memory\nmore of it", None)


def test_the_reason_of_a_failure_shows_no_secret() -> None:
    broken = BROKEN._replace(reason="http://admin:hunter22@10.0.0.1:8000: refused")
    assert "hunter22" not in sweep_json("p", 7, sweep_rows([broken]))
