"""vramp on its simulator, in a place of its own: a run of some seconds that can be hit, and what it said and left.

It runs in the place of its case, see `tests.faults.place`. All of vramp's processes carry a mark in their environment,
by which they are found whoever their parent is by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import mmap
import os
import re
import select
import shutil
import signal
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import aiohttp

from loadgen.store.journal import JOURNAL
from tests.faults.place import ROOT, VARIABLE, control_group, marked, started_alone
from tests.faults.relay import Relay
from tests.tui.pseudo_terminal import Terminal, in_a_terminal

PORT = 8000
Mode = Literal["headless", "cockpit", "web"]
ServerMode = Literal["managed", "attached", "relayed", "tls"]
Role = Literal["vramp", "guard", "worker", "server", "engine", "telemetry", "browser"]

_BEHIND = 8010  # the simulator's port when a relay stands before it
_WEB = 8020
_ROLES: tuple[tuple[bytes, Role], ...] = (
    (b"loadgen.server.process.guard", "guard"),
    (b"loadgen.worker", "worker"),
    (b"loadgen.telemetry", "telemetry"),
    (b"loadgen.simulator", "server"),
    (b"VLLM::EngineCore", "engine"),
    (b"\0watch\0", "browser"),
)
_ADDRESS = re.compile(rb"http://127\.0\.0\.1:\d+/\?token=(\S+)")
_TRUTH_EVERY_S = 0.3
_LAST_WORDS_S = 2.0
_PROFILE = """\
telemetry = "sim"
[server]
{server}
[load]
isl = 16
osl = 12
workers = 2
timeout_s = 8
stall_timeout_s = 3
seed = 1
[canary]
enabled = {canaries}
[[stages]]
concurrency = 4
duration = "1s"
[[stages]]
concurrency = 12
duration = "1s"
[[stages]]
concurrency = 6
duration = "1s"
"""
_MANAGED = """\
engine = "simulator"
port = 8000
startup_timeout_s = 30
stop_timeout_s = 2
args = {preset = "bench", spawn-children = 1}
"""


class Subject:
    """`start` it, hit it, `finish` it; then look at `code`, `said`, `truth` and its folders."""

    def __init__(
        self, folder: Path, mark: str, libraries: Path, *, mode: Mode, server: ServerMode, preload: bool, canaries: bool
    ) -> None:
        self.folder = folder
        self.mark = mark
        self.mode = mode
        self.server = server
        self.seen = b""
        self.code: int | None = None
        self.ended_s = 0.0
        self.truth: list[tuple[float, int]] = []  # when, and how many requests the server had completed
        self.relay: Relay | None = None
        self.engine: subprocess.Popen[bytes] | None = None  # the simulator, where vramp only attaches to it
        self.reads = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.interrupted = False
        self.keys_arrive = True
        self.removed = False  # its folder
        self.rival: subprocess.Popen[bytes] | None = None  # another vramp with the same port
        self.horizon_s = float("inf")  # what was served later need not be in the record
        self._journal_seen = False
        self._stack = contextlib.ExitStack()
        self._libraries = libraries
        self._preload = preload
        self._canaries = canaries
        self._timers: list[threading.Timer] = []
        self._terminal: Terminal | None = None
        self._clock: mmap.mmap | None = None
        self._switches: mmap.mmap | None = None

    # Its life.

    def start(self) -> None:
        for name in ("state", "cache", "work"):
            (self.folder / name).mkdir()
        work = self.folder / "work"
        settings = _MANAGED
        if self.server != "managed":
            url = f"https://localhost:{PORT}" if self.server == "tls" else f"http://127.0.0.1:{PORT}"
            settings = f'engine = "attach"\nurl = "{url}"\n'
            self.start_engine()
        environment = self._environment()
        if self.server in ("relayed", "tls"):
            self.relay = Relay(PORT, _BEHIND, self._tls(environment) if self.server == "tls" else None)
        canaries = str(self._canaries).lower()
        (work / "p.toml").write_text(_PROFILE.format(server=settings, canaries=canaries))
        verb = {"headless": ["run", "p.toml"], "cockpit": ["p.toml"], "web": ["web", "p.toml", "--port", str(_WEB)]}
        command = [sys.executable, "-m", "tui.cli", *verb[self.mode]]
        if self.mode == "cockpit":
            self._terminal = self._stack.enter_context(in_a_terminal(command, work, environment))
            self.pid, self._output = self._terminal.pid, self._terminal.master
        else:
            self._output, write_end = os.pipe()
            process = started_alone(command, work, environment, write_end)
            process.returncode = 0  # `wait` below reaps it
            os.close(write_end)
            self.pid = process.pid
        self.began_s = time.monotonic()
        self._reader.start()
        for work_of_thread in (self._ask_truth, *([self._browse] if self.mode == "web" else [])):
            threading.Thread(target=work_of_thread, daemon=True).start()

    def start_engine(self) -> None:
        """Start the simulator to which vramp attaches, and wait until it listens."""
        port = PORT if self.server == "attached" else _BEHIND
        command = [sys.executable, "-m", "loadgen.simulator", "--preset", "bench", "--port", str(port)]
        self.engine = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        until_s = time.monotonic() + 20.0
        while self._completed(port) is None:
            assert time.monotonic() < until_s, "the simulator does not listen"
            time.sleep(0.02)

    def wait(self, until: Callable[[], object], within_s: float) -> bool:
        """Whether it came true before vramp ended or the time was up."""
        until_s = time.monotonic() + within_s
        while not until():
            if self.has_ended() or time.monotonic() > until_s:
                return False
            time.sleep(0.02)
        return True

    def has_ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code, self.ended_s = os.waitstatus_to_exitcode(status), time.monotonic()
        return self.code is not None

    def takes_signals(self, pid: int, role: Role) -> bool:
        """Whether it is so far that a signal is its own affair: before, Python itself ends with a traceback."""
        if role not in ("vramp", "browser", "worker", "telemetry"):
            return True
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return True
        caught = int(re.findall(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)[0], 16)
        if role in ("vramp", "browser"):
            return bool(caught >> (signal.SIGTERM - 1) & 1)
        # Python catches it from its first moments on, and these two give it back.
        begun = time.time() - Path(f"/proc/{pid}").stat().st_ctime > 0.1
        return begun and not caught >> (signal.SIGINT - 1) & 1

    def loads(self) -> bool:
        """Whether its first stage has begun."""
        run = self.run_folder
        journal = run / JOURNAL if run is not None else None
        self._journal_seen |= journal is not None and journal.exists()
        try:
            return journal is not None and b'"StageStarted"' in journal.read_bytes()
        except OSError:
            return self._journal_seen  # it was there, and is gone

    def ask_to_stop(self) -> None:
        """End the run in order, as an operator would."""
        if self.has_ended():
            return
        self.loses_from_now()  # streams are cut off, some of which the server has just completed
        if self.mode == "cockpit":
            self.press(b"q")
            time.sleep(0.3)
            self.press(b"f")
        else:
            self.interrupted = True
            self.kill(self.pid, signal.SIGINT)

    def finish(self, within_s: float) -> None:
        """Let it end by itself, or in the cockpit and in a browser by the operator; `code` stays None if it hangs."""
        requested = self.interrupted
        ask_s = time.monotonic() + (3.5 if self.mode != "headless" else within_s)
        until_s = time.monotonic() + within_s
        terminate_s = time.monotonic() + 8.0
        while not self.has_ended() and time.monotonic() < until_s:
            now_s = time.monotonic()
            if now_s > ask_s and not (requested and self.mode == "web"):
                self.ask_to_stop()
                requested, ask_s = True, now_s + 3.0
            if not self.keys_arrive and now_s > terminate_s:
                self.interrupted, terminate_s = True, float("inf")
                self.kill(self.pid, signal.SIGTERM)
            time.sleep(0.02)
        for timer in self._timers:
            timer.join()
        if self.code is not None and self.reads:
            self._reader.join(_LAST_WORDS_S)  # what it said last is still on its way

    def close(self) -> None:
        """End whatever is left of the case."""
        for pid in marked(self.mark):
            self.kill(pid, signal.SIGKILL)
        if self.code is None:
            self.kill(self.pid, signal.SIGKILL)
        if self.engine is not None:
            self.engine.kill()
            self.engine.wait()
        self._stack.close()

    def loses_from_now(self) -> None:
        """What the server completes from now on need not be in the record."""
        self.horizon_s = min(self.horizon_s, time.monotonic())

    def keep(self, open_thing: contextlib.AbstractContextManager[object]) -> None:
        """Until the end of the case."""
        self._stack.enter_context(open_thing)

    def control_group(self, controller: str, **limits: int) -> Path:
        name = f"vramp-faults-{self.mark}-{len(self._timers)}"
        return self._stack.enter_context(control_group(controller, name, **limits))

    def twin(self) -> subprocess.Popen[bytes]:
        """Another vramp with the same profile."""
        words = [sys.executable, "-m", "tui.cli", "run", "p.toml"]
        work = self.folder / "twin"
        work.mkdir()
        shutil.copy(self.folder / "work" / "p.toml", work)
        self.horizon_s = 0.0  # what the server completes is not all of one of them
        with (work / "said.txt").open("wb") as output:
            return started_alone(words, work, self._environment(), output.fileno())

    def later(self, after_s: float, what: Callable[[], object]) -> None:
        """Do it after a while, at the latest before `finish` returns."""
        timer = threading.Timer(after_s, what)
        self._timers.append(timer)
        timer.start()

    # Its parts.

    def find(self, role: Role) -> list[int]:
        if role == "vramp":
            return [] if self.has_ended() else [self.pid]
        found = marked(self.mark)
        return sorted(pid for pid, words in found.items() if pid != self.pid and _role_of(words) == role)

    def kill(self, pid: int, number: int) -> bool:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    @property
    def run_folder(self) -> Path | None:
        folders = sorted((self.folder / "work" / "runs").glob("*"))
        return folders[0] if folders else None

    # Its terminal, or whoever reads it.

    def press(self, keys: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._output, keys)

    def resize(self, columns: int, rows: int) -> None:
        if self._terminal is not None:
            self._terminal.resize(columns, rows)

    def close_output(self) -> None:
        """The terminal closes, or whoever read the pipe has gone."""
        self.reads = False
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, self._output)
        os.close(null)

    # Its world.

    def faults(self, *texts: str) -> bool:
        """Have the simulator misbehave; False if it does not answer."""
        body = json.dumps({"faults": texts})
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self._engine_port, timeout=2.0)
            connection.request("POST", "/admin/faults", body, {"content-type": "application/json"})
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False

    def step_clock(self, *, monotonic_s: float = 0.0, realtime_s: float = 0.0) -> None:
        assert self._clock is not None
        self._clock[:16] = struct.pack("qq", round(monotonic_s * 1e9), round(realtime_s * 1e9))

    def break_calls(self, *, write: int = 0, fsync: int = 0) -> None:
        """Have writes and syncs fail with these error numbers."""
        assert self._switches is not None
        self._switches[:8] = struct.pack("ii", write, fsync)

    # What it says and serves.

    @property
    def said(self) -> str:
        return self.seen.decode("utf-8", "replace")

    def completed_by(self, at_s: float) -> int:
        """How many requests the server had completed by then, as far as it was asked."""
        return max((count for when_s, count in self.truth if when_s <= at_s), default=0)

    @property
    def _engine_port(self) -> int:
        return PORT if self.server in ("managed", "attached") else _BEHIND

    def _read(self) -> None:
        while True:
            if not self.reads:
                time.sleep(0.05)
                continue
            try:
                if select.select([self._output], [], [], 0.1)[0]:
                    data = os.read(self._output, 65536)
                    if not data:
                        return
                    self.seen += data
            except OSError:  # the other side is closed
                return

    def _ask_truth(self) -> None:
        while self.code is None:
            asked_s = time.monotonic()
            completed = self._completed(self._engine_port)
            if completed is not None:
                self.truth.append((asked_s, completed))
            time.sleep(_TRUTH_EVERY_S)

    def _completed(self, port: int) -> int | None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
        try:
            connection.request("GET", "/truth")
            document: dict[str, Any] = json.loads(connection.getresponse().read())
            return int(document["requests"]["completed"])
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return None
        finally:
            connection.close()

    def _browse(self) -> None:
        """What a browser does: open the page's socket and read what comes."""
        while (found := _ADDRESS.search(self.seen)) is None:
            if self.code is not None:
                return
            time.sleep(0.05)

        async def browse(token: str) -> None:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with (
                    aiohttp.ClientSession() as session,
                    session.ws_connect(f"ws://127.0.0.1:{_WEB}/ws/{token}") as socket,
                ):
                    async for _ in socket:
                        pass

        asyncio.run(browse(found[1].decode()))

    def _environment(self) -> dict[str, str]:
        environment = {
            VARIABLE: self.mark,
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "XDG_CONFIG_HOME": str(self.folder / "state"),
        }
        if self._preload:
            self._clock, self._switches = (self._page(name) for name in ("clock", "switches"))
            libraries = [str(self._libraries / name) for name in ("step_clock.so", "break_calls.so")]
            environment |= {
                "LD_PRELOAD": " ".join(libraries),
                "VRAMP_TEST_CLOCK": str(self.folder / "clock"),
                "VRAMP_TEST_BREAK": str(self.folder / "switches"),
            }
        return environment

    def _page(self, name: str) -> mmap.mmap:
        path = self.folder / name
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), 16)

    def _tls(self, environment: dict[str, str]) -> ssl.SSLContext:
        import trustme

        authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
        authority.cert_pem.write_to_path(self.folder / "authority.pem")
        environment["SSL_CERT_FILE"] = str(self.folder / "authority.pem")
        return context


def _role_of(words: bytes) -> Role | None:
    return next((role for part, role in _ROLES if part in words), None)
