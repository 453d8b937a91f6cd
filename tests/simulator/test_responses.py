"""`/v1/responses` of the simulator: the events of vLLM 0.32, in its order."""

import json
import re
from typing import Any

import httpx
import pytest

from tests.simulator.conftest import MODEL, Running, body_of, read_all, simulator


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
    asked: list[dict[str, Any]] = [{"input": "hello you"}, {"input": messages}]
    found = [client.post("/v1/responses", json={**body, "max_output_tokens": 2}).json() for body in asked]
    chat = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2}).json()
    assert [each["usage"]["input_tokens"] for each in found] == [chat["usage"]["prompt_tokens"]] * 2
    assert {each["output"][0]["content"][0]["text"] for each in found} == {chat["choices"][0]["message"]["content"]}


@pytest.mark.parametrize(
    ("body", "status"), [({"input": "a", "model": "other"}, 404), ({"prompt": "a"}, 400), ({"input": 3}, 400)]
)
def test_refusals(client: httpx.Client, body: dict[str, Any], status: int) -> None:
    assert client.post("/v1/responses", json=body).status_code == status


def test_adapters_are_listed_and_answer_as_themselves() -> None:
    with simulator("adapter") as running:
        models = running.client.get("/v1/models").json()["data"]
        assert [(model["id"], model["parent"]) for model in models] == [(MODEL, None), ("adapter", MODEL)]
        assert [model["max_model_len"] for model in models] == [8192, None]
        asked: dict[str, dict[str, Any]] = {
            "/v1/completions": {"prompt": [5]},
            "/v1/responses": {"input": "a", "max_output_tokens": 2},
        }
        for path, body in asked.items():
            assert running.client.post(path, json={"model": "adapter", **body}).json()["model"] == "adapter"
