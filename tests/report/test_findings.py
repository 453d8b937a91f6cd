"""Findings for a person and for a script."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.journal import Finding, Severity, by_severity
from loadgen.report.findings import findings_count, findings_json, findings_text

BLOCKS = Finding("unknown-flag", "blocks", "--swap-space", "vLLM would not start", "remove server.args.swap-space")
WARNS = Finding("numa-balancing", "warns", "kernel.numa_balancing is 1", "it can hang GPUs", source="AMD's guide")
INFO = Finding("governor", "info", "governor performance", "")


def test_the_worst_comes_first_and_what_is_empty_is_left_out() -> None:
    assert findings_text([INFO, WARNS, BLOCKS]) == (
        "blocks unknown-flag: --swap-space\n"
        "       why: vLLM would not start\n"
        "       fix: remove server.args.swap-space\n"
        "\n"
        "warns  numa-balancing: kernel.numa_balancing is 1\n"
        "       why: it can hang GPUs\n"
        "       source: AMD's guide\n"
        "\n"
        "info   governor: governor performance\n"
        "\n"
        "1 blocks, 1 warning, 1 note"
    )


@pytest.mark.parametrize(
    ("found", "words"), [([], "nothing found"), ([INFO, INFO], "2 notes"), ([BLOCKS, BLOCKS], "2 block")]
)
def test_the_count(found: list[Finding], words: str) -> None:
    assert findings_count(found) == words


def test_json_has_what_the_text_has() -> None:
    assert json.loads(findings_json([INFO, BLOCKS])) == [
        {
            "id": "unknown-flag",
            "severity": "blocks",
            "seen": "--swap-space",
            "why": "vLLM would not start",
            "fix": "remove server.args.swap-space",
        },
        {"id": "governor", "severity": "info", "seen": "governor performance", "why": ""},
    ]


SEVERITIES: st.SearchStrategy[Severity] = st.sampled_from(["blocks", "warns", "info"])


@given(st.lists(st.builds(Finding, st.text(), SEVERITIES, st.text(), st.text(), st.text(), st.text())))
def test_nothing_is_lost(found: list[Finding]) -> None:
    assert sorted(map(repr, by_severity(found))) == sorted(map(repr, found))
    assert len(json.loads(findings_json(found))) == len(found)


def test_a_command_is_never_broken_inside_a_word() -> None:
    command = "kill " + " ".join(str(100_000 + n) for n in range(30))
    text = findings_text([Finding("leftovers", "warns", "31 processes", "they hold HBM", command)])
    assert command in text.replace("\n         ", " ")
    assert max(map(len, text.splitlines())) <= 100
