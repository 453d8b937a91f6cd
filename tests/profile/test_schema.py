"""Chat, several servers and other keys of a profile: what is read, and what is refused before anything is sent."""

from typing import Any

import pytest

from loadgen.errors import ProfileError
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile

ONE = {"engine": "attach", "url": "http://a:1"}


def built(server: dict[str, Any], **load: Any) -> Profile:
    return build_profile({"server": server, "load": load}, where="p.toml")


def test_what_is_read() -> None:
    load = built(
        ONE,
        endpoint="responses",
        models={"base": 1, "adapter": 3},
        extra_body={"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}},
        cancel={"share": 0.2, "after": "500ms"},
    ).load
    assert (load.endpoint, load.models) == ("responses", {"base": 1.0, "adapter": 3.0})
    assert load.extra_body["chat_template_kwargs"] == {"enable_thinking": False}
    assert load.cancel is not None
    assert (load.cancel.share, load.cancel.after) == (0.2, 0.5)


def test_several_servers_stand_in_the_place_of_one() -> None:
    assert (built(ONE).server.attached, built(ONE).server.servers) == (["http://a:1"], 1)
    several = built({"engine": "attach", "urls": ["http://a:1", "http://a:2"]}).server
    assert (several.attached, several.servers) == (["http://a:1", "http://a:2"], 2)
    started = built({"engine": "simulator", "instances": 3}).server
    assert (started.attached, started.servers) == ([], 3)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"endpoint": "embeddings"}, ["load.endpoint", "'responses'"]),
        ({"models": {"a": 0}}, ["load", "models", "'a' = 0", "above 0"]),
        ({"models": {"": 1}}, ["load", "models", "name"]),
        ({"models": {"a": float("nan")}}, ["load", "models", "above 0"]),
        ({"models": {"a": "much"}}, ["load.models.a", "'much'"]),
        ({"extra_body": {"stream": False}}, ["load", "extra_body.stream", "set by vramp"]),
        ({"extra_body": {"max_tokens": 1}}, ["load", "extra_body.max_tokens", "set by vramp"]),
        ({"extra_body": {"n": 2}}, ["load", "extra_body.n", "one streamed answer"]),
        ({"extra_body": {"x": float("inf")}}, ["load", "extra_body", "JSON"]),
        ({"extra_body": 3}, ["load.extra_body", "3"]),
        ({"temperature": float("inf")}, ["load.temperature = inf", "finite number"]),
        ({"warmup": -5}, ["load.warmup = -5", "up to 1,000,000,000 requests, or a time such as 5s"]),
        ({"warmup": -5.0}, ["load.warmup = -5.0", "or a time such as 5s"]),
        ({"warmup": True}, ["load.warmup = True", "a duration such as"]),
        ({"warmup": 10**30}, ["load.warmup", "up to 1,000,000,000 requests"]),
        ({"requests": 10**30}, ["load.requests", "less than or equal to 1000000000"]),
        ({"rate": 1e-300}, ["load.rate", "greater than or equal to 0.001"]),
        ({"rate_points": [[0, 0], [60, 1e-300]]}, ["load.rate_points", "a mean rate of 0.001 at least"]),
        ({"trace": {"speed": 1e-300}}, ["load.trace.speed", "greater than or equal to 0.001"]),
        ({"cancel": {"share": 1.5, "after": "1s"}}, ["load.cancel.share", "1.5"]),
        ({"cancel": {"share": 0, "after": "1s"}}, ["load.cancel.share", "greater than 0"]),
        ({"cancel": {"share": 0.5}}, ["load.cancel.after", "missing"]),
        ({"cancel": {"share": 0.5, "after": "soon"}}, ["load.cancel.after", "'soon'", "500ms"]),
        ({"cancel": {"share": 0.5, "aftr": "1s"}}, ["load.cancel.aftr", "did you mean load.cancel.after?"]),
    ],
)
def test_refused_loads(load: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ProfileError) as caught:
        built(ONE, **load)
    for word in ["p.toml", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"engine": "attach", "url": "http://a", "urls": ["http://b"]}, ["one of the two"]),
        ({"engine": "attach", "urls": []}, ["url = "]),
        ({"engine": "attach", "urls": ["http://a", "b:80"]}, ["http://host:port", "'b:80'"]),
        ({"engine": "attach", "url": "http://a:99999"}, ["http://host:port", "'http://a:99999'"]),
        ({"engine": "attach", "url": "http://a:b"}, ["http://host:port", "'http://a:b'"]),
        ({"engine": "attach", "url": "http://[::1"}, ["http://host:port", "'http://[::1'"]),
        ({"engine": "attach", "urls": ["http://a/", "http://a"]}, ["twice"]),
        ({"engine": "attach", "urls": ["http://me:secret@a"]}, ["password", "api_key_env"]),
        ({"engine": "simulator", "urls": ["http://a"]}, ["attach"]),
    ],
)
def test_refused_servers(server: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ProfileError) as caught:
        built(server)
    for word in ["p.toml", "server", *words]:
        assert word in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_plan_waits_for_no_more_streams_than_can_be_counted() -> None:
    with pytest.raises(ProfileError, match=r"plan.completed .*less than or equal to 1000000000"):
        build_profile({"server": ONE, "plan": {"settle": "5s", "completed": 2**60}}, where="p.toml")


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"cost": {"gpu_hour": 1.0, "gpus": 10**400}}, "cost.gpus"),
        ({"reference": {"source": "x", "points": [{"figures": {"ttft_p99_ms": float("inf")}}]}}, "ttft_p99_ms = inf"),
    ],
)
def test_refused_numbers_that_no_report_could_show(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ProfileError, match=key):
        build_profile({"server": ONE, **table}, where="p.toml")
