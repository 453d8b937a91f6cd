"""`vramp compare` and `vramp baseline`: words, exit codes, and a run next to its baseline on the simulator."""

import json
import shutil
from pathlib import Path

import pytest

from loadgen.store.runs import read_result, write_result
from tests.metrics.served import run_of, served
from tests.tui.cli.commands import exit_code as vramp
from tests.tui.cli.commands import on_a_full_disk


@pytest.fixture(autouse=True)
def two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_result(run_of(served(1)), Path("a.json"))
    write_result(run_of(served(2, scale=1.2)), Path("slow.json"))
    write_result(run_of(served(2, osl=1024)), Path("long.json"))


def test_everything_against_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert vramp("compare", "a.json", "a.json", "slow.json") == 0
    out = capsys.readouterr().out
    assert out.count("against a.json ---") == 2
    first, second = (line for line in out.splitlines() if line.startswith("stages compared"))
    assert "0 better, 0 worse" in first and "0 better, 0 worse" not in second


def test_a_broken_limit_is_exit_code_1_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert vramp("compare", "a.json", "slow.json", "--fail-if", "tpot_mean>+10%", "--fail-if", "req_s<-90%") == 1
    errors = capsys.readouterr().err
    assert errors.startswith("vramp: tpot_mean>+10% is broken by slow.json, conc 16, ISL 512, OSL 128: +")
    assert len(errors.splitlines()) == 1
    assert vramp("compare", "slow.json", "a.json", "--fail-if", "tpot_mean>+10%") == 0


def test_what_is_not_alike_is_refused_and_can_be_forced(capsys: pytest.CaptureFixture[str]) -> None:
    write_result(run_of(served(3), environment={"model": "another/model", "engine": "vllm"}), Path("pear.json"))
    assert vramp("compare", "a.json", "pear.json") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (
        "pear.json is not comparable with a.json: another model: some/model and another/model; --force" in captured.err
    )
    assert vramp("compare", "a.json", "pear.json", "--force") == 0
    assert "not alike: another model" in capsys.readouterr().out


def test_without_a_common_load_there_is_nothing_to_compare(capsys: pytest.CaptureFixture[str]) -> None:
    assert vramp("compare", "a.json", "long.json") == 1
    error = capsys.readouterr().err
    assert "nothing to compare: a.json has measured conc 16, ISL 512, OSL 128; long.json has measured conc 16" in error
    assert "--force matches stages of another shape" in error
    assert vramp("compare", "a.json", "long.json", "--force") == 0
    assert "not alike: another shape" in capsys.readouterr().out


def test_a_run_that_never_came_to_its_load_is_no_other_model(capsys: pytest.CaptureFixture[str]) -> None:
    write_result(run_of(environment={}), Path("dead.json"))
    assert vramp("compare", "a.json", "dead.json") == 1
    error = capsys.readouterr().err
    assert "; dead.json has measured nothing" in error and "--force" not in error


def test_all_runs_on_one_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert vramp("compare", "a.json", "slow.json", "a.json", "--html") == 0
    assert capsys.readouterr().err == "report: compare.html\n"
    page = Path("compare.html").read_text(encoding="utf-8")
    assert "slow.json against a.json" in page and "id='frontier-512-128'" in page
    # Runs without a load in common are on one picture all the same; what is not alike is not.
    write_result(run_of(served(4, concurrency=32)), Path("busy.json"))
    assert vramp("compare", "a.json", "busy.json") == 1
    assert vramp("compare", "a.json", "busy.json", "--html", "--out", str(tmp_path / "page.html")) == 0
    assert "only in B: conc 32" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert vramp("compare", "a.json", "long.json", "--html") == 1
    assert vramp("compare", "a.json", "slow.json", "--html", "--fail-if", "tpot_mean>+10%") == 1


def test_the_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert vramp("compare", "a.json", "slow.json", "--json", "--confidence", "95") == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert found["confidence"] == 0.95 and found["stages"][0]["figures"][0]["difference"]["word"] == "worse"
    assert vramp("compare", "a.json", "slow.json", "--markdown") == 0
    assert capsys.readouterr().out.startswith("### slow.json against a.json")


@pytest.mark.parametrize(
    "words", [["a.json", "slow.json", "--fail-if", "x"], ["a.json"], ["a.json", "a.json", "--confidence", "0.99"]]
)
def test_usage_is_exit_code_2(words: list[str]) -> None:
    assert vramp("compare", *words) == 2


def test_baselines_are_kept_listed_shown_used_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert vramp("baseline", "save", "good", "a.json") == 0
    Path("a.json").unlink()
    assert vramp("baseline", "list") == 0
    assert "some/model" in capsys.readouterr().out
    assert vramp("baseline", "show", "good") == 0
    assert "\nconc 16  512/128 " in capsys.readouterr().out
    assert vramp("compare", "good", "slow.json", "--fail-if", "tpot_mean>+10%") == 1
    assert vramp("baseline", "save", "good", "slow.json") == 2
    assert vramp("baseline", "remove", "good") == 0
    assert vramp("baseline", "remove", "good") == 1


def test_a_damaged_baseline_is_listed_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vramp("baseline", "save", "good", "a.json") == 0
    (tmp_path / "state/vramp/baselines/good.json").write_text("{")
    capsys.readouterr()
    assert vramp("baseline", "list") == 0
    assert "not a result of vramp" in capsys.readouterr().out


RUN = (
    "run simulator --requests 20 --concurrency 2,3 --isl 16 --osl 4 --workers 1 "
    "--set server.args.preset=fast --set server.args.startup-s=0 --json"
)


def test_a_run_next_to_its_baseline(capfd: pytest.CaptureFixture[str]) -> None:
    write_result(run_of(served(1, concurrency=2, isl=16, osl=4, in_step=True)), Path("first.json"))
    assert vramp("baseline", "save", "good", "first.json") == 0
    assert vramp(*RUN.split(), "second.json", "--baseline", "good") == 0
    assert "\nAgainst baseline good ---" in capfd.readouterr().out
    same, other = (stage.baseline for stage in read_result(Path("second.json")).stages)
    assert same is not None and same.name == "good" and same.load == "conc 2, ISL 16, OSL 4"
    assert same.verdict.startswith("of another model, some/model: ")
    tpot = next(one for one in same.figures if one.figure == "tpot_mean")
    assert tpot.a is not None and 7.9 < tpot.a < 8.1 and tpot.b is not None and tpot.b != tpot.a
    assert other is not None and other.verdict.startswith("it has no stage with conc 3, ISL 16, OSL 4")


def test_a_missing_baseline_is_reported_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert vramp(*RUN.split(), "first.json", "--baseline", "nothing") == 2
    assert "nothing: no such file, folder, baseline or run" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_limits_as_tests_for_ci(capsys: pytest.CaptureFixture[str]) -> None:
    limit = ("--fail-if", "tpot_mean>+10%", "--junit", "tests.xml")
    assert vramp("compare", "a.json", "slow.json", *limit) == 1
    assert '<failure message="+' in Path("tests.xml").read_text()
    assert vramp("compare", "slow.json", "a.json", *limit) == 0
    assert "failure " not in Path("tests.xml").read_text()
    assert vramp("compare", "slow.json", "a.json", "--junit", "no/folder/tests.xml") == 1
    assert "--junit no/folder/tests.xml: cannot be written: " in capsys.readouterr().err


def test_results_of_other_tools_are_compared_and_their_definitions_reported(capsys: pytest.CaptureFixture[str]) -> None:
    guidellm = shutil.copy(Path(__file__).parents[2] / "store/foreign/files/guidellm_0.8.json", "guidellm.json")
    assert vramp("compare", "a.json", guidellm) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert captured.err == "" and max(map(len, lines)) <= 120
    # The shape that was asked for is matched by the mean lengths, and the definitions follow the figures.
    (last,) = [number for number, line in enumerate(lines) if line.startswith("TPOT p99")]
    (definition,) = [
        number for number, line in enumerate(lines) if line.startswith("TPOT: B, guidellm 0.8.1: guidellm's")
    ]
    assert last < definition
    assert "better" not in captured.out.split("stages compared")[0]
    assert vramp("compare", "a.json", guidellm, "--fail-if", "tpot_mean>+10%") == 2
    assert "with --strict the measured difference alone decides" in capsys.readouterr().err
    assert vramp("compare", "a.json", guidellm, "--fail-if", "tpot_mean>+10%", "--strict") == 1


def test_a_gate_holds_though_nobody_can_take_its_table() -> None:
    words = ["compare", "a.json", "slow.json", "--fail-if", "tpot_mean>+10%", "--junit", "tests.xml"]
    done = on_a_full_disk(*words)
    unwritten, broken = done.stderr.splitlines()
    assert done.returncode == 1
    assert unwritten == "vramp: standard output cannot be written: No space left on device"
    assert broken.startswith("vramp: tpot_mean>+10% is broken by slow.json")
    assert "<failure" in Path("tests.xml").read_text()


@pytest.mark.parametrize("percent", ["49", "99.99999999999999", "nan", "100"])
def test_a_confidence_beyond_what_is_reported_is_refused(percent: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert vramp("compare", "a.json", "slow.json", "--confidence", percent) == 2
    assert "expected 50 to 99.99 percent" in capsys.readouterr().err
    assert vramp("compare", "a.json", "slow.json", "--confidence", "99.99") == 0
