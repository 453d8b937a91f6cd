import json
import re
from typing import Any

import httpx
import pytest

from loadgen.schema.output import CANARY_ID
from tests.simulator.conftest import MODEL, Running, body_of, events_of, read_all, simulator

PROMPT = [5] * 20


def complete(client: httpx.Client, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
    return client.post(path, json=fields)


def test_health_version_models(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    assert client.get("/version").json()["version"].startswith("0.32.0")
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == (MODEL, 8192)


@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT]])
def test_a_completion_of_token_ids(client: httpx.Client, prompt: Any) -> None:
    body = complete(client, model=MODEL, prompt=prompt, max_tokens=3).json()
    assert body["usage"] == {"prompt_tokens": 20, "total_tokens": 23, "completion_tokens": 3}
    assert len(body["choices"][0]["text"].split()) == 3
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("prompt", ["Tell me more", ["Tell me more"]])
def test_a_completion_of_text_has_16_tokens_by_default(client: httpx.Client, prompt: Any) -> None:
    body = complete(client, prompt=prompt).json()
    assert body["usage"] == {"prompt_tokens": 4, "total_tokens": 20, "completion_tokens": 16}


def test_the_same_prompt_has_the_same_answer(client: httpx.Client) -> None:
    texts = {complete(client, prompt=PROMPT).json()["choices"][0]["text"] for _ in range(2)}
    assert len(texts) == 1


def test_canaries_are_not_counted_as_load(server: Running) -> None:
    server.client.post("/truth/reset")
    server.faults("http_500:nth=1")
    mark = {"X-Request-Id": f"{CANARY_ID}1"}
    for headers, expected in ((mark, 500), (mark, 200), ({}, 500), ({}, 200)):
        answer = server.client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 2}, headers=headers)
        assert answer.status_code == expected
    truth = server.truth()
    assert truth["requests"] == truth["canaries"] | {"open": 0}
    assert (truth["canaries"]["completed"], truth["canaries"]["failed"]) == (1, 1)
    assert (truth["tokens"]["input"], truth["faults"]) == (20, {"http_500": 1})
    server.faults()


def test_a_chat(client: httpx.Client) -> None:
    body = complete(
        client,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        max_tokens=9,
        max_completion_tokens=2,
    ).json()
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert len(body["choices"][0]["message"]["content"].split()) == 2
    assert body["usage"]["completion_tokens"] == 2


def test_a_streamed_completion(server: Running) -> None:
    *tokens, done = events_of(body_of(server.stream(12)))
    assert done is None
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 11 + ["length"]
    assert {event["usage"] for event in tokens} == {None}
    whole = server.client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 12}).json()
    assert "".join(event["choices"][0]["text"] for event in tokens) == whole["choices"][0]["text"]


def test_a_streamed_chat_begins_with_a_role(server: Running) -> None:
    role, *tokens, done = events_of(body_of(server.stream(3, chat=True)))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(tokens) == 3
    assert all(event["choices"][0]["delta"]["content"] for event in tokens)
    assert done is None


def test_usage_comes_in_an_event_without_choices(server: Running) -> None:
    *tokens, usage, _ = events_of(body_of(server.stream(4, stream_options={"include_usage": True})))
    assert len(tokens) == 4
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 20, "total_tokens": 24, "completion_tokens": 4}


@pytest.mark.parametrize("chat", [False, True])
def test_running_usage_is_in_every_event(server: Running, chat: bool) -> None:
    # 120 tokens: the counts grow a digit twice, and with them the chunks.
    options = {"include_usage": True, "continuous_usage_stats": True}
    *tokens, usage, _ = events_of(body_of(server.stream(120, chat=chat, stream_options=options)))
    counts = [event["usage"]["completion_tokens"] for event in tokens]
    assert counts == list(range(0 if chat else 1, 121))
    prompt = usage["usage"]["prompt_tokens"]
    assert all(event["usage"]["total_tokens"] == prompt + n for event, n in zip(tokens, counts, strict=True))


def test_a_model_name_with_odd_characters() -> None:
    with simulator("--served-model-name", 'a%d "x"/y') as running:
        options = {"continuous_usage_stats": True}
        events = events_of(body_of(running.stream(3, model='a%d "x"/y', stream_options=options)))
        assert {event["model"] for event in events if event} == {'a%d "x"/y'}
        assert running.client.get("/metrics").status_code == 200


@pytest.mark.parametrize(
    ("fields", "status", "message", "param"),
    [
        ({"model": "x", "prompt": PROMPT}, 404, "The model `x` does not exist.", "model"),
        ({"prompt": PROMPT, "max_tokens": 8190}, 400, "maximum context length is 8192", "input_tokens"),
        ({"prompt": PROMPT, "max_tokens": 0}, 400, "max_tokens must be at least 1", "max_tokens"),
        ({"prompt": []}, 400, "prompt", "prompt"),
        ({"prompt": [[1], [2]]}, 400, "one list", "prompt"),
        ({"prompt": [999_999]}, 400, "out of vocabulary", "prompt"),
        ({"prompt": PROMPT, "n": 2}, 400, "n must be 1", "n"),
        ({"prompt": PROMPT, "stream_options": {}}, 400, "Stream options", "stream_options"),
        ({"prompt": PROMPT, "max_tokens": "many"}, 400, "json_invalid", None),
    ],
)
def test_a_refusal_has_vllms_shape(
    client: httpx.Client, fields: dict[str, Any], status: int, message: str, param: str | None
) -> None:
    response = complete(client, **fields)
    assert response.status_code == status
    error = response.json()["error"]
    assert message in error["message"]
    assert (error["code"], error["param"]) == (status, param)


def test_the_unknown_model_error_is_vllms_to_the_letter(client: httpx.Client) -> None:
    assert complete(client, model="x", prompt=PROMPT).json() == {
        "error": {"message": "The model `x` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
    }


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("GET", "/v1/completions", 405), ("POST", "/health", 405), ("HEAD", "/health", 200)],
)
def test_unknown_paths_and_methods(client: httpx.Client, method: str, path: str, status: int) -> None:
    assert client.request(method, path).status_code == status


def test_bad_json(client: httpx.Client) -> None:
    assert client.post("/v1/completions", content=b"{not json").status_code == 400


def test_refusals_are_counted_apart(client: httpx.Client, server: Running) -> None:
    complete(client, model="x", prompt=PROMPT)
    counts = server.truth()["requests"]
    assert (counts["rejected"], counts["received"]) == (1, 0)


def test_tokenize(client: httpx.Client) -> None:
    body = client.post("/tokenize", json={"prompt": "hello", "add_special_tokens": False}).json()
    assert body["count"] == len(body["tokens"])
    assert body["max_model_len"] == 8192
    assert client.post("/tokenize", json={"prompt": "hello"}).json()["count"] == body["count"] + 1
    assert client.post("/tokenize", json={}).status_code == 400


def test_tokenizing_a_chat_counts_what_the_chat_will_count(client: httpx.Client) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello there"}]
    count = client.post("/tokenize", json={"messages": messages}).json()["count"]
    chat = complete(client, "/v1/chat/completions", messages=messages, max_tokens=1).json()
    assert count == chat["usage"]["prompt_tokens"]


def test_a_body_of_several_megabytes(client: httpx.Client) -> None:
    text = "long " * 600_000
    assert client.post("/tokenize", json={"prompt": text}).json()["count"] > 600_000


def test_the_engine_can_be_changed_while_it_runs(client: httpx.Client) -> None:
    before = client.get("/admin/config").json()
    changed = client.post("/admin/config", json={"base_ms": 2, "max_num_seqs": 8}).json()
    assert (changed["base_ms"], changed["max_num_seqs"]) == (2, 8)
    client.post("/admin/config", json={"base_ms": before["base_ms"], "max_num_seqs": before["max_num_seqs"]})
    assert client.get("/admin/config").json() == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kv_blocks": 5}, "kv_blocks"),
        ({"base_ms": -1}, "base_ms"),
        ({"speed": 3}, "speed"),
        ({"base_ms": 1e300}, "base_ms: expected a number from 0 to 3,600,000, not 1e+300"),
        ({"max_num_seqs": 8.5}, "max_num_seqs: expected a whole number, not 8.5"),
        ({"max_num_batched_tokens": 1e300}, "max_num_batched_tokens: expected a number from"),
    ],
)
def test_a_change_that_cannot_be_is_refused(client: httpx.Client, changes: dict[str, float], named: str) -> None:
    before = client.get("/admin/config").json()
    refused = client.post("/admin/config", json=changes)
    assert refused.status_code == 400
    assert named in refused.json()["error"]["message"]
    assert client.get("/admin/config").json() == before


def test_faults_are_shown_and_checked(client: httpx.Client) -> None:
    client.post("/admin/faults", json={"faults": ["ping:every=3"]})
    (fault,) = client.get("/admin/faults").json()["faults"]
    assert (fault["kind"], fault["every"]) == ("ping", 3)
    assert client.post("/admin/faults", json={"faults": ["pong"]}).status_code == 400


def test_an_api_key_guards_v1_and_answers_may_end_by_themselves() -> None:
    flags = ("--api-key", "secret", "--eos-mean-tokens", "5", "--fault", "ping:nth=1000", "--no-enable-prefix-caching")
    with simulator(*flags) as running:
        fields = {"prompt": PROMPT, "max_tokens": 400}
        assert running.client.get("/health").status_code == 200
        assert running.client.post("/v1/completions", json=fields).status_code == 401
        running.client.headers["authorization"] = "Bearer secret"
        bodies = [running.client.post("/v1/completions", json=fields).json() for _ in range(8)]
        forced = running.client.post("/v1/completions", json=fields | {"max_tokens": 40, "ignore_eos": True}).json()
        assert {body["choices"][0]["finish_reason"] for body in bodies} == {"stop"}
        assert len({body["usage"]["completion_tokens"] for body in bodies}) > 2
        assert forced["usage"]["completion_tokens"] == 40
        assert running.client.get("/admin/faults").json()["faults"]


def stream(server: Running, **fields: Any) -> list[dict[str, Any]]:
    body = json.dumps({"input": "hello", "stream": True, "ignore_eos": True, **fields}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    with server.connect() as sock:
        sock.sendall(head.encode() + body)
        text = body_of(read_all(sock))
    events = []
    for event in text.removesuffix(b"\n\n").split(b"\n\n"):
        match = re.fullmatch(rb"event: (\S+)\ndata: (.+)", event)
        assert match, event
        document = json.loads(match[2])
        assert document["type"] == match[1].decode()
        events.append(document)
    return events


def test_the_order_of_the_events(server: Running) -> None:
    events = stream(server, max_output_tokens=3)
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * 3,
        *("output_text.done", "completed"),
    ]
    assert [event["sequence_number"] for event in events] == list(range(9))
    last = events[-1]["response"]
    assert last["usage"]["output_tokens"] == 3
    assert last["output"][0]["content"][0]["text"] == "".join(event["delta"] for event in events[4:7])
    assert server.truth()["requests"]["completed"] == 1


def test_a_response_has_the_tokens_of_the_same_chat(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hello you"}]
    requested: list[dict[str, Any]] = [{"input": "hello you"}, {"input": messages}]
    found = [client.post("/v1/responses", json={**body, "max_output_tokens": 2}).json() for body in requested]
    chat = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2}).json()
    assert [each["usage"]["input_tokens"] for each in found] == [chat["usage"]["prompt_tokens"]] * 2
    assert {each["output"][0]["content"][0]["text"] for each in found} == {chat["choices"][0]["message"]["content"]}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/responses", {"input": "a", "model": "other"}, 404),
        ("/v1/responses", {"prompt": "a"}, 400),
        ("/v1/responses", {"input": 3}, 400),
        ("/v1/chat/completions", {}, 400),
    ],
)
def test_refusals(client: httpx.Client, path: str, body: dict[str, Any], status: int) -> None:
    assert client.post(path, json=body).status_code == status


def test_adapters_are_listed_and_answer_as_themselves() -> None:
    with simulator("adapter") as running:
        models = running.client.get("/v1/models").json()["data"]
        assert [(model["id"], model["parent"]) for model in models] == [(MODEL, None), ("adapter", MODEL)]
        assert [model["max_model_len"] for model in models] == [8192, None]
        requested: dict[str, dict[str, Any]] = {
            "/v1/completions": {"prompt": [5]},
            "/v1/responses": {"input": "a", "max_output_tokens": 2},
        }
        for path, body in requested.items():
            assert running.client.post(path, json={"model": "adapter", **body}).json()["model"] == "adapter"
