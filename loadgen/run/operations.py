"""What an operator can ask of a run: one struct an action, and nothing else.

Keys, watchers and scripts hand them to `apply`, of a run of this process, of one elsewhere, or of a replay. The bounds
are for what comes over a socket; whoever makes one here keeps them himself.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from loadgen.plan.request import PlanRequest

Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
RequestsPerS = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
Text = Annotated[str, msgspec.Meta(max_length=1_000)]


class _Action(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Told apart by its name, which is its tag."""


class StartAnyway(_Action, frozen=True):
    """Start although the preflight says that it will not work."""


class SetConcurrency(_Action, frozen=True):
    """End the stage and hold this many streams from now on; 0 is no load."""

    concurrency: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]


class SetRate(_Action, frozen=True):
    """End the stage and send this many requests a second from now on."""

    requests_per_s: RequestsPerS


class SetShape(_Action, frozen=True):
    """End the stage and go on with requests of this shape."""

    isl: Count
    osl: Count


class FollowPlan(_Action, frozen=True):
    """End the stage and begin another plan from where the load stands."""

    plan: PlanRequest


class Hold(_Action, frozen=True):
    """Let the running stage go on without an end."""


class Pause(_Action, frozen=True):
    """Send no more; running streams finish."""


class Resume(_Action, frozen=True):
    """Go on after a pause."""


class NextStage(_Action, frozen=True):
    """End the stage and begin the plan's next; in a replay, go on by a tick and stand still."""


class Extend(_Action, frozen=True):
    """Let the running stage go on for as long as it needs to know E2E, or else for its length once more."""


class Redo(_Action, frozen=True):
    """Measure the running stage of the plan again, or else the last one that is done."""


class Note(_Action, frozen=True):
    """Put a remark on the time axis."""

    text: Text


class ShowProcesses(_Action, frozen=True):
    """List the processes that hold memory of the GPUs for a while: somebody looks at them, and asks again in time."""


class Restart(_Action, frozen=True):
    """Stop the server and start it again, as it is or as one of the variants; what ran goes on by hand."""

    variant: Text | None = None


class Stop(_Action, frozen=True):
    """Finish: end the load, stop the server, keep the result."""


class Abort(_Action, frozen=True):
    """Finish now: cut streams off, give the server no time of its own, keep what there is."""


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
    | ShowProcesses
    | Restart
    | Stop
    | Abort
)
