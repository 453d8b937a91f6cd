"""The verdict in the header: one line in words on what the run does and whether it needs the operator."""

from __future__ import annotations

import msgspec

from loadgen.metrics.journal import EngineView, Milestone, RunState
from loadgen.metrics.snapshot import ClientView, Phase
from loadgen.metrics.verdicts import kv_limit, queueing


class HeadlineFacts(msgspec.Struct, frozen=True):
    """What the verdict in the header is made of."""

    phase: Phase
    client: ClientView
    engine: EngineView | None
    errors: int
    completed: int
    milestones: tuple[Milestone, ...]
    state: RunState | None
    reason: str
    waiting_for: tuple[str, ...] = ()  # processes that a stop waits for


def headline(facts: HeadlineFacts) -> tuple[str, bool]:
    """The verdict in words, and whether all is well."""
    first_line = facts.reason.partition("\n")[0]
    match facts.phase:
        case "done":
            return f"{facts.state}: {first_line}", facts.state in ("complete", "stopped")
        case "checking":
            return "preflight: looking at profile, installation and box", True
        case "blocked":
            return "preflight: the start would fail", False
        case "restarting":
            return _stopping_words(facts, "the server, to start it again"), True
        case "failed":
            return first_line, False
        case "stopping":
            return _stopping_words(facts, first_line), facts.state in ("complete", "stopped")
        case "starting":
            return f"server starting: {_milestone_words(facts.milestones)}", True
        case "probing":
            return "server ready: asking what it serves", True
        case "paused":
            return "paused", True
        case "draining":
            return "draining: waiting for the streams on their way", True
        case "holding":
            return "the plan is done, the server is up", True
        case "running":
            return _load_headline(facts)


def _stopping_words(facts: HeadlineFacts, reason: str) -> str:
    waiting = ", ".join(facts.waiting_for)
    return f"stopping: waits for {waiting}" if waiting else f"stopping: {reason}"


def _milestone_words(milestones: tuple[Milestone, ...]) -> str:
    for milestone in reversed(milestones):
        if milestone.state == "running":
            return f"{milestone.label} {milestone.detail}".strip()
    coming = [milestone.label for milestone in milestones if milestone.state == "waiting"]
    return f"next: {coming[0]}" if coming else "waiting for its answer"


def _load_headline(facts: HeadlineFacts) -> tuple[str, bool]:
    errors, completed = facts.errors, facts.completed
    if errors and errors >= completed:
        return f"failing: {errors} of {errors + completed} requests", False
    if facts.client.limited:
        return f"client-limited, not trustworthy: {facts.client.why}", False
    if facts.engine is not None:
        waiting = facts.engine.waiting
        limit = kv_limit(waiting, facts.engine.kv_usage) or queueing(waiting)
        if limit is not None:
            return limit, True
    return ("ok" if not errors else f"ok, {errors} failed"), True
