"""The vendors' tools: samples in their formats are read and judged, and whatever a tool does, it ends in time."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import TelemetryError
from loadgen.parts import PARTS, Part
from loadgen.schema.samples import ProbeFigure, ProbeResult
from loadgen.telemetry import probes
from loadgen.telemetry.probes import CRITERIA, PROBES, Probe, run_probe
from tests.scripts import executable

MI300X = next(part for part in PARTS if part.word == "mi300x")
H100 = next(part for part in PARTS if part.word == "h100-sxm")
NCCL = """\
# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
           8             2     float     sum      -1    38.64    0.00    0.00      0    38.42    0.00    0.00      0
  4294967296    1073741824     float     sum      -1    21010  204.42  357.74      0    20930  205.21  359.11      0
  8589934592    2147483648     float     sum      -1    41240  208.29  364.51      0    41110  208.95  365.66    {wrong}
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 111.8
"""
BABEL = """\
BabelStream
Version: 5.0
Function    MBytes/sec  Min (sec)   Max         Average
Copy        {copy}  0.00013     0.00014     0.00013
Mul         4090113.250 0.00013     0.00014     0.00013
Add         3951002.001 0.00020     0.00021     0.00021
Triad       3900001.500 0.00021     0.00021     0.00021
Dot         3700500.125 0.00014     0.00015     0.00015
"""
RVS = """\
[RESULT] [ 90513.1] Action name :gst-581Tflops-4K4K8K-rand-bf16
[RESULT] [ 90525.2] [gst-bf16] [GPU:: 28851] GFLOPS 687129 Target GFLOPS: 581000 met: TRUE
[RESULT] [ 90537.3] [gst-bf16] [GPU:: 23018] GFLOPS 512300 Target GFLOPS: 581000 met: FALSE
[RESULT] [ 90539.3] [gst-fp4] [GPU:: 23018] GFLOPS 12 Target GFLOPS: 0 met: TRUE
"""
TRANSFERS = """\
Bytes Per Direction 67108864
 Averages (During UniDir):      45.21      28.10      27.99      34.85
 Averages (During  BiDir):      44.10      26.02      26.11      {both}
GPU-GFX All-To-All benchmark:
         RTotal      330.10     329.98     331.02     330.45     318.00     331.11     330.90     330.75
"""
NVBANDWIDTH = """\
nvbandwidth Version: v0.8
{"nvbandwidth": {"testcases": [
 {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["55.61", "41.20"]], "sum": "96.81"},
 {"name": "device_to_device_memcpy_read_ce", "status": "Passed", "bandwidth_matrix":
  [["N/A", "376.2"], ["378.0", "N/A"]]},
 {"name": "device_to_host_memcpy_ce", "status": "Waived"}]}}
"""
DCGM = """\
{"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [
  {"name": "Memory", "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Pass"},
    {"entity_group": "GPU", "entity_id": 3, "status": "Fail", "warnings":
    [{"warning": "A page could not be read", "error_id": 41}]}]},
  {"name": "PCIe", "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Skip"}]}]}]}}
"""
DCGM_ERROR = '{"DCGM Diagnostic": {"runtime_error": "no host engine"}}'


def status_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return "State:\tZ"


def probe_called(name: str) -> Probe:
    return next(probe for probe in PROBES if probe.name == name)


def tool(tmp_path: Path, script: str) -> str:
    path = executable(tmp_path / "tool", f"#!/bin/sh\n{script}\n")
    return str(path)


def run(tmp_path: Path, name: str, script: str, part: Part | None = MI300X, **changes: float) -> ProbeResult:
    probe = probe_called(name)._replace(**changes)  # type: ignore[arg-type]
    return asyncio.run(run_probe(probe, 8, part, folder=tmp_path, program=tool(tmp_path, script)))


def lines_of(tmp_path: Path, script: str) -> list[str]:
    lines: list[str] = []
    program = tool(tmp_path, script)
    asyncio.run(run_probe(probe_called("rccl"), 8, None, folder=tmp_path, program=program, line=lines.append))
    return lines


def printing(text: str) -> str:
    return f"cat <<'END'\n{text}\nEND"


def figures(result: ProbeResult) -> dict[tuple[str, str], float | None]:
    return {(figure.name, figure.subject): figure.value for figure in result.figures}


def test_nccl_tests_judges_the_largest_size_and_never_the_average(tmp_path: Path) -> None:
    result = run(tmp_path, "rccl", printing(NCCL.format(wrong="0")))
    assert figures(result)["all_reduce busbw at 8 GiB", "8 GPUs"] == 365.66
    assert (result.state, result.why) == ("pass", "")
    assert "Avg bus bandwidth" in Path(result.output_path or "").read_text()


@pytest.mark.parametrize(
    ("name", "script", "part", "state", "why"),
    [
        ("rccl", printing(NCCL.format(wrong="3")), MI300X, "fail", "8 GPUs: all_reduce results 3 wrong: failed"),
        ("dcgm", f"{printing(DCGM)}\nexit 226", H100, "fail", "gpu 3: Memory: A page could not be read: failed"),
        ("dcgm", printing(DCGM_ERROR), H100, "failed", "dcgmi could not run its tests: no host engine"),
        ("rvs", "echo 'needs root'; exit 1", MI300X, "failed", "it ended with status 1: needs root"),
    ],
)
def test_what_failed_is_named(tmp_path: Path, name: str, script: str, part: Part, state: str, why: str) -> None:
    result = run(tmp_path, name, script, part)
    assert (result.state, result.why) == (state, why)


def test_nccl_tests_without_checks_say_nothing_of_results(tmp_path: Path) -> None:
    row = "  8589934592  2147483648  float  sum  -1  41240  208.29  364.51  N/A  41110  208.95  365.66  N/A"
    assert figures(run(tmp_path, "rccl", printing(row))) == {("all_reduce busbw at 8 GiB", "8 GPUs"): 365.66}


@pytest.mark.parametrize("name", [probe.name for probe in PROBES])
def test_a_tool_on_an_unknown_part_is_measured_and_not_judged_by_a_criterion(tmp_path: Path, name: str) -> None:
    printed = {"babel": BABEL.format(copy="12.0"), "transferbench": TRANSFERS.format(both="1.0")}.get(name)
    result = run(tmp_path, name, printing(printed or ""), part=None)
    assert all(figure.low is None for figure in result.figures)
    assert result.state == ("measured" if printed else "failed")


def test_babelstream_below_its_criterion_names_gpu_and_source(tmp_path: Path) -> None:
    result = run(tmp_path, "babel", printing(BABEL.format(copy="3900113.750")))
    assert result.state == "fail"
    assert result.why.startswith("gpu 0: Copy 3900.1 GB/s, at least 4177 GB/s (AMD system acceptance")
    assert len(result.figures) == 8 * 5


def test_rvs_says_itself_whether_a_target_was_met(tmp_path: Path) -> None:
    result = run(tmp_path, "rvs", printing(RVS))
    assert result.why == "gpu id 23018: gst-bf16 512.3 TFLOPS: failed"
    assert [figure.passed for figure in result.figures] == [True, False, None]


def test_transferbench_judges_both_directions_and_each_gpu(tmp_path: Path) -> None:
    result = run(tmp_path, "transferbench", printing(TRANSFERS.format(both="44.10")))
    assert figures(result)["peer to peer, one way", "8 GPUs"] == 34.85
    assert result.why.startswith("gpu 4: all to all, each GPU 318 GB/s, at least 320 GB/s (ROCm/cvs")


def test_nvbandwidth_judges_the_slowest_pair(tmp_path: Path) -> None:
    result = run(tmp_path, "nvbandwidth", printing(NVBANDWIDTH), H100)
    assert figures(result) == {
        ("host_to_device_memcpy_ce", "8 GPUs"): 41.2,
        ("device_to_device_memcpy_read_ce", "8 GPUs"): 376.2,
    }
    assert result.why.startswith("8 GPUs: host_to_device_memcpy_ce 41.2 GB/s, at least 48 GB/s")


def test_a_tool_that_prints_nothing_is_no_pass(tmp_path: Path) -> None:
    assert run(tmp_path, "rccl", "true").state == "failed"


@pytest.mark.parametrize("ends_at", ["exit", "TERM", "KILL"])
def test_no_call_blocks_the_event_loop_while_a_tool_ends(
    tmp_path: Path, ends_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_ENDING_S", 0.1)
    monkeypatch.delattr(subprocess.Popen, "wait")
    script = {"exit": "exit 3", "TERM": "exec sleep 600", "KILL": "trap '' TERM; while true; do sleep 600; done"}
    result = run(tmp_path, "rccl", script[ends_at], limit_s=1.0)
    expected = "it ended with status 3" if ends_at == "exit" else "it was ended, because it took longer than 1 s"
    assert result.why.startswith(expected)


def test_a_tool_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    script = f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/child; {printing(NCCL.format(wrong='0'))}; wait; wait"
    result = run(tmp_path, "rccl", script, limit_s=1.0)
    assert result.why == "it was ended, because it took longer than 1 s"
    child = int((tmp_path / "child").read_text())
    deadline_s = time.monotonic() + 10
    while "State:\tZ" not in status_of(child):
        assert time.monotonic() < deadline_s


def test_a_tool_that_is_not_installed_is_absent() -> None:
    probe = probe_called("rccl")._replace(programs=("no-such-tool",))
    result = asyncio.run(run_probe(probe, 8, MI300X, folder=Path("/nowhere")))
    assert (result.state, result.why) == ("absent", "none of no-such-tool is installed")


def test_lines_of_a_tool_are_live_and_harmless(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "printf 'one\\n\\033[31mtwo\\033]0;x\\007\\n'")
    assert [line for line in lines if "\x1b" in line] == []
    assert lines[0] == "one"


def test_a_line_that_is_printed_in_pieces_is_one_line(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, r"printf 'wr\303'; sleep 0.3; printf '\244p\nlast'")
    assert lines == ["wr\N{LATIN SMALL LETTER A WITH DIAERESIS}p", "last"]


def test_every_criterion_names_a_part_and_a_source() -> None:
    words = {part.word for part in PARTS}
    assert all(set(parts) <= words and source for _, parts, _, source in CRITERIA)


@given(text=st.text(), name=st.sampled_from([probe.name for probe in PROBES]))
def test_any_output_is_read_or_refused(text: str, name: str) -> None:
    try:
        found = list(probe_called(name).parse("8 GPUs", text))
    except TelemetryError:
        return
    assert all(isinstance(figure, ProbeFigure) for figure in found)
