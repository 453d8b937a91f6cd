"""What a sweep remembers in its folder, and what it refuses."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.errors import ProfileError, ResultError
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.run.sweep import (
    Variant,
    as_swept,
    begin_sweep,
    note_variant,
    outcomes_of,
    read_sweep,
    require_comparable,
    result_path,
    resume_sweep,
)
from loadgen.store.runs import write_result
from tests.report.test_text import result, stage

DOCUMENT: dict[str, Any] = {
    "name": "p",
    "server": {"engine": "simulator"},
    "load": {"isl": 16, "osl": 8},
    "variants": {
        "a": {"server": {"args": {"preset": "fast"}}},
        "b": {"server": {"args": {"base-ms": 2}}},
        "longer": {"load": {"isl": 32}, "stages": [{"concurrency": 1}]},
        "seeded": {"load": {"seed": 3}},
    },
}


def profiles(*names: str) -> dict[str, Profile]:
    return {name: build_profile(DOCUMENT, where="test", variant=name) for name in names}


def done(name: str, state: str = "complete") -> Variant:
    return Variant(name=name, state=state, reason="why", result=None)  # type: ignore[arg-type]


def test_a_folder_remembers_what_is_done() -> None:
    folder, sweep = begin_sweep("p", profiles("a", "b"), seed=5)
    assert folder.parent == Path("runs") and folder.name.endswith("-p-sweep")
    assert sweep.remaining == ["a", "b"]
    sweep = note_variant(folder, note_variant(folder, sweep, done("b", "failed")), done("a"))
    assert read_sweep(folder) == resume_sweep(folder, profiles("a", "b")) == sweep
    # One that failed may do better now, and then counts once.
    assert sweep.remaining == ["b"]
    sweep = note_variant(folder, sweep, done("b"))
    assert (sweep.remaining, len(sweep.done)) == ([], 2)


def test_outcomes_are_in_the_order_of_the_sweep_and_have_their_results() -> None:
    folder, sweep = begin_sweep("p", profiles("a", "b"), seed=5)
    write_result(result(stage(3)), result_path(folder, "a"))
    sweep = note_variant(folder, sweep, done("b", "failed"))
    assert [outcome.variant for outcome in outcomes_of(folder, sweep)] == ["b"]
    sweep = note_variant(folder, sweep, msgspec.structs.replace(done("a"), result="a.json"))
    first, second = outcomes_of(folder, sweep)
    assert (first.variant, first.result, second.variant, second.result) == ("a", result(stage(3)), "b", None)


def test_a_folder_can_be_moved(tmp_path: Path) -> None:
    folder, sweep = begin_sweep("p", profiles("a"), seed=5)
    write_result(result(stage(3)), result_path(folder, "a"))
    note_variant(folder, sweep, msgspec.structs.replace(done("a"), result="a.json"))
    moved = folder.rename(tmp_path / "elsewhere")
    assert outcomes_of(moved, read_sweep(moved))[0].result is not None


def test_another_sweep_is_not_resumed() -> None:
    folder, _ = begin_sweep("p", profiles("a", "b"), seed=5)
    with pytest.raises(ProfileError, match="is a sweep of a, b"):
        resume_sweep(folder, profiles("a"))
    other = {"a": profiles("b")["b"], "b": profiles("a")["a"]}
    with pytest.raises(ProfileError, match="not those that it began with"):
        resume_sweep(folder, other)


def test_what_is_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="--resume takes the folder"):
        read_sweep(tmp_path)
    (tmp_path / "sweep.json").write_text('{"schema": "vramp.sweep/9"}')
    with pytest.raises(ResultError, match="not a sweep of vramp"):
        read_sweep(tmp_path)


def test_variants_with_another_load_cannot_be_compared() -> None:
    require_comparable(profiles("a", "b", "seeded"))
    with pytest.raises(ProfileError, match=r"variant longer: load.isl, stages differs from variant a"):
        require_comparable(profiles("a", "longer"))


def test_a_server_that_is_only_spoken_to_has_no_variants() -> None:
    attached = build_profile({"name": "p", "server": {"engine": "attach", "url": "http://127.0.0.1:1"}}, where="test")
    with pytest.raises(ProfileError, match="engine attach"):
        require_comparable({"a": attached})


def test_the_seed_is_the_same_for_all() -> None:
    assert {as_swept(profile, 9).load.seed for profile in profiles("a", "seeded").values()} == {9}


def test_no_server_is_left_in_the_way_of_the_next() -> None:
    leaving = build_profile(DOCUMENT, where="test", variant="a", overrides=["server.on_exit=leave"])
    assert as_swept(leaving, 9).server.on_exit == "stop"


def test_a_disk_that_takes_nothing_is_said() -> None:
    folder, sweep = begin_sweep("p", profiles("a"), seed=5)
    (folder / "sweep.json").unlink()
    (folder / "sweep.json").mkdir()
    with pytest.raises(ResultError, match="cannot be written"):
        note_variant(folder, sweep, done("a"))


def test_no_variant_takes_the_place_of_the_sweeps_own_file() -> None:
    named = {"a": profiles("a")["a"], "sweep": profiles("b")["b"]}
    with pytest.raises(ProfileError, match=r"variant sweep: .*give the variant another name"):
        begin_sweep("p", named, seed=5)
