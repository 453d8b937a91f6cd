"""Prompts of sessions: of the recorded size, alike as far as the recorded ones, and different between plays."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import pytest

from loadgen.simulator.engine import Engine
from loadgen.simulator.physics import Physics
from loadgen.workload.prompts import FALLBACK_IDS, WORDS, text_prompts, token_prompts
from loadgen.workload.sessions.ceiling import Ceilings, hits_within
from loadgen.workload.sessions.data import SessionData, Sessions, SessionWriter
from loadgen.workload.sessions.generated import generated_tree
from loadgen.workload.sessions.play import Play
from loadgen.workload.sessions.tree import RecordedRequest, SessionTree, common_start, session_tree

DATA = SessionData(form="generated", sessions=1)


def tree_of(*prompts: str, chains: str = "", osl: int = 8) -> SessionTree:
    """Requests whose blocks of 32 tokens are the letters of words, in chains of these numbers."""
    recorded = [
        RecordedRequest(at, at, 32 * len(word), osl, int(chain), list(map(ord, word)))
        for at, (word, chain) in enumerate(zip(prompts, chains or "0" * len(prompts), strict=True))
    ]
    return session_tree("s", 32, recorded, (None, 0))


def ids_of(writer: SessionWriter, play: Play, index: int) -> list[int]:
    request = writer.request(play, index)
    ids: list[int] = json.loads(request.prompt)
    assert len(ids) == request.ids == play.tree.requests[index].isl
    return ids


def test_prompts_of_a_play_begin_alike_as_far_as_the_recorded_ones() -> None:
    prompts = ["ab", "abc", "abd", "abx", "a", "cab"]
    play = Play(tree_of(*prompts), salt=5)
    writer = SessionWriter(Sessions(DATA), token_prompts(FALLBACK_IDS, 1))
    for one, first in enumerate(prompts):
        for other, second in enumerate(prompts):
            alike = common_start(ids_of(writer, play, one), ids_of(writer, play, other))
            assert alike == 32 * common_start(first, second)


@pytest.mark.parametrize("common", [0, 40, 1000])
def test_plays_share_the_common_prefix_and_nothing_else(common: int) -> None:
    tree = tree_of("abc", "abcd")
    writer = SessionWriter(Sessions(DATA, common_prefix=common), token_prompts(FALLBACK_IDS, 1))
    first, second = (ids_of(writer, Play(tree, salt=salt), 1) for salt in (1, 2))
    assert common_start(first, second) == min(common, 3 * 32)  # what the second turn adds is never common


def test_a_chat_holds_the_servers_answers_and_begins_anew_where_the_context_was_cut() -> None:
    tree = tree_of("ab", "abcd", "abcdef", "aq")
    writer = SessionWriter(Sessions(DATA, history="server"), text_prompts(WORDS, 1, overhead=0))
    play, answers = Play(tree), {0: 'first "answer"', 1: "second", 2: "third"}

    def messages(index: int) -> list[dict[Literal["role", "content"], Any]]:
        request = writer.request(play, index, answers)
        assert request.messages
        return json.loads(request.prompt)  # type: ignore[no-any-return]

    chat = messages(2)
    assert [each["role"] for each in chat] == ["user", "assistant", "user", "assistant", "user"]
    assert [each["content"] for each in chat if each["role"] == "assistant"] == ['first "answer"', "second"]
    assert [len(each["content"].split()) for each in chat[::2]] == [65, 57, 57]  # with the anchor of each text
    assert chat[:3] == messages(1)
    assert [each["role"] for each in messages(3)] == ["user"]


@pytest.mark.parametrize("number", range(3))
def test_an_engine_with_room_hits_every_prompt_as_far_as_the_infinite_ceiling(number: int) -> None:
    tree, ceilings = generated_tree(1, number, scale=0.02), Ceilings()
    play = Play(tree, salt=number)
    writer = SessionWriter(Sessions(DATA), token_prompts(FALLBACK_IDS, 1))
    engine = Engine(Physics(kv_blocks=1 << 20, max_model_len=1 << 20, max_num_batched_tokens=1 << 20))
    for index, request in enumerate(tree.requests):
        prompt = ids_of(writer, play, index)
        sequence = engine.sequence(index, prompt, limit=1)
        engine.add(sequence, 0)
        assert engine.begin(0) is not None
        engine.finish(0)
        # The engine shares whole blocks of 16 tokens, and always computes the last token.
        assert sequence.cached == min(hits_within(ceilings.sent(play, index), math.inf), request.isl - 1) // 16 * 16
    assert engine.prefix_hits > 0.8 * engine.prefix_queries
