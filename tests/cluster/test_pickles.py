"""A host that sends pickles which run code: none of it runs in the operator's process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import distributed
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cluster.actor import HostActor
from loadgen.cluster.check import check_hosts
from loadgen.cluster.pickles import restricted_loads
from loadgen.cluster.start import started
from loadgen.errors import ClusterError
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Cluster

HOSTILE = """
import asyncio, pickle, sys
import distributed

class Trap:
    def __reduce__(self):
        return eval, (f"__import__('pathlib').Path({sys.argv[2]!r}).write_text(str(__import__('os').getpid()))",)

ANSWERS = {
    "result": {"status": "OK", "result": Trap()},
    "exception": {"status": "error", "exception": pickle.dumps(Trap()), "traceback": "", "exception_text": "",
                  "traceback_text": ""},
    "traceback": {"status": "error", "exception": pickle.dumps(ValueError("no")), "traceback": pickle.dumps(Trap()),
                  "exception_text": "", "traceback_text": ""},
    "not JSON": {"status": "OK", "result": b"{"},
    "no bytes": {"status": "OK", "result": 7},
}

async def run(worker, **_):
    return ANSWERS[sys.argv[1]]

async def main():
    quiet = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    async with distributed.Scheduler(host="127.0.0.1", port=0, **quiet) as scheduler:
        async with distributed.Worker(scheduler.address, nthreads=1, dashboard=False, host="127.0.0.1") as worker:
            worker.handlers["run"] = run
            print(scheduler.address, flush=True)
            await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""
ATTACKS = ("result", "exception", "traceback", "not JSON", "no bytes")


@contextlib.asynccontextmanager
async def hostile(attack: str, trap: Path) -> AsyncIterator[str]:
    """Yield the address of a scheduler whose only worker answers with a trap."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOSTILE, attack, str(trap)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=trap.parent,
    )
    assert process.stdout is not None and process.stdin is not None
    yield (await process.stdout.readline()).decode().strip()
    process.stdin.close()
    await process.wait()


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_code_of_a_host_runs_here(tmp_path: Path, attack: str) -> None:
    trap = tmp_path / "trap"
    async with hostile(attack, trap) as address:
        with pytest.raises(ClusterError, match=r"^tcp://|^127\.0\.0\.1"):
            async with started(Cluster(scheduler=address)):
                pytest.fail("it takes part")
        document = {"server": {"engine": "attach", "url": "http://127.0.0.1:1"}, "cluster": {"scheduler": address}}
        findings = await check_hosts(build_profile(document, where="p.toml"), [])
        assert [finding.severity for finding in findings] == ["blocks"]
    assert not trap.exists() or trap.read_text() != str(os.getpid())


class Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return os.abort, ()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_name_that_no_run_needs_is_refused(protocol: int) -> None:
    for trap in (Trap(), [Trap()], {"a": (Trap(), 1)}):
        with pytest.raises(pickle.UnpicklingError, match="a host may not name"):
            restricted_loads(pickle.dumps(trap, protocol))


@pytest.mark.parametrize(
    "name", ["builtins eval", "os system", "builtins getattr", "distributed.protocol.pickle loads"]
)
def test_a_name_is_refused_before_it_is_called(name: str) -> None:
    module, function = name.split()
    with pytest.raises(pickle.UnpicklingError, match=f"may not name {module}.{function}"):
        restricted_loads(f"c{module}\n{function}\n(S'x'\ntR.".encode())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    )
)
def test_data_is_read_as_it_is(value: object) -> None:
    assert restricted_loads(pickle.dumps(value)) == value


def test_what_a_run_needs_is_read() -> None:
    try:
        raise ModuleNotFoundError("No module named 'loadgen'")
    except ModuleNotFoundError as raised:
        error = restricted_loads(pickle.dumps(raised))
    assert isinstance(error, ModuleNotFoundError)
    assert error.args == ("No module named 'loadgen'",)
    assert restricted_loads(pickle.dumps(HostActor)) is HostActor
    assert restricted_loads(pickle.dumps(distributed.Actor)) is distributed.Actor
