"""From words to profiles: as what the server of a run can be started anew."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tui.cli.options import add_profile_options, document_of, is_loopback, profile_from, variants_from

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
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.1.2.3", False), ("box", False)],
)
def test_what_is_this_machine_alone(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
