import pytest

from loadgen.simulator.tokens import ANSWER, ANSWER_IDS, VOCABULARY, answer_ids, decode, encode, encode_chat


@pytest.mark.parametrize("text", ["Tell me a story, please!", "  two\n\nlines\t", "größer als 12345", "日本語 ok", ""])
def test_text_comes_back(text: str) -> None:
    assert decode(encode(text)) == text


def test_every_token_is_in_the_vocabulary() -> None:
    assert all(0 < number < VOCABULARY for number in encode("anything at all 12 ~ é"))


def test_an_answer_as_text_is_the_same_tokens() -> None:
    text = b"".join(ANSWER).decode()
    assert encode(text) == ANSWER_IDS


def test_words_of_answers_are_equally_long_and_different() -> None:
    assert len({len(word) for word in ANSWER}) == 1
    assert len(set(ANSWER)) == 64


def test_an_answer_goes_round() -> None:
    assert answer_ids(63, 2) == [ANSWER_IDS[63], ANSWER_IDS[0]]


def test_random_ids_become_words_that_are_as_many_tokens() -> None:
    ids = [7, 90_001, 31_337, 128_000]
    assert len(encode(decode(ids))) == len(ids)


def test_the_template_adds_tokens_and_a_turn_extends_the_one_before() -> None:
    first = encode_chat([("user", "hello")])
    assert len(first) > len(encode("hello"))
    answer = b"".join(ANSWER[:3]).decode()
    second = encode_chat([("user", "hello"), ("assistant", answer), ("user", "more")])
    assert second[: len(first) + 3] == first + ANSWER_IDS[:3]
