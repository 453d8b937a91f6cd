"""The ceilings of prefix hits, against a cache that is simulated token by token."""

from __future__ import annotations

import math
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.sessions.ceiling import Ceilings, hits_within
from loadgen.workload.sessions.play import Play
from loadgen.workload.sessions.tree import RecordedRequest, SessionTree, session_tree


def tree_of(*prompts: str) -> SessionTree:
    """Turns whose blocks, of one token each, are the letters of words."""
    return session_tree(
        "s", 1, [RecordedRequest(at, at, len(word), 1, 0, list(map(ord, word))) for at, word in enumerate(prompts)]
    )


class TokenCache:
    """A cache of prefixes, the least recent of which are dropped first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: dict[str, None] = {}  # prefixes, the most recent last

    def sent(self, prompt: str) -> int:
        prefixes = [prompt[: length + 1] for length in range(len(prompt))]
        hits = next((place for place, prefix in enumerate(prefixes) if prefix not in self._held), len(prefixes))
        for prefix in reversed(prefixes):
            self._held.pop(prefix, None)
            self._held[prefix] = None
        for oldest in list(self._held)[: max(0, len(self._held) - self._size)]:
            del self._held[oldest]
        return hits


def salted(number: int, word: str) -> str:
    """The word in letters of its play, so that plays share nothing."""
    return word.translate({ord(letter): chr(ord(letter) + 2 * number) for letter in "ab"})


PLAYS = st.lists(st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=5), min_size=1, max_size=4)


@given(PLAYS, st.randoms(use_true_random=False))
def test_hits_equal_those_of_a_cache_simulated_token_by_token(prompts: list[list[str]], random: Random) -> None:
    plays = [Play(tree_of(*words), salt=number) for number, words in enumerate(prompts)]
    order = [number for number, words in enumerate(prompts) for _ in words]
    random.shuffle(order)
    caches, ceilings = {size: TokenCache(size) for size in (*range(1, 30), 10_000)}, Ceilings()
    sent = [0] * len(plays)
    for number in order:
        index = sent[number]
        hits = ceilings.sent(plays[number], index)
        word = salted(number, prompts[number][index])
        expected = {size: cache.sent(word) for size, cache in caches.items()}
        assert {size: hits_within(hits, size) for size in caches} == expected
        assert hits_within(hits, math.inf) == expected[10_000]
        sent[number] += 1


def test_the_turns_of_the_published_example_hit_ten_of_its_nineteen_blocks() -> None:
    recorded = [
        RecordedRequest(0, 2, 5, 1, 0, [1, 2, 3, 4, 5]),
        RecordedRequest(3, 5, 3, 1, 1, [1, 2, 20]),
        RecordedRequest(7, 9, 4, 1, 1, [1, 2, 20, 21]),
        RecordedRequest(10, 13, 7, 1, 0, [1, 2, 3, 4, 5, 6, 7]),
    ]
    play = Play(session_tree("x1", 1, recorded, (None, 0)))
    ceilings = Ceilings()
    assert [hits_within(ceilings.sent(play, index), math.inf) for index in range(4)] == [0, 2, 3, 5]


def test_plays_of_one_session_share_only_the_common_prefix() -> None:
    tree, ceilings = tree_of("aaab", "aaabb"), Ceilings()
    first, second = (Play(tree, salt=salt) for salt in (1, 2))
    sent = [(first, 0), (second, 0), (second, 1), (first, 1)]
    assert [hits_within(ceilings.sent(play, index, 3), math.inf) for play, index in sent] == [0, 3, 4, 4]
