"""What must work wherever vramp was installed: through its command alone, with nothing but pytest next to it.

`make test-dist` copies this file out of the checkout and runs it on the wheel, in an environment without a network.
"""

import csv
import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import loadgen
from tests.tui.pseudo_terminal import in_a_terminal

_VRAMP = Path(sys.executable).with_name("vramp")
_SMALL = ("--isl", "16", "--osl", "8", "--workers", "1", "--set", "server.args.startup-s=0")
_LIMIT_S = 100


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder, and a home that keeps servers and baselines of others out."""
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def vramp(*words: str, code: int = 0) -> str:
    """What a command says on stdout."""
    done = subprocess.run([_VRAMP, *words], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_the_version_is_that_of_the_package() -> None:
    assert re.fullmatch(
        rf"vramp {re.escape(loadgen.__version__)}( \([0-9a-f]{{7,}}(, modified)?\))?\n", vramp("--version")
    )


def test_a_run_its_result_and_its_reports(folder: Path) -> None:
    load = ("--concurrency", "2,4", "--requests", "40", "--records", "parquet", *_SMALL)
    assert "requests completed, none failed" in vramp("run", "simulator", *load, "--json", "o.json")
    result = json.loads(Path("o.json").read_text())
    assert (result["schema"], result["state"]) == ("vramp.result/1", "complete")
    assert [stage["requests"]["completed"] for stage in result["stages"]] == [40, 40]
    (left,) = Path("runs").iterdir()
    assert {"result.json", "journal.jsonl", "histograms.hlog", "records.parquet"} <= {
        each.name for each in left.iterdir()
    }
    assert len(list(csv.DictReader(io.StringIO(vramp("report", "last", "--csv"))))) == 2
    vramp("report", "last", "--html")
    assert "<html" in (left / "report.html").read_text()
    assert "TTFT" in vramp("compare", "last", "o.json")


def test_a_killed_run_is_recovered() -> None:
    with subprocess.Popen(
        [_VRAMP, "run", "simulator", "--concurrency", "2", "--duration", "60s", *_SMALL],
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stderr is not None
        next(line for line in run.stderr if "tok/s" in line)
        run.send_signal(signal.SIGKILL)
    vramp("recover", "last")
    (result,) = Path("runs").glob("*/result.json")
    assert json.loads(result.read_text())["stages"]


def test_a_profile_of_a_publication_is_checked() -> None:
    findings = json.loads(vramp("check", "mi300x-gpt-oss-120b", "--installation", "0.32.0", "--json"))
    assert all(finding["severity"] != "blocks" for finding in findings)


def test_a_mistake_is_a_line() -> None:
    vramp("run", "no-such-profile", code=2)


def test_the_box_is_examined() -> None:
    found = json.loads(vramp("doctor", "--json", "--telemetry", "sim"))
    assert found["schema"] == "vramp.doctor/1" and len(found["tried"][0]["gpus"]) == 8


def test_every_part_can_be_loaded() -> None:
    """What completes words in a shell is made of the options of every command."""
    script = vramp("completion", "bash")
    assert all(f"_shtab_vramp_{verb}_option_strings" in script for verb in ("bench", "web", "sweep", "monitor"))
    assert "usage: vramp" in vramp("--help")


def test_the_cockpit_opens_on_its_profiles_and_closes(folder: Path) -> None:
    with in_a_terminal([str(_VRAMP)], folder, {}) as terminal:
        terminal.read_until(b"shipped with vramp")
        terminal.press(b"q")
        assert terminal.read_to_its_end() == 0
    assert b"\x1b[?25h" in terminal.seen[terminal.seen.rindex(b"\x1b[?1049l") :]
    assert b"Traceback" not in terminal.seen
    assert not (folder / "runs").exists()
