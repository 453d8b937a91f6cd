"""`python -m benchmarks.peers`: other load generators, vramp and the floor against the simulator, in turn.

Each client gets its own simulator, whose record of what it served is the truth next to the client's figures. All loads
are run with all clients before the next round begins, so that a slowdown of the machine affects all of them; the table
has the round in which other processes used the least of the machine. A client that cannot be installed or fails is a
row with the reason. `--requests` is per stream, `--only` takes beginnings of names, `--json` a file for every run.
"""

from __future__ import annotations

import asyncio
import platform
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.clients import CLIENTS, OSL, Client, Load, Reported
from benchmarks.environments import last_reason
from benchmarks.running import fetch_truth, read_options, simulator
from benchmarks.watched import OUTPUT, Ended, Looks, Others, run_watched
from loadgen.errors import ResultError
from loadgen.format import fixed, grouped
from loadgen.report.tabular import Column, json_text, markdown_table
from loadgen.system import usable_cores

STEP_MS = 10
TIMEOUT_S = 240.0


class Served(msgspec.Struct, frozen=True):
    """What the simulator recorded of one run."""

    ttft_mean_ms: float
    ttft_p99_ms: float
    tpot_p99_ms: float
    held: float
    """The mean number of open streams, from the first request to the last token."""
    output_tokens_per_s: float
    unanswered: int = 0
    """Requests that should have been sent and were not answered, because they failed or were never sent."""


class Measured(msgspec.Struct, frozen=True):
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
    return Served(
        ttft_mean_ms=ttft["mean"],
        ttft_p99_ms=ttft["p99"],
        tpot_p99_ms=tpot["p99"],
        held=e2e["count"] * e2e["mean"] / 1000 / truth["span_s"],
        output_tokens_per_s=truth["tokens"]["output"] / truth["span_s"],
        unanswered=requests - truth["requests"]["completed"],
    )


class NoFigures(Exception):
    """A run failed; the message is its row's reason."""


async def measure(client: Client, program: Path | str, streams: int, turn: int, each: int) -> Measured:
    """Return the figures of one run, or the reason why there are none."""
    others = Others()
    try:
        async with driven(client, program, streams, each) as (load, ended, reported, truth):
            found = served(truth, load.requests)
            cpu = ended.us_per_token, ended.cpu_s, others.cores()
            return Measured(client.name, streams, turn, reported, found, *cpu)
    except NoFigures as error:
        return Measured(client.name, streams, turn, why=str(error))


@asynccontextmanager
async def driven(
    client: Client, program: Path | str, streams: int, each: int, step_ms: int = STEP_MS
) -> AsyncIterator[tuple[Load, Ended, Reported, dict[str, Any]]]:
    """Run a client to its end; yields its load, its end, its own figures and the truth; raises `NoFigures`."""
    if isinstance(program, str):
        raise NoFigures(program)
    with tempfile.TemporaryDirectory(prefix="vramp-peers-") as name:
        async with simulator(step_ms) as url:
            load = Load(url, streams, each * streams, Path(name))
            load.write()
            yield load, *await _run(client, program, load)


async def _run(client: Client, program: Path, load: Load) -> tuple[Ended, Reported, dict[str, Any]]:
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
        reported = client.read(load.folder / client.file)
    except (OSError, KeyError, ValueError, ResultError) as error:
        raise NoFigures(f"its result cannot be read: {last_reason(str(error))}") from error
    truth = await fetch_truth(load.url, reported.since_ns)
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
                print(table(runs[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    return runs


def quietest(runs: Sequence[Measured]) -> Measured:
    """Return the round in which others used the least of the machine, with a remark about those that failed."""
    done = [run for run in runs if run.why is None]
    failed = [run.why for run in runs if run.why is not None]
    if not done:
        return runs[0]
    run = min(done, key=lambda run: run.others_cores)
    return msgspec.structs.replace(run, why=f"{len(failed)} of {len(runs)} rounds: {failed[0]}") if failed else run


def remark(run: Measured) -> str:
    words = [run.why or ""]
    if run.served is not None and run.served.unanswered:
        words.append(f"{run.served.unanswered:,} requests without a complete answer")
    if run.reported is not None and run.reported.limited:
        words.append("its result says client-limited")
    return "; ".join(filter(None, words))


def _with_truth(name: str) -> Callable[[Measured], str]:
    """A figure as the client reported it, and in brackets the true one."""
    return _of_both(lambda reported, true: f"{grouped(getattr(reported, name), 2)} ({grouped(getattr(true, name), 2)})")


def _of_both(words: Callable[[Reported, Served], str]) -> Callable[[Measured], str]:
    return lambda run: words(run.reported, run.served) if run.reported and run.served else ""


COLUMNS = (
    Column[Measured]("streams", lambda run: run.streams),
    Column[Measured]("client", lambda run: run.client, words=True),
    Column[Measured]("mean TTFT, ms (truth)", _with_truth("ttft_mean_ms")),
    Column[Measured]("TTFT p99, ms (truth)", _with_truth("ttft_p99_ms")),
    Column[Measured]("TPOT p99, ms (truth)", _with_truth("tpot_p99_ms")),
    Column[Measured]("held", _of_both(lambda _, true: grouped(true.held))),
    Column[Measured]("output tok/s", _of_both(lambda _, true: grouped(true.output_tokens_per_s))),
    Column[Measured]("CPU per token, us", lambda run: run.us_per_token, decimals=1),
    Column[Measured]("CPU in all, s", lambda run: run.cpu_s, decimals=1),
    Column[Measured]("others, cores", lambda run: fixed(run.others_cores) if run.served else ""),
    Column[Measured]("remark", remark, words=True),
)


def table(runs: Sequence[Measured]) -> str:
    """Return a table with a row for each load of each client."""
    keys = sorted(dict.fromkeys((run.streams, run.client) for run in runs), key=lambda key: key[0])
    return markdown_table(
        COLUMNS, [quietest([run for run in runs if (run.streams, run.client) == key]) for key in keys]
    )


def caption(rounds: int, each: int) -> str:
    return (
        f"{datetime.now(UTC).date().isoformat()}, {usable_cores():g} cores shared by server and client, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}; {each} requests a stream, "
        f"the quietest of {rounds} rounds."
    )


def main() -> None:
    options = read_options(__doc__, streams=(64, 256, 1024), rounds=2, requests=6, only="", json="")
    clients = [client for client in CLIENTS if client.name.startswith(tuple(options.only.split(",")))]
    runs = asyncio.run(compare(clients, options.streams, options.rounds, options.requests))
    said = caption(options.rounds, options.requests)
    print(f"{said}\n\n{table(runs)}")
    if options.json:
        Path(options.json).write_text(json_text({"caption": said, "runs": runs}) + "\n")


if __name__ == "__main__":
    main()
