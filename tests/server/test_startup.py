from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.metrics.snapshot import Milestone
from loadgen.server.startup import StartupWatch

LOG = Path(__file__).with_name("vllm_startup.log").read_text().splitlines()


def after(lines: list[str]) -> dict[str, Milestone]:
    """Each line comes one second after the one before."""
    watch = StartupWatch(0.0)
    for second, line in enumerate(lines, start=1):
        watch.feed(line, float(second))
    return {milestone.id: milestone for milestone in watch.milestones}


def upto(text: str) -> list[str]:
    return LOG[: next(i for i, line in enumerate(LOG) if text in line) + 1]


def test_a_whole_start() -> None:
    milestones = after(LOG)
    assert list(milestones) == ["import", "config", "weights", "compile", "kv_cache", "graphs", "ready"]
    assert {milestone.state for milestone in milestones.values()} == {"done"}
    assert {id: milestone.detail for id, milestone in milestones.items()} == {
        "import": "version 0.32.0",
        "config": "LlamaForCausalLM",
        "weights": "14.99 GiB",
        "compile": "25.49 s",
        "kv_cache": "1,234,567 tokens, 150.70x at 8,192 tokens",
        "graphs": "5 s",
        "ready": "",
    }
    times = [(milestone.started_s, milestone.finished_s) for milestone in milestones.values()]
    assert times == [(0, 1), (2, 5), (6, 12), (14, 16), (17, 18), (20, 22), (23, 25)]


def test_progress_is_read_from_the_bars() -> None:
    weights = after(upto("| 1/4"))["weights"]
    assert (weights.state, weights.progress, weights.detail) == ("running", 0.25, "1/4 shards")
    graphs = after(upto("| 34/67"))["graphs"]
    assert (graphs.state, graphs.progress, graphs.detail) == ("running", 34 / 67, "34/67")


def test_a_percentage_alone_is_progress_too() -> None:
    assert after(["Capturing HIP graphs 40%"])["graphs"].progress == 0.4
    assert after(["Capturing HIP graphs"])["graphs"].progress is None
    assert after(["shards: 0% Completed | 0/0"])["weights"].progress is None


def test_both_kv_cache_figures_on_one_line() -> None:
    line = "KV cache size: 12,000 tokens, Maximum concurrency for 8,192 tokens per request: 1.46x"
    assert after([line])["kv_cache"].detail == "12,000 tokens, 1.46x at 8,192 tokens"
    assert after([line, line])["kv_cache"].detail == "12,000 tokens, 1.46x at 8,192 tokens"


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
@given(st.lists(st.one_of(st.text(), st.sampled_from(LOG)), max_size=8))
def test_no_line_breaks_it(lines: list[str]) -> None:
    assert len(after(lines)) == 7
