"""What requests ask for: pure functions of the seed, the stage and the number."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.profile.load import Load
from loadgen.workload.prompts import FALLBACK_IDS, WORDS, RequestContent, text_prompts, token_prompts
from loadgen.workload.shape import Shape, shape_of
from loadgen.workload.work import RequestWriter, draw


def requests(load: Load, *, stage: int = 0, again: int | None = None, turn: int = 0) -> list[RequestContent]:
    shape = shape_of(load, load.isl, load.osl)
    work = shape.work if again is None else shape.work.pass_of(again)
    chat = load.endpoint != "completions"
    prompts = text_prompts(WORDS, 1, overhead=2) if chat else token_prompts(FALLBACK_IDS, 1)
    writer = RequestWriter(
        work, prompts, seed=1, key=stage if work.key is None else work.key, isl=shape.isl, osl=shape.osl
    )
    return [writer.request(index, turn) for index in range(200)]


def test_lengths_are_drawn_and_repeat() -> None:
    load = Load(isl="uniform:32:64", osl="uniform:4:8")
    drawn = requests(load)
    assert drawn == requests(load)
    assert {len(json.loads(request.prompt)) for request in drawn} == set(range(32, 65))
    assert {request.osl for request in drawn} == {4, 5, 6, 7, 8}


def test_passes_repeat_their_prompts_and_stages_do_not() -> None:
    load = Load(isl=32)
    assert requests(load, stage=0, again=0) == requests(load, stage=1, again=0)
    assert not {each.prompt for each in requests(load, stage=0)} & {each.prompt for each in requests(load, stage=1)}


def test_prefixes_are_shared() -> None:
    prompts = [
        json.loads(each.prompt)
        for each in requests(Load.model_validate({"isl": 64, "prefix": {"share": 0.5, "count": 3}}))
    ]
    assert {len(prompt) for prompt in prompts} == {64}
    assert len({tuple(prompt[:32]) for prompt in prompts}) == 3
    assert len({tuple(prompt[32:]) for prompt in prompts}) == 200


def test_a_conversation_grows() -> None:
    load = Load.model_validate({"isl": 32, "osl": 8, "turns": {"count": 3}})
    first, third = (json.loads(requests(load, turn=turn)[5].prompt) for turn in (0, 2))
    assert (len(first), len(third)) == (32, 3 * 32 + 2 * 8)
    assert third[:32] == first
    chat = load.model_copy(update={"endpoint": "chat"})
    request = requests(chat, turn=2)[5]
    assert request.messages
    assert [each["role"] for each in json.loads(request.prompt)] == ["user", "assistant"] * 2 + ["user"]


def test_the_longest_counts() -> None:
    shape = shape_of(Load.model_validate({"turns": {"count": 2}}), "uniform:1:100", 10)
    assert isinstance(shape, Shape)
    assert shape.work.longest(shape.isl, shape.osl) == 220


@pytest.mark.parametrize(("load", "random"), [({}, True), ({"data": "sample"}, False)])
def test_whether_prompts_say_something(load: dict[str, object], random: bool) -> None:
    assert shape_of(Load.model_validate(load), 64, 8).work.random_prompts == random


@pytest.mark.parametrize(
    ("load", "share"),
    [({}, 0.0), ({"prefix": {"share": 0.4}}, 0.4), ({"turns": {"count": 2}}, 1.0), ({"data": "sample"}, 0.0)],
)
def test_what_the_prefix_cache_is_meant_to_have(load: dict[str, object], share: float) -> None:
    assert shape_of(Load.model_validate(load), 64, 8).work.meant_hits == share


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"isl": "data"}, 'load.isl = "data"'),
        ({"osl": "data"}, "no dataset"),
        ({"data": "sample", "prefix": {"share": 0.5}}, "synthetic prompts"),
        ({"data": "sample", "turns": {"count": 2}}, "synthetic prompts"),
        ({"data": "sample", "trace": {"speed": 2}}, "needs a trace in load.data"),
        ({"trace": {"speed": 2}}, "needs a trace in load.data"),
    ],
)
def test_keys_that_do_not_fit(load: dict[str, object], words: str) -> None:
    settings = Load.model_validate(load)
    with pytest.raises(ProfileError, match=words):
        shape_of(settings, settings.isl, settings.osl)


number = st.integers(0, 2**63)


@given(number, number, number, st.sampled_from(["model", "cancel"]))
def test_the_same_request_draws_the_same_number(seed: int, stage: int, index: int, purpose: str) -> None:
    drawn = draw(seed, stage, index, purpose)
    assert drawn == draw(seed, stage, index, purpose)
    assert 0.0 <= drawn < 1.0


def test_draws_are_even_and_purposes_are_independent() -> None:
    one = [draw(7, 0, index, "model") for index in range(4000)]
    other = [draw(7, 0, index, "cancel") for index in range(4000)]
    for drawn in (one, other):
        assert abs(sum(drawn) / 4000 - 0.5) < 5 * math.sqrt(1 / 12 / 4000)
    both = sum(left < 0.5 and right < 0.5 for left, right in zip(one, other, strict=True))
    assert abs(both - 1000) < 5 * math.sqrt(4000 * 0.25 * 0.75)


def test_sessions_are_the_shape_of_their_load() -> None:
    settings = {"data": "sample", "scale": 0.1, "max_gap": "5s", "start_between": [0.25, 0.75]}
    load = Load.model_validate({"sessions": settings})
    shape = shape_of(load, 256, 128)
    sessions = shape.work.sessions
    assert sessions is not None
    assert (sessions.start, sessions.max_gap_s) == ((0.25, 0.75), 5)
    assert (shape.isl, shape.osl) == (sessions.data.isl, sessions.data.osl)
    assert shape.work.longest(256, 128) == sessions.data.longest > 10_000
    assert shape.work.repeats
    assert shape.work.meant_hits == 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"turns": {"count": 2}}, "load.turns and load.sessions exclude each other"),
        ({"passes": 2}, "load.passes and load.sessions exclude each other"),
        ({"sessions": {"data": "sample", "history": "server"}}, r'needs load\.endpoint = "chat" or "responses"'),
    ],
)
def test_sessions_that_contradict_another_key_are_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ProfileError, match=problem):
        shape_of(Load.model_validate({"sessions": {"data": "sample"}} | changes), 256, 128)
