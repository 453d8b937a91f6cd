"""`vramp run --url` on the servers of others with its defaults: prompts of exact length, canaries, a duration."""

from pathlib import Path

import pytest

from tests.others.comparison import run
from tests.others.servers import STARTS, Others

pytestmark = [pytest.mark.others, pytest.mark.timeout(900)]
LOAD = "--isl 64 --osl 16 --concurrency 2 --duration 4s --warmup 0".split()
TEXT_ONLY = {"nginx, key, prefix, only /v1", "LiteLLM", "transformers serve", "guidellm's mock server"}
"""They refuse token ids, or those that vramp guesses without /tokenize: vLLM inside a stream of status 200."""
LATE_USAGE = {"vllm-router", "LiteLLM"}
"""Half of the tiny model's tokens are bytes that are no text. Where no event has usage, an answer of such bytes alone
has no output that could be timed."""


@pytest.mark.parametrize("name", STARTS)
def test_run_completes_with_one_note_on_missing_features(others: Others, name: str, tmp_path: Path) -> None:
    ended = run(others[name], tmp_path, *LOAD)
    errors = set(ended.stage.requests.errors)
    assert errors <= ({"empty"} if name in LATE_USAGE else set()), ended.output
    assert ended.code == bool(errors), ended.output
    assert ended.stage.requests.completed > 0
    assert len(ended.notes) == len(set(ended.notes))
    given_up = [note for note in ended.notes if "prompts of token ids (they are text)" in note]
    assert len(given_up) == (name in TEXT_ONLY), ended.notes
    assert not any("API key" in note for note in ended.notes)


def test_a_missing_key_is_named_before_any_load(others: Others, tmp_path: Path) -> None:
    ended = run(others["nginx, key, prefix, only /v1"]._replace(key=None), tmp_path, *LOAD)
    assert ended.code == 3
    assert "wants an API key" in ended.output
    assert "--api-key-env" in ended.output


def test_a_wrong_key_is_named_with_its_variable(others: Others, tmp_path: Path) -> None:
    ended = run(others["nginx, key, prefix, only /v1"]._replace(key="wrong"), tmp_path, *LOAD)
    assert ended.code == 3
    assert "refused the API key" in ended.output
    assert "KEY_OF_THE_TESTS" in ended.output


def test_a_private_certificate_needs_its_authority(others: Others, tmp_path: Path) -> None:
    ended = run(others["nginx, TLS"]._replace(authority=None), tmp_path, *LOAD)
    assert ended.code == 3
    assert "for a private certificate set SSL_CERT_FILE" in ended.output
