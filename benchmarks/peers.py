"""`python -m benchmarks.peers`: other load generators, vramp and the floor against the simulator, in turn.

Each client gets its own simulator, whose record of what it served is the truth beside the client's figures. All loads
are run with all clients before the next round begins, so that a slowdown of the machine affects all of them; the table
has the round in which other processes used the least of the machine. A client that cannot be installed or fails is a
row with the reason.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.clients import CLIENTS, OSL, Client, Load, Reported
from benchmarks.environments import last_reason
from benchmarks.running import simulator
from benchmarks.truth import fetch_truth
from benchmarks.watched import OUTPUT, Ended, Looks, Others, run_watched
from loadgen.errors import ResultError
from loadgen.system import usable_cores

STREAMS = (64, 256, 1024)
ROUNDS = 2
REQUESTS_A_STREAM = 6
STEP_MS = 10
TIMEOUT_S = 240.0
HEAD = (
    "| streams | client | mean TTFT, ms (truth) | TTFT p99, ms (truth) | TPOT p99, ms (truth) | held | output tok/s "
    "| CPU per token, us | CPU in all, s | others, cores | remark |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class Served:
    """What the simulator recorded of one run."""

    ttft_mean_ms: float
    ttft_p99_ms: float
    tpot_mean_ms: float
    tpot_p99_ms: float
    held: float
    """The mean number of open streams, from the first request to the last token."""
    output_tokens_per_s: float
    unanswered: int = 0
    """Requests that should have been sent and were not answered, because they failed or were never sent."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one client; `why` says what went wrong with it."""

    client: str
    streams: int
    round: int
    reported: Reported | None = None
    served: Served | None = None
    us_per_token: float | None = None
    cpu_s: float | None = None
    others_cores: float = 0.0
    """What other processes used of the machine meanwhile."""
    why: str | None = None


def served(truth: dict[str, Any], requests: int) -> Served:
    ttft, tpot, e2e = (truth["latency_ms"][name] for name in ("ttft", "tpot", "e2e"))
    span_s = truth["span_s"]
    held = e2e["count"] * e2e["mean"] / 1000 / span_s
    return Served(
        ttft_mean_ms=ttft["mean"],
        ttft_p99_ms=ttft["p99"],
        tpot_mean_ms=tpot["mean"],
        tpot_p99_ms=tpot["p99"],
        held=held,
        output_tokens_per_s=truth["tokens"]["output"] / span_s,
        unanswered=requests - truth["requests"]["completed"],
    )


class NoFigures(Exception):
    """A run failed; the message is its row's reason."""


async def measure(client: Client, program: Path | str, streams: int, turn: int, each: int) -> Measured:
    """Return the figures of one run, or the reason why there are none."""
    if isinstance(program, str):
        return Measured(client.name, streams, turn, why=program)
    others = Others()
    with tempfile.TemporaryDirectory(prefix="vramp-peers-") as name:
        async with simulator(STEP_MS) as url:
            load = Load(url, streams, each * streams, Path(name))
            load.write()
            try:
                ended, reported, truth = await run(client, program, load)
            except NoFigures as error:
                return Measured(client.name, streams, turn, why=str(error))
    return Measured(
        client.name,
        streams,
        turn,
        reported,
        served(truth, load.requests),
        ended.us_per_token,
        ended.cpu_s,
        others.cores(),
    )


async def run(client: Client, program: Path, load: Load) -> tuple[Ended, Reported, dict[str, Any]]:
    """Run a client to its end; return its own figures and the truth; raises `NoFigures`."""
    ended = await run_watched(
        client.command(program, load),
        url=load.url,
        looks=Looks(load.streams, load.requests * OSL),
        folder=load.folder,
        timeout_s=TIMEOUT_S,
        env=client.env,
        request=client.request(load),
    )
    check_end(ended, load.folder)
    try:
        reported = client.read(load.folder)
    except (OSError, KeyError, ValueError, ResultError) as error:
        raise NoFigures(f"its result cannot be read: {last_reason(str(error))}") from error
    truth = await fetch_truth(load.url, since=reported.since_ns)
    if not truth["requests"]["completed"]:
        raise NoFigures("no request was answered")
    return ended, reported, truth


def check_end(ended: Ended, folder: Path) -> None:
    if ended.returncode is None:
        raise NoFigures(f"killed after {TIMEOUT_S:g} s")
    if ended.returncode != 0:
        said = (folder / OUTPUT).read_text(errors="replace")
        raise NoFigures(f"exit code {ended.returncode}: {last_reason(said)}")


async def compare(clients: Sequence[Client], streams: Sequence[int], rounds: int, each: int) -> list[Measured]:
    """Do all runs, in turn."""
    programs = {client.name: client.find() for client in clients}
    runs = []
    for turn in range(rounds):
        for count in streams:
            for client in clients:
                runs.append(await measure(client, programs[client.name], count, turn, each))
                print(row(runs[-1:]), file=sys.stderr, flush=True)
    return runs


def table(runs: Sequence[Measured]) -> str:
    """Return a table with a row for each load of each client."""
    keys = dict.fromkeys((run.streams, run.client) for run in runs)
    ordered = sorted(keys, key=lambda key: key[0])
    return "\n".join([HEAD, *(row([run for run in runs if (run.streams, run.client) == key]) for key in ordered)])


def row(runs: Sequence[Measured]) -> str:
    """Return the row for one load of one client: the round in which others used the least of the machine."""
    streams, client = runs[0].streams, runs[0].client
    done = [run for run in runs if run.why is None]
    failed = [run.why for run in runs if run.why is not None]
    if not done:
        return f"| {streams:,} | {client} |{' |' * 8} {failed[0]} |"
    run = min(done, key=lambda run: run.others_cores)
    assert run.reported is not None and run.served is not None
    cells = [
        beside(run.reported.ttft_mean_ms, run.served.ttft_mean_ms),
        beside(run.reported.ttft_p99_ms, run.served.ttft_p99_ms),
        beside(run.reported.tpot_p99_ms, run.served.tpot_p99_ms),
        f"{run.served.held:,.0f}",
        f"{run.served.output_tokens_per_s:,.0f}",
        shown(run.us_per_token, ",.1f"),
        shown(run.cpu_s, ",.1f"),
        f"{run.others_cores:.2f}",
        remark(run, [f"{len(failed)} of {len(runs)} rounds: {failed[0]}"] if failed else []),
    ]
    return f"| {streams:,} | {client} | {' | '.join(cells)} |"


def remark(run: Measured, remarks: list[str]) -> str:
    if run.served is not None and run.served.unanswered:
        remarks = [*remarks, f"{run.served.unanswered:,} requests without a complete answer"]
    if run.reported is not None and run.reported.limited:
        remarks = [*remarks, "its result says client-limited"]
    return "; ".join(remarks)


def beside(reported: float | None, true: float) -> str:
    """Return a figure as the client reported it, and in brackets the true one."""
    return f"{shown(reported, ',.2f')} ({true:,.2f})"


def shown(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def caption(rounds: int, each: int) -> str:
    return (
        f"{datetime.now(UTC).date().isoformat()}, {usable_cores():g} cores shared by server and client, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}; {each} requests a stream, "
        f"the quietest of {rounds} rounds."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default=",".join(map(str, STREAMS)))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--requests", type=int, default=REQUESTS_A_STREAM, help="requests a stream (6)")
    parser.add_argument("--only", default="", help="beginnings of clients' names, such as vramp,guidellm")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run there")
    options = parser.parse_args()
    clients = [client for client in CLIENTS if client.name.startswith(tuple(options.only.split(",")))]
    streams = [int(count) for count in options.streams.split(",")]
    said = caption(options.rounds, options.requests)
    runs = asyncio.run(compare(clients, streams, options.rounds, options.requests))
    print(f"{said}\n\n{table(runs)}")
    if options.json is not None:
        document = {"caption": said, "runs": [asdict(run) for run in runs]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
