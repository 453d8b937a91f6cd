"""GPUs and host during a whole run on the simulator, and that nothing of a vendor can hold a run up."""

import sys
from pathlib import Path

import pytest

from loadgen.metrics.journal import HostSampled, TelemetryChanged
from loadgen.run.run import Run
from loadgen.store.files import read_journal
from loadgen.telemetry.backends import BackendOption
from tests.engines import MANAGED, profile
from tests.run.driving import finish, left_behind


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def test_a_run_with_simulated_gpus_has_gpus_energy_host_and_series() -> None:
    # The warm-up is for the telemetry's process, which starts with the load here.
    load = {"requests": None, "duration": "6s", "warmup": "3s", "osl": 64}
    parts = profile(MANAGED, telemetry="sim", load=load)
    run = Run(parts, where="test")
    shown: set[int] = set()
    result = await finish(run, lambda _, snapshot: shown.add(len(snapshot.gpus)))
    (stage,) = result.stages
    assert run.error is None
    assert max(shown) == 8
    assert [gpu.index for gpu in stage.gpu] == list(range(8))
    assert stage.energy is not None and stage.energy.joules is not None
    assert stage.energy.joules_per_output_token == pytest.approx(
        stage.energy.joules / (stage.throughput.output_tokens_per_s or 0) / stage.measured_s, rel=0.01
    )
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


async def test_a_run_without_gpus_says_so_and_is_none_the_worse() -> None:
    run = Run(profile(MANAGED, telemetry="nvml"), where="test")
    said: set[str] = set()
    result = await finish(run, lambda _, snapshot: said.add(snapshot.telemetry))
    assert (run.error, result.state) == (None, "complete")
    assert (result.stages[0].gpu, result.stages[0].energy) == ([], None)
    assert any("nothing works; nvml" in words for words in said)
    assert any(event.kind == "telemetry" for event in result.events)
    lines = list(read_journal(run.folder / "journal.jsonl"))
    assert any(isinstance(line, TelemetryChanged) and line.meta["nvidia"]["failures"] for line in lines)
    assert any(isinstance(line, HostSampled) for line in lines)


async def test_telemetry_can_be_off() -> None:
    run = Run(profile(MANAGED, telemetry="off"), where="test")
    said: set[str] = set()
    result = await finish(run, lambda _, snapshot: said.add(snapshot.telemetry))
    assert said == {"off"}
    assert result.gpus == []
    assert not list(run.folder.glob("telemetry-*"))


@pytest.mark.parametrize("words", ["import time; time.sleep(600)", "import os\nwhile True: os.write(1, b'x' * 65536)"])
async def test_a_child_that_hangs_or_floods_holds_nothing_up(words: str) -> None:
    stuck = BackendOption("stuck", "sim", program=(sys.executable, "-c", words))
    run = Run(profile(MANAGED), where="test", replay={"sim": [stuck]})
    result = await finish(run)
    assert (run.error, result.state) == (None, "complete")
    assert result.stages[0].requests.completed == 20
    assert left_behind() == []
