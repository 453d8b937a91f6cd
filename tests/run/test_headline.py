"""The verdict in the header, as a table."""

import msgspec
import pytest

from loadgen.metrics.journal import EngineView, Milestone
from loadgen.metrics.snapshot import ClientView
from loadgen.run.headline import HeadlineFacts, headline

CLIENT = ClientView("kernel", 1, 10.0, 0.4, 0.0, limited=False, why=None)
CALM = HeadlineFacts("running", CLIENT, None, errors=0, completed=9, milestones=(), state=None, reason="")
IMPORT = Milestone("import", "import", "done")
WEIGHTS = Milestone("weights", "load weights", "running", 0.5, "2/4 shards")
READY = Milestone("ready", "ready")


@pytest.mark.parametrize(
    ("changes", "text", "healthy"),
    [
        ({}, "ok", True),
        ({"errors": 2}, "ok, 2 failed", True),
        ({"errors": 20}, "failing: 20 of 29 requests", False),
        ({"engine": EngineView(waiting=4)}, "engine-limited: queueing, 4 waiting", True),
        ({"engine": EngineView(waiting=4, kv_usage=1.0)}, "KV-limited: 4 waiting, KV cache 100% full", True),
        (
            {"client": msgspec.structs.replace(CLIENT, limited=True, why="read late")},
            "client-limited, not trustworthy: read late",
            False,
        ),
        ({"phase": "paused"}, "paused", True),
        ({"phase": "starting"}, "server starting: waiting for its answer", True),
        (
            {"phase": "starting", "milestones": (IMPORT, WEIGHTS, READY)},
            "server starting: load weights 2/4 shards",
            True,
        ),
        ({"phase": "starting", "milestones": (IMPORT, READY)}, "server starting: next: ready", True),
        ({"phase": "done", "state": "complete", "reason": "the plan is done"}, "complete: the plan is done", True),
        ({"phase": "done", "state": "server_died", "reason": "killed\nlog line"}, "server_died: killed", False),
        (
            {"phase": "stopping", "state": "failed", "reason": "nothing but failures"},
            "stopping: nothing but failures",
            False,
        ),
    ],
)
def test_the_headline(changes: dict[str, object], text: str, healthy: bool) -> None:
    assert headline(msgspec.structs.replace(CALM, **changes)) == (text, healthy)
