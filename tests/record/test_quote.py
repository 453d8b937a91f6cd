"""Fit to quote: published kinds of tables, right and wrong, with rebuilt figures; and where nothing may be said."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadgen.record.quote import RULES, QuotedRun, QuotedStage, judge, quote_of
from loadgen.schema.result import Bursts
from loadgen.store.runs import read_result
from tests.metrics.served import run_of, served

FILES = Path(__file__).parents[1] / "store" / "foreign" / "files"
NAMED = dict.fromkeys(("the model", "the engine's version", "the GPUs", "how the server was started"), "known")
OWN = [rule.name for rule in RULES if rule.check is None]  # what a run's own verdicts decide


def closed(concurrency: int, *, waves: int = 40, ttft: float = 100.0, tpot: float = 10.0, **other: Any) -> QuotedStage:
    """A closed loop of 256 tokens an answer whose figures agree with each other."""
    osl = other.pop("osl", 256)
    e2e_s = (ttft + (osl - 1) * tpot) / 1000
    rate = concurrency / e2e_s
    figures: dict[str, Any] = {
        "name": f"conc {concurrency}",
        "concurrency": concurrency,
        "isl": 1024,
        "osl": osl,
        "completed": waves * concurrency,
        "failed": 0,
        "output_tokens": waves * concurrency * osl,
        "osl_mean": float(osl),
        "measured_s": waves * e2e_s,
        "requests_per_s": rate,
        "output_tokens_per_s": rate * osl,
        "mean_ms": {"ttft": ttft, "tpot": tpot, "e2e": e2e_s * 1000},
    }
    return QuotedStage(**(figures | other))


def table(*stages: QuotedStage, **other: Any) -> QuotedRun:
    return QuotedRun(stages=stages, **({"named": NAMED} | other))


def alike(concurrency: int) -> QuotedStage:
    """A level of a ladder with 100 requests in all: every level has them open at once."""
    return closed(
        concurrency,
        completed=100,
        measured_s=9.1,
        requests_per_s=11.0,
        output_tokens_per_s=11_200.0 + concurrency / 100,
        mean_ms={"ttft": 900.0, "tpot": 8.0, "e2e": 9000.0},
        osl=1024,
        p99_values={"ttft": 100},
    )


# Each a kind of table that was published somewhere, with figures of our own, and the rules that it breaks.
CORPUS: dict[str, tuple[QuotedRun, set[str]]] = {
    "a ladder with 100 requests at each level": (
        table(*map(alike, (100, 200, 500, 1000)), named={}),
        {"few-requests", "identical-levels", "few-samples"},
    ),
    "a ladder into saturation": (
        table(closed(64, tpot=20.0), closed(128, tpot=40.0, ttft=200.0), closed(256, tpot=80.0, ttft=400.0)),
        set(),
    ),
    "a smoke test of 100 prompts on one GPU": (
        table(closed(32, completed=100, p99_values={"ttft": 100, "tpot": 100})),
        {"few-requests", "few-samples"},
    ),
    "medians of a blog, without request counts or E2E": (
        table(QuotedStage(name="8 streams", concurrency=8, output_tokens_per_s=447.0, mean_ms={"tpot": 15.0})),
        set(),
    ),
    "TPOT in chunks of two tokens": (
        table(closed(16, mean_ms={"ttft": 300.0, "tpot": 20.0, "e2e": 300.0 + 127 * 20.0})),
        {"e2e-parts"},
    ),
    "TPOT that includes TTFT": (
        table(closed(4, ttft=6000.0, tpot=10.0, mean_ms={"ttft": 6000.0, "tpot": 33.4, "e2e": 8550.0})),
        {"e2e-parts"},
    ),
    "a ladder whose prompts were sent before": (
        table(closed(8, tpot=21.0), closed(16, tpot=13.9, ttft=40.0), closed(32, tpot=15.0, ttft=50.0)),
        {"falling-tpot"},
    ),
    "a client that holds fewer streams than it says": (
        table(closed(256, requests_per_s=24.0, output_tokens_per_s=6144.0)),
        {"littles-law"},
    ),
    "a rate that was not reached": (
        table(replace(closed(8), name="rate 200/s", concurrency=None, rate=200.0, completed=9175, measured_s=52.65)),
        {"offered-rate"},
    ),
    "drafts of random tokens": (
        table(closed(64, tpot=3.2, known=OWN, verdicts={"spec-decode-random": "accepted 97% of its drafts; more"})),
        {"speculation"},
    ),
    "errors that count as successes": (
        table(closed(16, output_tokens=0, osl_mean=0.0, mean_ms={"ttft": 12.0})),
        {"empty-answers"},
    ),
    "more than the memory can read": (
        table(closed(64, peak_percent={"HBM bandwidth": 138.0})),
        {"beyond-peak"},
    ),
    "failures that make the rest fast": (table(closed(512, failed=900)), {"failed-requests"}),
    "GPUs that are held back": (table(closed(64), faults=["gpu 0-7: THROTTLED thermal 18%"]), {"hardware"}),
    "a table without its system": (table(closed(64), named={**NAMED, "the GPUs": None}), {"provenance"}),
}


@pytest.mark.parametrize("what", CORPUS)
def test_quote_of_a_published_kind_of_table(what: str) -> None:
    run, broken = CORPUS[what]
    quote = judge(run)
    assert {problem.rule for problem in quote.problems} == broken
    assert quote.fit == (not broken)
    assert sorted([*broken, *quote.not_checked, *quote.kept]) == sorted(rule.name for rule in RULES)
    assert all(problem.evidence and problem.remedy for problem in quote.problems)


def test_quote_of_an_unknown_table_checks_nothing_and_breaks_nothing() -> None:
    quote = judge(table(QuotedStage(name="a row")))
    assert quote.problems == ()
    assert quote.kept == ("simulated", "cut-short", "provenance")
    assert all(quote.not_checked.values())


def test_quote_needs_evidence_of_every_stage_for_verdicts() -> None:
    assert set(OWN) <= {*judge(table(closed(4, known=OWN))).kept}
    assert set(OWN) <= {*judge(table(closed(4, known=OWN), closed(8))).not_checked}


def test_quote_of_levels_of_other_shapes_or_variants_compares_none() -> None:
    short, long = closed(8, tpot=20.0, osl=1024), closed(16, tpot=10.0, osl=128)
    assert "falling-tpot" in judge(table(short, long)).not_checked
    variants = [closed(8, tpot=20.0, kind="a"), closed(16, tpot=10.0, kind="b")]
    assert "falling-tpot" in judge(table(*variants)).not_checked


@given(
    loads=st.lists(st.integers(1, 512), min_size=1, max_size=5, unique=True),
    ttft=st.floats(1, 5000),
    tpot=st.floats(1, 200),
    osl=st.integers(2, 4096),
    waves=st.integers(30, 100),
)
def test_quote_of_figures_that_agree_is_fit(loads: list[int], ttft: float, tpot: float, osl: int, waves: int) -> None:
    """A server whose latencies grow with its load, as they do."""
    stages = [closed(n, ttft=ttft * n, tpot=tpot * (1 + n / 100), osl=osl, waves=waves) for n in loads]
    assert judge(table(*stages)).problems == ()


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("vllm_bench_0.32_detailed.json", {"few-requests", "few-samples", "provenance"}),
        ("genai_perf_0.0.8.json", {"few-samples", "provenance"}),
        ("vllm_rs_0.33.json", {"few-samples", "provenance"}),  # its steady state has neither ramp-in nor drain
    ],
)
def test_quote_of_a_file_of_another_tool(name: str, broken: set[str]) -> None:
    quote = quote_of(read_result(FILES / name))
    assert quote is not None
    assert {problem.rule for problem in quote.problems} == broken
    assert {"client", "prefix-cache", "speculation"} <= {*quote.not_checked}


@pytest.mark.parametrize(
    ("overdue", "held_back", "is_checked"),
    [(0.5, None, False), (0.5, False, True), (0.05, None, True)],  # as on a full host
)
def test_quote_of_output_that_nobody_is_known_to_have_held_back(
    overdue: float, *, held_back: bool | None, is_checked: bool
) -> None:
    run = run_of(served(1))
    bursts = Bursts(0.6, 0.6, 10, 80.0, overdue, client_busy=0.05, held_back=held_back)
    quote = quote_of(replace(run, stages=[replace(stage, bursts=bursts) for stage in run.stages]))
    assert quote is not None and ("client" in quote.kept) == is_checked
    assert ("client" in quote.not_checked) == (not is_checked)


def test_every_rule_is_in_the_manual() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    assert [rule.name for rule in RULES if f"| `{rule.name}` |" not in manual] == []
