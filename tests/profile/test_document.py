"""Profiles: what is read, and that every refusal names file, key and value."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.profile.document import build_profile, load_profile, variant_names
from loadgen.profile.load import Load
from loadgen.profile.schema import Profile

MINIMAL = '[server]\nengine = "simulator"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "p.toml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ProfileError) as caught:
        load_profile(write(folder, text), overrides)
    return str(caught.value)


def test_a_profile_cannot_change(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, MINIMAL))
    with pytest.raises(ValueError, match="frozen"):
        profile.load.isl = 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nx = = 3", ["p.toml", "not valid TOML", "line 2"]),
        ("", ["p.toml", "server", "missing"]),
        ('[server]\nengine = "vlm"', ["server.engine", "'vlm'", "'vllm'"]),
        (MINIMAL + "[load]\nconcurency = 3", ["load.concurency", "unknown key", "did you mean load.concurrency?"]),
        (MINIMAL + "[lod]\nisl = 3", ["lod", "unknown key", "did you mean load?"]),
        (MINIMAL + "[[stages]]\nconcurrncy = 3", ["stages.0.concurrncy", "did you mean stages.concurrency?"]),
        (MINIMAL + "[load]\nisl = 'many'", ["load.isl", "'many'", "integer"]),
        (MINIMAL + "[load]\nisl = 0", ["load.isl", "0", "greater than or equal to 1"]),
        (MINIMAL + "[load]\nduration = 'soon'", ["load.duration", "'soon'", "30s"]),
        (MINIMAL + "[load]\nduration = '0s'", ["load.duration", "greater than 0"]),
        (MINIMAL + "[load]\nconcurrency = []", ["load.concurrency", "at least 1"]),
        (MINIMAL + "[[stages]]\nconcurrency = 1\nrate = 2", ["stages.0", "not both"]),
        (MINIMAL + "[[stages]]\nconcurrency = 1\nrate_points = [[0, 1], [60, 10]]", ["stages.0", "not both"]),
        (MINIMAL + "[slo]\nttfx_p99 = '2s'", ["slo.ttfx_p99", "ttft_p99"]),
        (MINIMAL + "[slo]\nttft_p99 = 2", ["slo.ttft_p99", "2", "with its unit"]),
        (MINIMAL + "[slo]\nfailed = '120%'", ["slo.failed", "'120%'", 'a share such as "1%" or 0.01']),
        (MINIMAL + "[slo]\nfailed = -1", ["slo.failed", "-1", 'a share such as "1%" or 0.01']),
        (MINIMAL + "[slo]\nfailed = 'many'", ["slo.failed", "'many'", 'a share such as "1%" or 0.01']),
        ('[server]\nengine = "attach"', ["server", "url"]),
        ('[server]\nengine = "attach"\nurl = "localhost:80"', ["server", "http://host:port", "localhost:80"]),
        ('[server]\nengine = "vllm"', ["server", "model"]),
        (MINIMAL + 'url = "http://a"', ["server", "attach"]),
        (MINIMAL + "port = 70000", ["server.port", "70000"]),
        (MINIMAL + "[server.docker]\nimage = 'i'", ["server", "no use for", "[server.docker]"]),
        ('[server]\nengine = "docker"\nmodel = "m"', ["server", "needs a table [server.docker]"]),
        ('[server]\nengine = "docker"\n[server.docker]\nimage = "i"', ["server", "model"]),
        ('[server]\nengine = "attach"\nurl = "http://a"\ninstances = 2', ["server", "starts none"]),
        (MINIMAL + "[server.docker]\nimag = 'i'", ["server.docker.imag", "did you mean server.docker.image?"]),
        (MINIMAL + "[reference]\nsorce = 's'", ["reference.sorce", "did you mean reference.source?"]),
        (MINIMAL + "[reference]\nsource = 's'\n[[reference.points]]\nfigures = {ttft = 1}", ["ttft_p99_ms"]),
        (MINIMAL + "[load]\nshapes = [[1024]]", ["load.shapes.0"]),
        (MINIMAL + f"[load]\nisl = 0x{'9' * 4000}", ["load.isl", "an integer of thousands of digits"]),
        (MINIMAL + f"a{'.a' * 2000} = 1", ["more than 32 tables or lists within each other"]),
        (MINIMAL + f"[a{'.a' * 2000}]", ["more than 32 tables or lists within each other"]),
    ],
)
def test_a_refusal_says_where_and_what(tmp_path: Path, text: str, words: list[str]) -> None:
    message = refusal(tmp_path, text)
    for word in words:
        assert word in message


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, MINIMAL + "[load]\nisl = 0\nosl = 0")
    assert len(message.splitlines()) == 2


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL)
    with pytest.raises(ProfileError, match=r"did you mean .*p\.toml"):
        load_profile(tmp_path / "q.toml")
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(tmp_path)
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ProfileError, match="not UTF-8"):
        load_profile(tmp_path / "b.toml")


@pytest.mark.parametrize(
    ("override", "get", "value"),
    [
        ("load.isl=4096", lambda p: p.load.isl, 4096),
        ("load.concurrency=[1, 2]", lambda p: p.load.concurrency, [1, 2]),
        ("load.duration=90s", lambda p: p.load.duration, 90.0),
        ("server.args.max-model-len=99", lambda p: p.server.args["max-model-len"], 99),
        ("server.served_model_name=a/b", lambda p: p.server.served_model_name, "a/b"),
        ("stages.0.osl=7", lambda p: p.stages[0].osl, 7),
        ("slo.tpot_p50=50ms", lambda p: p.slo.limits_ms["tpot_p50"], 50.0),
        ("slo.failed=1%", lambda p: p.slo.failed, 0.01),
        ("slo.failed=0.02", lambda p: p.slo.failed, 0.02),
        ("server.env.X=1", lambda p: p.server.env["X"], "1"),
        ("server.env.X= 1.10 ", lambda p: p.server.env["X"], "1.10"),
        ("server.env.X=true", lambda p: p.server.env["X"], "true"),
        ("server.env.X=2026-01-01", lambda p: p.server.env["X"], "2026-01-01"),
        ('server.env.X="1"', lambda p: p.server.env["X"], "1"),
        ("server.model=70", lambda p: p.server.model, "70"),
    ],
)
def test_overrides(tmp_path: Path, override: str, get: object, value: object) -> None:
    profile = load_profile(write(tmp_path, MINIMAL + "[[stages]]\nconcurrency = 4"), [override])
    assert get(profile) == value  # type: ignore[operator]


def test_a_text_that_the_profile_gives_as_a_number_is_refused_as_before(tmp_path: Path) -> None:
    message = refusal(tmp_path, MINIMAL + "[server.env]\nX = 1\n", "server.env.Y=2")
    assert "server.env.X = 1: input should be a valid string" in message
    assert "Y" not in message


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("load.isl", "key.path=value"),
        ("=3", "key.path"),
        ("load.isl.x=3", "is a value"),
        ("stages.4.isl=3", "1 entries"),
    ],
)
def test_overrides_that_make_no_sense(tmp_path: Path, override: str, word: str) -> None:
    text = MINIMAL + "[load]\nisl = 5\n[[stages]]\nconcurrency = 4"
    message = refusal(tmp_path, text, override)
    assert override in message
    assert word in message


VARIED = (
    MINIMAL
    + """
[server.args]
startup-s = 3
block-size = 16
[load]
concurrency = [1, 2]
osl = 8
[variants.latency]
description = "one at a time"
unset = ["server.args.block-size", "load.osl"]
load.concurrency = 1
[variants.batch.server.args]
startup-s = 0
"""
)


def test_a_variant_lays_over_the_profile(tmp_path: Path) -> None:
    path = write(tmp_path, VARIED)
    plain, latency, batch = (load_profile(path, variant=name) for name in (None, "latency", "batch"))
    assert (plain.name, latency.name, batch.name) == ("p", "p+latency", "p+batch")
    assert latency.description == "one at a time"
    assert latency.load.concurrency == [1]
    assert (plain.load.osl, latency.load.osl) == (8, Load().osl)
    assert latency.server.args == {"startup-s": 3}
    assert batch.server.args == {"startup-s": 0, "block-size": 16}
    assert batch.load == plain.load


def test_an_override_wins_over_a_variant(tmp_path: Path) -> None:
    assert load_profile(write(tmp_path, VARIED), ["load.concurrency=7"], variant="latency").load.concurrency == [7]


def test_variants_are_named_in_order() -> None:
    assert variant_names({"variants": {"b": {}, "a": {}}}) == ["b", "a"]
    assert variant_names({}) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (VARIED, ["no variant 'x'", "latency, batch"]),
        (MINIMAL, ["no variant 'x'", "it has none"]),
        (MINIMAL + "[variants]\nx = 3", ["variants: expected tables"]),
        (MINIMAL + "[variants.x.load]\nisl = 0", ["load.isl"]),
        (MINIMAL + "[variants.x.lod]\nisl = 1", ["did you mean load?"]),
        (MINIMAL + "[variants.x]\nunset = ['load.isl']", ["variants.x.unset", "load.isl", "is not set"]),
        (MINIMAL + "[variants.x]\nunset = 5", ["variants.x.unset = 5", "expected a list of keys"]),
    ],
)
def test_a_variant_that_cannot_be_taken(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile(write(tmp_path, text), variant="x")
    for word in words:
        assert word in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["engine", "isl", "load", "server", "slo", "x"]), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_any_document_is_a_profile_or_a_clear_refusal(document: object) -> None:
    table = document if isinstance(document, dict) else {"server": document, "variants": document}
    try:
        profile = build_profile(table, where="here")
    except ProfileError as error:
        assert str(error).startswith("here: ")
    else:
        assert isinstance(profile, Profile)
