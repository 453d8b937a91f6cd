"""The table of one publication next to what vramp measures on a simulator that was fitted to it, in real time.

GPT-OSS 120B on one MI300X: 80 requests of 4096/1024 by 8 streams, 171 s. Only the means of TTFT, TPOT and E2E were
fitted, and are within 5 %: medians and tails show how closely the simulator resembles the machine. With fewer
`--requests` the first wave, which meets an empty engine, weighs more.
"""

from __future__ import annotations

import asyncio

from benchmarks.running import ROOT, finish, read_options, scratch
from loadgen.profile.document import load_profile
from loadgen.profile.schema import Server
from loadgen.report.document import published
from loadgen.report.text import section_lines

if __name__ == "__main__":
    options = read_options(__doc__, requests=80)
    loads = ["load.seed=1", "load.workers=1", f"load.requests={options.requests}", 'telemetry="off"']
    profile = load_profile(ROOT / "profiles/mi300x-gpt-oss-120b.toml", loads)
    fitted = profile.model_copy(update={"server": Server(engine="simulator", args={"preset": "published"})})
    with scratch():
        print(*section_lines(published(asyncio.run(finish(fitted)))), sep="\n")
