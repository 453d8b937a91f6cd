import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.journal import Milestone
from loadgen.profile import Profile, build_profile
from loadgen.server.vllm.start_history import (
    ExpectedStart,
    expected_start,
    remember_start,
    start_key,
    with_expectations,
)

DONE = (
    Milestone("import", "start", "done", started_s=100.0, finished_s=104.0),
    Milestone("weights", "load weights", "done", started_s=110.0, finished_s=140.0),
    Milestone("graphs", "capture graphs", "done"),
    Milestone("ready", "ready", "done", started_s=141.0, finished_s=142.5),
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def profile(**server: object) -> Profile:
    document = {"name": "p", "server": {"engine": "vllm", "model": "m", "args": {"max-model-len": 8192}} | server}
    return build_profile(document, where="test")


def test_what_a_start_took_is_expected_of_the_next(tmp_path: Path) -> None:
    assert expected_start(tmp_path, "k") is None
    assert remember_start(tmp_path, "k", DONE) is None
    expected = expected_start(tmp_path, "k")
    assert expected == ExpectedStart(42.5, {"import": 4.0, "weights": 30.0, "ready": 1.5})
    waiting = (Milestone("weights", "load weights"), Milestone("graphs", "capture graphs"))
    assert [one.expected_s for one in with_expectations(waiting, expected, now_s=0.0)] == [30.0, None]
    assert with_expectations(waiting, None, now_s=0.0) == waiting


def test_what_is_under_way_has_an_age() -> None:
    running = (Milestone("weights", "load weights", "running", started_s=3.0), Milestone("ready", "ready"))
    assert [one.elapsed_s for one in with_expectations(running, None, now_s=10.0)] == [7.0, None]


def test_the_last_start_counts_and_nothing_else_is_left(tmp_path: Path) -> None:
    remember_start(tmp_path, "k", DONE)
    assert remember_start(tmp_path, "k", DONE[:1]) is None
    expected = expected_start(tmp_path, "k")
    assert expected is not None and expected.total_s == 4.0
    assert names(tmp_path) == ["k.json"]


@pytest.mark.parametrize("milestones", [(), DONE[2:3], (*DONE, Milestone("x", "x", "running", started_s=1.0))])
def test_a_start_that_did_not_finish_is_not_kept(tmp_path: Path, milestones: tuple[Milestone, ...]) -> None:
    assert remember_start(tmp_path, "k", milestones) == "the start did not finish; its times are not kept"
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reason = remember_start(tmp_path / "file", "k", DONE)
    assert reason is not None and "cannot be kept there: Not a directory" in reason
    (tmp_path / "k.json").mkdir()
    assert remember_start(tmp_path, "k", DONE) is not None
    assert names(tmp_path) == ["file", "k.json"]


@given(
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from(
            [b'{"total_s": -1, "milestones_s": {}}', b'{"total_s": 1}', b'{"total_s": 1e999}', b"{" * 20_000]
        ),
    )
)
def test_a_damaged_file_is_no_history(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "k.json").write_bytes(data)
        assert expected_start(Path(folder), "k") is None


def test_the_key_is_that_of_what_decides_how_long_it_takes() -> None:
    key = start_key(profile())
    assert key.startswith("p-")
    assert key == start_key(profile(port=8001, served_model_name="x", startup_timeout_s=5))
    others = [
        profile(model="n"),
        profile(args={"max-model-len": 4096}),
        profile(env={"VLLM_ROCM_USE_AITER": "1"}),
        profile(command="/other/vllm"),
        profile(platform="rocm"),
        profile(instances=2),
    ]
    assert len({key, *map(start_key, others)}) == 7
