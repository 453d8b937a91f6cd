"""What rises within a stage, and what only varies."""

from collections.abc import Callable
from typing import Any

import pytest

from loadgen.record.stage import StageRecord
from loadgen.record.verdicts import rising_words
from loadgen.schema.samples import GpuSample, HostSample
from tests.metrics.served import served, started

GIB = 1024**3


def with_memory(bytes_at: Callable[[int], int]) -> StageRecord:
    stage = StageRecord(started())
    stage.metrics.window_start_ns, stage.metrics.window_end_ns = 0, 60 * 10**9
    for t_s in range(60):
        stage.hardware_samples.add_host(HostSample(float(t_s), 2, 0, 0, 0.0, server_rss_bytes=bytes_at(t_s)))
        stage.hardware_samples.add([GpuSample(n, float(t_s), hbm_used_bytes=bytes_at(t_s * n)) for n in range(2)])
    return stage


@pytest.mark.parametrize("in_step", [False, True])
def test_a_stage_that_only_varies_is_silent(in_step: bool) -> None:
    assert {rising_words(served(seed, seconds=60.0, in_step=in_step), set()) for seed in range(10)} == {None}


def test_latencies_that_rise() -> None:
    words = rising_words(served(1, seconds=60.0, growth_per_s=0.02), set())
    assert words is not None and words.startswith("rising at the same load: TTFT +") and ", TPOT +" in words


def test_memory_that_leaks_is_named_for_the_servers_gpus_alone() -> None:
    leaking = with_memory(lambda t_s: 8 * GIB + t_s * GIB // 8)
    assert rising_words(leaking, {0, 1}) == "rising at the same load: server memory +38%, HBM of gpu 1 +38%"
    assert rising_words(leaking, {0}) == "rising at the same load: server memory +38%"


@pytest.mark.parametrize(
    "bytes_at",
    [
        lambda _: 8 * GIB,
        lambda t_s: 8 * GIB + t_s,  # too little
        lambda t_s: (8 if t_s < 40 else 10) * GIB,  # one step
        lambda t_s: min(8 * GIB + t_s * GIB, 16 * GIB),  # caches that fill at first
        lambda t_s: 16 * GIB - t_s * GIB // 8,
    ],
)
def test_memory_that_does_not_leak(bytes_at: Callable[[int], int]) -> None:
    assert rising_words(with_memory(bytes_at), {0, 1}) is None


@pytest.mark.parametrize("load", [{"steps": ((0.0, 8.0), (30.0, 16.0))}, {"meant_hits": 0.5}, {"thinks": True}])
def test_another_load_or_longer_prompts_explain_it(load: dict[str, Any]) -> None:
    assert rising_words(served(1, seconds=60.0, growth_per_s=0.02, **load), set()) is None
