"""The engine's word on a whole run beside the client's: every token on both sides, a cache that nobody wanted."""

import pytest

from tests.engines import attach, profile, simulator
from tests.run.driving import outcome


async def test_both_count_the_same_and_a_used_cache_is_flagged() -> None:
    load = {"requests": 16, "isl": 64, "osl": 8}
    with simulator() as engine:
        results = [(await outcome(attach(engine, load=load)))[0] for _ in range(2)]
    for result in results:
        truth, measured = result.stages[0].truth, result.stages[0].engine
        assert truth is not None and measured is not None and result.stages[0].compute is None
        assert (truth.requests_client, truth.requests_server) == (16, 16)
        assert (truth.input_tokens_client, truth.input_tokens_server) == (16 * 64, 16 * 64)
        assert (truth.output_tokens_client, truth.output_tokens_server) == (16 * 8, 16 * 8)
        assert "not compared" not in truth.why
        assert truth.ttft_outside_ms is not None and truth.frontend_ms is not None
        assert measured.latency_ms["e2e"].count == 16
    # The second run sends what the first has sent: same seed, same server.
    flagged = [any(verdict.id == "prefix-cache" for verdict in result.stages[0].verdicts) for result in results]
    assert flagged == [False, True]


async def test_the_share_of_the_peak_is_of_what_the_engine_computed() -> None:
    args = {"preset": "fast", "enable-mfu-metrics": True, "gflop-per-token": 10.0, "enable-prefix-caching": False}
    published = {"source": "a publication", "points": [{"figures": {"mfu_percent": 85.0}}]}
    load = {"requests": 16, "isl": 64, "osl": 9, "first_wave": "counted"}
    for dtype, precision in ("bfloat16", "bf16"), ("auto", None):
        server = {"engine": "simulator", "args": args | {"dtype": dtype}}
        result, _ = await outcome(profile(server, load=load, telemetry="sim", reference=published))
        assert result.reference is not None
        (stage,), (beside,) = result.stages, result.reference.comparisons
        compute = stage.compute
        assert compute is not None and compute.precision == precision
        # The readings are around the stage, so that their span is not shorter than the stage.
        assert 0 < compute.tflops_per_gpu * stage.duration_s <= 16 * (64 + 8) * 10e9 / 1e12 * 1.01
        assert beside.measured == compute.mfu_percent
        if precision is None:
            assert compute.mfu_percent is None and "does not state its precision" in compute.why
        else:
            assert compute.mfu_percent == pytest.approx(100 * compute.tflops_per_gpu / 1307.4)


async def test_a_stage_whose_streams_go_on_is_not_compared() -> None:
    with simulator() as engine:
        load = {"requests": None, "duration": "0.5s", "osl": 32}
        result, _ = await outcome(attach(engine, load=load))
    truth = result.stages[0].truth
    assert truth is not None
    assert truth.why == "TTFT and totals not compared: streams were open when the stage ended"
    assert (truth.ttft_client_ms, truth.ttft_server_ms, truth.agrees) == (None, None, None)
