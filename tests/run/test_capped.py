"""An open loop behind `max_concurrency`: its queue is what was asked for, and no fault of the client."""

from tests.engines import Simulator, attach
from tests.run.driving import outcome


async def test_queue_behind_a_cap_is_not_a_client_limit(engine: Simulator) -> None:
    load = {"rate": 400.0, "max_concurrency": 4, "requests": 120, "osl": 32}
    result, error = await outcome(attach(engine, load=load))
    stage, client = result.stages[0], result.client
    assert error is None
    assert (stage.requests.completed, stage.concurrency.peak) == (120, 4)
    (capped,) = [verdict for verdict in stage.verdicts if verdict.id == "capped"]
    assert capped.text.startswith("target rate 400/s, 4 streams at most: ") and not capped.bad
    # Only what a free slot could have taken is late; the wait for one is in the TTFT from the intended time.
    lag_ms, ttft = client.send_lag_ms.mean, stage.latency_ms
    waited_ms = (ttft["ttft_from_intended"].mean or 0) - (ttft["ttft"].mean or 0)
    assert lag_ms is not None and waited_ms > 10 * lag_ms
    assert "schedule" not in (client.why or "")
