"""`vramp sweep` on simulators: one table, a variant that fails, Ctrl-C, and going on."""

import json
import signal
from functools import partial
from pathlib import Path

import pytest

from loadgen.run.sweep import read_sweep
from tests.tui.cli.commands import exit_code, on_a_full_disk, start, wait_for

sweep = partial(exit_code, "sweep")
PROFILE = """
[server]
engine = "simulator"
args.preset = "fast"
[load]
isl = 16
osl = 4
concurrency = [1, 2]
requests = 4
workers = 1
[variants.plain]
[variants.slow.server.args]
base-ms = 20
[variants.broken.server.args]
fail-startup = "no memory for this"
[variants.other.load]
osl = 5
[variants.endless.server.args]
hang-startup = true
"""


@pytest.fixture(autouse=True)
def box() -> None:
    Path("box.toml").write_text(PROFILE)


def folder() -> Path:
    (found,) = Path("runs").glob("*-sweep")
    return found


def test_variants_in_one_table_under_one_load_by_default_all_of_that_load(capfd: pytest.CaptureFixture[str]) -> None:
    Path("box.toml").write_text(PROFILE.partition("[variants.broken")[0] + "[variants.other.load]\nosl = 5\n")
    assert sweep("box.toml", "--json", "rows.json") == 0
    captured = capfd.readouterr()
    lines = captured.out.splitlines()
    names = ["base", "plain", "slow"]
    assert [line.split()[0] for line in lines if " --" not in line] == ["variant", *names] * 2
    assert lines[2].count("(100 %)") == 3
    assert "variant 3 of 3: slow" in captured.err
    assert "left out, because their load is not that of base: other" in captured.err
    rows = json.loads(Path("rows.json").read_text())["rows"]
    assert [(row["variant"], row["stage"][:6], row["completed"]) for row in rows] == [
        (name, stage, 4) for name in names for stage in ("conc 1", "conc 2")
    ]
    # Steps of 20 ms against less than 2.
    assert rows[4]["difference_percent"]["tpot_mean_ms"] > 100
    seeds = {json.loads((folder() / f"{name}.json").read_text())["profile"]["load"]["seed"] for name in names}
    assert seeds == {read_sweep(folder()).seed}


def test_a_variant_that_does_not_start_is_a_row_and_runs_when_the_sweep_goes_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = ["box.toml", "--variants", "broken,plain", "--concurrency", "1", "--seed", "5"]
    assert sweep(*words) == 1
    captured = capfd.readouterr()
    assert captured.out.splitlines()[-1].startswith("broken: no numbers: the server ended with exit code 1")
    assert captured.out.splitlines()[2].startswith("plain ")
    assert "not complete: broken" in captured.err
    state = read_sweep(folder())
    assert (state.seed, state.remaining) == (5, ["broken"])
    assert "no memory for this" in state.done[0].reason
    before = (folder() / "plain.json").read_bytes()
    assert sweep(*words, "--resume", str(folder())) == 1
    captured = capfd.readouterr()
    assert "1 of 2 variants to run" in captured.err
    assert "variant 1 of 1: broken" in captured.err
    assert (folder() / "plain.json").read_bytes() == before
    assert captured.out.splitlines()[2].startswith("plain ")
    assert sweep("box.toml", "--variants", "plain,slow", "--resume", str(folder())) == 2
    assert "name the same variants" in capfd.readouterr().err
    assert sweep(*words, "--osl", "9", "--resume", str(folder())) == 2
    assert "not those that it began with" in capfd.readouterr().err


def test_where_nothing_starts_that_is_the_exit_code() -> None:
    assert sweep("box.toml", "--variants", "broken") == 3


def test_limits_that_a_variant_missed_count_when_the_sweep_goes_on() -> None:
    words = ["box.toml", "--variants", "plain", "--concurrency", "1", "--slo", "ttft_p50=0.001ms"]
    assert sweep(*words) == 1
    assert sweep(*words, "--resume", str(folder())) == 1


def test_ctrl_c_keeps_what_there_is(tmp_path: Path) -> None:
    with start(tmp_path, "sweep", "box.toml", "--variants", "plain,endless,slow", "--concurrency", "1") as process:
        wait_for(process, "variant 2 of 3: endless")
        wait_for(process, "server starting")
        process.send_signal(signal.SIGINT)
        out, words = process.communicate()
    assert process.returncode == 130
    assert "plain " in out.splitlines()[2]
    assert out.splitlines()[-1].startswith("endless: no numbers: ")
    assert "not complete: endless, slow" in words
    state = read_sweep(folder())
    assert [(variant.name, variant.state) for variant in state.done] == [("plain", "complete"), ("endless", "stopped")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "needs a profile"),
        (["box.toml", "--variants", "plain,other"], "variant other: load.osl differs from variant plain"),
        (["box.toml", "--variants", "plain,fast"], "no variant 'fast'"),
        (["box.toml", "--url", "http://127.0.0.1:1"], "starts each server itself"),
        (["box.toml", "--variant", "plain"], "starts each server itself"),
        (["box.toml", "--variants", "plain", "--json", "/proc/x/y"], "cannot be written"),
        (["box.toml", "--variants", "plain", "--resume", "nowhere"], "--resume takes the folder"),
    ],
)
def test_nothing_is_started_for_wrong_words(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert sweep(*words) == 2
    assert message in capfd.readouterr().err
    assert not list(Path().glob("runs/*"))


def test_a_profile_without_variants(capfd: pytest.CaptureFixture[str]) -> None:
    Path("bare.toml").write_text('[server]\nengine = "simulator"\n')
    assert sweep("bare.toml") == 2
    assert "has no [variants]" in capfd.readouterr().err


def test_the_rows_are_written_though_nobody_can_take_the_table() -> None:
    words = ["box.toml", "--variants", "plain", "--concurrency", "1", "--json", "rows.json"]
    done = on_a_full_disk("sweep", *words)
    assert done.returncode == 1
    assert "standard output cannot be written" in done.stderr and "sweep: runs/" in done.stderr
    assert len(json.loads(Path("rows.json").read_text())["rows"]) == 1
