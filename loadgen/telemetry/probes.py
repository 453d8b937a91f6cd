"""The vendors' own tools: what they measure on GPUs that nobody uses, held against what their kind should do.

A probe is a row of `PROBES`, and a bound with its source a row of `CRITERIA`; a figure without a criterion for its part
is measured and not judged. Invariants: a tool runs only when it is asked for, on GPUs without processes, within a time
limit, in a session of its own that is ended with it; what it printed is kept as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from loadgen.errors import ProfileError, TelemetryError
from loadgen.format import GIB, counted, harmless, memory
from loadgen.parts import Part, part_called
from loadgen.schema.samples import Examination, GpuExam, ProbeFigure, ProbeResult, ProbeState
from loadgen.vendors import VendorName

_Found = TypeVar("_Found")
_ENDING_S = 5.0  # between SIGTERM and SIGKILL
_TOOL_FOLDERS = (  # besides PATH
    "/opt/rocm/bin",
    "/opt/rccl-tests/build",
    "/opt/nccl-tests/build",
    "/opt/BabelStream/build",
    "/usr/local/cuda/bin",
)
MAX_IDLE_HBM = 0.05  # the share of a GPU's memory that drivers and firmware hold when nobody uses it
_MAX_LINE_BYTES = 1 << 16
MAX_OUTPUT_BYTES = 16 << 20  # of a tool; the rest is dropped


_SAD = "AMD system acceptance, ROCm/system-acceptance-docs 23e7312"
_AZURE = "Azure/azurehpc-health-checks 0e0a1ac"
CRITERIA: tuple[tuple[str, tuple[str, ...], float, str], ...] = (
    ("all_reduce busbw at 8 GiB", ("mi300x", "mi325x"), 304.0, _SAD),
    ("all_reduce busbw at 8 GiB", ("mi355x",), 350.0, _SAD),
    ("all_reduce busbw at 16 GiB", ("h100-sxm",), 300.0, "Azure/ai-infrastructure-on-azure a01b073"),
    ("all_reduce busbw at 16 GiB", ("h200-sxm",), 431.0, _AZURE),
    ("all to all, each GPU", ("mi300x", "mi325x"), 320.0, "ROCm/cvs dddd914"),
    ("peer to peer, one way", ("mi210",), 35.0, _SAD),
    ("peer to peer, one way", ("mi300x", "mi325x"), 33.9, _SAD),
    ("peer to peer, both ways", ("mi210",), 65.0, _SAD),
    ("peer to peer, both ways", ("mi300x", "mi325x"), 43.9, _SAD),
    ("Copy", ("mi210",), 1230.0, _SAD),
    ("Mul", ("mi210",), 1225.0, _SAD),
    ("Add", ("mi210",), 1115.0, _SAD),
    ("Triad", ("mi210",), 1115.0, _SAD),
    ("Dot", ("mi210",), 1170.0, _SAD),
    ("Copy", ("mi300x",), 4177.0, _SAD),
    ("Mul", ("mi300x",), 4067.0, _SAD),
    ("Add", ("mi300x",), 3921.0, _SAD),
    ("Triad", ("mi300x",), 3885.0, _SAD),
    ("Dot", ("mi300x",), 3661.0, _SAD),
    ("host_to_device_memcpy_ce", ("h100-sxm",), 48.0, _AZURE),
    ("device_to_device_memcpy_read_ce", ("h100-sxm",), 335.0, _AZURE),
)
"""The least that a figure should be on GPUs of some kinds (words of `PARTS`), and who says so."""


Command = tuple[str, tuple[str, ...]]
"""One call of a tool: the subject of the figures that name none themselves, and the arguments."""


class Probe(NamedTuple):
    name: str  # as `doctor --probe` takes it
    vendor: VendorName
    programs: tuple[str, ...]  # the first that is installed runs
    commands: Callable[[int, Part | None], list[Command]]  # from the number of GPUs and their part
    parse: Callable[[str, str], Iterator[ProbeFigure]]  # from the subject of the command and what it printed
    limit_s: float  # of each command


# One row of nccl-tests and rccl-tests: size, count, type, op, root, then time, algbw, busbw and #wrong, out of place
# and in place. The line `# Avg bus bandwidth` averages all sizes, and says nothing about the largest.
_NCCL_ROW = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+((?:\s+\S+){8})\s*$", re.MULTILINE)
_RVS_GST = re.compile(
    r"\[(?P<action>[^\]\s]+)\s*\]\s*\[GPU::\s*(?P<gpu>\d+)\]\s*GFLOPS\s+(?P<gflops>[\d.]+)"
    r"\s+Target GFLOPS:\s*(?P<target>[\d.]+)\s+met:\s*(?P<met>TRUE|FALSE)"
)
_RVS_FAILURE = re.compile(r"pass:\s*FALSE|peqt false|RVS-ERROR|\[ERROR\s*\]|\bFAIL\b")
_BABEL_ROW = re.compile(r"^(Copy|Mul|Add|Triad|Dot)\s+([\d.]+)\s+[\d.]+\s+[\d.]+\s+[\d.]+", re.MULTILINE)
_P2P_AVERAGE = re.compile(r"Averages\s+\(During\s+(Uni|Bi)Dir\):(?:\s+\S+){3}\s+([\d.]+)")
_A2A_TOTAL = re.compile(r"RTotal((?:\s+[\d.]+)+)")


def _nccl_figures(subject: str, printed: str) -> Iterator[ProbeFigure]:
    """The bus bandwidth in place at the largest size, and whether any result was wrong."""
    rows = [(int(size), columns.split()) for size, columns in _NCCL_ROW.findall(printed)]
    if not rows:
        return
    counts = [int(count) for _, columns in rows for count in (columns[3], columns[7]) if count.isdigit()]
    if counts:  # N/A where results were not checked
        yield ProbeFigure("all_reduce results", subject, float(sum(counts)), "wrong", passed=sum(counts) == 0)
    size, columns = max(rows, key=lambda row: row[0])
    with contextlib.suppress(ValueError):
        yield ProbeFigure(f"all_reduce busbw at {size / GIB:g} GiB", subject, float(columns[6]), "GB/s")


def _transfer_figures(subject: str, printed: str) -> Iterator[ProbeFigure]:
    for way, gb_per_s in _P2P_AVERAGE.findall(printed):
        name = "peer to peer, one way" if way == "Uni" else "peer to peer, both ways"
        yield ProbeFigure(name, subject, float(gb_per_s), "GB/s")
    for totals in _A2A_TOTAL.findall(printed):
        for index, gb_per_s in enumerate(totals.split()):
            yield ProbeFigure("all to all, each GPU", f"gpu {index}", float(gb_per_s), "GB/s")


def _rvs_figures(subject: str, printed: str) -> Iterator[ProbeFigure]:
    """GFLOPS with RVS's own target; a target of 0 is met by anything, and therefore says nothing."""
    for match in _RVS_GST.finditer(printed):
        judged = match["met"] == "TRUE" if float(match["target"]) > 0 else None
        yield ProbeFigure(
            match["action"], f"gpu id {match['gpu']}", float(match["gflops"]) / 1000, "TFLOPS", passed=judged
        )
    for failure in dict.fromkeys(_RVS_FAILURE.findall(printed)):
        yield ProbeFigure(failure, subject, None, "", passed=False)


def _babel_figures(subject: str, printed: str) -> Iterator[ProbeFigure]:
    for name, mb_per_s in _BABEL_ROW.findall(printed):
        yield ProbeFigure(name, subject, float(mb_per_s) / 1000, "GB/s")


class _Bandwidths(msgspec.Struct):
    """A test of `nvbandwidth -j`; entries of the matrix are texts, `N/A` on the diagonal."""

    name: str
    status: str
    bandwidth_matrix: list[list[str]] = []


class _NvBandwidth(msgspec.Struct):
    testcases: list[_Bandwidths]


def _nvbandwidth_figures(subject: str, printed: str) -> Iterator[ProbeFigure]:
    for case in _json_in(printed, "nvbandwidth", _NvBandwidth).testcases:
        if case.status == "Waived":
            continue
        values = []
        for entry in (entry for row in case.bandwidth_matrix for entry in row):
            with contextlib.suppress(ValueError):
                values.append(float(entry))
        passed = None if case.status == "Passed" else False
        yield ProbeFigure(case.name, subject, min(values, default=None), "GB/s", passed=passed)


class _DcgmResult(msgspec.Struct):
    status: str
    entity_group: str = "GPU"
    entity_id: int | None = None
    warnings: list[dict[str, Any]] = []


class _DcgmTest(msgspec.Struct):
    name: str
    results: list[_DcgmResult] = []


class _DcgmCategory(msgspec.Struct):
    tests: list[_DcgmTest]


class _DcgmDiagnostic(msgspec.Struct):
    test_categories: list[_DcgmCategory] = []
    runtime_error: str | None = None


def _dcgm_figures(subject: str, printed: str) -> Iterator[ProbeFigure]:
    diagnostic = _json_in(printed, "DCGM Diagnostic", _DcgmDiagnostic)
    if diagnostic.runtime_error:
        raise TelemetryError(f"dcgmi could not run its tests: {harmless(diagnostic.runtime_error)}")
    for test in (test for category in diagnostic.test_categories for test in category.tests):
        for result in test.results:
            if result.status not in ("Pass", "Fail", "Warn"):
                continue
            words = "; ".join(harmless(str(each.get("warning", ""))) for each in result.warnings)
            where = f"{result.entity_group.lower()} {result.entity_id}" if result.entity_id is not None else subject
            name = f"{test.name}: {words}" if words else test.name
            yield ProbeFigure(
                name, where, None, "", passed=None if result.status == "Warn" else result.status == "Pass"
            )


def _json_in(printed: str, key: str, kind: type[_Found]) -> _Found:
    """What the JSON document that a tool printed has under a key; the tool may write other lines before it."""
    start = printed.find("{")
    try:
        page = msgspec.json.decode(printed[start:].strip() if start >= 0 else "", type=dict[str, msgspec.Raw])
        if key not in page:
            raise TelemetryError(f"its JSON has no {key}")
        return msgspec.json.decode(page[key], type=kind)
    except msgspec.MsgspecError as error:
        raise TelemetryError(f"its JSON is not as expected: {error}") from error


def _rvs_commands(gpus: int, part: Part | None) -> list[Command]:
    """The GEMM test with the targets of this part; without a folder for it, those of any."""
    folder = Path("/opt/rocm/share/rocm-validation-suite/conf")
    own = folder / (part.word.upper() if part is not None else "") / "gst_single.conf"
    return [(counted(gpus, "GPU"), ("-c", str(own if own.exists() else folder / "gst_single.conf")))]


PROBES = (
    Probe(
        "rccl",  # all-reduce bandwidth between the GPUs (rccl-tests)
        "amd",
        ("all_reduce_perf",),
        lambda gpus, _: [(counted(gpus, "GPU"), ("-b", "8", "-e", "8G", "-f", "2", "-g", str(gpus)))],
        _nccl_figures,
        limit_s=660.0,
    ),
    Probe(
        "nccl",  # all-reduce bandwidth between the GPUs (nccl-tests)
        "nvidia",
        ("all_reduce_perf",),
        lambda gpus, _: [(counted(gpus, "GPU"), ("-b", "8", "-e", "16G", "-f", "2", "-g", str(gpus)))],
        _nccl_figures,
        limit_s=660.0,
    ),
    Probe(
        "transferbench",  # copies from GPU to GPU, and from each to all
        "amd",
        ("TransferBench",),
        lambda gpus, _: [(counted(gpus, "GPU"), ("p2p",)), (counted(gpus, "GPU"), ("a2a",))],
        _transfer_figures,
        limit_s=600.0,
    ),
    Probe(
        "rvs",  # matrix multiplication on each GPU (ROCm Validation Suite)
        "amd",
        ("rvs",),
        _rvs_commands,
        _rvs_figures,
        limit_s=900.0,
    ),
    Probe(
        "babel",  # memory bandwidth of each GPU (BabelStream)
        "amd",
        ("hip-stream", "babelstream-hip"),
        lambda gpus, _: [(f"gpu {index}", ("--device", str(index))) for index in range(gpus)],
        _babel_figures,
        limit_s=120.0,
    ),
    Probe(
        "nvbandwidth",  # copies between host and GPUs, and from GPU to GPU
        "nvidia",
        ("nvbandwidth",),
        lambda gpus, _: [
            (
                counted(gpus, "GPU"),
                ("-j", "-t", "host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce"),
            )
        ],
        _nvbandwidth_figures,
        limit_s=600.0,
    ),
    Probe(
        "dcgm",  # NVIDIA's own diagnostics, its medium level
        "nvidia",
        ("dcgmi",),
        lambda gpus, _: [(counted(gpus, "GPU"), ("diag", "-r", "2", "-j"))],
        _dcgm_figures,
        limit_s=900.0,
    ),
)


def judged(figure: ProbeFigure, part: Part | None) -> ProbeFigure:
    """The figure with the criterion for its part, if there is a public one."""
    for name, parts, low, source in CRITERIA:
        if part is not None and name == figure.name and part.word in parts:
            return msgspec.structs.replace(figure, low=low, source=source)
    return figure


def chosen_probes(names: str) -> list[Probe]:
    """The probes in `rccl,babel` or `all`; raises `ProfileError` for a name that is none."""
    if names == "all":
        return list(PROBES)
    known = {probe.name: probe for probe in PROBES}
    wrong = [name for name in names.split(",") if name not in known]
    if wrong:
        raise ProfileError(f"--probe {names}: {wrong[0] or 'an empty name'} is no probe; all, or of {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names.split(","))]


def _users(exam: GpuExam) -> str:
    """Who uses a GPU; empty if nobody does."""
    sample, total = exam.sample, exam.gpu.hbm_total_bytes
    names = ", ".join(f"{process.name} (pid {process.pid})" for process in sample.processes or ())
    held = sample.hbm_used_bytes or 0
    if not names and total and held > MAX_IDLE_HBM * total:
        names = f"{memory(held)} held by processes that this user cannot see"
    return f"gpu {exam.gpu.index}: {names}" if names else ""


async def run_probes(
    probes: Sequence[Probe], found: Examination, *, folder: Path, line: Callable[[str], None]
) -> tuple[ProbeResult, ...]:
    """Run the probes of the vendors whose GPUs were measured, one after the other.

    Raises `ProfileError` if any process uses the GPUs, which the tools would slow down and be slowed by.
    """
    results = []
    vendors = dict.fromkeys(each.vendor for each in found.tried if each.works)
    for vendor in vendors:
        exams = next(each.gpus for each in found.tried if each.vendor == vendor and each.works)
        if users := list(filter(None, map(_users, exams))):
            raise ProfileError(f"--probe: the GPUs are in use: {'; '.join(users)}; end that first")
        parts = {part_called(exam.gpu.name) for exam in exams}
        part = parts.pop() if len(parts) == 1 else None
        for probe in probes:
            if probe.vendor == vendor:
                results.append(await run_probe(probe, len(exams), part, folder=folder, line=line))
    others = (probe for probe in probes if probe.vendor not in vendors)
    return *results, *(ProbeResult(each.name, "absent", f"no GPU of {each.vendor} is measured here") for each in others)


async def run_probe(
    probe: Probe,
    gpus: int,
    part: Part | None,
    *,
    folder: Path,
    line: Callable[[str], None] = lambda text: None,
    program: str | None = None,
) -> ProbeResult:
    """Run a tool on all GPUs of the box, keep what it prints in `folder`, and judge it; `line` gets each line."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_TOOL_FOLDERS))
    program = program or next(filter(None, (shutil.which(name, path=path) for name in probe.programs)), None)
    if program is None:
        return ProbeResult(probe.name, "absent", f"none of {', '.join(probe.programs)} is installed")
    output = folder / f"probe-{probe.name}.txt"
    began_s = time.monotonic()
    commands = probe.commands(gpus, part)
    figures: list[ProbeFigure] = []
    failure = ""
    with output.open("wb") as file:
        for subject, arguments in commands:
            try:
                printed = await _printed([program, *arguments], probe, file.fileno(), line)
                figures += (judged(figure, part) for figure in probe.parse(subject, printed))
            except TelemetryError as error:
                failure = str(error)
                break
    return ProbeResult(
        probe.name,
        *_outcome(figures, failure),
        figures=tuple(figures),
        command=(program, *commands[0][1]),
        took_s=time.monotonic() - began_s,
        output_path=str(output),
    )


def _outcome(figures: Sequence[ProbeFigure], failure: str) -> tuple[ProbeState, str]:
    """The state of a probe and its reason; what was measured before a failure still counts."""
    bad = [figure for figure in figures if figure.is_bad]
    if bad:
        return "fail", bad[0].words + (f", and {len(bad) - 1} more" if len(bad) > 1 else "")
    if failure or not figures:
        return "failed", failure or "it printed nothing that is known of it; its output is kept"
    if any(figure.passed or figure.low is not None for figure in figures):
        return "pass", ""
    return "measured", "no public criterion for this kind of GPU"


async def _printed(arguments: Sequence[str], probe: Probe, output: int, line: Callable[[str], None]) -> str:
    """What a tool prints, of both its outputs; raises `TelemetryError` if it fails or takes longer than its limit."""
    try:
        # Not asyncio's subprocess: that reaps it, after which its process group may be another's.
        process = subprocess.Popen(  # noqa: ASYNC220 - starts at once
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise TelemetryError(f"it could not be started: {error.strerror}: {arguments[0]}") from error
    try:
        async with asyncio.timeout(probe.limit_s):
            printed = await _read_all(process, output, line)
            await _exit_of(process)
    except TimeoutError:
        raise TelemetryError(f"it was ended, because it took longer than {probe.limit_s:.0f} s") from None
    finally:
        status = await _end(process)
    # Some tools exit with an error because a test failed: what they printed says so better.
    if status and not any(True for _ in probe.parse("", printed)):
        last = next((each for each in reversed(printed.splitlines()) if each.strip()), "nothing was printed")
        raise TelemetryError(f"it ended with status {status}: {harmless(last.strip())}")
    return printed


async def _read_all(process: subprocess.Popen[bytes], output: int, line: Callable[[str], None]) -> str:
    """What it prints until it closes its output; everything goes to the file `output`, and each line to `line`."""
    reader = asyncio.StreamReader(limit=1 << 16)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), process.stdout
    )
    kept = bytearray()
    unfinished = b""
    try:
        while chunk := await reader.read(1 << 16):
            if len(kept) < MAX_OUTPUT_BYTES:
                os.write(output, chunk)
                kept += chunk
            lines = (unfinished + chunk).splitlines(keepends=True)
            unfinished = b""
            if len(lines[-1]) < _MAX_LINE_BYTES and not lines[-1].endswith((b"\n", b"\r")):
                unfinished = lines.pop()
            for text in lines:
                line(harmless(text.decode("utf-8", errors="replace").rstrip("\r\n")))
    finally:
        pipe.close()
    if unfinished:
        line(harmless(unfinished.decode("utf-8", errors="replace")))
    return kept.decode("utf-8", errors="replace")


async def _exit_of(process: subprocess.Popen[bytes]) -> None:
    """Wait until it exits; it is not reaped, so that its process group still belongs to it."""
    pidfd = os.pidfd_open(process.pid)
    exited = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


async def _end(process: subprocess.Popen[bytes]) -> int | None:
    """End the tool and whatever it started that is still in its session; returns its exit status."""
    for number, limit_s in ((signal.SIGTERM, _ENDING_S), (signal.SIGKILL, 1.0)):
        os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await _exit_of(process)
    # A process that hangs in a driver survives SIGKILL: it is left to the kernel.
    return process.poll()
