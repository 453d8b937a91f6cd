"""Runs a command at each new bad verdict: the operator of a burn-in need not watch the screen.

A verdict has to hold for `HOLDS_S` before the command runs, and to be gone for `GONE_S` before it can run for it again,
so that a value at its limit does not ring all night. The command gets the verdict as JSON on its stdin and its id,
subject and text in the environment; it is no shell's, runs once at a time and is ended after `LIMIT_S`. Invariant:
nothing here delays or fails the run; a command that fails is an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Sequence

import msgspec

from loadgen.format import harmless
from loadgen.schema.finding import Verdict

HOLDS_S = 5.0
GONE_S = 60.0
LIMIT_S = 30.0
MAX_WAITING = 64  # verdicts for which the command still has to run; further ones are dropped


class Alerts:
    """Watches the verdicts of a run."""

    def __init__(self, command: Sequence[str], failed: Callable[[str], None]) -> None:
        """`failed` gets the words for a command that did not work."""
        self._command = command
        self._failed = failed
        self._since_s: dict[tuple[str, str], float] = {}  # since when each verdict has held
        self._last_s: dict[tuple[str, str], float] = {}  # when each one that was reported was last seen
        self._waiting: asyncio.Queue[Verdict] = asyncio.Queue(MAX_WAITING)
        self._task: asyncio.Task[None] | None = None

    def update(self, verdicts: Iterable[Verdict], now_s: float) -> None:
        bad = {(verdict.id, verdict.subject): verdict for verdict in verdicts if verdict.bad}
        self._since_s = {key: self._since_s.get(key, now_s) for key in bad}
        self._last_s = {
            key: now_s if key in bad else last_s
            for key, last_s in self._last_s.items()
            if key in bad or now_s - last_s < GONE_S
        }
        for key, verdict in bad.items():
            if key not in self._last_s and now_s - self._since_s[key] >= HOLDS_S:
                self._last_s[key] = now_s
                with contextlib.suppress(asyncio.QueueFull):
                    self._waiting.put_nowait(verdict)
                if self._task is None:
                    self._task = asyncio.create_task(self._run_all())

    async def close(self) -> None:
        """End a command that still runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run_all(self) -> None:
        while True:
            verdict = await self._waiting.get()
            why = await self._run(verdict)
            if why:
                self._failed(f"--alert {self._command[0]}: {why}")

    async def _run(self, verdict: Verdict) -> str:
        """Run the command for one verdict; returns what went wrong."""
        # The text may quote a name from outside, and no environment holds a zero byte.
        named = {"VRAMP_VERDICT": verdict.id, "VRAMP_SUBJECT": verdict.subject, "VRAMP_TEXT": verdict.text}
        named = {name: harmless(text) for name, text in named.items()}
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env={**os.environ, **named},
            )
        except OSError as error:
            return error.strerror or str(error)
        try:
            async with asyncio.timeout(LIMIT_S):
                await process.communicate(msgspec.json.encode(verdict) + b"\n")
        except TimeoutError:
            return f"it was ended after {LIMIT_S:.0f} s"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return f"it ended with status {process.returncode}" if process.returncode else ""
