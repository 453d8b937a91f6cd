"""Prompts: exact in length, unique within a run, the same for the same seed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.prompts import ANCHOR, FALLBACK_IDS, WORDS, text_prompts, token_prompts

stages, indices = st.integers(0, 4095), st.integers(0, 2**24 - 1)


@given(stages, indices, st.integers(1, 600), st.integers(0, 2**62))
def test_a_token_prompt_has_exactly_isl_known_tokens(stage: int, index: int, isl: int, seed: int) -> None:
    prompt = json.loads(token_prompts(FALLBACK_IDS, seed)(stage, index, isl))
    assert len(prompt) == isl
    assert set(prompt) <= set(FALLBACK_IDS)


@given(stages, indices, stages, indices)
def test_two_requests_of_a_run_differ_within_their_first_block(s1: int, i1: int, s2: int, i2: int) -> None:
    write = token_prompts(FALLBACK_IDS, 7)
    first, second = json.loads(write(s1, i1, 64))[:16], json.loads(write(s2, i2, 64))[:16]
    assert (first == second) == ((s1, i1) == (s2, i2))


def test_a_small_vocabulary_still_makes_unique_prompts() -> None:
    write = token_prompts((5, 17), 0)
    assert len({write(stage, index, 64) for stage in range(3) for index in range(200)}) == 600


def test_the_seed_decides_everything() -> None:
    assert token_prompts(FALLBACK_IDS, 3)(1, 2, 99) == token_prompts(FALLBACK_IDS, 3)(1, 2, 99)
    assert token_prompts(FALLBACK_IDS, 3)(1, 2, 99) != token_prompts(FALLBACK_IDS, 4)(1, 2, 99)


@given(indices, st.integers(6, 300), st.integers(0, 5))
def test_a_text_prompt_leaves_room_for_anchor_and_template(index: int, isl: int, overhead: int) -> None:
    text = json.loads(text_prompts(WORDS, 1, overhead=overhead)(0, index, isl))
    anchor, *words = text.split(" ")
    assert anchor == ANCHOR
    assert len(words) == isl - overhead
    assert set(words) <= set(WORDS)


def test_words_that_need_escaping_stay_json() -> None:
    assert json.loads(text_prompts(['say "hi"', "back\\slash"], 1, overhead=0)(0, 0, 8))


@pytest.mark.parametrize("isl", [1, 2])
def test_prompts_shorter_than_their_number_are_still_prompts(isl: int) -> None:
    assert len(json.loads(token_prompts(FALLBACK_IDS, 0)(3, 999_999, isl))) == isl
