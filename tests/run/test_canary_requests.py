"""The answers of endpoints that score, that do so in part, and that say something else altogether."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.run.canary import METHODS, TEXTS, answer_request, read_answer, read_score, score_request
from loadgen.schema.output import ScoreMethod

USAGE = {"prompt_tokens": 3, "completion_tokens": 1}


def prompt(*values: float | None) -> list[Any]:
    return [None, *({"7": {"logprob": value, "rank": 1}, "8": {"logprob": -0.1}} for value in values)]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("prompt_logprobs", {"choices": [{"prompt_logprobs": prompt(-1.0, -2.0)}], "usage": USAGE}),
        ("chat", {"choices": [{}], "prompt_logprobs": prompt(-1.0, -2.0), "usage": USAGE}),
        # The last is of the token that was generated.
        ("echo", {"choices": [{"logprobs": {"token_logprobs": [None, -1.0, -2.0, -9.0]}}], "usage": USAGE}),
        ("echo", {"choices": [{"logprobs": {"token_logprobs": [None, -1.0, -2.0, -9.0]}}]}),
    ],
)
def test_the_score_is_the_mean_of_the_prompts_own_tokens(method: ScoreMethod, answer: dict[str, Any]) -> None:
    score = read_score(method, json.dumps(answer).encode())
    assert (score.mean, score.scored, score.tokens) == (-1.5, 2, 3)


def test_tokens_without_a_score_are_counted_out() -> None:
    answer = {"choices": [{"prompt_logprobs": [*prompt(-1.0), None, None]}]}
    assert read_score("prompt_logprobs", json.dumps(answer).encode())[:3] == (-1.0, 1, 4)


@pytest.mark.parametrize("value", [0.5, "x", "NaN"])
def test_scores_that_cannot_be_are_refused(value: Any) -> None:
    answer = json.dumps({"choices": [{"prompt_logprobs": prompt(value)}]}).replace('"NaN"', "NaN")
    with pytest.raises(ValueError, match="answer"):
        read_score("prompt_logprobs", answer.encode())


@given(st.binary() | st.sampled_from([b"{}", b"[]", b'{"choices":[{"prompt_logprobs":[null]}]}', b"[" * 5000]))
def test_whatever_is_no_score_is_a_value_error(content: bytes) -> None:
    for method in METHODS:
        with pytest.raises(ValueError, match="answer"):
            read_score(method, content)


def test_an_answer_is_joined_from_its_events() -> None:
    events = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"reasoning_content": "so"}}]},
        {"choices": [{"delta": {"content": " it is"}}]},
        {"choices": [], "usage": USAGE},
    ]
    content = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
    answer = read_answer(content)
    assert (answer.text, answer.usage.prompt_tokens, answer.usage.completion_tokens) == ("so it is", 3, 1)
    assert read_answer(b': ping\r\n\r\ndata:{"choices":[{"text":" a"}]}\r\n\r\ndata: [DONE]\r\n\r\n').text == " a"


@given(st.binary())
def test_whatever_is_no_stream_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="answer"):
        read_answer(content)


def test_requests_ask_for_one_token_and_for_certain_ones() -> None:
    for method in METHODS:
        path, body = score_request(method, "m", TEXTS["prose"])
        assert path.startswith("/v1/") and body["max_tokens"] == 1 and body["temperature"] == 0
    path, body = answer_request("one, two", "m", {"ignore_eos": True}, chat=True)
    assert path == "/v1/chat/completions" and body["ignore_eos"] and body["temperature"] == 0
