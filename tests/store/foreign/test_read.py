"""Results of other load generators: their figures under vramp's names, and what is none of theirs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ResultError
from loadgen.report.csv import csv_report
from loadgen.report.html.run_page import html_report
from loadgen.report.markdown import markdown_report
from loadgen.report.text import text_report
from loadgen.report.vllm_json import vllm_documents
from loadgen.schema.result import Result, StageResult, Target
from loadgen.store.foreign.read import read_foreign
from loadgen.store.runs import read_result

FILES = Path(__file__).with_name("files")
NAMES = sorted(path.name for path in FILES.glob("*.json"))
ENDPOINTS = {
    "vllm_bench_0.6.json": "completions",
    "vllm_bench_0.32_detailed.json": "chat",
    "vllm_bench_0.32_appended.json": "completions",
    "guidellm_0.8.json": "completions",
    "aiperf_0.1.json": "chat",
    "aiperf_0.13.json": "completions",
    "genai_perf_0.0.8.json": "chat",
}
FORMS: list[Callable[[Result], str]] = [
    text_report,
    markdown_report,
    html_report,
    lambda result: csv_report([result]),
    lambda result: json.dumps(vllm_documents(result), allow_nan=False),
]


def stages(name: str) -> list[StageResult]:
    return read_result(FILES / name).stages


def statistics(stage: StageResult, latency: str, *names: str) -> list[float | None]:
    return [getattr(stage.latency_ms[latency], name) for name in names]


@pytest.mark.parametrize(
    ("name", "tool", "targets"),
    [
        ("vllm_bench_0.6.json", "vllm bench serve", [Target(None, 4.0, "gamma:0.5")]),
        ("vllm_bench_0.32_detailed.json", "vllm bench serve", [Target(16, None, None)]),
        ("vllm_bench_0.32_appended.json", "vllm bench serve", [Target(16, None, None), Target(32, None, None)]),
        ("guidellm_0.2.json", "guidellm", [Target(16, None, None)]),
        (
            "guidellm_0.8.json",
            "guidellm 0.8.1",
            [Target(1, None, None), Target(16, None, None), Target(None, 2.5, "poisson")],
        ),
        ("aiperf_0.1.json", "aiperf", [Target(16, None, None)]),
        ("aiperf_0.13.json", "aiperf 0.13.0", [Target(None, 12.0, "gamma:2")]),
    ],
)
def test_who_measured_and_under_which_loads(name: str, tool: str, targets: list[Target]) -> None:
    result = read_result(FILES / name)
    assert result.measured_by == tool
    assert result.environment["model"] == "some/model"
    assert [stage.target for stage in result.stages] == targets
    assert {(stage.isl in (512, 516, 518), stage.osl) for stage in result.stages} == {(True, 128)}
    assert result.profile["load"].get("endpoint") == ENDPOINTS.get(name)
    assert {"throughput", "ttft", "tpot", "itl", "e2e"} == set(result.definitions)


def test_the_figures_of_vllm() -> None:
    (old,) = stages("vllm_bench_0.6.json")
    assert (old.requests.completed, old.requests.failed, old.measured_s) == (98, 2, 25.0)
    assert old.throughput.output_tokens_per_s == 501.76
    assert statistics(old, "ttft", "mean", "stddev", "p50", "p90", "p99") == [61.5, 9.5, 58.25, None, 97.75]
    assert old.latency_ms["e2e"].count == 0
    (new,) = stages("vllm_bench_0.32_detailed.json")
    assert statistics(new, "ttft", "mean", "p99") == [65.5, 80.69]
    # What was not asked for comes from the values of all requests.
    assert statistics(new, "ttft", "p90", "min", "max") == [pytest.approx(78, rel=1e-3), 50.0, 81.0]
    assert new.latency_ms["e2e"].mean == pytest.approx(1335.5)
    assert new.concurrency.mean == pytest.approx(32 * 1.3355 / 2.75)


def test_older_files_have_ttft_only(tmp_path: Path) -> None:
    document = json.loads((FILES / "vllm_bench_0.32_detailed.json").read_text())
    del document["latencies"]
    (tmp_path / "r.json").write_text(json.dumps(document))
    (stage,) = read_result(tmp_path / "r.json").stages
    assert statistics(stage, "ttft", "p90", "min", "max") == [pytest.approx(78, rel=1e-3), 50.0, 81.0]
    # A list that is not whole says nothing of all requests.
    document["ttfts"].pop()
    (tmp_path / "r.json").write_text(json.dumps(document))
    (stage,) = read_result(tmp_path / "r.json").stages
    assert statistics(stage, "ttft", "p90", "min", "p99") == [None, None, 80.69]


def test_a_load_of_no_time_held_nobody_knows_how_many(tmp_path: Path) -> None:
    document = json.loads((FILES / "vllm_bench_0.32_detailed.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps(document | {"duration": 5e-324}))
    (stage,) = read_result(tmp_path / "r.json").stages
    assert stage.concurrency.mean is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"request_rate": "inf", "max_concurrency": None}, "all at once"),
        ({"burstiness": 1.0}, "rate 4/s"),
        ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 20}, "linear ramp, 1 to 20/s"),
    ],
)
def test_the_loads_of_vllm(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    document = json.loads((FILES / "vllm_bench_0.6.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps(document | changes))
    (stage,) = read_result(tmp_path / "r.json").stages
    assert stage.label == words


def test_a_value_that_is_no_number_is_not_known() -> None:
    first, second = stages("vllm_bench_0.32_appended.json")
    assert (first.latency_ms["tpot"].stddev, second.latency_ms["tpot"].stddev) == (0.0, None)


@pytest.mark.parametrize(
    ("name", "index", "input_tokens"), [("guidellm_0.2.json", 0, 512), ("guidellm_0.8.json", 1, 516)]
)
def test_the_figures_of_guidellm(name: str, index: int, input_tokens: int) -> None:
    stage = stages(name)[index]
    assert stage.requests.completed == 64
    assert stage.tokens.input == 64 * input_tokens
    assert statistics(stage, "ttft", "mean", "p50", "p99") == [62.5, 62.5, 70.5]
    assert statistics(stage, "tpot", "mean", "p999") == [10.25, 10.875]  # its ITL; its TPOT is another thing
    assert statistics(stage, "e2e", "mean", "p90") == [1375.0, 1437.5]  # it tells seconds
    assert stage.latency_ms["itl"].count == 0
    assert stage.concurrency.mean == 15.75


def test_what_guidellm_calls_tpot_is_reported_by_its_version() -> None:
    old, new = (read_result(FILES / name).definitions["tpot"] for name in ("guidellm_0.2.json", "guidellm_0.8.json"))
    assert "includes TTFT" in new and "includes TTFT" not in old


def test_the_figures_of_aiperf() -> None:
    (old,), (new,) = stages("aiperf_0.1.json"), stages("aiperf_0.13.json")
    for stage in (old, new):
        assert stage.requests.completed == 64
        assert (stage.tokens.input, stage.tokens.output) == (32768, 8192)
        assert statistics(stage, "ttft", "mean", "p99") == [64.0, 74.0]
        assert statistics(stage, "itl", "mean", "p90") == [10.375, 11.875]  # its gaps between chunks
        assert stage.measured_s == 5.6875
    assert (old.requests.failed, new.requests.failed) == (0, 2)
    cancelled = read_result(FILES / "aiperf_0.13.json")
    assert (cancelled.state, cancelled.reason) == ("stopped", "cancelled by the user")


def test_the_figures_of_genai_perf() -> None:
    result = read_result(FILES / "genai_perf_0.0.8.json")
    (stage,) = result.stages
    assert (result.measured_by, stage.target.concurrency) == ("genai-perf", 8)
    assert (stage.requests.completed, stage.tokens.input, stage.tokens.output) == (100, 51200, 12800)
    assert statistics(stage, "ttft", "mean", "p90", "p99") == [96.0, 144.0, 192.0]
    assert statistics(stage, "tpot", "mean", "p99") == [15.0, 30.0]
    assert statistics(stage, "e2e", "mean", "min") == [2000.0, 1000.0]
    assert stage.latency_ms["itl"].count == 0
    assert stage.measured_s == 25.0


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"concurrency": None, "request_rate": 2.5}, "rate 2.50/s"),
        ({"concurrency": None, "perf_analyzer": {"stimulus": {"concurrency": 16}}}, "conc 16"),
        ({"concurrency": None, "perf_analyzer": {"stimulus": {"request_rate": 3}}}, "rate 3/s"),
    ],
)
def test_the_loads_of_genai_perf(changes: dict[str, Any], label: str, tmp_path: Path) -> None:
    document = json.loads((FILES / "genai_perf_0.0.8.json").read_text())
    document["input_config"] |= changes
    (tmp_path / "r.json").write_text(json.dumps(document))
    (stage,) = read_result(tmp_path / "r.json").stages
    assert label in stage.label


def test_genai_perf_without_streaming_has_no_ttft(tmp_path: Path) -> None:
    document = json.loads((FILES / "genai_perf_0.0.8.json").read_text())
    document["input_config"]["streaming"] = False
    (tmp_path / "r.json").write_text(json.dumps(document))
    (stage,) = read_result(tmp_path / "r.json").stages
    assert (stage.latency_ms["ttft"].count, stage.latency_ms["tpot"].count) == (0, 0)
    assert stage.latency_ms["e2e"].count == 100


def test_a_relative_of_these_files_is_refused(tmp_path: Path) -> None:
    document = json.loads((FILES / "genai_perf_0.0.8.json").read_text())
    document["input_config"] = {"concurrency": 8}
    (tmp_path / "r.json").write_text(json.dumps(document))
    with pytest.raises(ResultError, match="genai-perf"):
        read_result(tmp_path / "r.json")


@pytest.mark.parametrize("name", NAMES)
def test_every_form_of_a_report_takes_it_and_says_who_measured(name: str) -> None:
    result = read_result(FILES / name)
    table, markdown, page, *_ = [form(result) for form in FORMS]
    for text in (table, markdown, page):
        assert f"{result.measured_by}, which does not say whether its client kept up" in text.replace("\\", "")
        assert "The client kept up" not in text and "not limited" not in text


def test_it_is_kept_as_a_result_of_vramp(tmp_path: Path) -> None:
    found = read_result(FILES / "guidellm_0.8.json")
    (tmp_path / "kept.json").write_bytes(msgspec.json.encode(found))
    assert read_result(tmp_path / "kept.json") == found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every place in a document that holds a value, as its container and key."""
    pairs = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    return [(node, key) for key, _ in pairs] + [place for _, inner in pairs for place in places(inner)]


@given(st.sampled_from([name for name in NAMES if "appended" not in name]), st.data())
def test_a_damaged_file_is_a_result_or_refused(name: str, data: st.DataObject) -> None:
    document = json.loads((FILES / name).read_text())
    container, key = data.draw(st.sampled_from(places(document)), label="place")
    container[key] = data.draw(JSON, label="value")
    try:
        result = read_foreign(json.dumps(document).encode(), name)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError):
        return
    if result is not None:
        text_report(result)
        assert msgspec.json.decode(msgspec.json.encode(result), type=Result).stages


def test_a_list_of_runs_is_a_load_each(tmp_path: Path) -> None:
    document = json.loads((FILES / "vllm_bench_0.6.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps([document | {"run_number": number} for number in range(3)]))
    assert [stage.index for stage in read_result(tmp_path / "summary.json").stages] == [0, 1, 2]


def test_what_vramp_wrote_for_readers_of_vllms_files_is_not_read_back(tmp_path: Path) -> None:
    document = json.loads((FILES / "vllm_bench_0.6.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps(document | {"vramp": {"run_id": "r"}}))
    with pytest.raises(ResultError, match=r"written by `vramp report --vllm-json`; use the result\.json"):
        read_result(tmp_path / "r.json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[1]",
        "NaN",
        "{}\n{}",
        "[" * 100_000,
        '{"benchmarks": []}',
        '{"benchmarks": [{}]}',
        '{"input_config": 1, "request_throughput": {}}',
        '{"duration": -1, "completed": 1, "total_output_tokens": 1, "request_throughput": 1, "output_throughput": 1}',
        "\x00\xff",
    ],
)
def test_garbage_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(
        ResultError, match=r"r\.json: not a result of vramp, vllm bench serve, guidellm, aiperf or genai-perf: "
    ) as reported:
        read_result(tmp_path / "r.json")
    assert "\n" not in str(reported.value)
