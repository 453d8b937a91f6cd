"""Over-saturation, on queues whose load is known."""

import heapq
from random import Random

import pytest

from loadgen.run.saturation import OverloadDetector, drift, filling_share


def alarm_s(rate: float, servers: int, service_s: float, *, seed: int, until_s: int = 60) -> int | None:
    """When the guard speaks up about a queue with Poisson arrivals and nearly equal services; None if never."""
    random = Random(seed)
    free = [0.0] * servers
    arrivals: list[float] = []
    streams: list[tuple[float, float, float]] = []
    now_s = random.expovariate(rate)
    while now_s < until_s:
        start_s = max(now_s, heapq.heappop(free))
        end_s = start_s + service_s * random.uniform(0.9, 1.1)
        heapq.heappush(free, end_s)
        arrivals.append(now_s)
        streams.append((now_s, start_s + 0.05, end_s))
        now_s += random.expovariate(rate)
    return _first_alarm(rate, streams, until_s)


def _first_alarm(rate: float, streams: list[tuple[float, float, float]], until_s: int) -> int | None:
    flight = OverloadDetector(rate)
    for t_s in range(1, until_s):
        sent = [stream for stream in streams if stream[0] <= t_s]
        times_s = [end_s - sent_s for sent_s, _, end_s in sent if end_s <= t_s]
        first_s = [first_s - sent_s for sent_s, first_s, _ in sent if t_s - 1 < first_s <= t_s]
        ttft_ms = 1000 * sum(first_s) / len(first_s) if first_s else None
        flight.beat(t_s, len(sent) - len(times_s), ttft_ms)
        mean_s = sum(times_s) / len(times_s) if times_s else None
        if flight.verdict(ended=len(times_s), e2e_mean_s=mean_s) is not None:
            return t_s
    return None


@pytest.mark.parametrize(
    ("rate", "servers", "service_s"), [(10, 10, 0.5), (10, 30, 2), (10, 10, 0.9), (50, 20, 0.35), (5, 400, 60)]
)
def test_a_load_that_is_served_raises_no_alarm(rate: float, servers: int, service_s: float) -> None:
    alarms = [alarm_s(rate, servers, service_s, seed=seed) for seed in range(10)]
    assert sum(alarm is not None for alarm in alarms) <= 1


@pytest.mark.parametrize(
    ("rate", "servers", "service_s"),
    [(10, 30, 6), (50, 20, 0.6), (100, 10, 1.0), pytest.param(20, 2, 0.2, id="a chat server with short answers")],
)
def test_a_load_beyond_the_server_does(rate: float, servers: int, service_s: float) -> None:
    for seed in range(5):
        assert alarm_s(rate, servers, service_s, seed=seed) is not None


def test_what_it_says() -> None:
    flight = OverloadDetector(10)
    for t_s in range(1, 13):
        assert flight.beat(t_s, 5 * t_s, 100.0 * t_s)
        assert not flight.beat(t_s + 0.25, 5 * t_s, None)
    words = flight.verdict(ended=60, e2e_mean_s=0.1)
    assert words is not None
    assert "grow without bound, 35 to 60 in 5 s; 50% of arrivals are not served" in words


def test_nothing_is_said_too_early() -> None:
    flight = OverloadDetector(10)
    assert flight.verdict(ended=100, e2e_mean_s=1.0) is None
    for t_s in range(1, 9):
        flight.beat(t_s, 10 * t_s, 1.0)
    assert flight.verdict(ended=100, e2e_mean_s=0.1) is None


def test_a_walk_that_goes_nowhere_does_not_drift() -> None:
    assert drift([5, 7, 4, 6, 5, 5]) == pytest.approx(0)
    assert drift(list(range(0, 100, 10))) > 10


def test_an_empty_server_fills() -> None:
    assert filling_share(0.0, 1.0, 100.0) == pytest.approx(1, abs=0.01)
    assert filling_share(50.0, 100.0, 5.0) < 1e-4
