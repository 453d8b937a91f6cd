"""The bytes of a request: valid HTTP with the body that was asked for, whatever its endpoint and model."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.stream.request import (
    RequestTemplate,
    SessionHeaders,
    SessionIds,
    common_fields,
    host_and_port,
    model_shares,
    own_fields,
    request_template,
)

weights = st.dictionaries(st.text(min_size=1, max_size=8), st.floats(0.01, 100.0), min_size=1, max_size=5)


def template(endpoint: str, model: str | None = "m", **extra: Any) -> RequestTemplate:
    fields = common_fields(endpoint, model=model, temperature=0.5, options={"ignore_eos": True}, extra=extra)
    return request_template("http://host:81/base/", endpoint, fields, osl=9, api_key="k")


def sent(wire: bytes) -> tuple[bytes, Any]:
    """Head and body; fails if the length is not that of the body."""
    head, _, body = wire.partition(b"\r\n\r\n")
    assert head.endswith(b"Content-Length: %d" % len(body))
    return head, json.loads(body)


@pytest.mark.parametrize(
    ("endpoint", "path", "own"),
    [
        ("completions", b"/v1/completions", {"max_tokens": 9, "prompt": "hi"}),
        ("chat", b"/v1/chat/completions", {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}),
        ("responses", b"/v1/responses", {"max_output_tokens": 9, "input": "hi", "store": False}),
    ],
)
def test_the_body_of_each_endpoint(endpoint: str, path: bytes, own: dict[str, Any]) -> None:
    head, body = sent(template(endpoint, top_k=3).fill(b'"hi"'))
    assert head.startswith(b"POST /base%b HTTP/1.1\r\n" % path)
    assert own.items() >= own_fields(endpoint, "hi", 9).items()
    assert body == {"model": "m", "temperature": 0.5, "stream": True, "ignore_eos": True, "top_k": 3, **own}


def test_requests_name_their_session_in_the_headers_wanted() -> None:
    names = SessionHeaders(session="X-Session-ID", parent="X-Parent", root="X-Root", echo="x-token")
    named = msgspec.structs.replace(template("chat"), headers=names)
    lines = named.fill(b'"hi"', session=SessionIds(b"s-1", b"s", b"s-0", b"abc")).split(b"\r\n")
    assert {b"X-Session-ID: s-1", b"X-Parent: s-0", b"X-Root: s", b"x-token: abc"} < set(lines)
    first = named.fill(b'"hi"', session=SessionIds(b"s-0", b"s")).split(b"\r\n")
    assert not any(line.startswith((b"X-Parent", b"x-token")) for line in first)
    assert template("chat").fill(b'"hi"', session=SessionIds(b"s-0", b"s")) == template("chat").fill(b'"hi"')


def test_given_headers_are_sent_as_they_are() -> None:
    given = request_template("http://a", "chat", {}, osl=9, api_key="k", headers={"X-Tenant": "bench"})
    assert b"\r\nX-Tenant: bench\r\n" in given.head


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000/v1", ("127.0.0.1", 8000)),
        ("http://box", ("box", 80)),
        ("https://box/", ("box", 443)),
        ("https://[::1]:81", ("::1", 81)),
    ],
)
def test_the_port_of_a_url_is_its_schemes_unless_it_names_one(url: str, expected: tuple[str, int]) -> None:
    assert host_and_port(url) == expected


@given(st.text(min_size=1))
def test_a_request_brings_its_own_model(name: str) -> None:
    several = msgspec.structs.replace(template("completions", None), models=model_shares({name: 1.0}))
    _, body = sent(several.fill(b"[1,2]", name))
    assert (body["model"], body["prompt"]) == (name, [1, 2])
    assert msgspec.json.decode(msgspec.json.encode(several), type=RequestTemplate) == several


@given(weights, st.floats(0, 1, exclude_max=True))
def test_every_draw_has_a_model(given_weights: dict[str, float], drawn: float) -> None:
    several = msgspec.structs.replace(template("chat", None), models=model_shares(given_weights))
    assert several.model_of(drawn) in given_weights


def test_models_are_drawn_by_their_weights() -> None:
    several = msgspec.structs.replace(template("chat", None), models=model_shares({"a": 3, "b": 1}))
    assert [several.model_of(drawn) for drawn in (0.0, 0.74, 0.75, 0.99)] == ["a", "a", "b", "b"]


@pytest.mark.parametrize(("endpoint", "name"), [("chat", "messages"), ("responses", "input")])
def test_a_conversation_and_an_osl_of_its_own(endpoint: str, name: str) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    _, body = sent(template(endpoint).fill(json.dumps(said).encode(), osl=77, messages=True))
    assert body[name] == said
    assert 77 in body.values()
    assert 9 not in body.values()
