"""Evidence of a server that is stalled or has died, or that the operator asks for: written into one folder.

A collector is a row of `_COLLECTORS`: its file and how it is taken. Invariants: one evidence is taken at a time, before
anything of the server is ended; each collector has a time limit, and one that fails costs only its file; the page says
of each what it is, or why it is missing; secrets are masked; nothing here signals a process, changes anything on the
box or fails the run: evidence that could not be written is an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from loadgen.errors import VrampError
from loadgen.format import harmless, iso_time, memory, plain
from loadgen.masking import masked_text
from loadgen.metrics.stall import Stall
from loadgen.places import write_whole
from loadgen.run.servers import ReportEvent
from loadgen.schema.samples import GpuSample
from loadgen.server.process.tree import descendants, process_info
from loadgen.server.vllm.diagnosis import kernel_messages

MAX_A_RUN = 5
LIMIT_S = 15.0  # of each collector; they run at the same time
_BETWEEN_PAGES_S = 2.0  # also between two readings of the CPU time
_BUSY_PERCENT = 5
_MAX_LOG_BYTES = 512 << 10
_MAX_KERNEL_LINES = 2_000
_MAX_TASKS = 4_096
_RAS_PORT = 28_028  # of NCCL from 2.24 on, and of RCCL, which listens on IPv6
_RAS_HOSTS = ("127.0.0.1", "::1")
_MAX_RAS_BYTES = 1 << 20
_COUNTER = re.compile(
    r"^((?!process_|python_|http_)\w[\w:]*(?:_total|_count|_sum)(?:\{[^}]*\})?) (\S+)$", re.MULTILINE
)  # not those of the process that answers, which works while the engine stands still


class Scene(NamedTuple):
    """What evidence is taken of."""

    reason: str  # in words: what is wrong
    lines: Sequence[bytes]  # of the journal, over the last minutes
    metrics: Mapping[str, Callable[[], Awaitable[str]]]  # the page of each server, by its address
    pids: Sequence[int]  # the servers' first processes; none of others' servers, nor of those in containers
    logs: Sequence[Path]  # of the servers that vramp started
    gpus: Callable[[], Awaitable[str]]
    """What the GPUs do and who uses them, as a table; empty where nothing measures them."""
    containers: Sequence[str] = ()  # the commands that list the processes of the servers in containers


class Collector(NamedTuple):
    """One piece of evidence."""

    file: str
    what: str
    take: Callable[[Scene], Awaitable[str]]


class CollectedFile(NamedTuple):
    """What came of one collector."""

    collector: Collector
    text: str  # empty if it is missing
    why: str  # it is missing


class EvidenceWatch:
    """The evidence of one run: `see` each tick, `take` at any time, and `close` before its servers are ended."""

    def __init__(self, folder: Path, scene: Callable[[str], Scene], event: ReportEvent) -> None:
        """`scene` describes what there is to see, given the reason."""
        self._folder, self._scene, self._event = folder, scene, event
        self._task: asyncio.Task[None] | None = None
        self._begun = 0
        self._seen: tuple[float, bool] | None = None  # the last stall, and whether it was certain

    @property
    def is_taking(self) -> bool:
        return self._task is not None and not self._task.done()

    def see(self, stall: Stall | None, now_s: float) -> None:
        """Take the evidence of a stall, once; and once more if it becomes certain only later."""
        if stall is not None and (stall.since_s, stall.is_certain) != self._seen and not self.is_taking:
            self._seen = stall.since_s, stall.is_certain
            self.take(stall.words(now_s))

    def take(self, reason: str) -> None:
        """Begin to take it; a refusal is an event."""
        if self.is_taking:
            self._event("error", "evidence refused: it is being taken already")
        elif self._begun == MAX_A_RUN:
            self._event("error", f"evidence refused: this run has taken it {MAX_A_RUN} times")
        else:
            self._begun += 1
            name = "evidence" if self._begun == 1 else f"evidence-{self._begun}"
            self._task = asyncio.create_task(self._taken(reason, self._folder / name))

    async def take_now(self, reason: str) -> None:
        """Take it, and return when it is written."""
        await self.close()
        self.take(reason)
        await self.close()

    async def close(self, *, at_once: bool = False) -> None:
        """Wait until what is being taken is written; `at_once` breaks it off."""
        if self._task is not None:
            if at_once:
                self._task.cancel()
            await asyncio.wait([self._task])

    async def _taken(self, reason: str, folder: Path) -> None:
        try:
            page = await take_evidence(self._scene(reason), folder)
        except OSError as error:
            self._event("error", f"{plain(str(folder))}: no evidence: {error.strerror}")
        else:
            self._event("server", f"evidence: {plain(str(page))}")


async def take_evidence(scene: Scene, folder: Path) -> Path:
    """Take all evidence and write it with its page into `folder`; returns the page. Raises `OSError`."""
    pieces = await asyncio.gather(*(_taken(collector, scene) for collector in _COLLECTORS))
    return await asyncio.to_thread(_written, scene, pieces, folder)


def _written(scene: Scene, pieces: Sequence[CollectedFile], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    kept: list[CollectedFile] = []
    for piece in pieces:
        try:
            if piece.text:
                write_whole(folder / piece.collector.file, masked_text(piece.text).encode())
            kept.append(piece)
        except OSError as error:
            kept.append(piece._replace(text="", why=f"it could not be written: {error.strerror}"))
    page = folder / "evidence.md"
    write_whole(page, masked_text(_page(scene, kept)).encode())
    return page


async def _taken(collector: Collector, scene: Scene) -> CollectedFile:
    try:
        async with asyncio.timeout(LIMIT_S):
            text = await collector.take(scene)
    except TimeoutError:
        return CollectedFile(collector, "", f"it took longer than {LIMIT_S:.0f} s")
    except (VrampError, OSError, ValueError) as error:
        return CollectedFile(collector, "", harmless(str(error)) or type(error).__name__)
    return CollectedFile(collector, text, "" if text else "there was nothing")


def _page(scene: Scene, pieces: Sequence[CollectedFile]) -> str:
    lines = [f"# {scene.reason}", "", f"Taken at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}.", ""]
    findings = [finding for piece in pieces for finding in _findings(piece)]
    if findings:
        lines += ["## What it shows", "", *(f"- {finding}" for finding in findings), ""]
    there = [piece for piece in pieces if piece.text]
    lines += ["## Files", "", *(f"- `{piece.collector.file}`: {piece.collector.what}" for piece in there), ""]
    missing = [piece for piece in pieces if not piece.text]
    if missing:
        lines += ["## Missing", "", *(f"- {piece.collector.what}: {piece.why}" for piece in missing), ""]
    return "\n".join(lines)


def _findings(piece: CollectedFile) -> Iterable[str]:
    """What one piece shows by itself, without judging why."""
    text, name = piece.text, piece.collector.file
    if name == "metrics.txt" and text:
        yield from _moved_words(text)
    if name == "tasks.txt" and text:
        stuck = re.findall(r"^  \d+ (.+) D (\S+) [\d.]+ s of CPU$", text, re.MULTILINE)
        if stuck:
            places = ", ".join(dict.fromkeys(f"{task} in {place}" for task, place in stuck))
            yield f"threads that wait in the kernel and cannot be interrupted: {len(stuck)} ({places})"
        for process in re.findall(r"^process (.+): .+\n  \d+ .+ [Tt] \S+ [\d.]+ s of CPU$", text, re.MULTILINE):
            yield f"process {process} is stopped, by a signal (SIGSTOP, SIGTSTP) or a debugger"
        used = re.findall(r"^process (.+): (\d+)% of a core$", text, re.MULTILINE)
        busy = [f"{process} {percent}%" for process, percent in used if int(percent) >= _BUSY_PERCENT]
        yield f"CPU use of the server's processes, of a core: {', '.join(busy) or f'none at least {_BUSY_PERCENT}%'}"
    if name == "kernel.txt":
        for pattern in ("GPU reset", "NVRM: Xid", "Out of memory", "IO_PAGE_FAULT", "uncorrectable"):
            count = text.count(pattern)
            if count:
                yield f"the kernel log has {count} lines with {pattern!r}"
    if name == "ras.txt":
        for line in text.splitlines():
            if re.search(r"mismatch|missing|unreachable|not respond|ERRORS|INCOMPLETE", line):
                yield f"NCCL: {line.strip()}"


def _moved_words(pages: str) -> Iterable[str]:
    """How many counters differ between the two readings of the metrics pages; nothing if none was read twice."""
    first, _, second = pages.partition(_SECOND_PAGE)
    before, after = _counters(first), _counters(second)
    both = before.keys() & after.keys()
    moved = [key for key in after if key in both and before[key] != after[key]]
    if moved:
        shown = ", ".join(dict.fromkeys(name for _, name in moved[:4]))
        yield f"{len(moved)} of {len(both)} counters of /metrics moved in {_BETWEEN_PAGES_S:g} s, such as {shown}"
    elif both:
        yield f"none of {len(both)} counters of /metrics moved in {_BETWEEN_PAGES_S:g} s"


def _counters(pages: str) -> dict[tuple[int, str], str]:
    """The counters of each page, by its place and their name: those of several servers have the same names."""
    found = enumerate(_COUNTER.findall(page) for page in re.split(r"^# (?=https?://)", pages, flags=re.MULTILINE))
    return {(place, name): value for place, rows in found for name, value in rows}


_SECOND_PAGE = "\n# ---- a second reading ----\n"


async def _samples(scene: Scene) -> str:
    if not scene.lines:
        raise VrampError("there is no run")
    return b"\n".join(scene.lines).decode("utf-8", errors="replace")


async def _metrics(scene: Scene) -> str:
    if not scene.metrics:
        raise VrampError("the run has no server")
    first = await _pages(scene)
    await asyncio.sleep(_BETWEEN_PAGES_S)
    return first + _SECOND_PAGE + await _pages(scene)


async def _pages(scene: Scene) -> str:
    pages = await asyncio.gather(*(page() for page in scene.metrics.values()), return_exceptions=True)
    if all(isinstance(page, BaseException) for page in pages):
        raise VrampError(f"/metrics does not answer: {pages[0]}")
    return "\n".join(f"# {url}\n{page}" for url, page in zip(scene.metrics, pages, strict=True))


async def _log(scene: Scene) -> str:
    if not scene.logs:
        raise VrampError("vramp did not start this server")
    ends = []
    for path in scene.logs:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_LOG_BYTES))
            ends.append(f"# {path.name}\n" + file.read().decode("utf-8", errors="replace"))
    return "\n".join(ends)


async def _kernel(_: Scene) -> str:
    """The kernel's messages, which often only root may read."""
    messages = await asyncio.to_thread(kernel_messages)
    booted_s = time.time() - time.monotonic()
    lines = [f"{iso_time(booted_s + at_s)} {text}" for at_s, text in messages if text and at_s >= 0]
    return "\n".join(lines[-_MAX_KERNEL_LINES:])


async def _tasks(scene: Scene) -> str:
    pids = await asyncio.to_thread(_processes, scene)
    before_s = {pid: _cpu_s(Path(f"/proc/{pid}")) for pid in pids}
    began_s = time.monotonic()
    await asyncio.sleep(_BETWEEN_PAGES_S)
    return "\n".join(await asyncio.to_thread(_threads, before_s, began_s))


def _processes(scene: Scene) -> list[int]:
    if scene.containers:
        raise VrampError(f"vramp reads no processes in a container; `{scene.containers[0]}` lists them")
    if not scene.pids:
        raise VrampError("vramp did not start this server")
    alive = [pid for pid in scene.pids if process_info(pid)]
    if not alive:
        raise VrampError("the server's processes have ended")
    return [one for pid in alive for one in (pid, *(info.id.pid for info in descendants(pid)))]


def _threads(before_s: Mapping[int, float], began_s: float) -> list[str]:
    """Each thread of the processes: its state, where in the kernel it waits, its CPU time; `before_s` is theirs before.

    Their command lines are not read: that blocks while a process is stuck in its own memory map.
    """
    lines: list[str] = []
    for pid, earlier_s in before_s.items():
        info = process_info(pid)
        if info is None:  # it has ended
            continue
        percent = 100 * (_cpu_s(Path(f"/proc/{pid}")) - earlier_s) / (time.monotonic() - began_s)
        lines.append(f"process {pid} {info.name}: {max(0.0, percent):.0f}% of a core")
        tasks = sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda task: int(task.name))
        for task in tasks[: max(0, _MAX_TASKS - len(lines))]:
            with contextlib.suppress(OSError):  # it has ended
                lines.append(_thread(task))
    return lines


def _thread(task: Path) -> str:
    head, _, tail = (task / "stat").read_text(errors="replace").rpartition(")")
    name, fields = head.partition("(")[2], tail.split()
    try:
        place = (task / "wchan").read_text(errors="replace").strip()
    except PermissionError:
        place = ""
    where = "-" if place in ("", "0") else place  # a name may end in 0, as in ep_poll.constprop.0
    return f"  {task.name} {name} {fields[0]} {where} {_cpu_s(task):.1f} s of CPU"


def _cpu_s(task: Path) -> float:
    """The CPU time of a process or thread by its folder in /proc; 0 if it has ended."""
    try:
        fields = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _gpus(scene: Scene) -> str:
    table = await scene.gpus()
    if not table:
        raise VrampError("nothing measures the GPUs here")
    return table


def gpu_table(samples: Iterable[GpuSample]) -> str:
    """What each GPU does, with its processes; empty without samples."""
    lines = []
    for now in samples:
        figures = ((now.gfx_percent, "% busy"), (now.power_w, " W"), (now.gfx_clock_mhz, " MHz"))
        known = [f"{value:.0f}{unit}" for value, unit in figures if value is not None]
        if now.hbm_used_bytes is not None:
            known.append(f"{memory(now.hbm_used_bytes)} in use")
        lines.append(f"gpu {now.index}: {', '.join(known) or 'no figures'}")
        if now.processes is None:
            lines.append("  its processes are unknown")
        for process in now.processes or ():
            held = memory(process.hbm_bytes) if process.hbm_bytes is not None else ""
            lines.append("  " + " ".join(filter(None, (str(process), process.user, held, process.command))))
    return "\n".join(lines)


async def _ras(_: Scene) -> str:
    """What NCCL or RCCL says of its ranks, by the service that it opens in one process of each job."""
    refused = ""
    for host in _RAS_HOSTS:
        try:
            reader, writer = await asyncio.open_connection(host, _RAS_PORT)
        except OSError as error:
            refused = os.strerror(error.errno) if error.errno else str(error)
            continue
        try:
            writer.write(b"VERBOSE STATUS\n")
            await writer.drain()
            try:
                answer = await reader.readexactly(_MAX_RAS_BYTES)
            except asyncio.IncompleteReadError as ended:  # the service closes the connection when all is said
                answer = ended.partial
            return answer.decode("utf-8", errors="replace")
        finally:
            writer.close()
    raise VrampError(f"nothing answers on port {_RAS_PORT}, where NCCL and RCCL open their status service: {refused}")


async def _stacks(scene: Scene) -> str:
    """The Python stacks of the server's processes, by py-spy where it is installed and allowed."""
    pids = await asyncio.to_thread(_processes, scene)
    if shutil.which("py-spy") is None:
        raise VrampError("py-spy is not installed")
    found: list[str] = []
    why = ""
    for pid in pids:
        try:
            found.append(await _output_of("py-spy", "dump", "--pid", str(pid), "--nonblocking"))
        except VrampError as error:
            why = str(error)
    if not found:
        raise VrampError(f"{why}; it needs root, SYS_PTRACE or /proc/sys/kernel/yama/ptrace_scope = 0")
    return "\n\n".join(found)


async def _output_of(*arguments: str) -> str:
    """What a command prints; raises `VrampError` if it is not there or fails."""
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise VrampError(f"{arguments[0]}: {error.strerror}") from error
    try:
        printed, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        last = errors.decode("utf-8", errors="replace").strip().splitlines()[-1:] or [f"status {process.returncode}"]
        raise VrampError(f"{arguments[0]}: {last[0]}")
    return printed.decode("utf-8", errors="replace")


_COLLECTORS = (
    Collector("samples.jsonl", "every figure of the last two minutes, as in the journal", _samples),
    Collector("metrics.txt", "the servers' /metrics, read twice", _metrics),
    Collector("server.log", "the end of the server's log", _log),
    Collector("kernel.txt", "the kernel's messages", _kernel),
    Collector("tasks.txt", "each thread of the server: state, where it waits, CPU time", _tasks),
    Collector("gpus.txt", "what the GPUs do, and the processes on them", _gpus),
    Collector("ras.txt", "what NCCL or RCCL says of its ranks", _ras),
    Collector("stacks.txt", "Python stacks of the server's processes", _stacks),
)
