"""Messages arrive once and in order, however many exchanges are lost on their way there or back."""

from hypothesis import given
from hypothesis import strategies as st

from loadgen.cluster import messages
from loadgen.cluster.messages import ArrivalCount, Order, Outbox, Report, ToHost

fates = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(("arrives", "lost", "answer lost"))), max_size=30)


@given(fates)
def test_everything_arrives_once_and_in_order(exchanges: list[tuple[int, str]]) -> None:
    out, arrived = Outbox[int](), ArrivalCount[int]()
    sent, received = 0, list[int]()
    for added, fate in [*exchanges, (1, "arrives")]:
        out.waiting.extend(range(sent, sent + added))
        sent += added
        if fate != "lost":
            received += arrived.fresh(out.first, out.waiting)
        if fate == "arrives":
            out.confirm(arrived.total)
            assert out.waiting == []
    assert received == list(range(sent))


@given(fates)
def test_what_an_older_exchange_says_does_no_harm(exchanges: list[tuple[int, str]]) -> None:
    out, arrived = Outbox[int](), ArrivalCount[int]()
    totals = [0]
    for added, fate in exchanges:
        out.waiting.extend(range(added))
        arrived.fresh(out.first, out.waiting)
        totals.append(arrived.total)
        out.confirm(totals[-1] if fate == "arrives" else totals[0])
    assert 0 <= out.first <= arrived.total
    assert out.first + len(out.waiting) == arrived.total


def test_lines_pass_as_they_are() -> None:
    line = bytes(range(256))
    said = ToHost(3, [Order(1, "start"), Order(1, "write", line)], 7)
    assert messages.decode_to_host(messages.encode(said)) == said
    answer = messages.FromHost(0, [Report(1, line), Report(1, ended="died")], 2, 5, 6)
    assert messages.decode_from_host(messages.encode(answer)) == answer
