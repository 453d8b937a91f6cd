"""What an operator can ask of a run: one struct per action, and nothing else.

Keys, watchers and scripts pass them to `apply` of a local run, a remote run, or a replay. The bounds protect against
input from a socket; local callers must keep them themselves.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from loadgen.plan.request import PlanRequest

Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
RequestsPerS = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
Text = Annotated[str, msgspec.Meta(max_length=1_000)]


class _Action(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Identified by its name, which is its tag."""


class StartAnyway(_Action, frozen=True):
    """Start although the preflight found that it would fail."""


class SetConcurrency(_Action, frozen=True):
    """End the stage and hold this many streams from now on; 0 is no load."""

    concurrency: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]


class SetRate(_Action, frozen=True):
    """End the stage and send this many requests a second from now on."""

    requests_per_s: RequestsPerS


class SetShape(_Action, frozen=True):
    """End the stage and continue with requests of this shape."""

    isl: Count
    osl: Count


class FollowPlan(_Action, frozen=True):
    """End the stage and begin another plan from the present load."""

    plan: PlanRequest


class Hold(_Action, frozen=True):
    """Let the running stage continue without an end."""


class Pause(_Action, frozen=True):
    """Send no more; running streams finish."""


class Resume(_Action, frozen=True):
    """Go on after a pause."""


class NextStage(_Action, frozen=True):
    """End the stage and begin the plan's next; in a replay, advance by one tick and pause."""


class Extend(_Action, frozen=True):
    """Extend the running stage by the time it still needs to measure E2E, or else by its own length."""


class Redo(_Action, frozen=True):
    """Measure the plan's running stage again, or its last completed stage if none is running."""


class Note(_Action, frozen=True):
    """Put a remark on the time axis."""

    text: Text


class TakeEvidence(_Action, frozen=True):
    """Write down all that can be seen of the server now, as at a stall."""


class ShowProcesses(_Action, frozen=True):
    """List the processes that hold GPU memory for a while; sent repeatedly while the list is shown."""


class Restart(_Action, frozen=True):
    """Stop the server and start it again, as it is or as a variant; what ran continues as a manual stage."""

    variant: Text | None = None


class Stop(_Action, frozen=True):
    """Finish: end the load, stop the server, keep the result."""


class Abort(_Action, frozen=True):
    """Finish now: cut off streams, stop the server without a grace period, keep the result so far."""


Operation = (
    StartAnyway
    | SetConcurrency
    | SetRate
    | SetShape
    | FollowPlan
    | Hold
    | Pause
    | Resume
    | NextStage
    | Extend
    | Redo
    | Note
    | TakeEvidence
    | ShowProcesses
    | Restart
    | Stop
    | Abort
)
