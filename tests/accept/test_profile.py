"""`[accept]`: what contradicts itself is refused with file, key and value."""

import pytest

from loadgen.errors import ProfileError
from loadgen.profile.accept import accept_doubts
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile

SOURCE = {"source": "a test"}


def profile(*criteria: dict[str, object], **accept: object) -> Profile:
    document = {"server": {"engine": "simulator"}, "accept": {"criteria": list(criteria), **accept}}
    return build_profile(document, where="box.toml")


def test_criteria_and_their_bounds() -> None:
    accept = profile({"figure": "ttft_p99_ms", "at_most": 500, "margin": "5%", **SOURCE}).accept
    assert accept is not None
    assert accept.criteria[0].bounds == {"at_most": 500}
    assert accept.criteria[0].margin == 0.05
    assert accept.starts == 5


@pytest.mark.parametrize(
    ("criteria", "words"),
    [
        (
            [{"figure": "ttft_p99", "at_most": 5}],
            r"ttft_p99: no such figure; .* firmware\.NAME, .*also",
        ),
        ([{"figure": "ttft_p99_ms", "at_most": -5}], "ttft_p99_ms: at_most = -5: expected 0 or more"),
        ([{"figure": "gpus", "equals": -1}], "gpus: equals = -1: expected 0 or more"),
        ([{"figure": "goodput_percent", "at_least": 101}], "at_least = 101: expected 0 to 100"),
        ([{"figure": "ttft_p99_ms"}], "has no bound"),
        ([{"figure": "ttft_p99_ms", "at_least": 5}], "takes at_most, not at_least"),
        ([{"figure": "xids", "at_most": 5}], "none may occur"),
        ([{"figure": "driver", "equals": 570}], "is a text: give equals = '570.0'"),
        ([{"figure": "gpus", "equals": "8"}], "gpus: is a number, not equals = '8'"),
        ([{"figure": "kv_cache_tokens", "at_least": 9, "at_most": 5}], "at_least = 9 is above at_most = 5"),
        ([{"figure": "gpus", "at_least": 1, "concurrency": 8}], "belongs to no load"),
        ([{"figure": "gpus", "at_least": 9}, {"figure": "gpus", "at_most": 5}], "at_least = 9 is above at_most = 5"),
        ([{"figure": "gpus", "at_least": 9}, {"figure": "gpus", "at_least": 5}], "two criteria bound it"),
        ([{"figure": "gpus", "equals": 8}, {"figure": "gpus", "at_least": 5}], "two criteria bound it"),
    ],
)
def test_criteria_that_cannot_be_judged(criteria: list[dict[str, object]], words: str) -> None:
    with pytest.raises(ProfileError, match=rf"^box\.toml: accept.*{words}"):
        profile(*({**one, **SOURCE} for one in criteria))


@pytest.mark.parametrize(
    ("accept", "words"),
    [
        ({"starts": 1}, "accept.starts = 1"),
        ({"phases": ["burnin"]}, "accept.phases.0 = 'burnin'"),
        ({"phases": ["box", "box"]}, "names a phase twice"),
        ({"start_spread": "1%"}, "needs start_spread_source"),
    ],
)
def test_settings_that_contradict(accept: dict[str, object], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        profile(**accept)


def test_growth_may_be_more_than_100_percent() -> None:
    rows = [{"figure": "ttft_rise_percent", "at_most": 150}, {"figure": "failed_percent", "at_most": 0}]
    assert profile(*({**row, **SOURCE} for row in rows)).accept is not None


@pytest.mark.parametrize(
    ("accept", "engine", "ids"),
    [
        ({"burn_in": "19m"}, "vllm", ["short-burn-in"]),
        ({"burn_in": "20m"}, "vllm", []),
        ({}, "attach", ["single-start"]),
        ({"burn_in": "1m", "phases": ["box"]}, "attach", []),
    ],
)
def test_what_cannot_pass_is_known_before_it_begins(accept: dict[str, object], engine: str, ids: list[str]) -> None:
    found = profile(**accept).accept
    assert found is not None and list(accept_doubts(found, engine)) == ids


def test_the_same_figure_at_two_loads() -> None:
    one = {"figure": "ttft_p99_ms", "at_most": 500, "concurrency": 8, **SOURCE}
    assert profile(one, {**one, "concurrency": 16}).accept is not None
