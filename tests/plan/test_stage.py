"""What stages ask of the client, and the workers for it."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan import stage as demand
from loadgen.plan.stage import Stage, most_workers, streams_of, workers_for


def closed(concurrency: int) -> Stage:
    return Stage(concurrency=concurrency, rate=None, isl=128, osl=100)


def opened(rate: float, **more: object) -> Stage:
    return Stage(concurrency=None, rate=rate, isl=128, osl=100, **more)  # type: ignore[arg-type]


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "usable_cores", lambda: 64.0)


def test_streams_of_a_stage() -> None:
    assert streams_of(closed(64), 0.02) == 64
    assert streams_of(opened(10.0), 0.02) == 20
    assert streams_of(opened(10.0, max_concurrency=5), 0.02) == 5
    assert streams_of(opened(10.0, requests=7), 0.02) == 7
    assert streams_of(opened(10.0, rate_points=((0.0, 1.0), (60.0, 30.0))), 0.02) == 60


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(
    ("stage", "token_s", "workers"),
    [
        (closed(1), None, 1),
        (closed(512), None, 1),
        (closed(513), None, 2),
        (closed(100_000), None, 32),
        # 512 streams of a fast engine: 102,400 tokens a second.
        (closed(512), 0.005, 5),
        # 200 requests a second, of which each is guessed to last 5 s.
        (opened(200.0), None, 2),
        (opened(200.0), 0.01, 1),
        (opened(2000.0), 0.005, 8),
        (opened(2000.0, max_concurrency=20), None, 4),
        (opened(200.0, max_concurrency=20), None, 1),
        (opened(5000.0, requests=10), 0.01, 10),
    ],
)
def test_workers_are_sized_by_the_work(stage: Stage, token_s: float | None, workers: int) -> None:
    assert workers_for(None, [stage], servers=1, token_s=token_s) == workers


@pytest.mark.usefixtures("cores")
def test_the_heaviest_stage_counts_and_each_server_gets_as_many() -> None:
    stages = [closed(1), closed(2000), closed(8)]
    assert workers_for(None, stages, servers=1) == 4
    assert workers_for(None, stages, servers=3) == 6
    assert workers_for(None, [], servers=3) == 3


@pytest.mark.usefixtures("cores")
def test_a_wanted_number_is_what_it_is_but_for_several_servers() -> None:
    assert workers_for(5, [closed(1)], servers=1) == 5
    assert workers_for(5, [closed(10_000)], servers=2) == 6
    assert most_workers(40, servers=1) == 40


@given(st.integers(1, 10**5), st.floats(0.1, 10**5), st.integers(1, 8), st.floats(1e-4, 1.0) | st.none())
def test_never_more_than_half_of_the_cores_but_one_for_each_server(
    concurrency: int, rate: float, servers: int, token_s: float | None
) -> None:
    for stage in (closed(concurrency), opened(rate)):
        workers = workers_for(None, [stage], servers=servers, token_s=token_s)
        assert workers % servers == 0
        assert servers <= workers < max(servers, len(os.sched_getaffinity(0)) // 2) + servers


@pytest.mark.parametrize(("cores", "workers"), [(0.5, 1), (1.0, 1), (2.0, 1), (3.9, 1), (4.0, 2), (192.0, 96)])
def test_the_most(monkeypatch: pytest.MonkeyPatch, cores: float, workers: int) -> None:
    monkeypatch.setattr(demand, "usable_cores", lambda: cores)
    assert most_workers(None, servers=1) == workers
