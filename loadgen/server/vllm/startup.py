"""The progress of a starting server: milestones from its log, how long the last start took, and signs of life.

The log's wording changes with version and platform, so nothing depends on any one line: a line that matches no rule is
ignored, a milestone whose line never comes is skipped when a later one begins, and `finish` closes whatever is open. A
milestone that is done stays done, and a figure once read keeps its value, however many workers report it again; only a
progress bar may go back, when a second one begins.

The figures of each start are kept, one JSON line each, in a file per kind of start: a missing or damaged file means no
history, and one that cannot be written is reported but never fails the run. A start can be silent for minutes; then the
CPU use of its processes shows whether it is working. Processes that are gone or hidden are ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
import psutil
from msgspec.structs import replace

from loadgen.errors import UNDECODABLE
from loadgen.places import read_whole, write_whole
from loadgen.profile.schema import Profile
from loadgen.schema.samples import Reading
from loadgen.schema.shared import Milestone
from loadgen.schema.snapshot import Liveness
from loadgen.schema.start import ServerStart

MAX_STARTS = 50  # of each kind that are kept
_DECIDING = {"engine", "platform", "model", "command", "docker", "instances", "args", "env"}
"""The keys of `[server]` that determine how long a start takes; ports, names and limits do not."""


_MILESTONES = (
    Milestone("import", "start and import"),
    Milestone("config", "read configuration"),
    Milestone("weights", "load weights"),
    Milestone("compile", "compile"),
    Milestone("kv_cache", "KV cache"),
    Milestone("graphs", "capture graphs"),
    Milestone("ready", "ready"),
)

_WHILE_RUNNING = {"weights": ("{i}/{n} shards",), "kv_cache": ("{memory}",), "graphs": ("{i}/{n} {kind}",)}
_DETAILS = {
    "import": ("version {version}",),
    "config": ("{architecture}",),
    "weights": ("{size}", "{took} s"),
    "compile": ("{took} s",),
    "kv_cache": ("{tokens} tokens", "{blocks} blocks", "{times}x at {length} tokens"),
    "graphs": ("{took} s",),
}
"""The parts of a milestone's detail, each shown once all its figures are known."""
_PROGRESS_FIGURES = {"i", "n", "kind", "percent"}

_MATCHED_CHARS = 400
"""Only the beginning of a line is matched, so that a hostile line costs little."""
_COUNT = r"(?P<i>\d{1,9})\s*/\s*(?P<n>\d{1,9})\b"
_SIZE = r"[\d.]+ ?Gi?B"
# Log lines of vLLM 0.6 to 0.33, engines V0 and V1, on ROCm, CUDA and CPU. Named groups are figures; `i` and `n`, or
# `percent`, also give the progress.
_RULES: tuple[tuple[str, Literal["running", "done"], str], ...] = (
    ("import", "done", r"(?:\bvLLM\b[\w ]*|[█▄▀] +)\bversion v?(?P<version>\d+\.\d[\w.+-]*)"),
    ("config", "running", r"non-default args|\bargs: Namespace\("),
    ("config", "running", r"Resolved architecture: (?P<architecture>\w+)"),
    ("config", "done", r"Initializing an? .*\bengine\b"),
    ("weights", "running", r"Starting to load model"),
    ("weights", "running", r"\bLoading [^|]*:\s*\d+%[^|]*\|\s*(?:[^|]*\|\s*)?" + _COUNT),
    ("weights", "running", r"Loading weights took (?P<took>[\d.]+) s"),
    ("weights", "done", rf"(?:Model loading|Loading model weights) took (?P<size>{_SIZE})"),
    ("compile", "running", r"torch_compile_cache|Dynamo bytecode|Compiling a graph|Warming up model for the comp"),
    ("compile", "done", r"torch\.compile (?:takes|took) (?P<took>[\d.]+) s"),
    ("compile", "done", r"Warming up done"),
    ("kv_cache", "running", rf"Available KV cache memory: (?P<memory>{_SIZE})"),
    ("kv_cache", "running", rf"memory reserved for KV Cache is (?P<memory>{_SIZE})"),
    ("kv_cache", "running", r"Memory profiling (?:takes|results)|instance can use total_gpu_memory"),
    (
        "kv_cache",
        "done",
        r"KV cache size: (?P<tokens>[\d,]+) tokens"
        r"(?:.*Maximum concurrency for (?P<length>[\d,]+) tokens per request: (?P<times>[\d.]+)x)?",
    ),
    ("kv_cache", "done", r"# (?!CPU)\w+ blocks: (?P<blocks>\d+)"),
    ("kv_cache", "done", r"Maximum concurrency for (?P<length>[\d,]+) tokens per request: (?P<times>[\d.]+)x"),
    ("graphs", "running", r"Capturing [^|]*graphs?\b[^|]*?(?:(?P<kind>[A-Z]+)\))?:\s*\d+%[^|]*\|[^|]*\|\s*" + _COUNT),
    ("graphs", "running", r"Capturing .*graphs?\b.*?(?P<percent>\d{1,3})\s*%"),
    ("graphs", "running", r"Capturing .*graphs?\b"),
    ("graphs", "done", r"(?<!Encoder )Graph capturing finished in (?P<took>[\d.]+) s"),
    ("graphs", "done", r"Skipping .*CUDA graph capture"),
    ("ready", "running", r"init engine .*took|Started server process"),
    ("ready", "running", r"Starting (?:vLLM|the)?.*\bserver\b.* on https?://"),
    ("ready", "done", r"Application startup complete|Uvicorn running on"),
)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


class StartupWatch:
    def __init__(self, now: float) -> None:
        self._milestones = list(_MILESTONES)
        self._milestones[0] = replace(_MILESTONES[0], state="running", started_s=now)
        self._figures: dict[str, dict[str, str]] = {milestone.id: {} for milestone in _MILESTONES}

    @property
    def milestones(self) -> tuple[Milestone, ...]:
        return tuple(self._milestones)

    def feed(self, line: str, now: float) -> None:
        """Process one line of the log."""
        begin = line[:_MATCHED_CHARS]
        for id, state, pattern in _RULES:
            match = _compiled(pattern).search(begin)
            if match is not None:
                self._apply(id, state, match, now)
                return

    def finish(self, now: float) -> None:
        """Mark everything as done, whatever the log said, because the server answers."""
        for position in range(len(self._milestones)):
            self._close(position, now)

    def _apply(self, id: str, state: Literal["running", "done"], match: re.Match[str], now: float) -> None:
        position = next(i for i, milestone in enumerate(self._milestones) if milestone.id == id)
        figures = {name: value for name, value in match.groupdict().items() if value is not None}
        known = self._figures[id]
        if "i" in figures:
            known.pop("kind", None)
        known |= {name: value for name, value in figures.items() if name in _PROGRESS_FIGURES or name not in known}
        before = self._milestones[position]
        if before.state != "done":  # otherwise the line only added a missing figure
            for earlier in range(position):
                self._close(earlier, now)
            started_s = now if before.started_s is None else before.started_s
            progress = before.progress if (shown := _progress(figures)) is None else shown
            self._milestones[position] = replace(before, state="running", started_s=started_s, progress=progress)
        self._describe(position)
        if state == "done":
            self._close(position, now)

    def _close(self, position: int, now: float) -> None:
        before = self._milestones[position]
        if before.state != "done":
            progress = None if before.progress is None else 1.0
            finished_s = None if before.started_s is None else now  # None: skipped, and no time of its own was seen
            self._milestones[position] = replace(before, state="done", progress=progress, finished_s=finished_s)
            self._describe(position)

    def _describe(self, position: int) -> None:
        before = self._milestones[position]
        known = {"kind": "", **self._figures[before.id]}
        parts = _DETAILS.get(before.id, ())
        if before.state == "running":
            parts = _WHILE_RUNNING.get(before.id, ()) + parts
        details: list[str] = []
        for part in parts:
            with contextlib.suppress(KeyError):  # a figure is not known yet
                details.append(part.format(**known).strip())
        self._milestones[position] = replace(before, detail=", ".join(details))


def _progress(figures: Mapping[str, str]) -> float | None:
    if "percent" in figures:
        return min(1.0, int(figures["percent"]) / 100)
    if "i" in figures and int(figures["n"]) > 0:
        return min(1.0, int(figures["i"]) / int(figures["n"]))
    return None


def start_key(profile: Profile) -> str:
    """A key shared by starts that should take equally long; usable as a file name."""
    deciding = profile.server.model_dump(mode="json", include=_DECIDING)
    digest = hashlib.sha256(msgspec.json.encode(deciding, order="deterministic")).hexdigest()
    return f"{profile.name[:60]}-{digest[:16]}"


def times_of(start: ServerStart, milestones: Sequence[Milestone]) -> ServerStart:
    """The figures of a start with how long it and its milestones took; without times if it has not finished."""
    taken = {
        one.id: (one.started_s, one.finished_s)
        for one in milestones
        if one.started_s is not None and one.finished_s is not None
    }
    if not taken or any(one.state != "done" for one in milestones):
        return start
    total_s = max(end for _, end in taken.values()) - min(begin for begin, _ in taken.values())
    return replace(start, total_s=total_s, milestones_s={id: end - begin for id, (begin, end) in taken.items()})


def remember_start(folder: Path, key: str, start: ServerStart) -> str | None:
    """Add a start to those of its kind, one line each; returns an error message if that failed."""
    path = folder / f"{key}.jsonl"
    lines = [*_lines(path)[1 - MAX_STARTS :], msgspec.json.encode(start)]
    try:
        write_whole(path, b"\n".join([*lines, b""]))
    except OSError as error:
        return f"{folder}: the figures of the start cannot be kept there: {error.strerror}"
    return None


def last_start(folder: Path, key: str) -> ServerStart | None:
    """The last start of this kind on this box; None if there was none, or its line is invalid."""
    lines = _lines(folder / f"{key}.jsonl")
    try:
        return msgspec.json.decode(lines[-1], type=ServerStart) if lines else None
    except UNDECODABLE:
        return None


def _lines(path: Path) -> list[bytes]:
    try:
        return read_whole(path).splitlines()
    except OSError:
        return []


def with_expectations(
    milestones: Iterable[Milestone], expected: ServerStart | None, *, now_s: float
) -> tuple[Milestone, ...]:
    """The milestones with their times in the last start, and the current one with its time so far."""
    before = expected.milestones_s if expected is not None else {}
    found: list[Milestone] = []
    for one in milestones:
        elapsed_s = now_s - one.started_s if one.state == "running" and one.started_s is not None else None
        found.append(replace(one, expected_s=before.get(one.id), elapsed_s=elapsed_s))
    return tuple(found)


def signs_of_life(
    pids: Iterable[int], before: Reading | None, *, now_s: float, last_line_s: float | None = None
) -> tuple[Liveness, Reading]:
    """Signs of life of a process tree, and its CPU time for the next call.

    `now_s` and `last_line_s`, the time of the log's last line, share a monotonic clock.
    """
    seen = [usage for pid in pids if (usage := _usage(pid)) is not None]
    cpu = Reading(now_s, sum(used_s for used_s, _ in seen))
    percent = None
    if before is not None and now_s > before.t_s:
        # A process whose parent is outside the tree takes its CPU time with it when it ends.
        percent = max(0.0, 100 * (cpu.value - before.value) / (now_s - before.t_s))
    liveness = Liveness(
        cpu_percent=percent,
        rss_bytes=sum(rss for _, rss in seen),
        last_line_age_s=None if last_line_s is None else max(0.0, now_s - last_line_s),
    )
    return liveness, cpu


def _usage(pid: int) -> tuple[float, int] | None:
    """CPU seconds of a process and its ended children, and its resident bytes; None if it is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            used_s = times.user + times.system + times.children_user + times.children_system
            return used_s, process.memory_info().rss
    except psutil.Error:
        return None
