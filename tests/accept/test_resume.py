"""Going on after an end of any kind: killed, interrupted, rebooted, or with more asked for than before."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ProfileError, ResultError
from loadgen.schema.certificate import AcceptBegan, AcceptResumed, BoxSeen, Counted, PhaseBegan, PhaseEnded, RunMade
from loadgen.store.acceptance import CERTIFICATE, LINES, AcceptLog, verify
from loadgen.store.runs import read_result
from tests.accept.simulated import acceptance, carried_out, command, document, lines_of, profile, toml
from tests.run.driving import left_behind

PHASES = ("start", "output", "performance", "burn-in")


def killed_under_load(parts: dict[str, Any]) -> Path:
    """The folder of an acceptance in another process that was killed while a stage ran."""
    Path("box.toml").write_text(toml(parts))
    with command("box.toml") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "stage 1 of 1" in line:
                break
        process.kill()
    assert process.returncode == -signal.SIGKILL
    (folder,) = Path("runs").glob("*-accept")
    return folder


@pytest.mark.parametrize("phase", PHASES)
async def test_killed_in_a_phase(phase: str) -> None:
    """What was measured until then is kept and counted, and the rest is done by another run."""
    amounts: dict[str, Any] = {"starts": 2, "burn_in": "2s", "question_count": 100}
    folder = killed_under_load(document(phase, **amounts))
    before = (folder / LINES).read_bytes()
    assert lines_of(folder, RunMade) == [] and lines_of(folder, PhaseEnded) == []

    view = await carried_out(acceptance(profile(phase, **amounts), folder))
    assert (folder / LINES).read_bytes().startswith(before)
    (resumed,) = lines_of(folder, AcceptResumed)
    assert resumed.boot_id == lines_of(folder, AcceptBegan)[0].boot_id and abs(resumed.clock_step_s) < 1.0
    first, *others = lines_of(folder, RunMade)
    assert first.folder == f"01-{phase}" and others
    assert "was killed" in read_result(folder / first.folder / "result.json").reason
    assert all(read_result(folder / made.folder / "result.json").state == "complete" for made in others)
    (end,) = lines_of(folder, PhaseEnded)
    assert (end.phase, end.state) == (phase, "done")
    asked = [line.subject for line in lines_of(folder, Counted)]
    assert len(asked) == len(set(asked)) == (100 if phase == "output" else 0)
    assert view.certificate.phases[0].attempts == 2
    assert verify(folder) == [] and left_behind() == []


async def test_a_box_is_looked_at_again_after_a_reboot_only() -> None:
    one = acceptance(profile("box"))
    await carried_out(one)
    await carried_out(acceptance(profile("box"), one.folder))
    assert len(lines_of(one.folder, BoxSeen)) == len(lines_of(one.folder, PhaseBegan)) == 1
    (one.folder / CERTIFICATE).unlink()  # which its lines are about to leave
    text = (one.folder / LINES).read_text()
    (one.folder / LINES).write_text(re.sub(r'"boot_id":"[^"]+"', '"boot_id":"another"', text))
    await carried_out(acceptance(profile("box"), one.folder))
    assert len(lines_of(one.folder, BoxSeen)) == 2
    assert lines_of(one.folder, AcceptResumed)[-1].clock_step_s is None


async def test_a_torn_line_is_cut_off() -> None:
    one = acceptance(profile("box"))
    one.close()
    with (one.folder / LINES).open("ab") as file:
        file.write(b'{"type":"PhaseBegan","unix')
    await carried_out(acceptance(profile("box"), one.folder))
    assert b"unix{" not in (one.folder / LINES).read_bytes()
    assert len(lines_of(one.folder, BoxSeen)) == 1


def test_a_folder_in_use_another_profile_and_no_acceptance_are_refused(tmp_path: Path) -> None:
    one = acceptance(profile("box", "start"))
    with pytest.raises(ResultError, match="another vramp works in this folder"):
        AcceptLog(one.folder)
    one.close()
    with pytest.raises(ProfileError, match=r"it began with: server\.args\.max-num-seqs; begin"):
        acceptance(profile("box", "start", args={"max-num-seqs": 3}), one.folder)
    with pytest.raises(ProfileError, match="--phase burn-in: it began with box, start"):
        acceptance(profile("burn-in"), one.folder, repeats=True)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ResultError, match=re.escape(os.fspath(empty / LINES))):
        acceptance(profile("box"), empty)
