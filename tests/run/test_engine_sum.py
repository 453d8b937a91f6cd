"""Several servers read as one are what one server with several engines says of itself."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from loadgen.run.engine_sum import sum_of
from loadgen.server.vllm.engine_metrics import EngineSample, delta, parse_engine_metrics

Engine = tuple[int, int, list[int]]
ENGINES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 10**6), st.lists(st.integers(0, 9), min_size=3, max_size=3)),
    min_size=1,
    max_size=4,
)


def page(engines: list[Engine]) -> str:
    """What /metrics says of some engines: streams that run, tokens made, and waits of 1, 2 and 3 seconds."""
    lines = ["# TYPE vllm:num_requests_running gauge"]
    lines += [f'vllm:num_requests_running{{engine="{i}"}} {running}' for i, (running, _, _) in enumerate(engines)]
    waiting = 'vllm:num_requests_waiting_by_reason{engine="%d",reason="%s"} %d'
    lines += [waiting % (i, f"reason {made % 3}", running) for i, (running, made, _) in enumerate(engines)]
    lines += ["# TYPE vllm:kv_cache_usage_perc gauge"]
    lines += [f'vllm:kv_cache_usage_perc{{engine="{i}"}} {running / 64}' for i, (running, _, _) in enumerate(engines)]
    lines += ["# TYPE vllm:generation_tokens_total counter"]
    lines += [f'vllm:generation_tokens_total{{engine="{i}"}} {made}' for i, (_, made, _) in enumerate(engines)]
    lines += ["# TYPE vllm:time_to_first_token_seconds histogram"]
    name = "vllm:time_to_first_token_seconds"
    for i, (_, _, waits) in enumerate(engines):
        below = [sum(waits[: bound + 1]) for bound in range(3)]
        lines += [
            f'{name}_bucket{{engine="{i}",le="{le}"}} {count}' for le, count in zip((1, 2, 3), below, strict=True)
        ]
        lines += [f'{name}_bucket{{engine="{i}",le="+Inf"}} {below[-1]}', f'{name}_count{{engine="{i}"}} {below[-1]}']
        lines += [f'{name}_sum{{engine="{i}"}} {sum(second * n for second, n in enumerate(waits, start=1))}']
    return "\n".join(lines) + "\n"


@given(ENGINES)
def test_as_if_they_were_engines_of_one_server(engines: list[Engine]) -> None:
    apart = sum_of([parse_engine_metrics(page([engine])) for engine in engines])
    assert apart is not None
    # Which engine is which is known within a server only.
    assert replace(apart, engines={}) == replace(parse_engine_metrics(page(engines)), engines={})


def test_means_are_over_all_requests() -> None:
    before, after = [(0, 0, [0, 0, 0])] * 2, [(0, 8, [9, 0, 0]), (0, 8, [0, 0, 1])]
    change = delta(*(sum_of([parse_engine_metrics(page([each])) for each in when]) for when in (before, after)))  # type: ignore[arg-type]  # all are known
    assert change is not None and change.ttft is not None
    assert (change.ttft.count, change.ttft.mean_s) == (10, 1.2)


def test_the_sum_with_what_is_unknown_is_unknown() -> None:
    assert sum_of([]) is None
    assert sum_of([EngineSample(running=1.0), None]) is None
    assert sum_of([EngineSample(running=1.0, waiting=2.0), EngineSample(running=3.0)]) == EngineSample(running=4.0)
