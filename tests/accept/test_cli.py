"""`vramp accept` without a screen: what it prints, its exit codes, and wrong words."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import loadgen
from loadgen.schema.certificate import RunMade
from loadgen.store.acceptance import CERTIFICATE, LINES, read_certificate
from tests.accept.simulated import command, document, lines_of, toml
from tests.engines import NOBODY
from tui.cli.__main__ import main


def accept(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["accept", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def folder() -> Path:
    (found,) = Path("runs").glob("*-accept")
    return found


def test_interrupted_it_is_inconclusive_and_passes_when_it_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    Path("box.toml").write_text(toml(document("output", question_count=100)))
    with command("box.toml") as process:
        assert process.stderr is not None and process.stdout is not None
        for line in process.stderr:
            if "stage 1 of 1" in line:
                break
        process.send_signal(signal.SIGINT)
        words, out = process.stderr.read(), process.stdout.read()
    assert process.returncode == 130
    assert "\nINCONCLUSIVE for output only: " in out
    assert f"--resume {folder()} goes on" in words

    assert accept("box.toml", "--resume", str(folder())) == 0
    captured = capfd.readouterr()
    assert "\nPASS for output only: " in captured.out
    assert "phase output: " in captured.err and "run 02-output" in captured.err
    assert [made.folder for made in lines_of(folder(), RunMade)] == ["01-output", "02-output"]
    assert accept("--verify", str(folder())) == 0


def test_verify_names_what_was_changed(capfd: pytest.CaptureFixture[str]) -> None:
    Path("box.toml").write_text(toml(document("box")))
    assert accept("box.toml") == 0
    evidence = folder() / "box.json"
    evidence.write_bytes(evidence.read_bytes().replace(b"vramp", b"vrAmp", 1))
    capfd.readouterr()
    assert accept("--verify", str(folder())) == 1
    assert capfd.readouterr().out.splitlines() == ["box.json: has changed"]


def test_a_box_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    Path("box.toml").write_text(toml(document("box", criteria=[_wrong_count()])))
    assert accept("box.toml", "--by", "A. Smith") == 1
    out = capfd.readouterr().out
    assert any(line.startswith("FAIL ") and "gpus" in line for line in out.splitlines())
    assert read_certificate(folder()).by == "A. Smith"
    assert accept("box.toml", "--by", "B. Jones", "--resume", str(folder())) == 1
    assert read_certificate(folder()).by == "A. Smith, B. Jones"


def test_a_pass_whose_report_finds_no_room_is_no_failure(capfd: pytest.CaptureFixture[str]) -> None:
    Path("box.toml").write_text(toml(document("box")))
    assert accept("box.toml", "--junit", "/dev/full") == 4
    captured = capfd.readouterr()
    assert "\nPASS for box only: " in captured.out
    assert "--junit /dev/full: cannot be written: No space left on device; vramp accept ... --resume " in captured.err


def test_a_disk_that_is_full_is_no_failure_of_the_box() -> None:
    Path("box.toml").write_text(toml(document("box", "start")))
    with command("box.toml", wrapper=("env", "PYTHONDONTWRITEBYTECODE=1", "prlimit", "--fsize=4096")) as process:
        assert process.stdout is not None and process.stderr is not None
        out, words = process.stdout.read(), process.stderr.read()
    assert (process.returncode, out) == (4, "")
    kept = f"what was measured is kept; --resume {folder()} goes on\n"
    assert words.endswith((f"File too large\n{kept}", f"No space left on device\n{kept}"))  # the latter in a line
    assert accept("box.toml", "--resume", str(folder())) == 0


def test_what_is_resumed_or_offered_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    Path("box.toml").write_text(toml(document("box")))
    assert accept("box.toml") == 0
    lines = folder() / LINES
    lines.write_text(lines.read_text().replace(f'"{loadgen.__version__}"', '"0.9"'))
    (folder() / CERTIFICATE).unlink()
    capfd.readouterr()
    assert accept("box.toml", "--resume", str(folder())) == 0
    assert f"vramp 0.9 began it; this is {loadgen.__version__}, which judges all of it" in capfd.readouterr().err
    (folder() / CERTIFICATE).unlink()
    assert accept("box.toml", "--phase", "box", "--phase", "silicon") == 0
    assert "without a verdict" not in capfd.readouterr().err
    newest = max(Path("runs").iterdir())
    (newest / CERTIFICATE).unlink()
    assert accept("box.toml", "--phase", "box", "--phase", "silicon") == 0
    assert f"without a verdict is in {newest}; --resume" in capfd.readouterr().err


def test_a_certificate_of_another_version_does_not_prevent_a_new_acceptance() -> None:
    Path("box.toml").write_text(toml(document("box")))
    older = Path("runs/20200101T000000Z-box-accept")
    older.mkdir(parents=True)
    (older / LINES).touch()
    (older / CERTIFICATE).write_text('{"schema": "vramp.certificate/0"}')
    assert accept("box.toml") == 0


def _wrong_count() -> dict[str, object]:
    return {"figure": "gpus", "equals": 8, "source": "the order"}


def test_a_server_that_cannot_be_reached_is_exit_code_3(capfd: pytest.CaptureFixture[str]) -> None:
    Path("box.toml").write_text(toml(document("performance") | {"server": {"engine": "attach", "url": NOBODY}}))
    assert accept("box.toml") == 3
    assert lines_of(folder(), RunMade) and read_certificate(folder()).verdict == "inconclusive"
    assert 'server.engine = "attach": latency and throughput cannot pass' in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "needs a profile"),
        (["box.toml", "--starts", "1"], "box.toml: accept.starts = 1"),
        (["attach.toml", "--starts", "3"], "attach.toml: --starts 3: an attached server has one start"),
        (["box.toml", "--hours", "-1"], "box.toml: accept.burn_in = '-1.0h'"),
        (["bare.toml"], "nothing says how fast the box must be"),
        (["none.toml"], "there is no server to accept"),
        (["box.toml", "--resume", "nowhere"], f"nowhere/{LINES}: cannot be read"),
        (["box.toml", "--like", "nowhere"], "--like nowhere"),
        (["--verify", "nowhere"], f"--verify nowhere: there is no {CERTIFICATE}"),
        (["box.toml", "--ctrf", "box.toml/x"], "box.toml/x: the result cannot be written there: Not a directory"),
    ],
)
def test_nothing_is_started_for_wrong_words(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("box.toml").write_text(toml(document("performance")))
    Path("attach.toml").write_text(toml(document("performance") | {"server": {"engine": "attach", "url": NOBODY}}))
    Path("bare.toml").write_text('[server]\nengine = "simulator"\n')
    Path("none.toml").write_text('[server]\nengine = "none"\n[load]\nconcurrency = 0\n')
    assert accept(*words) == 2
    assert message in capfd.readouterr().err
    assert not list(Path().glob("runs/*"))
