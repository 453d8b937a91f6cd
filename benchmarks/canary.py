"""How long vramp takes to see that the output is wrong: for each fault of the simulator, from its onset to the verdict.

The load runs for a while before the fault, as a reference, and then until a verdict on the output is shown, or for
`--most-s`. The first row is a healthy engine on which only near ties fall to either side. `--faults` takes others,
those of one row with blanks between them.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

import httpx

from benchmarks.running import Table, attach, read_options, scratch, simulator
from loadgen.report.output import is_of_output
from loadgen.report.tabular import Column
from loadgen.run.operations import Stop
from loadgen.run.run import Run
from loadgen.run.settings import RunSettings

GOOD_S = 15.0
FAULTS = ["flip:share=0.3,after=12", "wrong", "wrong:share=0.3", "drift:nats=0.1", "drift:nats=0.05", "repeat"]
FAULTS += ["repeat:share=0.3", "replacement", "blank:after=0", "wrong refuse_scores"]


class Found(NamedTuple):
    faults: str
    after_s: float | None = None
    words: str = "never"


COLUMNS = (
    Column[Found]("fault", lambda found: found.faults, words=True, width=28),
    Column[Found]("found after, s", lambda found: found.after_s, decimals=1),
    Column[Found]("  verdict", lambda found: f"  {found.words}", words=True),
)


async def time_to_verdict(faults: str, most_s: float) -> Found:
    """Return the seconds from the fault to a verdict on the output, and what that says."""
    load = {"isl": 64, "osl": 64, "concurrency": 32, "duration": f"{GOOD_S + most_s:g}s", "workers": 1}
    found, wrong_s = Found(faults), 0.0
    async with simulator(10) as url, httpx.AsyncClient(trust_env=False) as client:
        run = Run(RunSettings(attach(url, load), where="bench"))
        async for snapshot in run.snapshots():
            if not wrong_s and snapshot.stages and snapshot.stages[0].duration_s > GOOD_S:
                (await client.post(f"{url}/admin/faults", json={"faults": faults.split()})).raise_for_status()
                wrong_s = time.monotonic()
            reported = next((one for one in snapshot.verdicts if is_of_output(one) and one.bad), None)
            if reported is not None and found.after_s is None:
                # Before the fault it would be a false alarm.
                found = Found(
                    faults, time.monotonic() - wrong_s if wrong_s else -1.0, f"{reported.id}: {reported.text}"
                )
                run.apply(Stop())
    return found


async def tell(rows: list[str], most_s: float) -> None:
    table = Table(COLUMNS)
    for faults in rows:
        table.add(await time_to_verdict(faults, most_s))


if __name__ == "__main__":
    options = read_options(__doc__, faults="", most_s=60.0)
    with scratch():
        asyncio.run(tell([options.faults] if options.faults else FAULTS, options.most_s))
