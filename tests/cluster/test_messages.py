"""Messages arrive once and in order, however many exchanges are lost on their way there or back."""

from hypothesis import given
from hypothesis import strategies as st

from loadgen.cluster import messages
from loadgen.cluster.messages import Mailbox, Order, Report, ToHost

fates = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(("arrives", "lost", "answer lost"))), max_size=30)


@given(fates)
def test_everything_arrives_once_and_in_order(exchanges: list[tuple[int, str]]) -> None:
    ours, theirs = Mailbox[int, int](), Mailbox[int, int]()
    sent, received = 0, list[int]()
    for added, fate in [*exchanges, (1, "arrives")]:
        ours.waiting.extend(range(sent, sent + added))
        sent += added
        if fate != "lost":
            received += theirs.take(ours.first, ours.waiting, 0)
        if fate == "arrives":
            ours.take(0, [], theirs.arrived)
            assert ours.waiting == []
    assert received == list(range(sent))


@given(fates)
def test_what_an_older_exchange_says_does_no_harm(exchanges: list[tuple[int, str]]) -> None:
    ours, theirs = Mailbox[int, int](), Mailbox[int, int]()
    totals = [0]
    for added, fate in exchanges:
        ours.waiting.extend(range(added))
        theirs.take(ours.first, ours.waiting, 0)
        totals.append(theirs.arrived)
        ours.take(0, [], totals[-1] if fate == "arrives" else totals[0])
    assert 0 <= ours.first <= theirs.arrived
    assert ours.first + len(ours.waiting) == theirs.arrived


def test_lines_pass_as_they_are() -> None:
    line = bytes(range(256))
    said = ToHost(3, [Order(1, "start"), Order(1, "write", line)], 7)
    assert messages.decode_to_host(messages.encode(said)) == said
    answer = messages.FromHost(0, [Report(1, line), Report(1, ended="died")], 2, 5, 6)
    assert messages.decode_from_host(messages.encode(answer)) == answer
