"""How far a starting server is, read from its log.

The wording of the log changes with version and platform, so nothing depends on any one line: a line that matches no
rule is ignored, a milestone whose line never comes is passed over when a later one begins, and `finish` closes whatever
is open. A milestone that is done stays done, however many workers report it again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from loadgen.metrics.snapshot import Milestone

_State = Literal["waiting", "running", "done"]


class _Rule(NamedTuple):
    milestone: str
    state: _State
    pattern: re.Pattern[str]
    detail: str = ""
    """Filled from the named groups; `i` and `n`, or `percent`, also give the progress."""


def _rule(milestone: str, state: _State, pattern: str, detail: str = "") -> _Rule:
    return _Rule(milestone, state, re.compile(pattern, re.IGNORECASE), detail)


_MILESTONES = (
    Milestone("import", "start and import"),
    Milestone("config", "read configuration"),
    Milestone("weights", "load weights"),
    Milestone("compile", "compile"),
    Milestone("kv_cache", "KV cache"),
    Milestone("graphs", "capture graphs"),
    Milestone("ready", "ready"),
)

_MATCHED_CHARS = 400
"""What a milestone says, it says early; the limit keeps a hostile line from costing more than a glance."""
_COUNT = r"(?P<i>\d+)\s*/\s*(?P<n>\d+)\b"
_RULES = (
    _rule("import", "done", r"\bversion v?(?P<version>\d+\.\d[\w.+-]*)", "version {version}"),
    _rule("config", "running", r"non-default args"),
    _rule("config", "running", r"Resolved architecture: (?P<name>\w+)", "{name}"),
    _rule("config", "done", r"Initializing an? .*\bengine\b"),
    _rule("weights", "running", r"Starting to load model"),
    _rule("weights", "running", r"shards:\s*\d+%.*?\|\s*" + _COUNT, "{i}/{n} shards"),
    _rule("weights", "running", r"Loading weights took (?P<took>[\d.]+) s", "{took} s"),
    _rule("weights", "done", r"Model loading took (?P<size>[\d.]+ ?Gi?B)", "{size}"),
    _rule(
        "compile", "running", r"torch_compile_cache|Dynamo bytecode|Compiling a graph|Warming up model for the compil"
    ),
    _rule("compile", "done", r"torch\.compile (?:takes|took) (?P<took>[\d.]+) s", "{took} s"),
    _rule("compile", "done", r"Warming up done"),
    _rule("kv_cache", "running", r"Available KV cache memory: (?P<size>[\d.]+ ?Gi?B)", "{size}"),
    _rule(
        "kv_cache",
        "done",
        r"KV cache size: (?P<size>[\d,]+) tokens"
        r"(?:.*Maximum concurrency for (?P<length>[\d,]+) tokens per request: (?P<times>[\d.]+)x)?",
        "{size} tokens|, {times}x at {length} tokens",
    ),
    _rule(
        "kv_cache",
        "done",
        r"Maximum concurrency for (?P<length>[\d,]+) tokens per request: (?P<times>[\d.]+)x",
        "+{times}x at {length} tokens",
    ),
    _rule("graphs", "running", r"Capturing .*graphs?\b.*?:\s*\d+%.*?\|\s*" + _COUNT, "{i}/{n}"),
    _rule("graphs", "running", r"Capturing .*graphs?\b.*?(?P<percent>\d+)\s*%"),
    _rule("graphs", "running", r"Capturing .*graphs?\b"),
    _rule("graphs", "done", r"Graph capturing finished in (?P<took>[\d.]+) s", "{took} s"),
    _rule("ready", "running", r"init engine .*took"),
    _rule("ready", "running", r"Starting (?:vLLM|the)?.*\bserver\b.* on https?://"),
    _rule("ready", "done", r"Application startup complete"),
)


class StartupWatch:
    """Folds the lines of a server's log into its milestones."""

    def __init__(self, now: float) -> None:
        self._milestones = list(_MILESTONES)
        self._milestones[0] = replace(_MILESTONES[0], state="running", started_s=now)

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
        self._milestones = [_closed(milestone, now) for milestone in self._milestones]

    def _apply(self, rule: _Rule, match: re.Match[str], now: float) -> None:
        position = next(i for i, milestone in enumerate(self._milestones) if milestone.id == rule.milestone)
        before = self._milestones[position]
        if before.state == "done":
            if rule.detail.startswith("+"):
                self._milestones[position] = replace(before, detail=_detail(rule, match, before.detail))
            return
        for earlier in range(position):
            self._milestones[earlier] = _closed(self._milestones[earlier], now)
        begun = replace(
            before,
            state="running",
            started_s=now if before.started_s is None else before.started_s,
            progress=_progress(match.groupdict(), before.progress),
            detail=_detail(rule, match, before.detail),
        )
        self._milestones[position] = _closed(begun, now) if rule.state == "done" else begun


def _closed(milestone: Milestone, now: float) -> Milestone:
    if milestone.state == "done":
        return milestone
    if milestone.started_s is None:  # passed over: it took no time that we saw
        return replace(milestone, state="done")
    progress = None if milestone.progress is None else 1.0
    return replace(milestone, state="done", progress=progress, finished_s=now)


def _progress(groups: dict[str, str | None], before: float | None) -> float | None:
    if (percent := groups.get("percent")) is not None:
        return min(1.0, int(percent) / 100)
    if (done := groups.get("i")) is not None and (of := groups.get("n")) is not None and int(of) > 0:
        return min(1.0, int(done) / int(of))
    return before


def _detail(rule: _Rule, match: re.Match[str], before: str) -> str:
    """What the rule makes of its line: `+` adds to what is there; what follows `|` appears only if the line had it."""
    if not rule.detail:
        return before
    groups = match.groupdict()
    always, _, optional = rule.detail.removeprefix("+").partition("|")
    text = always.format(**groups)
    if optional and None not in groups.values():
        text += optional.format(**groups)
    if not rule.detail.startswith("+") or text in before:
        return before if text in before else text
    return f"{before}, {text}" if before else text
