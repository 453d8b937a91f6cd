"""Whole starts, recorded and composed (the first line of each log says where its wordings come from)."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.metrics.journal import Milestone
from loadgen.server.vllm.startup import StartupWatch

LOGS = Path(__file__).with_name("logs")
IDS = ["import", "config", "weights", "compile", "kv_cache", "graphs", "ready"]


def log(name: str) -> list[str]:
    return (LOGS / f"{name}.log").read_text().splitlines()[1:]


CUDA = log("cuda_0.32_tp2")
V0 = log("cuda_0.6_v0")


def after(lines: list[str]) -> dict[str, Milestone]:
    """Each line comes one second after the one before."""
    watch = StartupWatch(0.0)
    for second, line in enumerate(lines, start=1):
        watch.feed(line, float(second))
    return {milestone.id: milestone for milestone in watch.milestones}


def upto(lines: list[str], text: str) -> list[str]:
    return lines[: next(i for i, line in enumerate(lines) if text in line) + 1]


@pytest.mark.parametrize(
    ("name", "details"),
    [
        (
            "cpu_0.32",
            ["version 0.32.0", "LlamaForCausalLM", "0.01 s", "", "4,194,304 tokens, 512.00x at 8,192 tokens", "", ""],
        ),
        (
            "cuda_0.6_v0",
            ["version 0.6.6.post1", "", "7.5123 GB", "", "62689 blocks, 122.44x at 8192 tokens", "17 s", ""],
        ),
        (
            "rocm_0.10_tp8",
            [
                "version 0.10.1",
                "LlamaForCausalLM",
                "16.4608 GiB, 70.90 s",
                "54.17 s",
                "4,017,504 tokens, 122.60x at 32,768 tokens",
                "20 s",
                "",
            ],
        ),
        (
            "cuda_0.32_tp2",
            [
                "version 0.32.0",
                "Qwen3ForCausalLM",
                "12.66 GiB, 3.04 s",
                "57.46 s",
                "1,949,520 tokens, 29.75x at 65,536 tokens",
                "6 s",
                "",
            ],
        ),
    ],
)
def test_a_whole_start(name: str, details: list[str]) -> None:
    milestones = after(log(name))
    assert list(milestones) == IDS
    assert {milestone.state for milestone in milestones.values()} == {"done"}
    assert [milestone.detail for milestone in milestones.values()] == details


def test_each_milestone_has_its_times() -> None:
    times = [(milestone.started_s, milestone.finished_s) for milestone in after(CUDA).values()]
    assert times == [(0, 3), (5, 7), (8, 17), (19, 23), (27, 28), (29, 33), (35, 39)]
    assert after(log("cpu_0.32"))["graphs"].started_s is None
    assert after(V0)["compile"].started_s is None


@pytest.mark.parametrize(
    ("lines", "upto_text", "id", "progress", "detail"),
    [
        (V0, "| 2/4", "weights", 0.5, "2/4 shards"),
        (V0, "reserved for KV Cache", "kv_cache", None, "61.22GiB"),
        (V0, "Capturing cudagraphs", "graphs", None, ""),
        (V0, "| 14/35", "graphs", 0.4, "14/35"),
        (CUDA, "| 1/5", "weights", 0.2, "1/5 shards, 3.04 s"),
        (CUDA, "Dynamo bytecode", "compile", None, ""),
        (CUDA, "Available KV cache memory", "kv_cache", None, "37.18 GiB"),
        (CUDA, "| 51/51", "graphs", 1.0, "51/51 PIECEWISE"),
        (CUDA, "| 7/35", "graphs", 0.2, "7/35 FULL"),
        (CUDA, "init engine", "ready", None, ""),
    ],
)
def test_what_runs_and_how_far_it_is(
    lines: list[str], upto_text: str, id: str, progress: float | None, detail: str
) -> None:
    milestone = after(upto(lines, upto_text))[id]
    assert (milestone.state, milestone.progress, milestone.detail) == ("running", progress, detail)


def test_a_percentage_alone_is_progress_too() -> None:
    assert after(["Capturing HIP graphs 40%"])["graphs"].progress == 0.4
    assert after(["Capturing HIP graphs"])["graphs"].progress is None
    assert after(["Loading shards: 0% Completed | 0/0"])["weights"].progress is None


@pytest.mark.parametrize(
    ("line", "id"),
    [
        ("Loading pt checkpoint shards:  50% Completed | 1/2 [00:01<00:01]", "weights"),
        ("Loading safetensors using Runai Model Streamer:  50% Completed | 1/2 [00:01<00:01]", "weights"),
        ("Multi-thread loading shards:  50% Completed | 1/2 [00:01<00:01]", "weights"),
        ("Capturing prefill CUDA graphs:  50%|#####     | 1/2 [00:01<00:01]", "graphs"),
        ("INFO 1 model_runner.py:1] Capturing the model for CUDA graphs. This may lead to", "graphs"),
    ],
)
def test_the_wordings_of_bars(line: str, id: str) -> None:
    assert after([line])[id].state == "running"


def test_the_wordings_that_end_a_milestone() -> None:
    assert after(["kv_cache_utils.py:395] # GPU blocks: 1381"])["kv_cache"].detail == "1381 blocks"
    assert after(["executor_base.py:111] # cuda blocks: 7191, # CPU blocks: 512"])["kv_cache"].detail == "7191 blocks"
    assert after(["Skipping CUDA graph capture. To turn on CUDA graph capture, ..."])["graphs"].state == "done"
    assert after(["Encoder graph capturing finished in 3 secs"])["graphs"].state == "waiting"
    assert after(["Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)"])["ready"].state == "done"


def test_a_figure_is_kept_as_first_read_but_a_missing_one_is_added() -> None:
    first = "KV cache size: 12,000 tokens, Maximum concurrency for 8,192 tokens per request: 1.46x"
    second = "KV cache size: 11,000 tokens, Maximum concurrency for 8,192 tokens per request: 1.34x"
    assert after([first, second])["kv_cache"].detail == "12,000 tokens, 1.46x at 8,192 tokens"
    late = after(["Capturing CUDA graphs", "KV cache size: 12,000 tokens"])
    assert (late["kv_cache"].state, late["kv_cache"].detail) == ("done", "12,000 tokens")
    assert late["graphs"].state == "running"


def test_what_is_not_seen_is_passed_over() -> None:
    milestones = after(["Starting to load model m", "init engine (profile) took 1 s"])
    assert milestones["compile"] == Milestone("compile", "compile", "done")
    assert (milestones["weights"].state, milestones["weights"].finished_s) == ("done", 2.0)
    assert milestones["ready"].state == "running"


def test_finish_closes_everything() -> None:
    watch = StartupWatch(0.0)
    watch.finish(3.0)
    assert {milestone.state for milestone in watch.milestones} == {"done"}
    assert watch.milestones[0].finished_s == 3.0


@settings(max_examples=50)
@given(st.lists(st.one_of(st.text(), st.sampled_from(CUDA + V0)), max_size=8))
def test_no_line_breaks_it(lines: list[str]) -> None:
    assert list(after(lines)) == IDS
