"""The engine's word on a whole run beside the client's: every token on both sides, a cache that nobody wanted."""

from tests.engines import attach, simulator
from tests.run.driving import outcome


async def test_both_count_the_same_and_a_used_cache_is_flagged() -> None:
    load = {"requests": 16, "isl": 64, "osl": 8}
    with simulator() as engine:
        results = [(await outcome(attach(engine, load=load)))[0] for _ in range(2)]
    for result in results:
        truth, measured = result.stages[0].truth, result.stages[0].engine
        assert truth is not None and measured is not None
        assert (truth.requests_client, truth.requests_server) == (16, 16)
        assert (truth.input_tokens_client, truth.input_tokens_server) == (16 * 64, 16 * 64)
        assert (truth.output_tokens_client, truth.output_tokens_server) == (16 * 8, 16 * 8)
        assert "not compared" not in truth.why
        assert truth.ttft_outside_ms is not None and truth.frontend_ms is not None
        assert measured.latency_ms["e2e"].count == 16
    # The second run sends what the first has sent: same seed, same server.
    flagged = [any(verdict.id == "prefix-cache" for verdict in result.stages[0].verdicts) for result in results]
    assert flagged == [False, True]


async def test_a_stage_whose_streams_go_on_is_not_compared() -> None:
    with simulator() as engine:
        load = {"requests": None, "duration": "0.5s", "osl": 32}
        result, _ = await outcome(attach(engine, load=load))
    truth = result.stages[0].truth
    assert truth is not None
    assert truth.why == "TTFT and totals not compared: streams were open when the stage ended"
    assert (truth.ttft_client_ms, truth.ttft_server_ms, truth.agrees) == (None, None, None)
