"""Questions with one right answer: always the same, and an answer is read as a person would."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.workload.questions import Question, questions_of

ROW = '{"question": "How many?", "answer": "2 times 36.\\n#### 1,072"}\n'


def test_own_questions_are_the_same_and_a_longer_list_begins_like_a_shorter() -> None:
    assert questions_of(None, 40)[:8] == questions_of(None, 8)
    assert len({question.prompt for question in questions_of(None, 200)}) == 200
    first, _, product, looked_up = questions_of(None, 4)
    assert "What is 12 + 30?" in first.prompt and product.prompt.endswith("Answer with the number alone.\nA:")
    assert looked_up.answer in looked_up.prompt


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (" 1072", True),
        ("1,072.", True),
        ("1000 + 72 = 1072.00", True),
        ("1072\n\nQ: What is 1 + 1?\nA: 2", True),
        ("<think>maybe 3?</think>The answer is 1072", True),
        ("#### 1072 apples, not 7", True),
        ("2 * 36 = 72 #### 72", False),
        ("1072 or 7", False),
        ("-1072", False),
        ("", False),
        ("none", False),
    ],
)
def test_answers(text: str, right: bool) -> None:
    assert Question("?", "1072").is_answered_by(text) is right


@given(st.text(max_size=200))
def test_any_answer_can_be_read(text: str) -> None:
    assert Question("?", "1072").is_answered_by(text) in (True, False)


def test_questions_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(ROW * 3)
    first, *others = questions_of(str(path), 2)
    assert (first.answer, len(others)) == ("1,072", 1)
    assert first.prompt.startswith("How many?\n") and first.is_answered_by("it is #### 1072")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("", "has no question"),
        (" \n", "has no question"),
        ("{}\n", ":1: not a question as in GSM8K"),
        (ROW + '{"question": "?", "answer": "72"}\n', ":2: the answer has no number after ####"),
    ],
)
def test_files_that_are_refused(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ProfileError, match=message):
        questions_of(str(path), 10)


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ProfileError, match="cannot be read"):
        questions_of("a\0b", 10)
