"""Feeds every reader damaged inputs: `python -m tests.fuzz.campaign --inputs 1000000 --seed 1`, see CONTRIBUTING.md.

Prints a row for each reader. An input on which it fails is made as small as it goes and kept in `corpus/`, where the
suite tries it from then on; one kind of failure is kept once.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from tests.fuzz.mutator import Mutator
from tests.fuzz.readers import READERS, Reader, corpus_of, folder_of, outcome_of

MAX_CPU_S = 2.0  # for an input of at most 64 KiB
_MAX_MEMORY = 6 << 30
_SHRINKING_S = 5.0
_MAX_KEPT = 20
_KEPT_BYTES = 20_000


class Campaign(NamedTuple):
    """What came of one reader's inputs."""

    inputs: int
    cpu_s: float
    outcomes: Counter[str]
    failures: dict[str, bytes]  # the first input of each kind


class Hang(BaseException):
    """Raised into a reader that takes too long; not an `Exception`, so that nothing swallows it."""


def _stop(*_: object) -> None:
    raise Hang(f"took more than {MAX_CPU_S:g} s")


def failure_of(reader: Reader, data: bytes) -> tuple[str, str]:
    """The outcome, and the kind of failure if it is one."""
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    try:
        return outcome_of(reader, data), ""
    except (Exception, Hang) as error:  # noqa: BLE001 - whatever a reader may not raise
        kind = f"{type(error).__name__} {_where(error)}"
        return kind, kind
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _where(error: BaseException) -> str:
    """The innermost line of the project: one kind of failure for each."""
    place, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if any(part in name for part in ("/loadgen/", "/tui/", "/tests/fuzz/")):
            place = f"{name.rpartition('/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def run(reader: Reader, inputs: Iterable[bytes], most_s: float, reported: Callable[[str], None]) -> Campaign:
    """Ends early after `most_s` of CPU."""
    outcomes, failures = Counter[str](), dict[str, bytes]()
    began_s = time.process_time()
    for number, data in enumerate(inputs):
        if not number % 1000 and time.process_time() - began_s > most_s:
            break
        outcome, failure = failure_of(reader, data)
        outcomes[outcome] += 1
        if failure and failure not in failures:
            failures[failure] = data
            reported(f"{reader.name}: input {number}: {failure}")
    return Campaign(outcomes.total(), time.process_time() - began_s, outcomes, failures)


def shrunk(reader: Reader, data: bytes, failure: str) -> bytes:
    """A shorter input that fails in the same way."""
    until_s = time.monotonic() + _SHRINKING_S
    size = len(data) // 2
    while size and time.monotonic() < until_s:
        at = 0
        while at < len(data) and time.monotonic() < until_s:
            shorter = data[:at] + data[at + size :]
            if failure_of(reader, shorter)[1] == failure:
                data = shorter
            else:
                at += size
        size //= 2
    return data


def keep(reader: Reader, data: bytes) -> str:
    folder = folder_of(reader.name)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"found-{hashlib.sha256(data).hexdigest()[:10]}"
    path.write_bytes(data[:_KEPT_BYTES])
    return path.name


def main(words: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--reader", action="append", choices=[reader.name for reader in READERS])
    options.add_argument("--inputs", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--extremes", action="store_true", help="in the place of each value in turn, not at random")
    options.add_argument("--seconds", type=float, default=float("inf"), help="of CPU for each reader, at most")
    chosen = options.parse_args(words)
    signal.signal(signal.SIGPROF, _stop)
    warnings.simplefilter("error")  # as in the suite: a user would see it
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    gc.freeze()
    print(
        f"| reader | inputs | CPU s | outcomes | failures |   seed {chosen.seed}\n|---|---:|---:|---:|---|", flush=True
    )
    failed = False
    by_name = {reader.name: reader for reader in READERS}
    for reader in map(by_name.__getitem__, chosen.reader or by_name):
        damaged = Mutator(corpus_of(reader.name), reader.words)
        inputs = damaged.extremes() if chosen.extremes else islice(damaged.inputs(chosen.seed), chosen.inputs)
        done = run(reader, inputs, chosen.seconds, partial(print, file=sys.stderr, flush=True))
        for failure, data in list(done.failures.items())[:_MAX_KEPT]:
            name = keep(reader, shrunk(reader, data, failure))
            print(f"{reader.name}: {failure}: kept as {name}", file=sys.stderr, flush=True)
        failed = failed or bool(done.failures)
        found = "; ".join(done.failures) or "none"
        cells = (reader.name, f"{done.inputs:,}", f"{done.cpu_s:.0f}", str(len(done.outcomes)), found)
        print(f"| {' | '.join(cells)} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
