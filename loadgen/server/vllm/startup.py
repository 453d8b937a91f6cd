"""How far a starting server is, read from its log.

The wording of the log changes with version and platform, so nothing depends on any one line: a line that matches no
rule is ignored, a milestone whose line never comes is passed over when a later one begins, and `finish` closes whatever
is open. A milestone that is done stays done, and a figure once read stays as it is, however many workers and replicas
report it again; only a progress bar may go back, because a second one began.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Literal, NamedTuple

from msgspec.structs import replace

from loadgen.metrics.journal import Milestone

_State = Literal["running", "done"]


class _Rule(NamedTuple):
    milestone: str
    state: _State
    pattern: re.Pattern[str]  # its named groups are figures; `i` and `n`, or `percent`, also give the progress


def _rule(milestone: str, state: _State, pattern: str) -> _Rule:
    return _Rule(milestone, state, re.compile(pattern, re.IGNORECASE))


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
"""The parts of a detail, each shown once all its figures are known."""
_PROGRESS_FIGURES = {"i", "n", "kind", "percent"}

_MATCHED_CHARS = 400
"""What a milestone says, it says early; the limit keeps a hostile line from costing more than a glance."""
_COUNT = r"(?P<i>\d+)\s*/\s*(?P<n>\d+)\b"
_SIZE = r"[\d.]+ ?Gi?B"
# Wordings of vLLM 0.6 to 0.32, engines V0 and V1, on ROCm, CUDA and CPU.
_RULES = (
    _rule("import", "done", r"(?:\bvLLM\b[\w ]*|[█▄▀] +)\bversion v?(?P<version>\d+\.\d[\w.+-]*)"),
    _rule("config", "running", r"non-default args|\bargs: Namespace\("),
    _rule("config", "running", r"Resolved architecture: (?P<architecture>\w+)"),
    _rule("config", "done", r"Initializing an? .*\bengine\b"),
    _rule("weights", "running", r"Starting to load model"),
    _rule("weights", "running", r"\bLoading [^|]*:\s*\d+%[^|]*\|\s*(?:[^|]*\|\s*)?" + _COUNT),
    _rule("weights", "running", r"Loading weights took (?P<took>[\d.]+) s"),
    _rule("weights", "done", rf"(?:Model loading|Loading model weights) took (?P<size>{_SIZE})"),
    _rule("compile", "running", r"torch_compile_cache|Dynamo bytecode|Compiling a graph|Warming up model for the comp"),
    _rule("compile", "done", r"torch\.compile (?:takes|took) (?P<took>[\d.]+) s"),
    _rule("compile", "done", r"Warming up done"),
    _rule("kv_cache", "running", rf"Available KV cache memory: (?P<memory>{_SIZE})"),
    _rule("kv_cache", "running", rf"memory reserved for KV Cache is (?P<memory>{_SIZE})"),
    _rule("kv_cache", "running", r"Memory profiling (?:takes|results)|instance can use total_gpu_memory"),
    _rule(
        "kv_cache",
        "done",
        r"KV cache size: (?P<tokens>[\d,]+) tokens"
        r"(?:.*Maximum concurrency for (?P<length>[\d,]+) tokens per request: (?P<times>[\d.]+)x)?",
    ),
    _rule("kv_cache", "done", r"# (?!CPU)\w+ blocks: (?P<blocks>\d+)"),
    _rule("kv_cache", "done", r"Maximum concurrency for (?P<length>[\d,]+) tokens per request: (?P<times>[\d.]+)x"),
    _rule(
        "graphs", "running", r"Capturing [^|]*graphs?\b[^|]*?(?:(?P<kind>[A-Z]+)\))?:\s*\d+%[^|]*\|[^|]*\|\s*" + _COUNT
    ),
    _rule("graphs", "running", r"Capturing .*graphs?\b.*?(?P<percent>\d+)\s*%"),
    _rule("graphs", "running", r"Capturing .*graphs?\b"),
    _rule("graphs", "done", r"(?<!Encoder )Graph capturing finished in (?P<took>[\d.]+) s"),
    _rule("graphs", "done", r"Skipping .*CUDA graph capture"),
    _rule("ready", "running", r"init engine .*took|Started server process"),
    _rule("ready", "running", r"Starting (?:vLLM|the)?.*\bserver\b.* on https?://"),
    _rule("ready", "done", r"Application startup complete|Uvicorn running on"),
)


class StartupWatch:
    """Folds the lines of a server's log into its milestones."""

    def __init__(self, now: float) -> None:
        self._milestones = list(_MILESTONES)
        self._milestones[0] = replace(_MILESTONES[0], state="running", started_s=now)
        self._figures: dict[str, dict[str, str]] = {milestone.id: {} for milestone in _MILESTONES}

    @property
    def milestones(self) -> Sequence[Milestone]:
        """All of them, in the order in which a start usually passes them."""
        return tuple(self._milestones)

    def feed(self, line: str, now: float) -> None:
        """Take one line of the log; lines that mean nothing here change nothing."""
        for rule in _RULES:
            match = rule.pattern.search(line, 0, _MATCHED_CHARS)
            if match is not None:
                self._apply(rule, match, now)
                return

    def finish(self, now: float) -> None:
        """The server answers: everything is done, whatever the log said."""
        for position in range(len(self._milestones)):
            self._close(position, now)

    def _apply(self, rule: _Rule, match: re.Match[str], now: float) -> None:
        position = next(i for i, milestone in enumerate(self._milestones) if milestone.id == rule.milestone)
        figures = {name: value for name, value in match.groupdict().items() if value is not None}
        self._note(rule.milestone, figures)
        if self._milestones[position].state == "done":
            self._describe(position)  # a figure that was still missing
            return
        for earlier in range(position):
            self._close(earlier, now)
        self._go_on(position, _progress(figures), now)
        if rule.state == "done":
            self._close(position, now)

    def _note(self, milestone: str, figures: Mapping[str, str]) -> None:
        known = self._figures[milestone]
        if "i" in figures:
            known.pop("kind", None)
        known |= {name: value for name, value in figures.items() if name in _PROGRESS_FIGURES or name not in known}

    def _go_on(self, position: int, progress: float | None, now: float) -> None:
        before = self._milestones[position]
        self._milestones[position] = replace(
            before,
            state="running",
            started_s=now if before.started_s is None else before.started_s,
            progress=before.progress if progress is None else progress,
        )
        self._describe(position)

    def _close(self, position: int, now: float) -> None:
        before = self._milestones[position]
        if before.state == "done":
            return
        if before.started_s is None:  # passed over: it took no time that we saw
            self._milestones[position] = replace(before, state="done")
            return
        progress = None if before.progress is None else 1.0
        self._milestones[position] = replace(before, state="done", progress=progress, finished_s=now)
        self._describe(position)

    def _describe(self, position: int) -> None:
        before = self._milestones[position]
        known = {"kind": "", **self._figures[before.id]}
        parts = _DETAILS.get(before.id, ())
        if before.state == "running":
            parts = _WHILE_RUNNING.get(before.id, ()) + parts
        detail = ", ".join(part.format(**known).strip() for part in parts if _names(part) <= known.keys())
        self._milestones[position] = replace(before, detail=detail)


def _names(part: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(part) if name}


def _progress(figures: Mapping[str, str]) -> float | None:
    if "percent" in figures:
        return min(1.0, int(figures["percent"]) / 100)
    if "i" in figures and int(figures["n"]) > 0:
        return min(1.0, int(figures["i"]) / int(figures["n"]))
    return None
