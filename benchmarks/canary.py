"""How long vramp takes to see that the output is wrong: for each fault of the simulator, from its onset to the verdict.

The load runs for a while before the fault, as a reference, and then until a verdict on the output is shown, or for
`--most-s`. The first row is a healthy engine on which only near ties fall to either side.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time

import httpx

from benchmarks.running import attach, simulator
from loadgen.report.output import is_of_output
from loadgen.run.operations import Stop
from loadgen.run.run import Run

GOOD_S = 15.0
STREAMS = 32
FAULTS = (
    "flip:share=0.3,after=12",
    "wrong",
    "wrong:share=0.3",
    "drift:nats=0.1",
    "drift:nats=0.05",
    "repeat",
    "repeat:share=0.3",
    "replacement",
    "blank:after=0",
    "wrong refuse_scores",
)


async def time_to_verdict(faults: list[str], most_s: float) -> tuple[float | None, str]:
    """Return the seconds from the fault to a verdict on the output, and what that says."""
    async with simulator(10) as url, httpx.AsyncClient(trust_env=False) as client:
        load = {"isl": 64, "osl": 64, "concurrency": STREAMS, "duration": f"{GOOD_S + most_s:g}s", "workers": 1}
        run = Run(attach(url, load), where="bench")
        went_wrong_s, seen, words = 0.0, None, "nothing"
        async for snapshot in run.snapshots():
            if not went_wrong_s and snapshot.stages and snapshot.stages[0].elapsed_s > GOOD_S:
                (await client.post(f"{url}/admin/faults", json={"faults": faults})).raise_for_status()
                went_wrong_s = time.monotonic()
            reported = next((one for one in snapshot.verdicts if is_of_output(one) and one.bad), None)
            if reported is not None and seen is None:
                seen, words = (
                    time.monotonic() - went_wrong_s if went_wrong_s else -1.0,
                    f"{reported.id}: {reported.text}",
                )
                run.apply(Stop())
        return seen, words


async def tell(chosen: list[str], most_s: float) -> None:
    print(f"{STREAMS} streams, right for {GOOD_S:g} s, then wrong for {most_s:g} s at most")
    print(f"{'fault':28}{'found after':>12}")
    for faults in chosen:
        seconds, words = await time_to_verdict(faults.split(), most_s)
        print(f"{faults:28}{'never' if seconds is None else f'{seconds:.1f} s':>12}  {words}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", action="append", help="instead of all; several at once, separated by spaces")
    parser.add_argument("--most-s", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        asyncio.run(tell(options.fault or list(FAULTS), options.most_s))


if __name__ == "__main__":
    main()
