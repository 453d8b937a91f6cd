"""Trees of recorded sessions: who waits for whom, for how long, and what each prompt repeats."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.sessions.tree import RecordedRequest, SessionTree, common_start, session_tree

BLOCK = 4


def request(start_s: float, blocks: str, *, chain: int = 0, took_s: float = 1.0) -> RecordedRequest:
    """A request whose blocks are the letters of a word."""
    return RecordedRequest(start_s, start_s + took_s, len(blocks) * BLOCK, 5, chain, [ord(block) for block in blocks])


def prompt(tree: SessionTree, index: int) -> list[tuple[int, int]]:
    """Every token of a prompt as (request that it first came with, place within what was new there)."""
    return [(piece, place) for piece, tokens in tree.context(index) for place in range(tokens)]


def test_turns_wait_for_the_answer_before() -> None:
    tree = session_tree("s", BLOCK, [request(100, "ab"), request(103.5, "abc"), request(104, "abcd")])
    assert [each.after for each in tree.requests] == [(), (0,), (1,)]
    assert [each.gap_s for each in tree.requests] == [0, 2.5, 0]  # the last one overlaps by half a second
    assert [each.at_s for each in tree.requests] == [0, 3.5, 4]
    assert tree.context(2) == [(0, 8), (1, 4), (2, 4)]


def test_a_turn_joins_the_sub_agents_that_had_ended_and_not_those_in_the_background() -> None:
    recorded = [
        request(0, "ab"),
        request(2, "x", chain=1),
        request(5, "xy", chain=1),
        request(2, "y", chain=2),
        request(20, "yz", chain=2),  # still at work when the parent goes on, and nothing comes after it
        request(8, "abc"),
    ]
    tree = session_tree("s", BLOCK, recorded, parents=(None, 0, 0))
    afters = {(each.chain, each.at_s): [tree.requests[a].at_s for a in each.after] for each in tree.requests}
    assert afters == {(0, 0): [], (1, 2): [0], (2, 2): [0], (1, 5): [2], (0, 8): [0, 5], (2, 20): [2]}
    assert tree.requests[4].gap_s == pytest.approx(2)  # from the end of the sub-agent, not of the turn before


def test_a_compacted_context_goes_back_to_the_longest_beginning_that_any_prompt_had() -> None:
    recorded = [request(0, "abcd"), request(2, "ab"), request(4, "abcx"), request(6, "q"), request(8, "abcdz")]
    tree = session_tree("s", BLOCK, recorded)
    assert [(each.base, each.shared) for each in tree.requests] == [(None, 0), (0, 2), (0, 3), (None, 0), (0, 4)]
    assert tree.context(1) == [(0, 8)]
    assert tree.context(2) == [(0, 12), (2, 4)]


def test_a_context_without_block_ids_repeats_the_one_before() -> None:
    sizes = [(0.0, 10), (2.0, 23), (4.0, 7)]
    tree = session_tree("s", BLOCK, [RecordedRequest(at_s, at_s, isl, 5) for at_s, isl in sizes])
    assert [tree.context(index) for index in range(3)] == [[(0, 10)], [(0, 8), (1, 15)], [(0, 4), (2, 3)]]


def test_a_sub_agent_before_its_parent_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a sub-agent starts at 0 s, before any request of its parent"):
        session_tree("s", BLOCK, [request(0, "x", chain=1), request(1, "a")], parents=(None, 0))


@given(st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=12))
def test_two_prompts_begin_alike_exactly_as_far_as_the_recorded_blocks_do(prompts: list[str]) -> None:
    starts = accumulate(range(1, len(prompts)), initial=0)
    tree = session_tree("s", BLOCK, [request(at, blocks) for at, blocks in zip(starts, prompts, strict=True)])
    for one, first in enumerate(prompts):
        assert len(prompt(tree, one)) == len(first) * BLOCK
        for other, second in enumerate(prompts):
            alike = common_start(first, second) * BLOCK
            assert common_start(prompt(tree, one), prompt(tree, other)) == alike
