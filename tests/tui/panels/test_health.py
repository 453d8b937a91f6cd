"""Server and engine: a server that is down has no figures."""

import msgspec
import pytest

from loadgen.schema.engine import EngineView
from loadgen.schema.snapshot import InstanceView, Snapshot
from tests.tui.painted import frame_of, lines, painted, text_of
from tests.tui.scenes import watching
from tests.tui.scripted import running
from tui.panels import health

replace = msgspec.structs.replace


def in_state(state: str, now: Snapshot) -> Snapshot:
    return replace(now, server=replace(now.server, state=state))


@pytest.mark.parametrize("state", ["died", "stopping", "starting", "unreachable"])
def test_a_server_that_is_down_has_no_figures(state: str) -> None:
    now = running(engine=EngineView(running=7, waiting=2, kv_usage=0.062, preemptions=3))
    (title, *up), (_, *down) = (lines(health.server, one, 38, 5) for one in (now, in_state(state, now)))
    assert title.endswith("ready") and up[0] == " running     7  waiting     2" and "6.2%" in up[1]
    assert down[0] == " running     -  waiting     -" and down[1].endswith("    -") and "━" not in down[1]
    assert down[2] == " preempted     -"
    strip = text_of(health.server_strip(frame_of(in_state(state, now))))
    assert strip.startswith(" server  running     -   waiting     -   KV     -")


def test_the_engine_view_of_a_server_that_is_down_is_dim() -> None:
    now = watching(200.0)
    now = replace(now, engine=replace(now.engine or EngineView(), engines={"0": EngineView(running=3)}))
    dead = painted(health.engine, in_state("died", now), 100, 20)
    shown = [text_of(row) for row in dead]
    assert "─ died  http://" in shown[0]
    assert [row.split() for row in shown[2:4]] == [["all", *"-------"], ["engine", "0", *"-------"]]
    reported = [row for row in dead if "TTFT ms" in text_of(row) or "finished" in text_of(row)]
    assert len(reported) == 2 and {role for row in reported for _, role in row} == {"dim"}


def test_of_several_servers_the_dead_one_has_no_figures() -> None:
    servers = (InstanceView("http://a", "ready", 1, 5.0, 1.0, 0.2), InstanceView("http://b", "died", 2, 4.0, 2.0, 0.3))
    now = running()
    shown = lines(health.engine, replace(now, server=replace(now.server, instances=servers)), 100, 12)
    assert [row.split()[:5] for row in shown[3:5]] == [
        ["server", "5", "1", "20%", "ready"],
        ["server", *"---", "died"],
    ]
