"""`vramp bench` as scripts see it: profiles of its options, and the three benchmarks on a simulator."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ProfileError
from loadgen.masking import MASK
from loadgen.profile.schema import Profile
from loadgen.store.runs import read_result
from tests.engines import NOBODY, Simulator
from tests.tui.cli.commands import exit_code
from tui.cli.bench import bench_parser, profile_of

SMALL = ["--workers", "1", "--seed", "1"]
bench = partial(exit_code, "bench")
SERVER = """
[server]
engine = "simulator"
args.preset = "fast"
[load]
isl = 9999
duration = "60s"
timeout_s = 77
[[stages]]
concurrency = 9
[variants.slower.server.args]
base-ms = 2
"""


@pytest.fixture
def server(tmp_path: Path) -> str:
    path = tmp_path / "box.toml"
    path.write_text(SERVER)
    return str(path)


def made(*words: str) -> Profile:
    return profile_of(bench_parser().parse_args(list(words)))[0]


def test_no_benchmark_sends_canaries() -> None:
    for benchmark in ("serve", "latency", "throughput"):
        assert not made(benchmark).canary.enabled


def left() -> Any:
    (path,) = Path("runs").glob("*/result.json")
    return read_result(path)


PUBLISHED = (
    "serve --backend vllm --model openai/gpt-oss-120b --dataset-name random --random-input-len 4096 "
    "--random-output-len 1024 --num-prompts 80 --max-concurrency 8 --ignore-eos "
    "--percentile-metrics ttft,tpot,itl,e2el --host 127.0.0.2 --port 1234 --random-range-ratio 0"
)


@pytest.mark.parametrize(
    ("words", "load"),
    [
        ("serve", {"isl": 1024, "osl": 128, "requests": 1000, "concurrency": [1000], "rate": []}),  # as vLLM's
        ("serve", {"endpoint": "completions", "ignore_eos": True, "seed": None}),
        (PUBLISHED, {"isl": 4096, "osl": 1024, "requests": 80, "concurrency": [8]}),
        ("serve --request-rate 1,2.5 --num-prompts 9", {"rate": [1.0, 2.5], "requests": 9, "arrival": "poisson"}),
        ("serve --request-rate inf --num-prompts 10", {"concurrency": [10], "rate": []}),
        (
            "serve --request-rate 2 --burstiness 0.5 --max-concurrency 4",
            {"rate": [2.0], "arrival": "gamma:0.5", "max_concurrency": 4},
        ),
        (
            "throughput --input-len 1000 --output-len 3 --random-range-ratio 0.5",
            {"isl": "uniform:500:1500", "osl": "uniform:1:5"},
        ),
        (
            "serve --dataset-name custom --dataset-path x.json",
            {"data": "x.json", "data_format": "jsonl", "osl": "data", "ignore_eos": False},
        ),
        (
            "serve --dataset-name sharegpt --dataset-path x.json --sharegpt-output-len 7 --ignore-eos",
            {"data": "x.json", "data_format": "sharegpt", "osl": 7, "ignore_eos": True},
        ),
        (
            'serve --endpoint /v1/chat/completions --extra-body {"top_k":3}',
            {"endpoint": "chat", "extra_body": {"top_k": 3}},
        ),
        ("serve --backend openai-chat", {"endpoint": "chat"}),
        ("throughput --num-prompts 50 --input-len 7", {"requests": 50, "concurrency": [50], "isl": 7, "osl": 128}),
    ],
)
def test_options_become_a_load(words: str, load: dict[str, Any]) -> None:
    found = made(*words.split()).load
    assert {name: getattr(found, name) for name in load} == load


def test_the_server_is_that_of_the_options() -> None:
    assert made("serve").server.url == "http://127.0.0.1:8000"
    server = made(*PUBLISHED.split()).server
    assert (server.url, server.model) == ("http://127.0.0.2:1234", "openai/gpt-oss-120b")


def test_a_prefix_comes_on_top_of_the_input() -> None:
    load = made("serve", "--random-prefix-len", "100", "--random-input-len", "300").load
    assert load.prefix is not None
    assert (load.isl, load.prefix.share, load.prefix.count) == (400, 0.25, 1)


def test_goodput_is_a_limit_for_each_stream() -> None:
    assert made("serve", "--goodput", "ttft:500", "e2el:2000").slo.limits_ms == {"ttft": 500.0, "e2e": 2000.0}


def test_latency_is_one_batch_after_the_other() -> None:
    profile = made("latency", "--batch-size", "4", "--num-iters", "2", "--num-iters-warmup", "1")
    stages = [(stage.label, stage.concurrency, stage.requests) for stage in profile.stages]
    assert stages == [("warm-up 1", 4, 4), ("iteration 1", 4, 4), ("iteration 2", 4, 4)]
    assert (profile.load.isl, profile.load.osl) == (32, 128)


def test_a_profile_gives_the_server_and_not_the_load(server: str) -> None:
    profile = made("serve", "--profile", server, "--variant", "slower", "--model", "m", "--num-prompts", "5")
    assert (profile.server.engine, profile.server.model, profile.server.args["base-ms"]) == ("simulator", "m", 2)
    assert (profile.load.isl, profile.load.duration, profile.stages) == (1024, None, [])
    assert profile.load.timeout_s == 77
    assert profile.name == "box+slower-bench-serve"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "--top-p", "0.9"], "--extra-body"),
        (["serve", "--random-prefix-len", "5", "--random-range-ratio", "0.5"], "without --random-range-ratio"),
        (["latency", "--n", "2"], "--n: not in vramp"),
        (["serve", "--request-rate", "2", "--max-concurrency", "4,8"], "give one number"),
        (["serve", "--dataset-name", "sharegpt"], "--dataset-path"),
        (["throughput", "--dataset-path", "x.json"], "--dataset-name sharegpt"),
        (["serve", "--goodput", "latency:3"], "such as ttft:500"),
        (["serve", "--goodput", "ttft"], "such as ttft:500"),
        (["serve", "--goodput", "ttft:soon"], "expected a"),
        (["serve", "--extra-body", "["], "not valid JSON"),
        (["serve", "--extra-body", "[]"], "expected a JSON object"),
        (["serve", "--endpoint", "/v1/embeddings"], "/v1/completions"),
        (["serve", "--variant", "x"], "needs --profile"),
        (["serve", "--profile", "simulator", "--base-url", "http://127.0.0.1:1"], "give one of the two"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_word(words: list[str], message: str) -> None:
    with pytest.raises(ProfileError, match=re.escape(message)):
        made(*words)


def test_one_answer_is_what_there_is() -> None:
    assert made("latency", "--n", "1").stages


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "--num-prompts", "0"], "a whole number above 0"),
        (["serve", "--num-warmups", "-1"], "a whole number"),
        (["serve", "--request-rate", "1,fast"], "a number above 0"),
        (["serve", "--metric-percentiles", "99,101"], "percents"),
        (["serve", "--percentile-metrics", "ttft,latency"], "ttft,tpot,itl,e2el"),
        (["serve", "--random-range-ratio", "1"], "from 0 to below 1"),
        (["serve", "--bogus"], "unrecognized"),
        ([], "serve|latency|throughput"),
    ],
)
def test_wrong_words_are_exit_code_2(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(*words) == 2
    assert message in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["serve", "latency", "throughput"])
def test_help_says_what_differs(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(kind, "--help") == 0
    out = capfd.readouterr().out
    assert f"what differs from `vllm bench {kind}`" in out
    assert "--save-result" not in out


def test_serve(engine: Simulator, capfd: pytest.CaptureFixture[str]) -> None:
    code = bench(
        *f"serve --base-url {engine.url} --random-input-len 16 --random-output-len 8 --num-prompts 20".split(),
        *"--max-concurrency 4 --num-warmups 2 --metric-percentiles 25,99 --save-result --json o.json".split(),
        *SMALL,
    )
    captured = capfd.readouterr()
    assert code == 0
    assert "Successful requests:                     20\n" in captured.out
    assert "Total generated tokens:                  160\n" in captured.out
    assert "P25 E2EL (ms): " in captured.out
    assert f"{'Inter-token Latency':-^50}\n" in captured.out
    assert MASK not in captured.out
    assert "--save-result is not needed" in captured.err
    assert json.loads(Path("o.json").read_text())["schema"] == "vramp.result/1"
    assert left().stages[0].requests.warmup == 2


def test_serve_at_several_rates_ends_with_the_curve(engine: Simulator, capfd: pytest.CaptureFixture[str]) -> None:
    words = f"serve --base-url {engine.url} --random-input-len 16 --random-output-len 4 --num-prompts 8".split()
    assert bench(*words, "--request-rate", "40,80", "--percentile-metrics", "ttft", *SMALL) == 0
    out = capfd.readouterr().out
    assert out.count("Serving Benchmark Result") == 2
    assert re.search(r"Serving curve.*\n.*\n.*\n +2400\.0 .*\n +4800\.0 ", out)


def test_latency(engine: Simulator, capfd: pytest.CaptureFixture[str]) -> None:
    words = f"latency --base-url {engine.url} --batch-size 2 --num-iters 3 --num-iters-warmup 1 --output-len 4".split()
    assert bench(*words, *SMALL) == 0
    # What follows, if anything, is that a busy machine was the limit.
    lines = capfd.readouterr().out.splitlines()[:8]
    assert [line.split(":")[0] for line in lines] == [
        "Batch size",
        "Avg latency",
        *(f"{percent}% percentile latency" for percent in (10, 25, 50, 75, 90, 99)),
    ]
    stages = left().stages
    assert [stage.requests.completed for stage in stages] == [2, 2, 2, 2]
    slowest_s = [stage.latency_ms["e2e"].max / 1000 for stage in stages[1:]]
    assert lines[:2] == ["Batch size: 2", f"Avg latency: {sum(slowest_s) / 3:.6f} seconds"]


def test_throughput_of_a_server_that_is_started_for_it(server: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["throughput", "--profile", server, "--num-prompts", "12", "--input-len", "16", "--output-len", "4"]
    assert bench(*words, *SMALL) == 0
    out = capfd.readouterr().out
    assert re.search(r"^Throughput: [0-9.]+ requests/s, [0-9.]+ total tokens/s, [0-9.]+ output tokens/s$", out, re.M)
    assert "Total num output tokens:  48" in out
    assert left().stages[0].concurrency.peak == 12


def test_a_dataset_is_sent(engine: Simulator, capfd: pytest.CaptureFixture[str]) -> None:
    turns = [{"from": "human", "value": "Hello over there"}, {"from": "gpt", "value": "Well, hello you"}]
    talks = [{"conversations": turns}]
    Path("talks.json").write_text(json.dumps(talks * 3))
    words = f"serve --base-url {engine.url} --dataset-name sharegpt --dataset-path talks.json --num-prompts 6".split()
    assert bench(*words, "--sharegpt-output-len", "4", "--ignore-eos", *SMALL) == 0
    assert "Total generated tokens:                  24\n" in capfd.readouterr().out


def test_nobody_listens_is_exit_code_3(capfd: pytest.CaptureFixture[str]) -> None:
    assert bench("throughput", "--base-url", NOBODY, *SMALL) == 3
    assert "nothing listens" in capfd.readouterr().err


def test_results_that_cannot_be_written_are_a_matter_of_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert bench("serve", "--json", "/proc/x/y.json") == 2
    assert "cannot be written" in capfd.readouterr().err
