"""Real acceptances on the simulator, with planted defects and without: found, missed, and false.

Each is `vramp accept` in a folder of its own: healthy boxes in all phases from start to performance, the others in the
phase that is about their defect. Performance is measured over two starts whose spread is stated, and a burn-in takes
half a minute. The bounds are 2 % from what a healthy simulator measures, 10 % for TTFT. `--first 40 --boxes 20` does a
part of a campaign; each verdict is a line of `--out`, and `--table` makes the table of all lines there. Without
realtime priority (root), a busy machine makes the client the limit, and every box inconclusive.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.running import Table, read_options, scratch
from loadgen.criteria import PhaseName
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.record import acceptance
from loadgen.report.tabular import Column
from loadgen.run.accept.acceptance import Acceptance, AcceptSettings
from loadgen.run.accept.phases import views
from loadgen.schema.accept_view import AcceptView
from loadgen.store.acceptance import demands_of

STEP_MS, FIRST_TOKEN_MS, KV_BLOCKS, STREAMS = 20.0, 50.0, 65_536, 8
BURN_IN_S, DRIFT = 30.0, 0.5
SOURCE = {"source": "a healthy simulator"}


class Kind(NamedTuple):
    """A kind of box."""

    name: str
    args: dict[str, Any]
    boxes: int  # of a round
    phases: Sequence[PhaseName]
    drifts: bool = False


_ALL: tuple[PhaseName, ...] = ("start", "output", "performance")
KINDS = (
    Kind("healthy", {}, 8, _ALL),
    Kind("5 % slower", {"step-ms": STEP_MS * 1.05}, 2, ("performance",)),
    Kind("slow GPU: 20 % slower", {"step-ms": STEP_MS * 1.2}, 2, ("performance",)),
    Kind("KV pool 10 % smaller", {"kv-blocks": round(KV_BLOCKS * 0.9)}, 2, ("start",)),
    Kind("wrong text under load", {"fault": "wrong:streams=4"}, 2, ("output",)),
    Kind("one request in 100 fails", {"fault": "http_500:share=0.01"}, 1, ("performance",)),
    Kind("healthy, burn-in", {}, 1, ("burn-in",)),
    Kind("leak of 3 MiB/s", {"leak-mib-per-s": 3.0}, 1, ("burn-in",)),
    Kind("50 % slower in the end", {}, 1, ("burn-in",), drifts=True),
)
ROUND = [kind for kind in KINDS for _ in range(kind.boxes)]


class Verdict(NamedTuple):
    """What came of one box."""

    kind: str
    verdict: str
    by: Sequence[str]  # the criteria that were not passed


class Row(NamedTuple):
    kind: str
    counts: Counter[str]
    by: Counter[str]


COLUMNS = (
    Column[Row]("box", lambda row: row.kind, words=True, width=26),
    Column[Row]("boxes", lambda row: row.counts.total()),
    *(Column[Row](word.upper(), lambda row, word=word: row.counts[word]) for word in ("fail", "inconclusive", "pass")),  # type: ignore[misc]
    Column[Row](
        "  not passed", lambda row: "  " + ", ".join(f"{n} {name}" for name, n in row.by.most_common(4)), words=True
    ),
)


def profile_of(kind: Kind, seed: int) -> Profile:
    """A load whose figures the simulator's clock gives: a step is 10 ms, whatever the machine does."""
    criteria = [
        {"figure": "tpot_mean_ms", "at_most": STEP_MS * 1.02, **SOURCE},
        {"figure": "ttft_p50_ms", "at_most": (FIRST_TOKEN_MS + STEP_MS) * 1.1, **SOURCE},
        {"figure": "kv_cache_tokens", "at_least": KV_BLOCKS * 16 * 0.98, **SOURCE},
        {"figure": "exact_match_percent", "at_least": 85, **SOURCE},
    ]
    args = {"preset": "bench", "step-ms": STEP_MS, "kv-blocks": KV_BLOCKS, "seed": seed}
    return build_profile(
        {
            "name": "box",
            "telemetry": "off",
            "server": {"engine": "simulator", "args": args | kind.args},
            "load": {
                "isl": 64,
                "osl": 16,
                "concurrency": STREAMS,
                "duration": "2s",
                "workers": 1,
                "realtime": True,
            },
            "canary": {"interval_s": 0.1},
            "accept": {
                "phases": list(kind.phases),
                "starts": 2,
                "start_spread": 0.005,
                "start_spread_source": "starts of the simulator",
                "burn_in": BURN_IN_S,
                "question_count": 40,
                "criteria": criteria,
            },
        },
        where="bench",
    )


async def verdict_of(kind: Kind, seed: int) -> Verdict:
    """Carry one acceptance out."""
    profile = profile_of(kind, seed)
    demands, not_tested, _ = demands_of(profile)
    order = AcceptSettings(profile=profile, where="bench", repeats=False, demands=demands, not_tested=not_tested)
    drifting = asyncio.create_task(asyncio.sleep(0))
    async for view in views(Acceptance(order)):
        if kind.drifts and drifting.done() and view.snapshot is not None and view.snapshot.phase == "running":
            drifting = asyncio.create_task(_drift(view))
    drifting.cancel()
    open_ = [one.demand.figure for one in view.certificate.criteria if one.outcome != "pass"]
    return Verdict(kind.name, view.certificate.verdict, open_)


async def _drift(view: AcceptView) -> None:
    """Slow the engine down, more and more, until the burn-in is over."""
    assert view.snapshot is not None and view.snapshot.server.url
    began_s = time.monotonic()
    async with httpx.AsyncClient(trust_env=False) as client:
        while (gone := (time.monotonic() - began_s) / BURN_IN_S) < 1:
            step = {"step_ms": STEP_MS * (1 + DRIFT * gone)}
            await client.post(f"{view.snapshot.server.url}/admin/config", json=step)
            await asyncio.sleep(1.0)


async def campaign(first: int, boxes: int, out: Path) -> None:
    for number in range(first, first + boxes):
        began_s = time.monotonic()
        with scratch():
            found = await verdict_of(ROUND[number % len(ROUND)], number + 1)
        with out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{number}  {time.monotonic() - began_s:.0f} s  {found}", flush=True)


def tell(out: Path) -> None:
    verdicts = [Verdict(*json.loads(line)) for line in out.read_text().splitlines()]
    by_kind: defaultdict[str, list[Verdict]] = defaultdict(list)
    for one in verdicts:
        by_kind[one.kind].append(one)
    table = Table(COLUMNS)
    for kind in KINDS:
        found = by_kind[kind.name]
        by = Counter(figure for one in found for figure in dict.fromkeys(one.by))
        table.add(Row(kind.name, Counter(one.verdict for one in found), by))


if __name__ == "__main__":
    options = read_options(__doc__, first=0, boxes=200, out="acceptances.jsonl", table=False)
    path = Path(options.out).absolute()
    if not options.table:
        os.nice(19)
        acceptance.WARM_UP_S = BURN_IN_S / 4  # type: ignore[attr-defined]  # it grows for seconds, not for minutes
        asyncio.run(campaign(options.first, options.boxes, path))
    tell(path)
