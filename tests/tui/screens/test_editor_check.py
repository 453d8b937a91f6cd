"""Problems of a profile's text: their words and lines, for any text at all."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.screens.editor_check import check_text, line_of

TEXT = """\
# a profile
[server]
engine = "simulator"
args = { preset = "fast" }

[load]
isl = 16
  "osl" = 8

[[stages]]
concurrency = 1
[[stages]] # the second
concurrency = 2

[variants.slow]
load.isl = 32
[variants.slow.server.args]
seed = 3
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("server", 2),
        ("server.engine", 3),
        ("server.args.preset", 4),
        ("server.model", 2),
        ("load.isl", 7),
        ("load.osl", 8),
        ("stages.0.concurrency", 11),
        ("stages.1.concurrency", 13),
        ("stages.1.rate", 12),
        ("variants.slow.load.isl", 16),
        ("variants.slow.server.args.seed", 18),
        ("plan", None),
    ],
)
def test_a_key_is_found_on_its_line(key: str, line: int | None) -> None:
    assert line_of(TEXT, key.split(".")) == line


def test_a_good_profile_has_no_problems() -> None:
    document, problems = check_text(TEXT, "good")
    assert problems == []
    assert document["name"] == "good"


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("isl = 16", "islx = 16"), 7, "load.islx: unknown key; did you mean load.isl?"),
        (("isl = 16", "isl = -1"), 7, "load.isl"),
        (('"simulator"', '"simulatr"'), 3, "server.engine = 'simulatr'"),
        (('"simulator"', "simulator"), 3, "Invalid value"),
        (("concurrency = 2", "rate = 1\nconcurrency = 2"), 12, "not both"),
        (("load.isl = 32", "load.isl = -32"), 16, "variant slow: load.isl"),
        (('engine = "simulator"\n', ""), 2, "server.engine: is missing"),
        (("[load]\n", "[load]\npasses = 2\n[plan]\nsearch = 'knee'\n[load2]\n"), None, "load2"),
    ],
)
def test_a_problem_has_words_and_a_line(change: tuple[str, str], line: int | None, words: str) -> None:
    assert change[0] in TEXT
    _, problems = check_text(TEXT.replace(*change), "x")
    assert any(words in problem.words and (line is None or problem.line == line) for problem in problems), problems


def test_a_problem_of_the_document_is_not_told_again_of_each_variant() -> None:
    _, problems = check_text(TEXT.replace('"simulator"', '"simulatr"'), "x")
    assert len(problems) == 1


@given(st.text(alphabet=st.sampled_from("[]{}=.\"'#\n abcserver12"), max_size=200) | st.text(max_size=50))
def test_no_text_is_too_strange(text: str) -> None:
    document, problems = check_text(text, "x")
    assert document or problems
    lines = max(1, len(text.splitlines()))
    assert all(problem.line is None or 1 <= problem.line <= lines + 1 for problem in problems)


KEYS = st.from_regex(r"[a-z][a-z0-9_-]{0,5}", fullmatch=True)


@given(st.dictionaries(KEYS, st.dictionaries(KEYS, st.integers(), min_size=1, max_size=4), min_size=1, max_size=4))
def test_every_key_of_every_table_is_found(tables: dict[str, dict[str, int]]) -> None:
    lines = []
    for table, values in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {value}" for key, value in values.items()]
    text = "\n".join(lines)
    assert tomllib.loads(text) == tables
    for table, values in tables.items():
        for key, value in values.items():
            line = line_of(text, [table, key])
            assert line is not None and lines[line - 1] == f"{key} = {value}"
