"""Plays of sessions: which request is due when, and how a play ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.sessions.generated import generated_tree
from loadgen.workload.sessions.play import Due, Play
from loadgen.workload.sessions.tree import RecordedRequest, SessionTree, session_tree


def tree_with_a_sub_agent() -> SessionTree:
    """Turns at 0, 10 and 20 s; a sub-agent with requests at 2 and 5 s for which the second turn waits."""
    recorded = [
        RecordedRequest(0, 1, 64, 8),
        RecordedRequest(2, 3, 64, 8, chain=1),
        RecordedRequest(5, 6, 128, 8, chain=1),
        RecordedRequest(10, 11, 192, 8),
        RecordedRequest(20, 21, 256, 8),
    ]
    return session_tree("s", 64, recorded, (None, 0))


def finish(play: Play, due: list[Due]) -> list[int]:
    """Answer everything that is due until nothing is; the order in which it was."""
    sent = []
    while due:
        first, *due = due
        sent.append(first.index)
        due += play.answered(first.index)
    return sent


def test_requests_are_due_once_all_that_they_wait_for_is_answered() -> None:
    play = Play(tree_with_a_sub_agent())
    assert play.begin() == [Due(0)]
    assert play.answered(0) == [Due(1, gap_s=1)]
    assert play.answered(1) == [Due(2, gap_s=2)]
    assert play.context_tokens == 72 + 136
    assert play.answered(2) == [Due(3, gap_s=4)]
    assert play.context_tokens == 200  # that of the sub-agent is gone
    assert finish(play, play.answered(3)) == [4]
    assert (play.ended, play.drained, play.context_tokens) == ("finished", True, 0)


def test_long_gaps_are_cut_and_what_was_cut_is_known() -> None:
    play = Play(tree_with_a_sub_agent(), max_gap_s=1.5)
    assert [play.begin(), play.answered(0), play.answered(1)] == [[Due(0)], [Due(1, 1.0)], [Due(2, 1.5, 0.5)]]


def test_a_session_ends_before_its_first_request_that_is_too_long() -> None:
    play = Play(tree_with_a_sub_agent(), max_context=136)
    assert finish(play, play.begin()) == [0, 1, 2]
    assert (play.ended, play.drained) == ("context", True)


def test_a_start_inside_primes_each_agent_that_is_at_work() -> None:
    play = Play(tree_with_a_sub_agent(), start=0.2)  # at 4 s
    assert play.begin() == [Due(0, priming=True), Due(1, priming=True)]
    assert play.answered(0) == []
    assert play.answered(1) == [Due(2, gap_s=1)]  # a second of its two had passed
    assert finish(play, play.answered(2)) == [3, 4]


def test_a_start_after_a_sub_agent_does_not_send_it() -> None:
    play = Play(tree_with_a_sub_agent(), start=0.4)
    assert play.begin() == [Due(0, priming=True)]
    assert play.answered(0) == [Due(3, gap_s=2)]


def test_a_start_is_before_the_first_request_that_is_too_long() -> None:
    play = Play(tree_with_a_sub_agent(), max_context=250, start=1.0)
    assert play.begin() == [Due(0, priming=True)]
    assert finish(play, play.answered(0)) == [3]
    assert play.ended == "context"


def test_a_failed_sub_agent_is_not_waited_for() -> None:
    play = Play(tree_with_a_sub_agent())
    play.begin()
    play.answered(0)
    assert finish(play, play.failed(1)) == [3, 4]
    assert play.ended == "finished"


def test_a_failed_turn_of_the_root_ends_the_session() -> None:
    play = Play(tree_with_a_sub_agent())
    play.begin()
    assert (play.failed(0), play.ended, play.drained) == ([], "failed", True)


def test_a_stopped_session_drains_with_its_open_requests() -> None:
    play = Play(tree_with_a_sub_agent())
    play.begin()
    play.end("stopped")
    assert not play.drained
    assert (play.answered(0), play.ended, play.drained) == ([], "stopped", True)


@given(st.integers(0, 10_000), st.none() | st.floats(0, 1), st.lists(st.booleans(), max_size=20))
def test_every_play_drains_and_sends_nothing_twice_or_too_early(
    number: int, start: float | None, failures: list[bool]
) -> None:
    tree = generated_tree(1, number, scale=0.01)
    play = Play(tree, start=start)
    due, answered, sent = play.begin(), set[int](), list[int]()
    fails = iter(failures)
    while due:
        first, *due = due
        sent.append(first.index)
        failed = next(fails, False) and tree.requests[first.index].chain > 0
        due += play.failed(first.index) if failed else play.answered(first.index)
        answered.add(first.index)
    assert len(set(sent)) == len(sent)
    assert (play.ended, play.drained, play.context_tokens) == ("finished", True, 0)
    if start is None and not any(failures):
        assert sorted(sent) == list(range(len(tree.requests)))
        place = {index: order for order, index in enumerate(sent)}
        assert all(place[before] < place[index] for index in sent for before in tree.requests[index].after)
