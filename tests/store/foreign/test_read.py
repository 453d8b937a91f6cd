"""Results of other load generators: their figures under vramp's names, and what is none of theirs."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ResultError
from loadgen.record.quote import quote_of
from loadgen.record.subject import engine_of, hardware_of
from loadgen.record.summary import summary_of
from loadgen.report.csv import csv_report
from loadgen.report.history import runs_listed
from loadgen.report.html.compare import compare_page
from loadgen.report.html.run_page import html_report
from loadgen.report.llm_d import llm_d_reports
from loadgen.report.text import markdown_report, text_report
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
    "vllm_rs_0.33.json": "completions",
}
NEWER = ["vllm_rs_0.33.json", "sglang_0.5.json", "inference_perf_0.6.json", "inferencex_rows.json", "llm_d_0.2.json"]
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
        ("vllm_rs_0.33.json", "vllm-rs bench serve", [Target(16, None, None)]),
        ("sglang_0.5.json", "SGLang bench_serving", [Target(16, None, None)]),
        ("inferencex_rows.json", "InferenceX", [Target(16, None, None), Target(32, None, None)]),
        ("llm_d_0.2.json", "llm-d benchmark, vllm-benchmark 0.32.0", [Target(16, None, None)]),
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


def test_the_same_run_in_the_newer_formats() -> None:
    for name in NEWER:
        stage = stages(name)[0]
        assert (stage.isl, stage.osl) == (512, 128), name
        steady = name.startswith("vllm_rs")
        assert stage.throughput.output_tokens_per_s == (1408.0 if steady else 1280.0), name
        assert stage.throughput.total_tokens_per_s == (6528.0 if steady else 6400.0), name
        assert statistics(stage, "ttft", "mean") == [58.5 if steady else 62.5], name
        assert statistics(stage, "tpot", "mean") == [10.25 if steady else 10.5], name


def test_the_steady_state_of_vllm_rs_unless_it_warns(tmp_path: Path) -> None:
    (stage,) = stages("vllm_rs_0.33.json")
    assert stage.label == "conc 16, steady state" and (stage.requests.completed, stage.measured_s) == (144, 14.0)
    assert statistics(stage, "tpot", "p50", "p90", "p99") == [10.125, 10.5, 10.75]
    assert statistics(stage, "ttft", "p99") == [61.5]
    assert stage.latency_ms["e2e"].count == stage.latency_ms["itl"].count == 0
    document = json.loads((FILES / "vllm_rs_0.33.json").read_text())
    document["steady_state"]["window"]["warning"] = "steady-state window is 0.5s (3.0% of run)"
    for steady in (document["steady_state"], None):
        (tmp_path / "r.json").write_text(json.dumps(document | {"steady_state": steady}))
        (stage,) = read_result(tmp_path / "r.json").stages
        assert stage.label == "conc 16" and (stage.requests.completed, stage.measured_s) == (160, 16.0)


def test_lines_of_sglang_are_a_load_each_and_have_no_ttft_without_streaming(tmp_path: Path) -> None:
    line = (FILES / "sglang_0.5.json").read_text()
    other = json.loads(line) | {"request_rate": 4.0, "mean_itl_ms": 0.0, "backend": "vllm-chat", "errors": ["", "x"]}
    (tmp_path / "r.jsonl").write_text(line + json.dumps(other) + "\n")
    first, second = read_result(tmp_path / "r.jsonl").stages
    assert (first.label, second.label) == ("conc 16", "rate 4/s")
    assert statistics(first, "e2e", "mean", "p90") == [1395.0, 1398.0] and first.concurrency.mean == 13.95
    assert second.latency_ms["ttft"].count == 0 and second.latency_ms["e2e"].count == 160
    assert second.requests.failed == 1
    package = {key: value for key, value in json.loads(line).items() if not key.startswith("total_")}
    (tmp_path / "r.jsonl").write_text(json.dumps(package | {"total_input": 81920, "total_output": 20480}))
    (stage,) = read_result(tmp_path / "r.jsonl").stages
    assert (stage.tokens.input, stage.tokens.output) == (81920, 20480)


def test_the_figures_of_inference_perf(tmp_path: Path) -> None:
    (stage,) = stages("inference_perf_0.6.json")
    assert stage.target == Target(None, 10.0, None)
    assert (stage.requests.completed, stage.requests.failed, stage.measured_s) == (160, 4, 16.0)
    assert statistics(stage, "e2e", "p50", "p99", "p999") == [1375.0, pytest.approx(1890.625), 2062.5]
    document = json.loads((FILES / "inference_perf_0.6.json").read_text())
    document["load_summary"]["concurrency"] = 8
    document["successes"]["latency"]["time_to_first_token"] = None
    del document["benchmark_time_seconds"], document["successes"]["prompt_tokens"]
    document["successes"]["prompt_len"] = {"mean": 500.0}
    (tmp_path / "r.json").write_text(json.dumps(document))
    (stage,) = read_result(tmp_path / "r.json").stages
    assert stage.label == "conc 8" and stage.measured_s == 16.0 and stage.isl == 500
    assert stage.latency_ms["ttft"].count == 0


def test_rows_of_inferencex_do_not_say_how_many_requests_failed(tmp_path: Path) -> None:
    result = read_result(FILES / "inferencex_rows.json")
    assert [stage.throughput.output_tokens_per_s_per_gpu for stage in result.stages] == [160.0, 256.0]
    report = text_report(result)
    assert "some/model on 8 \N{MULTIPLICATION SIGN} MI300X" in report and "1970" not in report
    assert "Healthy? Not known: InferenceX does not say how many requests failed." in report
    assert "TTFT  conc 16           -       62.50" in report, "how many requests are assumed is in no table"
    assert vllm_documents(result) == []
    rows = json.loads((FILES / "inferencex_rows.json").read_text())
    of_api = {
        key: rows[0].pop(key) for key in list(rows[0]) if key.startswith(("mean", "median", "p99", "std", "tput"))
    }
    (tmp_path / "r.json").write_text(json.dumps(rows[0] | {"metrics": of_api}))
    (stage,) = read_result(tmp_path / "r.json").stages
    assert statistics(stage, "ttft", "mean", "p99") == [62.5, 67.5]
    assert stage.throughput.total_tokens_per_s == 6400.0
    (tmp_path / "r.json").write_text(json.dumps([rows[1], rows[1] | {"precision": "fp4"}]))
    with pytest.raises(ResultError, match=r'several configurations: precision is "fp4", "fp8"; keep one'):
        read_result(tmp_path / "r.json")
    (tmp_path / "r.json").write_text(json.dumps(rows[1] | {"isl": None}))
    with pytest.raises(ResultError, match="replays of traces are not read"):
        read_result(tmp_path / "r.json")


def test_reports_of_llm_d_as_json_and_yaml(tmp_path: Path) -> None:
    (stage,) = stages("llm_d_0.2.json")
    assert (stage.requests.completed, stage.requests.failed, stage.measured_s) == (160, 4, 16.0)
    assert statistics(stage, "tpot", "mean", "p999") == [10.5, 15.75]
    document = json.loads((FILES / "llm_d_0.2.json").read_text())
    (tmp_path / "r.yaml").write_text("# a comment\n" + yaml.safe_dump(document))
    assert read_result(tmp_path / "r.yaml").stages == read_result(FILES / "llm_d_0.2.json").stages
    found = read_result(FILES / "llm_d_0.2.json")
    assert (engine_of(found), hardware_of(found)) == ("vLLM 0.32.0", "8 \N{MULTIPLICATION SIGN} MI300X")
    quote = quote_of(found)
    assert quote is not None
    assert [one.evidence for one in quote.problems if one.rule == "provenance"] == [
        "not named: how the server was started"
    ]
    document["scenario"]["stack"][1]["native"]["args"] = {"tensor-parallel-size": 8, "--enforce-eager": True}
    (tmp_path / "r.json").write_text(json.dumps(document))
    command = read_result(tmp_path / "r.json").environment["server_command"]
    assert command == ["--tensor-parallel-size", "8", "--enforce-eager"]
    document["scenario"]["stack"][1]["standardized"]["accelerator"]["model"] = "Instinct MI300X"
    (tmp_path / "r.json").write_text(json.dumps(document))
    assert {gpu.vendor for gpu in read_result(tmp_path / "r.json").gpus} == {"amd"}
    for changes, words in (
        ({"version": "0.1"}, r"benchmark report 0\.1: expected version 0\.2 or 0\.2\.1"),
        ({"results": {}}, r"no results\.request_performance"),
    ):
        (tmp_path / "r.json").write_text(json.dumps(document | changes))
        with pytest.raises(ResultError, match=words):
            read_result(tmp_path / "r.json")
    for text, words in (("run: &a [1]\nresults: *a", "aliases"), ("run: [", "not valid YAML")):
        (tmp_path / "r.yaml").write_text(text)
        with pytest.raises(ResultError, match=words):
            read_result(tmp_path / "r.yaml")


def test_results_of_two_tools_in_one_file_are_refused(tmp_path: Path) -> None:
    lines = [(FILES / name).read_text().replace("\n", "") for name in ("sglang_0.5.json", "vllm_rs_0.33.json")]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    with pytest.raises(ResultError, match="several tools in one file: SGLang's bench_serving, vllm bench serve"):
        read_result(tmp_path / "r.jsonl")


@pytest.mark.parametrize("name", NEWER)
def test_a_number_as_a_string_is_refused_with_its_place(name: str, tmp_path: Path) -> None:
    text = (FILES / name).read_text()
    assert "1280.0" in text or "160.0" in text
    (tmp_path / "r.json").write_text(text.replace(": 1280.0", ': "1280"').replace(": 160.0", ': "160"'))
    with pytest.raises(ResultError, match=r"[Ee]xpected `float.*got `str`"):
        read_result(tmp_path / "r.json")


@pytest.mark.parametrize("value", [-3.0, "12.5"])
@pytest.mark.parametrize("name", ["vllm_bench_0.6.json", "sglang_0.5.json"])
def test_a_latency_that_cannot_be_is_refused_with_its_key(name: str, value: object, tmp_path: Path) -> None:
    document = json.loads((FILES / name).read_text()) | {"mean_ttft_ms": value}
    (tmp_path / "r.json").write_text(json.dumps(document))
    with pytest.raises(ResultError, match="mean_ttft_ms: Expected `float"):
        read_result(tmp_path / "r.json")


def test_a_file_without_a_date_is_of_no_time(tmp_path: Path) -> None:
    result = read_result(FILES / "inference_perf_0.6.json")
    summary = summary_of(result)
    assert (summary.started_at, summary.finished_at) == (None, None)
    (tmp_path / "result.json").write_bytes((FILES / "inference_perf_0.6.json").read_bytes())
    assert [run.started_at for _, run, _ in runs_listed(tmp_path)] == [""]
    written = [text_report(result), csv_report([result]), json.dumps([llm_d_reports(result), vllm_documents(result)])]
    assert not any("1970" in text for text in written)
    assert "1970-01-01" not in compare_page([("a", result)], [])


@pytest.mark.parametrize("name", NEWER)
def test_a_file_that_is_cut_off_is_refused(name: str, tmp_path: Path) -> None:
    text = (FILES / name).read_bytes()
    for share in (1, 0.9, 0.5):
        (tmp_path / "r.json").write_bytes(text[: round(len(text) * share) - 3])
        with pytest.raises(ResultError, match=r"r\.json: not a result of vramp"):
            read_result(tmp_path / "r.json")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_a_file_that_a_windows_shell_wrote_is_read(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text((FILES / "vllm_bench_0.6.json").read_text(), encoding=encoding)
    assert read_result(tmp_path / "r.json").stages == stages("vllm_bench_0.6.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b" \n", "the file is empty"),
        (gzip.compress(b"{}", mtime=0), "it is compressed; unpack it with gunzip"),
        ((FILES / "aiperf_0.13.json").read_bytes()[:-30], "Input data was truncated"),
    ],
)
def test_what_is_wrong_with_a_whole_file_is_said(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(ResultError, match=words):
        read_result(tmp_path / "r.json")


def test_a_file_of_two_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "r.json").open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(ResultError, match="larger than 256 MiB"):
        read_result(tmp_path / "r.json")


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
        ResultError, match=r"r\.json: not a result of vramp, vllm bench serve, .* inference-perf, InferenceX or llm-d: "
    ) as reported:
        read_result(tmp_path / "r.json")
    assert "\n" not in str(reported.value)
