"""What stands in the charts' place while there is no server."""

import msgspec

from loadgen.schema.shared import Diagnosis
from loadgen.schema.snapshot import Snapshot
from tests.tui.cockpit import seated
from tests.tui.painted import lines
from tests.tui.scripted import running, starting
from tui.panels.startup import startup

replace = msgspec.structs.replace
CAUSE = Diagnosis(
    "killed",
    "something killed a process of the server with SIGKILL, and its log does not say why",
    (f"INFO the last thing that it said {'before it ended ' * 12}",),
    "look for who sent it: an operator, a job scheduler or systemd-oomd; `journalctl -k` shows the kernel's",
)
HEADLINE = f"the server was killed by SIGKILL during the load: {CAUSE.title}"


def dead(headline: str = HEADLINE, cause: Diagnosis = CAUSE) -> Snapshot:
    now = running()
    server = replace(now.server, state="died", diagnosis=cause, milestones=starting().server.milestones)
    return replace(now, phase="failed", headline=headline, healthy=False, server=server)


async def test_the_diagnosis_of_a_dead_server_and_its_remedy_can_be_read_whole() -> None:
    async with seated() as seat:
        for size in ((60, 16), (80, 24), (120, 40), (150, 30)):
            await seat.pilot.resize_terminal(*size)
            await seat.show(dead())
            y = next(y for y, row in enumerate(seat.rows) if "server died ─" in row)
            shown = " ".join(row[seat.rows[y].index("server died ─") :].strip() for row in seat.rows[y:])
            assert (
                shown.index(HEADLINE)
                < shown.index(f"→ {CAUSE.remedy}")
                < shown.index("INFO the last thing that it said")
            )


def test_a_diagnosis_takes_three_rows_at_most_and_is_not_said_twice() -> None:
    long = replace(CAUSE, title="title " * 60, remedy="remedy " * 60)
    shown = lines(startup, dead("stopping: the run ended", long), 80, 13)
    assert shown[1] == " ! stopping: the run ended"
    assert [row.split()[0] for row in shown[2:9]] == ["title"] * 3 + ["→", "remedy", "remedy", "INFO"]
    assert shown[4].endswith("…") and shown[7].endswith("…")
    assert "\n".join(lines(startup, dead(), 160, 13)).count(CAUSE.title) == 1
