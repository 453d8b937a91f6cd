"""GPUs and host during a whole run on the simulator, and that nothing of a vendor can hold a run up."""

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import msgspec
import pytest

import tests.telemetry.nvml_stub
from loadgen.profile.schema import Profile
from loadgen.run.hardware import HardwareWatch, telemetry_words
from loadgen.run.servers import Servers
from loadgen.run.settings import RunSettings
from loadgen.run.writer import RunWriter
from loadgen.schema.journal import DevicesChosen, GpusSampled, HostSampled, Line, TelemetryChanged
from loadgen.schema.samples import ServerDevices
from loadgen.store.journal import read_journal
from loadgen.system import has_host_pids
from loadgen.telemetry.backends import BackendOption
from loadgen.telemetry.monitor import SourceStatus
from tests.c_library import build_library
from tests.engines import MANAGED, Simulator, attach, profile
from tests.run.driving import finish, left_behind, run_of

L = TypeVar("L")


async def test_a_run_with_simulated_gpus_has_gpus_energy_host_and_series() -> None:
    # The warm-up is for the telemetry's process, which starts with the load here.
    load = {"requests": None, "duration": "6s", "warmup": "3s", "osl": 64}
    parts = profile(MANAGED, telemetry="sim", load=load, cost={"gpu_hour": 2.0})
    run = run_of(parts)
    shown: set[int] = set()
    result = await finish(run, lambda _, snapshot: shown.add(len(snapshot.gpus)))
    (stage,) = result.stages
    assert run.error is None
    assert max(shown) == 8
    assert [gpu.index for gpu in stage.gpu] == list(range(8))
    assert stage.energy is not None and stage.energy.joules is not None
    assert stage.energy.devices_by == "simulated" and stage.throughput.output_tokens_per_s_per_gpu is not None
    assert stage.energy.joules_per_output_token == pytest.approx(
        stage.energy.joules / (stage.throughput.output_tokens_per_s or 0) / stage.measured_s, rel=0.01
    )
    per_gpu, cost = stage.throughput.output_tokens_per_s_per_gpu, stage.cost
    assert per_gpu == pytest.approx((stage.throughput.output_tokens_per_s or 0) / 8)
    assert cost is not None and cost.usd_per_million_output_tokens == pytest.approx(1e6 * 2.0 / 3600 / per_gpu)
    assert stage.host["server_cpu_percent"] is not None
    assert result.telemetry_meta is not None and result.telemetry_meta["sim"]["works"]
    # One time axis: every look fell into the run.
    end_s = result.series["t_s"][-1]
    assert end_s is not None
    for series in result.gpu_series:
        times = series.columns["t_s"]
        assert times == sorted(times, key=float)  # type: ignore[arg-type]
        assert all(time is not None and 0 <= time <= end_s + 5 for time in times)
    assert left_behind() == []


async def test_a_run_without_gpus_says_so_and_is_none_the_worse(engine: Simulator) -> None:
    run = run_of(attach(engine, telemetry="nvml"))
    said: set[str] = set()
    result = await finish(run, lambda _, snapshot: said.add(snapshot.telemetry))
    assert (run.error, result.state) == (None, "complete")
    assert (result.stages[0].gpu, result.stages[0].energy) == ([], None)
    assert any("nothing works; nvml" in words for words in said)
    assert any(event.kind == "telemetry" for event in result.events)
    lines = list(read_journal(run.folder / "journal.jsonl"))
    assert any(isinstance(line, TelemetryChanged) and line.meta["nvidia"]["failures"] for line in lines)
    assert any(isinstance(line, HostSampled) for line in lines)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    build_library(folder / "libnvidia-ml.so.1", Path(tests.telemetry.nvml_stub.__file__).parent / "nvml_stub.c")
    return folder


@pytest.fixture
def nvml(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two H100 of the stand-in for NVIDIA's library, for the children of this test."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setattr("loadgen.run.hardware._PERIOD_S", 0.05)


@asynccontextmanager
async def watched(profile: Profile) -> AsyncIterator[tuple[HardwareWatch, asyncio.Queue[Line]]]:
    """The watch of a run of this profile, and its lines."""
    lines: asyncio.Queue[Line] = asyncio.Queue()
    servers = Servers(profile)
    settings = RunSettings(profile, where="test")
    writer = RunWriter(settings)
    writer.begin(seed=1, workers=0, stages_planned=0)
    watch = HardwareWatch(settings, writer, servers=lambda: servers, worker_pids=lambda: ())
    with patch.object(writer, "log", lines.put_nowait):
        watch.start()
        try:
            yield watch, lines
        finally:
            await watch.close()
    await writer.finish("complete", "")


async def first_of(lines: asyncio.Queue[Line], kind: type[L]) -> L:
    async with asyncio.timeout(60):
        while not isinstance(line := await lines.get(), kind):
            pass
    return line


@pytest.mark.usefixtures("nvml")
async def test_an_attached_servers_gpus_are_those_that_its_processes_hold(
    engine: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVML_STUB_PID", str(engine.process.pid))
    async with watched(attach(engine, telemetry="nvml")) as (_, lines):
        chosen = await first_of(lines, DevicesChosen)
    assert chosen.devices == ServerDevices((0,), "processes")


@pytest.mark.usefixtures("nvml")
async def test_a_servers_gpus_are_those_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    async with watched(profile({"engine": "vllm", "model": "m"}, telemetry="nvml")) as (_, lines):
        chosen = await first_of(lines, DevicesChosen)
    assert chosen.devices == ServerDevices((1,), "given")


@pytest.mark.usefixtures("nvml")
async def test_processes_are_listed_while_somebody_looks() -> None:
    elsewhere = profile({"engine": "attach", "url": "http://192.0.2.7:8000"}, telemetry="nvml")
    async with watched(elsewhere) as (watch, lines):
        chosen = await first_of(lines, DevicesChosen)
        assert chosen.devices == ServerDevices((), "given")  # none of the GPUs here
        assert (await first_of(lines, GpusSampled)).gpus[0].processes is None
        watch.show_processes()
        while (listed := (await first_of(lines, GpusSampled)).gpus[0].processes) is None:
            pass
    # Where the tests run in a container, the driver's pids are somebody else's.
    of_server = False if has_host_pids(Path("/proc")) else None
    assert [(process.pid, process.of_server) for process in listed] == [(4000, of_server)]


def test_that_all_is_tried_again_is_said() -> None:
    status = SourceStatus("amd", None, "", False, 0, {"amdsmi": "BUSY"}, {}, again_s=15.0)
    assert (
        telemetry_words({"amd": msgspec.to_builtins(status)})
        == "amd: nothing works; amdsmi: BUSY; all is tried again within 15 s"
    )


async def test_telemetry_can_be_off(engine: Simulator) -> None:
    run = run_of(attach(engine, telemetry="off"))
    said: set[str] = set()
    result = await finish(run, lambda _, snapshot: said.add(snapshot.telemetry))
    assert said == {"off"}
    assert result.gpus == []
    assert not list(run.folder.glob("telemetry-*"))


@pytest.mark.parametrize("words", ["import time; time.sleep(600)", "import os\nwhile True: os.write(1, b'x' * 65536)"])
async def test_a_child_that_hangs_or_floods_holds_nothing_up(engine: Simulator, words: str) -> None:
    stuck = BackendOption("stuck", "sim", program=(sys.executable, "-c", words))
    run = run_of(attach(engine), replay={"sim": [stuck]})
    result = await finish(run)
    assert (run.error, result.state) == (None, "complete")
    assert result.stages[0].requests.completed == 20
    assert left_behind() == []


async def test_a_delay_is_not_followed_by_a_sample_over_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    period_s = 0.1
    monkeypatch.setattr("loadgen.run.hardware._PERIOD_S", period_s)
    elsewhere = profile({"engine": "attach", "url": "http://192.0.2.7:8000"}, telemetry="off")
    async with watched(elsewhere) as (_, lines):
        await first_of(lines, HostSampled)
        time.sleep(3 * period_s)  # noqa: ASYNC251 - the loop is late
        times_s = [(await first_of(lines, HostSampled)).host.t_s for _ in range(3)]
    gaps_s = [after - before for before, after in itertools.pairwise(times_s)]
    assert min(gaps_s) >= period_s / 2
