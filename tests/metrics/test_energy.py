"""Joules of windows: sources, distrust, sockets."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics import energy
from loadgen.metrics.energy import WindowGain, sockets, window_energy
from loadgen.schema.samples import GpuSample, GpuStatic, gained


def _gpu(index: int, *, socket: str = "", partition: int = 0) -> GpuStatic:
    return GpuStatic(index=index, vendor="sim", name="GPU", socket=socket, partition=partition)


def _looks(
    seconds: int,
    energy_j: Callable[[int], float | None],
    power_w: Callable[[int], float | None],
    *,
    devices: int = 1,
) -> dict[int, list[GpuSample]]:
    return {
        index: [
            GpuSample(index=index, t_s=float(t_s), energy_j=energy_j(t_s), power_w=power_w(t_s))
            for t_s in range(seconds + 1)
        ]
        for index in range(devices)
    }


def test_the_counter_counts_and_its_edges_are_interpolated() -> None:
    energy = window_energy([_gpu(0)], _looks(30, lambda t: 1e6 + 300 * t, lambda _: 300), 2.5, 22.5)
    assert energy is not None
    assert energy.joules == pytest.approx(6000)
    assert (energy.source, energy.distrusted) == ("counter", False)
    assert energy.sockets[0].power_joules == pytest.approx(6000)


def test_a_counter_far_from_the_power_is_distrusted_only_over_ten_seconds() -> None:
    looks = _looks(30, lambda t: 150 * t, lambda _: 300)
    long = window_energy([_gpu(0)], looks, 5, 16)
    assert long is not None
    assert long.joules == pytest.approx(3300)
    assert (long.source, long.distrusted) == ("power", True)
    assert long.sockets[0].counter_joules == pytest.approx(1650)
    short = window_energy([_gpu(0)], looks, 5, 11)
    assert short is not None
    assert short.joules == pytest.approx(900)
    assert (short.source, short.distrusted) == ("counter", False)


def test_a_short_window_and_one_without_devices_have_no_energy() -> None:
    looks = _looks(30, lambda t: 300 * t, lambda _: 300)
    assert window_energy([_gpu(0)], looks, 5, 9.8) is None
    assert window_energy([_gpu(0)], looks, 5, 9.99) is not None  # of a stage of five seconds
    assert window_energy([], looks, 5, 25) is None


def test_energy_is_integrated_from_power_alone() -> None:
    energy = window_energy([_gpu(0)], _looks(30, lambda _: None, lambda t: 10 * t), 10, 20)
    assert energy is not None
    assert energy.joules == pytest.approx(1500)
    assert energy.source == "power"


def test_a_reset_counter_gives_way_to_the_power() -> None:
    energy = window_energy([_gpu(0)], _looks(30, lambda t: 300 * (t % 15), lambda _: 300), 12, 18)
    assert energy is not None
    assert energy.joules == pytest.approx(1800)
    assert (energy.source, energy.distrusted) == ("power", False)


def test_energy_of_a_window_partly_covered() -> None:
    looks = _looks(19, lambda t: 300 * t, lambda _: 300)
    half = window_energy([_gpu(0)], looks, 10, 30)
    assert half is not None
    assert (half.joules, half.source) == (None, None)
    nearly = window_energy([_gpu(0)], looks, 0, 20)
    assert nearly is not None
    assert nearly.joules == pytest.approx(6000)


def test_an_unknown_socket_makes_the_sum_unknown() -> None:
    energy = window_energy([_gpu(0), _gpu(1)], _looks(30, lambda t: 300 * t, lambda _: 300), 5, 25)
    assert energy is not None
    assert energy.joules is None
    assert [socket.joules for socket in energy.sockets] == [pytest.approx(6000), None]


def test_a_socket_counts_once() -> None:
    partitions = [_gpu(n, socket=f"s{n // 4}", partition=n % 4) for n in range(8)]
    energy = window_energy(partitions, _looks(30, lambda t: 300 * t, lambda _: 300, devices=8), 5, 25)
    assert energy is not None
    assert [socket.index for socket in energy.sockets] == [0, 4]
    assert energy.joules == pytest.approx(12000)
    assert [gpu.index for gpu in sockets([_gpu(0, socket="a"), _gpu(1, socket="a"), _gpu(2), _gpu(3)])] == [0, 2, 3]


@pytest.mark.parametrize(
    ("watts", "tokens", "per_token", "per_watt"),
    [(50, 1000, 0.5, 2), (50, 0, None, 0), (0, 1000, 0, None), (None, 1000, None, None)],
)
def test_energy_per_token_and_tokens_per_watt(
    watts: float | None, tokens: int, per_token: float | None, per_watt: float | None
) -> None:
    energy = window_energy([_gpu(0)], _looks(30, lambda _: None, lambda _: watts), 10, 20, tokens)
    assert energy is not None
    assert energy.joules_per_output_token == (None if per_token is None else pytest.approx(per_token))
    assert energy.tokens_per_s_per_w == (None if per_watt is None else pytest.approx(per_watt))


@given(
    powers=st.lists(st.integers(50, 1000), min_size=21, max_size=21),
    start_s=st.floats(0, 7),
    length_s=st.floats(5.01, 12.99),
)
def test_a_true_counter_is_never_far_from_the_power_it_integrates(
    powers: list[int], start_s: float, length_s: float
) -> None:
    counter = [0.0]
    for before, after in pairwise(powers):
        counter.append(counter[-1] + (before + after) / 2)
    looks = _looks(20, lambda t: counter[t], lambda t: powers[t])
    energy = window_energy([_gpu(0)], looks, start_s, start_s + length_s)
    assert energy is not None
    socket = energy.sockets[0]
    assert socket.counter_joules is not None
    assert socket.power_joules is not None
    # They differ only within the two seconds in which the window's edges lie.
    assert abs(socket.counter_joules - socket.power_joules) <= 2 * 950
    assert min(powers) * length_s * 0.999 <= socket.power_joules <= max(powers) * length_s * 1.001


# Edges and areas, as tables and as laws.


Points = list[tuple[float, float]]

# Eighths are exact in binary, so that sums of parts can be compared with sums of wholes.
_eighths = st.integers(0, 8000).map(lambda n: n / 8)


@st.composite
def _series(draw: st.DrawFn, *, rising: bool) -> Points:
    times = sorted(draw(st.lists(_eighths, min_size=2, max_size=30, unique=True)))
    values = draw(st.lists(_eighths, min_size=len(times), max_size=len(times)))
    return list(zip(times, sorted(values) if rising else values, strict=True))


def increase(points: Points, start_s: float, end_s: float) -> WindowGain:
    times_s, values = np.array(points).T
    return energy.increase(times_s, values, start_s, end_s)


def integral(points: Points, start_s: float, end_s: float, *, longest_gap_s: float = 1e9) -> WindowGain:
    times_s, values = np.array(points).T
    return energy.integral(times_s, values, start_s, end_s, longest_gap_s=longest_gap_s)


def test_edges_are_interpolated() -> None:
    points = [(0.0, 0.0), (10.0, 100.0), (20.0, 400.0)]
    assert increase(points, 5, 15) == WindowGain(50 + 150, 10)
    assert integral(points, 5, 15, longest_gap_s=60) == WindowGain((50 + 100) / 2 * 5 + (100 + 250) / 2 * 5, 10)


def test_a_reset_is_dropped_with_its_time() -> None:
    points = [(0.0, 100.0), (10.0, 200.0), (20.0, 5.0), (30.0, 25.0)]
    assert increase(points, 0, 30) == WindowGain(120, 20)


def test_a_gap_is_not_covered_by_a_gauge_but_by_a_counter() -> None:
    points = [(0.0, 100.0), (60.0, 200.0)]
    assert integral(points, 0, 60, longest_gap_s=15) == WindowGain(0, 0)
    assert increase(points, 0, 60) == WindowGain(100, 60)


def test_repeated_times_count_once_and_times_out_of_order_are_ignored() -> None:
    points = [(0.0, 0.0), (10.0, 10.0), (10.0, 99.0), (4.0, 50.0), (20.0, 30.0)]
    assert increase(points, 0, 20) == WindowGain(30, 20)


def test_unknown_values_are_like_missing_samples() -> None:
    points = [(0.0, 0.0), (10.0, np.nan), (20.0, 40.0)]
    assert increase(points, 0, 20) == WindowGain(40, 20)
    assert integral(points, 0, 20) == WindowGain(400, 20)
    assert increase([(0.0, np.nan)], 0, 20) == integral([(0.0, 1.0)], 0, 20) == WindowGain(0, 0)


@given(points=_series(rising=False))
def test_all_of_a_series_is_the_sum_of_its_gains(points: Points) -> None:
    whole = increase(points, points[0][0], points[-1][0])
    gains = [gained(before, after) for (_, before), (_, after) in pairwise(points)]
    assert whole.amount == pytest.approx(sum(gain for gain in gains if gain is not None))
    assert whole.covered_s <= points[-1][0] - points[0][0]


@given(points=_series(rising=True), edges=st.tuples(_eighths, _eighths, _eighths))
def test_windows_that_meet_add_up(points: Points, edges: tuple[float, float, float]) -> None:
    start_s, middle_s, end_s = sorted(edges)
    for measure in (increase, integral):
        whole = measure(points, start_s, end_s)
        left, right = measure(points, start_s, middle_s), measure(points, middle_s, end_s)
        assert left.amount + right.amount == pytest.approx(whole.amount)
        assert left.covered_s + right.covered_s == pytest.approx(whole.covered_s)


@given(points=_series(rising=True), window=st.tuples(_eighths, _eighths))
def test_no_window_gains_more_than_the_series_and_none_is_negative(points: Points, window: tuple[float, float]) -> None:
    gain, covered_s = increase(points, *sorted(window))
    assert 0 <= gain <= (points[-1][1] - points[0][1]) * (1 + 1e-9)
    assert 0 <= covered_s <= max(window) - min(window)
