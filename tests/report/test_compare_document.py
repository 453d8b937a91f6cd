"""The comparison as text, Markdown and JSON."""

import msgspec
import pytest

from loadgen.report.compare import RunComparison, compare_runs
from loadgen.report.compare_document import compare_json, compare_markdown, compare_text
from loadgen.schema.result import Hits
from tests.metrics.served import run_of, served
from tests.report.test_text import result, stage_of_sessions

A = run_of(served(1, concurrency=8), served(2, index=1, concurrency=16), served(3, index=2, concurrency=4))
B = run_of(
    served(3, concurrency=8, scale=1.2),
    served(4, index=1, concurrency=16, scale=1.2),
    environment={"engine": "vllm", "model": "some/model", "vllm_version": "0.33.0|`x`"},
)


@pytest.fixture(scope="module")
def comparison() -> RunComparison:
    return compare_runs(("good", A), ("runs/new", B))


def test_the_configuration_comes_first_then_stages_then_the_mean(comparison: RunComparison) -> None:
    lines = compare_text(comparison).splitlines()
    assert [line.rstrip("- ") for line in lines if line.endswith("---")] == [
        "runs/new against good",
        "Configuration",
        "conc 8, ISL 512, OSL 128",
        "conc 16, ISL 512, OSL 128",
        "Over all stages",
        "In all",
    ]
    assert ["vllm_version", "0.32.0", "0.33.0|`x`"] in [line.split() for line in lines]
    assert max(len(line) for line in lines) <= 120
    tpot = next(line.split() for line in lines if line.startswith("TPOT mean (ms)"))
    assert tpot[-1] == "worse" and tpot[5].startswith("+")
    assert "only in A: conc 4, ISL 512, OSL 128" in lines
    assert lines[-2].startswith("each interval holds with 99 % on its own: among ")


def test_what_is_unknown_says_so() -> None:
    short = compare_runs(("A", run_of(served(1, seconds=3.5))), ("B", run_of(served(2, seconds=3.5))))
    line = next(line for line in compare_text(short).splitlines() if line.startswith("TTFT p99"))
    assert "too short to tell" in line and line.endswith("no evidence")


def test_doubts_and_pears_are_said_before_the_numbers() -> None:
    (stage, *_) = B.stages
    limited = msgspec.structs.replace(B, stages=[msgspec.structs.replace(stage, limited=True, why="its CPU was full")])
    other = msgspec.structs.replace(limited, environment={"engine": "vllm", "model": "another/model"})
    text = compare_text(compare_runs(("A", A), ("B", other)))
    assert "not alike: another model: some/model and another/model" in text
    assert "no evidence here: B is client-limited: its CPU was full" in text
    assert "Over all stages" not in text


def test_markdown_shows_texts_as_they_are(comparison: RunComparison) -> None:
    text = compare_markdown(comparison)
    assert "| vllm\\_version | 0.32.0 | 0.33.0\\|\\`x\\` |" in text
    assert "#### conc 8, ISL 512, OSL 128" in text and "| geometric mean, 2 stages | B over A | interval |" in text
    rows = [line for line in text.splitlines() if line.startswith("| TPOT mean (ms) |")]
    assert [row.count("|") for row in rows] == [7, 7, 4] and rows[0].endswith("| worse |")
    same = compare_markdown(compare_runs(("A", A), ("A", A)))
    assert "- the configuration is the same" in same


def test_json_has_everything(comparison: RunComparison) -> None:
    document = msgspec.json.decode(compare_json([comparison, comparison]))
    assert document["schema"] == "vramp.compare/1"
    assert msgspec.convert(document["comparisons"], list[RunComparison]) == [comparison, comparison]


def test_long_settings_are_cut_in_text_alone() -> None:
    long = "x" * 200
    other = msgspec.structs.replace(B, environment={**B.environment, "vllm_version": long})
    compared = compare_runs(("A", A), ("B", other))
    assert max(len(line) for line in compare_text(compared).splitlines()) <= 120
    assert long in compare_markdown(compared)


def test_a_figure_without_an_interval_has_no_word() -> None:
    a, b = (
        result(msgspec.structs.replace(stage_of_sessions(), hits=Hits(measured, None, None, None, None)))
        for measured in (0.5, 0.9)
    )
    text = compare_text(compare_runs(("A", a), ("B", b)))
    line = next(line for line in text.splitlines() if line.startswith("prefix hits (%)"))
    assert line.split() == "prefix hits (%) 50.00 90.00 +80.0 % not estimated no evidence".split()
