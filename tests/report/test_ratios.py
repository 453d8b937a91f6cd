"""Published ratios of two variants next to the measured ones, and where there is nothing to compare."""

from typing import Any

import msgspec
import pytest

from loadgen.report.compare import Ratios, compare_runs, measured_ratios
from loadgen.report.compare_document import (
    VariantOutcome,
    compare_text,
    sweep_json,
    sweep_ratios,
    sweep_rows,
    sweep_text,
)
from loadgen.schema.comparison import Condition, PublishedRatio, ReferenceResult
from loadgen.schema.result import Result
from tests.metrics.served import run_of, served

FASTER = PublishedRatio("base", "slow", "output_tokens_per_s", 3.0, of="MI300X", concurrency=8, isl=512, osl=128)


def ran(name: str, *ratios: PublishedRatio, scale: float = 1.0, source: str = "a blog", **load: Any) -> Result:
    """A run of a profile's variant, whose streams take `scale` as long."""
    found = run_of(served(1, scale=scale, **{"concurrency": 8} | load))
    conditions = (Condition("image", "an:image", "no container", same=False),)
    reference = ReferenceResult(source, [], [], conditions, ratios or (FASTER,))
    return msgspec.structs.replace(found, profile={"name": name}, reference=reference)


def found_for(*ratios: PublishedRatio, **load: Any) -> Ratios | None:
    return measured_ratios({"base": ran("p", *ratios, **load), "slow": ran("p+slow", *ratios, scale=2.0, **load)})


def test_a_sweep_shows_the_published_ratio_next_to_the_measured_one() -> None:
    outcomes = [
        VariantOutcome("base", "complete", "", ran("p")),
        VariantOutcome("slow", "complete", "", ran("p+slow", scale=2.0)),
    ]
    ratios, rows = sweep_ratios(outcomes), sweep_rows(outcomes)
    assert ratios is not None
    (one,) = ratios.rows
    assert one.measured is not None and one.measured != 1.0
    assert one.difference_percent == pytest.approx(100 * (one.measured / 3.0 - 1))
    text = sweep_text(rows, ratios)
    assert f"base  slow      {one.measured:.2f}       3.00" in text
    assert "published by: a blog" in text
    assert "published for image an:image" in text and "not as published: image: no container" in text
    assert '"over": "slow"' in sweep_json("p", 1, rows, ratios)


def test_a_comparison_has_the_ratio_in_either_order() -> None:
    base, slow = ("x", ran("p")), ("y", ran("p+slow", scale=2.0))
    forth, back = compare_runs(base, slow).ratios, compare_runs(slow, base).ratios
    assert forth is not None and back is not None
    assert forth.rows == back.rows
    assert "Published ratios" in compare_text(compare_runs(base, slow))


def test_a_latency_is_a_ratio_too() -> None:
    found = found_for(PublishedRatio("slow", "base", "e2e_mean_ms", 2.0))
    assert found is not None
    assert found.rows[0].measured == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("load", [{"concurrency": 16}, {"isl": 1024}, {"osl": 64}])
def test_another_load_is_not_compared(load: dict[str, int]) -> None:
    assert found_for(**load) is None


def test_without_both_variants_or_with_another_publication_there_is_no_ratio() -> None:
    assert measured_ratios({"base": ran("p")}) is None
    assert measured_ratios({"base": ran("p"), "other": ran("p+other")}) is None
    assert measured_ratios({"base": ran("p"), "slow": ran("q+slow", source="another blog")}) is None
    assert compare_runs(("x", ran("p")), ("y", ran("p"))).ratios is None
    assert "Published ratios" not in compare_text(compare_runs(("x", ran("p")), ("y", ran("p"))))


def test_a_stage_in_doubt_says_so() -> None:
    slow = ran("p+slow", scale=2.0)
    limited = msgspec.structs.replace(slow.stages[0], limited=True, why="its CPU was full")
    found = measured_ratios({"base": ran("p"), "slow": msgspec.structs.replace(slow, stages=[limited])})
    assert found is not None
    assert found.rows[0].doubt == "client-limited: its CPU was full"
