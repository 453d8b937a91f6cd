"""Any split of the byte stream into reads gives the same events."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.stream import events
from loadgen.stream.events import EventSplitter, EventTooLong

data = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


def cut(body: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(body) + 1) for place in places}), len(body)]
    return [body[low:high] for low, high in pairwise(edges)]


def read_all(pieces: list[bytes]) -> list[bytes]:
    splitter = EventSplitter()
    return [event.data for piece in pieces for event in splitter.feed(piece)]


@given(st.lists(data, max_size=6), st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 500), max_size=12))
def test_any_split_gives_the_same_events(texts: list[str], newline: str, places: list[int]) -> None:
    body = "".join(f"data: {text}{newline}{newline}" for text in texts).encode()
    assert read_all(cut(body, places)) == [text.encode() for text in texts if text.encode().strip()]


@given(st.binary(max_size=80), st.lists(st.integers(0, 80), max_size=8))
def test_garbage_is_cut_the_same_however_it_arrives(body: bytes, places: list[int]) -> None:
    assert read_all(cut(body, places)) == read_all([body])


@given(
    st.lists(
        st.sampled_from([b"data: a\n\n", b"data: b\r\n\r\n", b": ping\n\n", b"\n", b"id: 3\ndata: c\n\n"]), max_size=9
    )
)
def test_one_event_a_read_takes_the_short_way_to_the_same_place(pieces: list[bytes]) -> None:
    assert read_all(pieces) == read_all([b"".join(pieces)])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"data: x\n\n", [b"x"]),
        (b"data:x\n\n", [b"x"]),
        (b"data:  x\n\n", [b" x"]),
        (b"event: m\ndata: x\nid: 1\n\n", [b"x"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": comment\n\n", []),
        (b"data\n\n", []),
        (b"data:\n\ndata: \n\ndata: x\n\n", [b"x"]),
        (b'error: {"code": 500}\n\n', [b'{"code": 500}']),
        (b'{"error": "died"}\n\n', [b'{"error": "died"}']),
        (b"\n\n\ndata: x\n\n\n\n", [b"x"]),
        ("data: \u2028\u0085\n\n".encode(), ["\u2028\u0085".encode()]),
        (b"data: unfinished", []),
    ],
)
def test_the_standard_in_a_table(body: bytes, expected: list[bytes]) -> None:
    assert read_all([body]) == expected


def test_an_event_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 1000)
    splitter = EventSplitter()
    with pytest.raises(EventTooLong):
        for _ in range(20):
            splitter.feed(b"data: " + b"x" * 100)
