"""`vramp doctor` as scripts see it, and the options of a run that take its captures."""

import json
import os
import signal
from pathlib import Path

import pytest

from loadgen.telemetry.capture import read_capture
from loadgen.telemetry.examine import Pace
from tests.c_library import build_library
from tests.tui.cli.commands import Said, start

_NVML = Path(__file__).parents[2] / "telemetry" / "nvml_stub" / "nvml_stub.c"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is learned here from ten seconds that is not from a tenth of one."""
    pace = Pace(watch_s=0.1, interval_s=0.05, open_s=20)
    monkeypatch.setattr("tui.cli.box.DUMP_PACE", pace)
    monkeypatch.setattr("tui.cli.box.Pace", lambda: pace)


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A box with NVIDIA's library, a stand-in."""
    build_library(tmp_path / "libnvidia-ml.so.1", _NVML)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


@pytest.mark.usefixtures("quick")
def test_a_capture_is_left_and_keeps_no_secret(tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCM_API_KEY", "sesame")
    monkeypatch.setenv("HF_TOKEN", "sesame")
    monkeypatch.setenv("HSA_PROXY", "http://me:sesame@there/")
    path = tmp_path / "capture.jsonl"
    code, out, err = said("doctor", "--telemetry", "sim", "--dump", str(path))
    assert code == 0
    assert out.endswith("\nsim: 8 GPUs measured with sim\n")
    assert err == f"capture: {path}\n"
    assert "sesame" not in path.read_text()
    header, playable = read_capture(path)
    assert header.environment["HSA_PROXY"] == "http://***@there/"
    assert len(playable["sim"].samples) >= 2


@pytest.mark.usefixtures("nvml")
def test_a_driver_that_is_not_loaded_is_exit_code_1(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVML_STUB", "status 9")
    code, out, _ = said("doctor", "--telemetry", "nvml")
    assert code == 1
    assert "nvidia: nvml: fails: " in out
    assert "driver" in out
    assert out.endswith("\nnvidia: nothing works\n")


@pytest.mark.parametrize("place", ["", "no/such/folder/capture"])
def test_a_capture_that_could_not_be_written_is_a_mistake_of_usage(tmp_path: Path, place: str, said: Said) -> None:
    code, out, err = said("doctor", "--telemetry", "sim", "--dump", str(tmp_path / place))
    assert (code, out) == (2, "")
    assert err.startswith(f"vramp: --dump {tmp_path / place}: ")


def test_an_unknown_telemetry_mode_is_refused(said: Said) -> None:
    code, _, err = said("doctor", "--telemetry", "magic")
    assert code == 2
    assert "amd-sysfs" in err


def test_interrupted(tmp_path: Path) -> None:
    """A library that hangs is waited for; Ctrl-C is not made to wait."""
    words = ["--telemetry", "sim", "--dump", str(tmp_path / "capture")]
    with start(tmp_path, "doctor", *words, environment={"TMPDIR": str(tmp_path)}) as child:
        while not any(tmp_path.glob("vramp-doctor-*/1.log")):  # the candidate has been started
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (130, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_run_takes_one_way_or_a_capture(said: Said) -> None:
    code, _, err = said("run", "simulator", "--telemetry", "off", "--replay-telemetry", "capture")
    assert code == 2 and "not allowed with argument" in err


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on PATH with stand-ins of the vendors' tools; what they print stays in another."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NVML_STUB", "idle")
    return folder


def install(folder: Path, name: str, printed: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\n")
    path.chmod(0o755)


def nccl(busbw: float) -> str:
    return f" 17179869184 4294967296 float sum -1 70000 245.4 {busbw} 0 70000 245.4 {busbw} 0"


@pytest.mark.usefixtures("quick", "nvml")
def test_a_probe_below_its_criterion_is_exit_code_1(said: Said, tools: Path) -> None:
    install(tools, "all_reduce_perf", nccl(120.0))
    code, out, err = said("doctor", "--telemetry", "nvml", "--probe", "nccl,rccl,dcgm")
    assert code == 1
    assert "probe nccl: fail" in out
    assert "all_reduce busbw at 16 GiB 120 GB/s, at least 300 GB/s (Azure/ai-infrastructure-on-azure" in out
    assert "probe dcgm: absent: none of dcgmi is installed" in out
    assert "probe rccl: absent: no GPU of amd is measured here" in out
    assert "17179869184" in err


@pytest.mark.usefixtures("quick", "nvml")
def test_json_of_a_box_with_nvidia_gpus_has_a_probe_that_passes(tmp_path: Path, said: Said, tools: Path) -> None:
    install(tools, "all_reduce_perf", nccl(450.0))
    words = ["--json", "--telemetry", "nvml", "--dump", str(tmp_path / "capture"), "--probe", "nccl"]
    code, out, _ = said("doctor", *words)
    found = json.loads(out)
    (tried,) = found["tried"]
    assert (code, tried["vendor"], tried["failure"], tried["meta"]["cuda"]) == (0, "nvidia", None, "12.8")
    assert [exam["gpu"]["name"] for exam in tried["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 2
    assert [check for exam in tried["gpus"] for check in exam["checks"] if not check["plausible"]] == []
    [result] = found["probes"]
    assert (result["state"], result["figures"][1]["value"]) == ("pass", 450.0)
    assert Path(result["output_path"]).read_text() == nccl(450.0) + "\n"


@pytest.mark.usefixtures("quick", "nvml")
def test_probes_are_refused_while_gpus_are_in_use(said: Said, tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tools, "all_reduce_perf", "must not run")
    monkeypatch.setenv("NVML_STUB", "busy")
    code, out, err = said("doctor", "--telemetry", "nvml", "--probe", "all")
    assert (code, out) == (2, "")
    assert "the GPUs are in use: gpu 0: python4000 (pid 4000); gpu 1:" in err


@pytest.mark.parametrize(
    ("url", "state", "code", "words"),
    [("127.0.0.1:9", "", 2, "is no URL"), ("http://127.0.0.1:9", "/proc/none", 1, "XDG_STATE_HOME names another")],
)
def test_evidence_that_cannot_be_taken_has_a_message(
    url: str, state: str, code: int, words: str, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", state)
    done = said("doctor", "--evidence", url)
    assert done.code == code and words in done.err


def test_an_unknown_probe_is_refused(said: Said) -> None:
    code, _, err = said("doctor", "--probe", "nccl,magic")
    assert code == 2
    assert "magic is no probe; all, or of rccl, nccl," in err
