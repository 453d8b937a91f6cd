"""Whether a figure rises: found where it does, and at most as often as stated where it does not."""

import random

import pytest

from loadgen.metrics.sequential import means, rise

NOISES = {
    "normal": lambda noise: noise.gauss(100, 10),
    "heavy tails": lambda noise: noise.lognormvariate(0, 2),
    "few values": lambda noise: noise.choice([1.0, 2.0]),
}


@pytest.mark.parametrize("name", NOISES)
def test_a_flat_series_is_accused_at_most_as_often_as_stated(name: str) -> None:
    noise, series, bound = random.Random(7), 1500, 0.05
    accused = sum(rise([NOISES[name](noise) for _ in range(24)], bound) is not None for _ in range(series))
    assert accused <= bound * series


@pytest.mark.parametrize("noise_share", [0.0, 0.02])
def test_a_leak_is_found(noise_share: float) -> None:
    noise = random.Random(7)
    found = rise([100 + 2 * n + 100 * noise.gauss(0, noise_share) for n in range(24)], 0.001)
    assert found == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0],
        [0.0] * 24,
        [5.0] * 24,
        [100.0 - n for n in range(24)],
        [100.0 - (n % 2) for n in range(24)],
        [100.0] * 12 + [120.0] * 12,  # one step, such as a buffer that was allocated
    ],
)
def test_what_does_not_rise_on_and_on_is_not_accused(values: list[float]) -> None:
    assert rise(values, 0.001) is None


def test_many_samples_become_few_means() -> None:
    assert means([1.0, 3.0]) == [1.0, 3.0]
    assert means([float(n // 4) for n in range(128)]) == [float(n) for n in range(32)]
    assert means([]) == []
