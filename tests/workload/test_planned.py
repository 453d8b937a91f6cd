"""From a profile's keys to stages: arrivals, passes, lengths beyond the model, and keys that do not fit each other."""

from pathlib import Path

import pytest

from loadgen.errors import ProfileError
from loadgen.plan.from_profile import stages_of
from loadgen.plan.stage import Stage, check_lengths
from loadgen.profile.document import build_profile


def plan(**load: object) -> list[Stage]:
    return stages_of(build_profile({"server": {"engine": "simulator"}, "load": load}, where="test"))


def test_a_rate_over_time_is_one_stage() -> None:
    (stage,) = plan(rate_points=[[0, 0], ["10s", 20]], max_concurrency=5)
    assert (stage.rate, stage.concurrency, stage.duration_s, stage.max_concurrency) == (10.0, None, 10.0, 5)
    by_hand = stage.by_hand(rate=3.0, concurrency=None)
    assert (by_hand.rate, by_hand.rate_points, by_hand.duration_s) == (3.0, (), None)


def test_a_replay_is_as_long_as_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"timestamp_s": {n}, "input_length": 8, "output_length": 4}}\n' for n in range(5)))
    (stage,) = plan(data=str(path), arrival="replay")
    assert (stage.requests, stage.rate, stage.isl, stage.osl) == (5, 1.25, 8, 4)
    assert stage.by_hand(rate=9.0).arrival == "poisson"


def test_passes_are_stages_with_the_same_prompts() -> None:
    stages = plan(concurrency=[1, 2], passes=2)
    assert [stage.title for stage in stages] == ["conc 1, pass 1", "conc 1, pass 2", "conc 2, pass 1", "conc 2, pass 2"]
    assert [stage.pass_number for stage in stages] == [1, 2, 1, 2]
    assert stages[1].by_hand(concurrency=1).pass_number is None
    keys = [stage.work.key for stage in stages]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert stages[0].by_hand(concurrency=9).work.key is None


def test_the_longest_of_a_distribution_must_fit() -> None:
    with pytest.raises(ProfileError, match=r"prompt and answer have up to 110 tokens.*max_model_len is 100"):
        check_lengths(plan(isl="uniform:1:100", osl=10), 100, where="p.toml")


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"rate": 1, "rate_points": [[0, 1], [1, 2]]}, "keep one of them"),
        ({"rate": 1, "turns": {"count": 2}}, "load.turns"),
        ({"arrival": "replay"}, "needs a trace in load.data"),
        ({"arrival": "gamma:0"}, r"load\.arrival.*gamma:B"),
        ({"rate_points": [[0, 1]]}, "at least two points"),
        ({"rate_points": [[5, 1], [2, 1]]}, "ascending"),
        ({"isl": "uniform:5"}, r"load\.isl = 'uniform:5'.*uniform:LOW:HIGH"),
    ],
)
def test_what_does_not_fit(load: dict[str, object], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        plan(**load)
