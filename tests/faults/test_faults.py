"""Sixty cases of the campaign, the same each time: half of them with one fault, half with two."""

import os

import pytest

from tests.faults.campaign import Outcome, case_of, run_all

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

SEED = 1
NUMBERS = [number for number in range(170) if number % 17 % 3 == 0]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    cases = [case_of(SEED, number) for number in NUMBERS]
    side_by_side = (os.cpu_count() or 1) + 2  # most of a case is waiting
    return {outcome.id: outcome for outcome in run_all(cases, side_by_side=side_by_side, keep=None)}


@pytest.mark.parametrize("number", NUMBERS)
def test_vramp_survives_the_fault(outcomes: dict[str, Outcome], number: int) -> None:
    outcome = outcomes[f"{SEED}/{number}"]
    assert outcome.wrong == (), f"again: python -m tests.faults.campaign --case {outcome.id}    {outcome.faults}"
