"""The comparison as text, Markdown and JSON."""

import msgspec
import pytest

from loadgen.report.compare import CompareDocument, RunComparison, compare_runs
from loadgen.report.compare_table import compare_json, compare_markdown, compare_table
from tests.metrics.served import run_of, served

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
    lines = compare_table(comparison).splitlines()
    titles = [number for number, line in enumerate(lines) if line.startswith(("differs", "---", "==="))]
    assert [lines[number].strip("-= ").partition("  ")[0] for number in titles] == [
        "B against A",
        "differs",
        "conc 8, ISL 512, OSL 128",
        "conc 16, ISL 512, OSL 128",
        "geometric mean of B over A, 2 stages",
        "",
    ]
    assert "  vllm_version                        0.32.0                          0.33.0|`x`" in lines
    assert max(len(line) for line in lines) <= 120
    tpot = next(line.split() for line in lines if line.startswith("TPOT mean (ms)"))
    assert tpot[-1] == "worse" and tpot[5].startswith("+")
    assert "only in A: conc 4, ISL 512, OSL 128" in lines
    assert lines[-2].startswith("each interval holds with 99 % on its own: among ")


def test_what_cannot_be_told_says_so() -> None:
    short = compare_runs(("A", run_of(served(1, seconds=3.5))), ("B", run_of(served(2, seconds=3.5))))
    line = next(line for line in compare_table(short).splitlines() if line.startswith("TTFT p99"))
    assert line.endswith("too short to tell")


def test_doubts_and_pears_are_said_before_the_numbers() -> None:
    (stage, *_) = B.stages
    limited = msgspec.structs.replace(B, stages=[msgspec.structs.replace(stage, limited=True, why="its CPU was full")])
    other = msgspec.structs.replace(limited, environment={"engine": "vllm", "model": "another/model"})
    text = compare_table(compare_runs(("A", A), ("B", other)))
    assert "NOT ALIKE: another model: some/model and another/model" in text
    assert text.index("no evidence here: B is client-limited: its CPU was full") < text.index("output tok/s")
    assert "geometric mean" not in text


def test_markdown_shows_texts_as_they_are(comparison: RunComparison) -> None:
    text = compare_markdown(comparison)
    assert "| vllm\\_version | 0.32.0 | 0.33.0\\|\\`x\\` |" in text
    assert "#### conc 8, ISL 512, OSL 128" in text and "| geometric mean, 2 stages | B over A | interval |" in text
    rows = [line for line in text.splitlines() if line.startswith("| TPOT mean (ms) |")]
    assert [row.count("|") for row in rows] == [7, 7, 4] and rows[0].endswith("| worse |")
    same = compare_markdown(compare_runs(("A", A), ("A", A)))
    assert "The configuration is the same." in same


def test_json_has_everything(comparison: RunComparison) -> None:
    document = msgspec.json.decode(compare_json([comparison, comparison]), type=CompareDocument)
    assert document.schema == "vramp.compare/1"
    assert document.comparisons == [comparison, comparison]
