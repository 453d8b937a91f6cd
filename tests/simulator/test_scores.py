"""Log probabilities, in the forms of vLLM 0.32: what it answers to `prompt_logprobs`, `echo` and `logprobs`."""

import statistics
from typing import Any

import httpx
import pytest

from loadgen.simulator import scores
from tests.simulator.conftest import MODEL, Running

TEXT = "The quick brown fox jumps over the lazy dog and runs away. " * 4


def complete(client: httpx.Client, **fields: Any) -> Any:
    response = client.post("/v1/completions", json={"model": MODEL, "prompt": TEXT, "max_tokens": 1, **fields})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def prompt_scores(choice: Any) -> list[float]:
    """Of each token but the first: its own entry is the first one."""
    first, *rest = choice["prompt_logprobs"]
    assert first is None
    return [next(iter(entry.values()))["logprob"] for entry in rest]


def test_prompt_logprobs_name_each_token_and_its_alternatives(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"prompt": "one two three"}).json()["tokens"]
    choice = complete(client, prompt="one two three", prompt_logprobs=2)
    assert len(choice["prompt_logprobs"]) == len(ids) == 4
    for token, entry in zip(ids[1:], choice["prompt_logprobs"][1:], strict=True):
        own = entry[str(token)]
        assert own["logprob"] <= 0
        assert own["rank"] >= 1
        others = [each for number, each in entry.items() if number != str(token)]
        assert {each["rank"] for each in others} == {1, 2} - {own["rank"]}
        assert all((each["logprob"] >= own["logprob"]) == (each["rank"] < own["rank"]) for each in others)
    assert [next(iter(e.values()))["decoded_token"] for e in choice["prompt_logprobs"][1:]] == ["one", " two", " three"]


def test_a_text_scores_the_same_every_time_and_like_a_trained_model(client: httpx.Client) -> None:
    first, second = (prompt_scores(complete(client, prompt_logprobs=0)) for _ in range(2))
    assert first == second
    assert 0.5 < -statistics.fmean(first) < 4


def test_what_is_scored_is_not_taken_from_the_prefix_cache(server: Running) -> None:
    queries = "vllm:prefix_cache_queries_total"
    before = [line for line in server.client.get("/metrics").text.splitlines() if line.startswith(queries)]
    lengths = {len(prompt_scores(complete(server.client, prompt=[7] * 100, prompt_logprobs=0))) for _ in range(2)}
    assert lengths == {99}
    assert [line for line in server.client.get("/metrics").text.splitlines() if line.startswith(queries)] == before


def test_echo_tells_the_prompt_as_openai_did(client: httpx.Client) -> None:
    choice = complete(client, prompt="one two three", max_tokens=0, echo=True, logprobs=1)
    reported = choice["logprobs"]
    assert choice["text"] == "one two three"
    assert reported["tokens"] == ["<s>", "one", " two", " three"]
    assert reported["text_offset"] == [0, 3, 6, 10]
    assert reported["token_logprobs"][0] is reported["top_logprobs"][0] is None
    assert reported["token_logprobs"][1:] == prompt_scores(complete(client, prompt="one two three", prompt_logprobs=0))


def test_echo_with_an_answer_scores_both(client: httpx.Client) -> None:
    choice = complete(client, prompt="one two", max_tokens=3, echo=True, logprobs=0)
    assert choice["text"].startswith("one two ")
    assert len(choice["logprobs"]["tokens"]) == 3 + 3
    assert None not in choice["logprobs"]["token_logprobs"][1:]


def test_logprobs_alone_are_the_answers(client: httpx.Client) -> None:
    choice = complete(client, max_tokens=3, logprobs=2)
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert all(len(top) in (2, 3) for top in choice["logprobs"]["top_logprobs"])
    assert choice["prompt_logprobs"] is None


def test_a_chat_tells_of_its_prompt_at_the_top(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": TEXT}]
    fields = {"messages": messages, "max_tokens": 1, "prompt_logprobs": 1, "logprobs": True}
    body = client.post("/v1/chat/completions", json=fields).json()
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert body["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    "fields",
    [{"prompt_logprobs": 21}, {"prompt_logprobs": -2}, {"logprobs": 21}, {"prompt_logprobs": 1, "stream": True}],
)
def test_refusals_have_vllms_shape(client: httpx.Client, fields: dict[str, Any]) -> None:
    response = client.post("/v1/completions", json={"prompt": TEXT, **fields})
    assert (response.status_code, response.json()["error"]["code"]) == (400, 400)
    assert response.json()["error"]["param"] in fields


def test_scores_are_not_returned_unless_requested(client: httpx.Client) -> None:
    choice = complete(client, max_tokens=3)
    assert choice["logprobs"] is None
    assert "prompt_logprobs" not in choice


def test_mean_over_many_tokens_is_that_of_the_model() -> None:
    values = [scores.log_probability(before, before * 7 + 3) for before in range(1, 20_000)]
    assert statistics.fmean(values) == pytest.approx(-scores.MEAN_NATS, rel=0.03)
