"""The command of `--alert` runs once for a bad verdict that holds, and not for one that flickers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from loadgen.run import alerts
from loadgen.run.alerts import GONE_S, HOLDS_S, Alerts
from loadgen.schema.finding import Verdict

BAD = Verdict("throttled", "gpu 3", "gpu 3: THROTTLED power 18%")
GOOD = Verdict("power-capped", "gpu 3", "at its cap", bad=False)


LAST = Verdict("xid", "gpu 0", "the last one: everything before it has been run by then")


def rung(tmp_path: Path, seen: Iterable[tuple[float, list[Verdict]]]) -> list[str]:
    """For which verdicts the command ran, in order, after what was seen at which second."""
    out = tmp_path / "rung"
    out.write_text("")
    code = (
        f"import json, sys; text = json.load(sys.stdin)['text']; open({str(out)!r}, 'a').write(text + '\\n'); "
        f"sys.exit(text == {LAST.text!r})"
    )

    async def watch() -> None:
        last = asyncio.Event()
        watching = Alerts([sys.executable, "-c", code], lambda why: last.set())
        end_s = 0.0
        for end_s, verdicts in seen:
            watching.update(verdicts, end_s)
        for t_s in (end_s + 1, end_s + 1 + HOLDS_S):
            watching.update([LAST], t_s)
        await last.wait()
        await watching.close()

    asyncio.run(watch())
    return out.read_text().splitlines()[:-1]


def seconds(first: int, last: int, *verdicts: Verdict) -> list[tuple[float, list[Verdict]]]:
    return [(float(t_s), list(verdicts)) for t_s in range(first, last)]


def test_a_verdict_that_holds_rings_once(tmp_path: Path) -> None:
    assert rung(tmp_path, seconds(0, 300, BAD, GOOD)) == [BAD.text]


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(seconds(0, 300, GOOD), id="not bad"),
        pytest.param(seconds(0, 5, BAD), id="too short"),
        pytest.param([(float(t_s), [BAD] if t_s % 8 < 4 else []) for t_s in range(100)], id="flickers"),
    ],
)
def test_nothing_rings(tmp_path: Path, seen: list[tuple[float, list[Verdict]]]) -> None:
    assert rung(tmp_path, seen) == []


def test_a_verdict_rings_again_only_after_it_was_gone(tmp_path: Path) -> None:
    back_soon = [*seconds(0, 20, BAD), *seconds(20, 40), *seconds(40, 60, BAD)]
    assert rung(tmp_path, back_soon) == [BAD.text]
    gone = 20 + int(GONE_S)
    assert rung(tmp_path, [*seconds(0, 20, BAD), *seconds(20, gone), *seconds(gone, gone + 10, BAD)]) == [BAD.text] * 2


def test_a_text_with_a_zero_byte_rings_as_well(tmp_path: Path) -> None:
    hostile = Verdict("throttled", "gpu \0", "busy: \0\x1b[2J")
    assert len(rung(tmp_path, seconds(0, 12, hostile))) == 1


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["false"], "it ended with status 1"),
        (["/no/such"], "No such file"),
        (["sleep", "60"], "it was ended after 0 s"),
    ],
)
def test_a_command_that_fails_is_an_event(command: list[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "LIMIT_S", 0.2)
    failed: asyncio.Queue[str] = asyncio.Queue()

    async def watch() -> str:
        watching = Alerts(command, failed.put_nowait)
        for t_s, verdicts in seconds(0, 7, BAD):
            watching.update(verdicts, t_s)
        try:
            return await failed.get()
        finally:
            await watching.close()

    assert words in asyncio.run(watch())
