"""How many independent streams a stage is worth: many that go in step are worth few."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.batch_means import MAX_BLOCKS, MIN_BLOCKS, BatchMeans, ratio_variance
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage import StageMetrics
from loadgen.record.figures import compared
from loadgen.record.record import Record
from loadgen.schema.comparison import Precision
from loadgen.schema.deltas import ClientDelta
from loadgen.schema.journal import StageEnded, Ticked
from tests.metrics.served import running_figures, served, started


def precision_of(seed: int, *, seconds: float = 30.0, in_step: bool = False) -> Precision:
    found = served(seed, seconds=seconds, in_step=in_step).blocks.precision()
    assert found is not None
    return found


def test_streams_in_step_are_worth_one_for_each_wave() -> None:
    # 30 waves of 16 streams: 480 streams, and what varies are the waves.
    worths = [precision_of(seed, in_step=True).effective["tpot"]["mean"] for seed in range(10)]
    assert 10 < sum(worths) / len(worths) < 60


def test_independent_streams_are_worth_nearly_as_many() -> None:
    worths = [precision_of(seed).effective["tpot"]["mean"] for seed in range(10)]
    assert 240 < sum(worths) / len(worths) <= 480


@pytest.mark.parametrize("in_step", [False, True])
def test_equal_stages_rarely_differ(in_step: bool) -> None:
    stages = [running_figures(served(seed, in_step=in_step)) for seed in range(16)]
    found = [
        one.difference
        for a, b in combinations(stages, 2)
        for one in compared(a, b)
        if one.figure in ("tpot_mean", "tpot_p50", "e2e_mean", "e2e_p50") and one.difference is not None
    ]
    wrong = sum(not (one.low or 0) <= 0 <= (one.high or 0) for one in found)
    # One in a hundred is promised; counted as independent, streams in step would be wrong in every second case.
    assert len(found) == 480 and wrong <= 14


def test_a_slower_server_is_found_though_its_streams_go_in_step() -> None:
    a, b = (running_figures(served(seed, in_step=True, scale=scale)) for seed, scale in ((1, 1.0), (2, 1.15)))
    words = {one.figure: one.difference.word for one in compared(a, b) if one.difference is not None}
    assert {words[name] for name in ("output_tok_s", "ttft_mean", "tpot_mean", "e2e_mean")} == {"worse"}
    assert words["tpot_p99"] == "no evidence"


def test_blocks_are_as_long_as_a_stream() -> None:
    found = precision_of(1, seconds=20.0)
    assert found.block_s >= 1.0 and MIN_BLOCKS <= found.blocks <= MAX_BLOCKS


@given(st.integers(1, 300))
def test_the_number_of_blocks_is_bounded_and_nothing_is_lost(ticks: int) -> None:
    blocks = BatchMeans()
    for tick in range(ticks):
        metrics = StageMetrics()
        metrics.counters["window_requests"] = 1
        blocks.add(metrics, 0.25 * (tick + 1))
    kept = blocks._blocks
    assert len(kept) <= MAX_BLOCKS
    assert sum(block.counters["window_requests"] for block in kept) == ticks
    assert sum(block.window_s for block in kept) == pytest.approx(0.25 * ticks)
    assert all(block.ticks == other.ticks for block, other in pairwise(kept[:-1]))


def test_a_short_stage_cannot_tell() -> None:
    assert served(1, seconds=2.0).blocks.precision() is None
    assert BatchMeans().precision() is None
    figures = running_figures(served(1, seconds=2.0))
    assert all(one.difference is None or one.difference.low is None for one in compared(figures, figures))


@pytest.mark.parametrize("latencies", [(), ("warmup_ttft", "warmup_tpot")])
def test_warm_up_is_no_block(latencies: tuple[str, ...]) -> None:
    metrics = StageMetrics()
    for name in latencies:
        metrics.latency[name] = Histogram()
        metrics.latency[name].record_ns([1_000_000])
    blocks = BatchMeans()
    blocks.add(metrics, 0.0)
    assert blocks._blocks == []


def test_streams_that_end_after_a_stage_was_frozen_say_nothing_of_it() -> None:
    stage, late = served(3, seconds=2.0), served(4)
    stage.blocks.freeze()
    for _ in range(40):
        stage.blocks.add(late.metrics, 2.0)
    assert stage.blocks.precision() is None
    assert stage.blocks._blocks == []


def test_a_stage_that_is_over_keeps_what_it_said() -> None:
    stage = served(3)
    said = stage.blocks.precision()
    stage.blocks.freeze()
    assert stage.blocks.precision() == said is not None
    assert stage.blocks._blocks == []
    stage.blocks.freeze()
    assert stage.blocks.precision() == said


def test_the_variance_of_a_ratio() -> None:
    assert ratio_variance([2, 4, 6], [1, 2, 3]) == 0
    # Equal denominators: the variance of the mean.
    assert ratio_variance([1, 2, 3, 4], [1, 1, 1, 1]) == pytest.approx((5 / 3) / 4)


def test_a_record_keeps_the_blocks_of_the_last_two_stages_only() -> None:
    record = Record()
    for index in range(3):
        record.apply(started(index=index, t_s=10.0 * index))
        for tick in range(40):
            metrics = served(index, seconds=0.25).metrics
            metrics.window_end_ns = round((tick + 1) * 0.25e9)
            t_s = 10.0 * index + 0.25 * (tick + 1)
            record.apply(Ticked(t_s=t_s, span_s=0.25, stages={index: metrics.encode()}, client=ClientDelta(), held=16))
        record.apply(StageEnded(t_s=10.0 * (index + 1), index=index, reason="its time was up"))
    assert [bool(stage.blocks._blocks) for stage in record.stages.values()] == [False, True, True]
    assert all(stage.blocks.precision() is not None for stage in record.stages.values())
