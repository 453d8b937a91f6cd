"""From words to profiles: as what the server of a run can be restarted."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from loadgen.errors import ProfileError
from loadgen.plan.from_profile import stages_of
from tui.cli.options import add_profile_options, document_of, is_loopback, profile_from, variants_from
from tui.cli.run import monitor_parser

PROFILE = """
[server]
engine = "simulator"
[load]
isl = 16
[variants.small.server.args]
max-num-seqs = 8
[variants.broken.load]
isl = "long"
"""


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_profile_options(parser)
    return parser.parse_args(words)


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "box.toml"
    file.write_text(PROFILE)
    return str(file)


def test_variants_are_offered_under_the_options_and_the_base_with_them(path: str) -> None:
    options = parsed(path, "--concurrency", "3", "--variant", "small")
    document, where = document_of(options)
    variants = variants_from(document, where, options)
    # One that is not valid is no choice.
    assert list(variants) == ["base", "small"]
    assert all(profile.load.concurrency == [3] for profile in variants.values())
    assert (variants["base"].server.args, variants["base"].name) == ({}, "box")
    assert variants["small"] == profile_from(document, where, options)


def test_no_variants_no_choice(tmp_path: Path, path: str) -> None:
    plain = tmp_path / "plain.toml"
    plain.write_text('[server]\nengine = "simulator"\n')
    for words in ((str(plain),), (path, "--url", "http://127.0.0.1:9"), ("--url", "http://127.0.0.1:9")):
        options = parsed(*words)
        assert variants_from(*document_of(options), options) == {}


@pytest.mark.parametrize(
    "tables",
    [
        '[{}load]\nrate_points = [[0, 1], ["60s", 10]]',
        '[{}load]\nrate = [5]\nduration = "3s"',
        '[{}load]\narrival = "replay"\ndata = "trace.jsonl"',
        '[[{}stages]]\nrate = 3\nduration = "3s"',
        '[{}plan]\nsearch = "slo"\ncompleted = 20\n[{}slo]\nttft_p99 = "100ms"',
        '[{}plan]\nladder = "1..64"',
    ],
)
@pytest.mark.parametrize("variant", [None, "other"])
def test_load_requested_by_name_takes_the_place_of_every_plan(tables: str, variant: str | None, tmp_path: Path) -> None:
    prefix, words = ("", []) if variant is None else (f"variants.{variant}.", ["--variant", variant])
    file = tmp_path / "planned.toml"
    file.write_text(f'server.engine = "simulator"\n{tables.replace("{}", prefix)}\n')
    (tmp_path / "trace.jsonl").write_text('{"timestamp": 0, "input_length": 6, "output_length": 3}\n')
    options = parsed(str(file), "--concurrency", "3", *words)
    for monitored in (False, True):
        if monitored:
            options = monitor_parser().parse_args(["--server", str(file), *words])
        profile = profile_from(*document_of(options), options)
        (stage,) = stages_of(profile)
        assert (stage.concurrency, stage.rate) == (0 if monitored else 3, None)


def test_a_ladder_and_a_ramp_take_the_place_of_every_plan(tmp_path: Path) -> None:
    file = tmp_path / "planned.toml"
    file.write_text('server.engine = "simulator"\n[plan]\nby = "rate"\nsearch = "slo"\n[slo]\nttft_p99 = "1s"\n')
    for words, loads in ((("--ladder", "1,2,6"), [1, 2, 6]), (("--ladder", "6"), [1, 2, 4, 6])):
        options = parsed(str(file), *words)
        assert [stage.concurrency for stage in stages_of(profile_from(*document_of(options), options))] == loads
    options = parsed(str(file), "--ramp", "1:64:60s")
    (stage,) = stages_of(profile_from(*document_of(options), options))
    assert stage.duration_s == 60
    assert (stage.steps[0], stage.steps[-1]) == ((0.0, 1.0), (54.0, 64.0))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--ramp", "64:1:60s"), "--ramp 64:1:60s: goes down; give the lower load first"),
        (("--ramp", "8:8:60s"), "--ramp 8:8:60s: stands still"),
        (("--ramp", "1:1000000:60s"), "ramp.end: 1e\\+06 is not a concurrency, a whole number up to 100000"),
        (("--ramp", "0:8:60s"), "plan.ramp.start = 0"),
        (("--ramp", "1:8:0s"), "plan.ramp.over = '0s'"),
        (("--ramp", "1:8:soon"), "plan.ramp.over = 'soon': expected a duration"),
        (("--ramp", "1:8"), "--ramp 1:8: expected streams, streams and a time, such as 1:64:60s"),
        (("--ramp", "1.5:8:60s"), "expected streams, streams and a time"),
        (("--ramp", f"1:{'9' * 5000}:60s"), "expected streams, streams and a time"),
        (("--ramp", "1:8:60s:9"), "expected streams, streams and a time"),
        (("--ramp", "1:8:60s", "--duration", "9s"), "says how long it takes: leave out --duration"),
        (("--ladder", "1,x"), "--ladder 1,x: expected a number or a list of them"),
        (("--ladder", "0"), "plan.ladder = 0"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(path: str, words: tuple[str, ...], complaint: str) -> None:
    options = parsed(path, *words)
    with pytest.raises(ProfileError, match=complaint):
        profile_from(*document_of(options), options)


def test_keys_are_left_out_of_a_profile_and_of_each_variant(tmp_path: Path) -> None:
    file = tmp_path / "flags.toml"
    file.write_text(
        'server.engine = "simulator"\n[server.args]\nmax-num-seqs = 8\ntick-s = 0.01\n'
        '[variants.plain]\nunset = ["server.args.max-num-seqs"]\n[variants.wide.server.args]\nmax-num-seqs = 64\n'
    )
    options = parsed(str(file), "--unset", "server.args.max-num-seqs")
    variants = variants_from(*document_of(options), options)
    assert list(variants) == ["base", "plain", "wide"]
    assert all(each.server.args == {"tick-s": 0.01} for each in variants.values())
    options = parsed(str(file), "--unset", "server.args.port")
    with pytest.raises(ProfileError, match=r"--unset: server\.args\.port: is not set, so it cannot be unset"):
        profile_from(*document_of(options), options)


@pytest.mark.parametrize("text", ["load = 5", "server = []", 'plan = "knee"', "cluster = 1", "stages = [3]"])
def test_what_is_no_table_is_reported_under_any_option(text: str, tmp_path: Path) -> None:
    file = tmp_path / "flat.toml"
    file.write_text(text)
    options = parsed(str(file), "--concurrency", "3", "--hosts", "a,b", "--requests", "5")
    with pytest.raises(ProfileError, match=f"flat.toml: {text.split()[0]}"):
        profile_from(*document_of(options), options)


def test_machines_named_by_an_option_replace_those_of_the_profile(tmp_path: Path, path: str) -> None:
    clustered = tmp_path / "clustered.toml"
    clustered.write_text(PROFILE + '[cluster]\nhosts = ["a"]\nport = 7000\non_loss = "end"\n')
    for words, hosts, scheduler, port in (
        ((str(clustered),), ["a"], None, 7000),
        ((str(clustered), "--hosts", "b,me@c:22"), ["b", "me@c:22"], None, 7000),
        ((str(clustered), "--scheduler", "tcp://d:8786"), [], "tcp://d:8786", 0),
        ((path, "--hosts", "b"), ["b"], None, 0),
        ((path,), [], None, 0),
    ):
        cluster = profile_from(*document_of(parsed(*words)), parsed(*words)).cluster
        assert (cluster.hosts, cluster.scheduler, cluster.port) == (hosts, scheduler, port)
    assert profile_from(*document_of(parsed(str(clustered))), parsed(str(clustered))).cluster.on_loss == "end"


@pytest.mark.parametrize("text", ["²", "9" * 5000])
@pytest.mark.parametrize("name", ["warmup", "isl", "requests"])
def test_what_only_looks_like_a_number_is_reported(path: str, name: str, text: str) -> None:
    options = parsed(path, f"--{name}", text)
    with pytest.raises(ProfileError, match=f"--{name} {text}: expected a number"):
        profile_from(*document_of(options), options)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.1.2.3", False), ("box", False)],
)
def test_what_is_this_machine_alone(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


def test_sessions_by_option_keep_the_profile_s_other_settings_of_them(tmp_path: Path) -> None:
    file = tmp_path / "agents.toml"
    file.write_text(
        '[server]\nengine = "simulator"\n[load]\nsessions = { data = "sample", max_gap = "5s", salt = "session" }\n'
    )
    options = parsed(str(file), "--sessions", "generated", "--seed", "3")
    sessions = profile_from(*document_of(options), options).load.sessions
    assert sessions is not None
    assert (sessions.data, sessions.max_gap, sessions.salt) == ("generated", 5, "session")
