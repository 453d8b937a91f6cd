"""Whole starts, recorded and composed (the first line of each log says where its wordings come from)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.schema.samples import Reading
from loadgen.schema.shared import Milestone
from loadgen.schema.snapshot import Liveness
from loadgen.schema.start import ServerStart
from loadgen.server.vllm.startup import (
    MAX_STARTS,
    StartupWatch,
    last_start,
    remember_start,
    signs_of_life,
    start_key,
    times_of,
    with_expectations,
)

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


DONE = (
    Milestone("import", "start", "done", started_s=100.0, finished_s=104.0),
    Milestone("weights", "load weights", "done", started_s=110.0, finished_s=140.0),
    Milestone("graphs", "capture graphs", "done"),
    Milestone("ready", "ready", "done", started_s=141.0, finished_s=142.5),
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def profile(**server: object) -> Profile:
    document = {"name": "p", "server": {"engine": "vllm", "model": "m", "args": {"max-model-len": 8192}} | server}
    return build_profile(document, where="test")


START = times_of(ServerStart(kv_cache_tokens=1000), DONE)


def test_what_a_start_took_is_expected_of_the_next(tmp_path: Path) -> None:
    assert last_start(tmp_path, "k") is None
    assert remember_start(tmp_path, "k", START) is None
    expected = last_start(tmp_path, "k")
    assert expected == START
    assert (START.total_s, START.milestones_s) == (42.5, {"import": 4.0, "weights": 30.0, "ready": 1.5})
    waiting = (Milestone("weights", "load weights"), Milestone("graphs", "capture graphs"))
    assert [one.expected_s for one in with_expectations(waiting, expected, now_s=0.0)] == [30.0, None]
    assert with_expectations(waiting, None, now_s=0.0) == waiting


def test_what_is_under_way_has_an_age() -> None:
    running = (Milestone("weights", "load weights", "running", started_s=3.0), Milestone("ready", "ready"))
    assert [one.elapsed_s for one in with_expectations(running, None, now_s=10.0)] == [7.0, None]


def test_the_last_start_counts_and_a_bounded_number_is_kept(tmp_path: Path) -> None:
    for tokens in range(MAX_STARTS + 5):
        assert remember_start(tmp_path, "k", ServerStart(kv_cache_tokens=tokens)) is None
    found = last_start(tmp_path, "k")
    assert found is not None and found.kv_cache_tokens == MAX_STARTS + 4
    assert names(tmp_path) == ["k.jsonl"]
    assert len((tmp_path / "k.jsonl").read_bytes().splitlines()) == MAX_STARTS


@pytest.mark.parametrize("milestones", [(), DONE[2:3], (*DONE, Milestone("x", "x", "running", started_s=1.0))])
def test_a_start_that_did_not_finish_has_no_times(milestones: tuple[Milestone, ...]) -> None:
    assert times_of(ServerStart(), milestones) == ServerStart()


def test_a_folder_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reason = remember_start(tmp_path / "file", "k", START)
    assert reason is not None and "cannot be kept there: Not a directory" in reason
    (tmp_path / "k.jsonl").mkdir()
    assert remember_start(tmp_path, "k", START) is not None
    assert names(tmp_path) == ["file", "k.jsonl"]


@given(
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from(
            [b'{"total_s": -1}', b'{"milestones_s": {"import": -1}}', b'{"total_s": 1e999}', b"{" * 20_000]
        ),
    )
)
def test_a_damaged_file_is_no_history(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "k.jsonl").write_bytes(data)
        assert last_start(Path(folder), "k") is None


def test_the_key_is_that_of_what_decides_how_long_it_takes() -> None:
    key = start_key(profile())
    assert key.startswith("p-")
    assert key == start_key(profile(port=8001, served_model_name="x", startup_timeout_s=5))
    others = [
        profile(model="n"),
        profile(args={"max-model-len": 4096}),
        profile(env={"VLLM_ROCM_USE_AITER": "1"}),
        profile(command="/other/vllm"),
        profile(platform="rocm"),
        profile(instances=2),
    ]
    assert len({key, *map(start_key, others)}) == 7


WORKER = """
import os, sys

def burn():
    begun = sum(os.times()[:2])
    while sum(os.times()[:2]) - begun < 0.2:
        pass

for line in sys.stdin:
    if "child" not in line:
        burn()
    elif os.fork():
        os.wait()
    else:
        burn()
        os._exit(0)
    print(flush=True)
"""


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def work(process: subprocess.Popen[str], kind: str = "burn") -> None:
    """Let it use at least a fifth of a second of CPU time, and wait until it has."""
    pipe(process.stdin).write(kind + "\n")
    pipe(process.stdin).flush()
    pipe(process.stdout).readline()


def test_the_first_look_has_no_rate_yet() -> None:
    liveness, cpu = signs_of_life([os.getpid()], None, now_s=10.0)
    assert liveness.cpu_percent is None
    assert liveness.rss_bytes > 1_000_000
    assert (liveness.last_line_age_s, liveness.hbm_used_bytes) == (None, None)
    assert cpu.t_s == 10.0
    assert cpu.value > 0


def test_work_shows_as_percent_of_a_core(worker: subprocess.Popen[str]) -> None:
    _, before = signs_of_life([worker.pid], None, now_s=0.0)
    work(worker)
    liveness, after = signs_of_life([worker.pid], before, now_s=1.0, last_line_s=-4.0)
    used_s = after.value - before.value
    assert used_s >= 0.19
    assert liveness.cpu_percent == pytest.approx(100 * used_s)
    assert liveness.last_line_age_s == 5.0
    idle, _ = signs_of_life([worker.pid], after, now_s=2.0)
    assert idle.cpu_percent is not None and idle.cpu_percent < 19


def test_children_that_ended_have_worked_too(worker: subprocess.Popen[str]) -> None:
    _, before = signs_of_life([worker.pid], None, now_s=0.0)
    work(worker, "child")
    _, after = signs_of_life([worker.pid], before, now_s=1.0)
    assert after.value - before.value >= 0.19


def test_a_process_that_is_gone_counts_as_nothing() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as gone:
        pass
    liveness, cpu = signs_of_life([gone.pid], Reading(0.0, 50.0), now_s=1.0)
    assert liveness == Liveness(cpu_percent=0.0, rss_bytes=0)
    assert cpu == Reading(1.0, 0.0)


def test_a_clock_that_stands_still_gives_no_rate() -> None:
    liveness, _ = signs_of_life([], Reading(5.0, 1.0), now_s=5.0, last_line_s=6.0)
    assert liveness == Liveness(cpu_percent=None, rss_bytes=0, last_line_age_s=0.0)
