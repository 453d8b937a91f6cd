"""`vramp accept` in a real pseudo-terminal: its run is watched, it is left early, and the verdict is printed."""

from __future__ import annotations

from pathlib import Path

from loadgen.schema.certificate import RunMade
from loadgen.store.acceptance import read_certificate
from tests.accept.simulated import document, lines_of, toml
from tests.tui.test_terminal_picker import assert_clean, vramp


def test_watching_its_run_and_leaving(tmp_path: Path) -> None:
    (tmp_path / "box.toml").write_text(toml(document("burn-in", burn_in="60s")))
    with vramp(tmp_path, "accept", "box.toml") as terminal:
        terminal.read_until(b"01-burn-in/")
        terminal.press(b"\r")
        terminal.read_until(b"full screen")
        terminal.press(b"q")  # back to the acceptance
        terminal.press(b"q")
        terminal.read_until(b"The acceptance is not over")
        terminal.press(b"f")
        terminal.read_rest()
        assert terminal.wait() == 4
    assert_clean(terminal)
    (folder,) = (tmp_path / "runs").glob("*-accept")
    assert len(lines_of(folder, RunMade)) == 1
    assert read_certificate(folder).verdict == "inconclusive"
    assert b"\nINCONCLUSIVE for burn-in only: " in terminal.seen and b"--resume" in terminal.seen
