"""Every candidate tried in earnest: good children, real ones on the stub libraries, and those that go wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.metrics.samples import GpuProcess
from loadgen.telemetry.capture import Header, read_capture, write_capture
from loadgen.telemetry.doctor import NOTHING, BackendTrial, Pace, examine, header_of, part_of, tried, visit_all
from loadgen.telemetry.options import BackendOption, backend_options
from loadgen.vendors import VendorName
from tests.telemetry.amdsmi_stub.build import build_rocm
from tests.telemetry.amdsmi_stub.scenarios import BUSY_MI300X, CPX, GUEST
from tests.telemetry.children import stand_in

_PACE = Pace(watch_s=0.1, interval_s=0.05, open_s=20)
_WAITS = "while True:\n    sampled()\n    time.sleep(0.02)\n"


@pytest.fixture(scope="module")
def rocm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_rocm(tmp_path_factory.mktemp("rocm") / "7.0.2")


async def _visit(folder: Path, attempt: BackendOption, pace: Pace = _PACE, vendor: VendorName = "amd") -> BackendTrial:
    (visit,) = await visit_all({vendor: [attempt]}, folder=folder, pace=pace)
    return visit


async def _on_stub(folder: Path, rocm: Path, scenario: str) -> BackendTrial:
    path = folder / "scenario"
    path.write_text(scenario)
    env = {"ROCM_PATH": str(rocm), "AMDSMI_STUB_SCENARIO": str(path)}
    return await _visit(folder, BackendOption("amdsmi 7.0.2", "amdsmi", env=env, why="the installed one"))


async def test_eight_busy_mi300x_are_told_whole_and_plausible(rocm: Path, tmp_path: Path) -> None:
    found = tried(await _on_stub(tmp_path, rocm, BUSY_MI300X))
    assert (found.vendor, found.name, found.why) == ("amd", "amdsmi 7.0.2", "the installed one")
    assert found.works
    assert found.first_look_ms is not None
    assert found.meta["library"] == "26.0.2"
    assert [exam.gpu.index for exam in found.gpus] == list(range(8))
    exam = found.gpus[3]
    assert (exam.gpu.bdf, exam.sample.power_w, exam.sample.links_up) == ("0000:3c:00.0", 612, 7)
    assert exam.sample.processes == (GpuProcess(4242, "python3", 179000000000),)
    assert exam.missing == {"throttle_percent": "the counters have not moved"}
    assert [check.quantity for check in exam.checks if not check.plausible] == []
    assert len(exam.checks) == 17


async def test_partitions_have_what_is_theirs_and_say_where_the_rest_is(rocm: Path, tmp_path: Path) -> None:
    first, second, *_ = tried(await _on_stub(tmp_path, rocm, CPX)).gpus
    assert (first.sample.power_w, second.sample.power_w) == (612, None)
    assert "power_w" not in first.missing
    assert second.missing["power_w"] != "amdsmi does not tell it"


async def test_a_guest_has_a_reason_for_every_null(rocm: Path, tmp_path: Path) -> None:
    (exam,) = tried(await _on_stub(tmp_path, rocm, GUEST)).gpus
    nulls = {name for name in exam.sample.__struct_fields__ if getattr(exam.sample, name) is None}
    nulls |= {name for name in exam.gpu.__struct_fields__ if getattr(exam.gpu, name) is None}
    assert nulls == exam.missing.keys()
    assert exam.missing["power_w"] == "NOT_SUPPORTED"
    assert exam.missing["uuid"] == "amdsmi does not tell it"


async def test_a_library_that_does_not_work_is_told_exactly_with_what_it_printed(tmp_path: Path) -> None:
    empty = {"ROCM_PATH": str(tmp_path), "ROCM_HOME": str(tmp_path)}
    visit = await _visit(tmp_path, BackendOption("amdsmi", "amdsmi", env=empty))
    found = tried(visit)
    assert not found.works
    assert found.failure is not None
    assert "libamd_smi.so" in found.failure
    assert any("libamd_smi.so" in line for line in found.printed)
    assert (found.gpus, found.meta) == ((), {})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            'say(\'{"type":"Refused","backend":"sim","reason":"no \\\\u001b driver"}\')\n',
            "no \N{SYMBOL FOR SUBSTITUTE FORM TWO} driver",
        ),
        ("os.abort()\n", "it was killed by SIGABRT"),
        ("sys.stderr.write('undefined symbol\\n')\nsys.exit(3)\n", "it ended with status 3: undefined symbol"),
        ("sampled()\nwait()\n", "a sample before it said"),
        ("opened()\nopened()\nwait()\n", "it opened twice"),
        ('opened()\nsay(\'{"type":"Refused","backend":"sim","reason":"unloaded"}\')\nwait()\n', "unloaded"),
        ("say('hello')\nwait()\n", "not a line of telemetry"),
        ("opened()\nsampled()\nos.abort()\n", "it was killed by SIGABRT"),
    ],
)
async def test_every_failure_is_told(tmp_path: Path, body: str, words: str) -> None:
    visit = await _visit(tmp_path, stand_in(tmp_path, "bad", body))
    assert visit.failure is not None
    assert words in visit.failure


@pytest.mark.parametrize("body", ["time.sleep(999)\n", "opened()\ntime.sleep(999)\n", "opened()\nsampled()\nwait()\n"])
async def test_one_that_hangs_is_given_up(tmp_path: Path, body: str) -> None:
    hangs = stand_in(tmp_path, "hangs", body)
    visit = await _visit(tmp_path, hangs, replace(_PACE, open_s=0.5, grace_s=0.1))
    assert visit.failure == "it said nothing for 0.5 s"


async def test_what_cannot_be_started_is_told(tmp_path: Path) -> None:
    visit = await _visit(tmp_path, BackendOption("none", "sim", program=(str(tmp_path / "none"),)))
    assert visit.failure is not None
    assert "could not be started: No such file" in visit.failure


async def test_all_candidates_are_tried_but_only_the_first_that_works_is_watched(tmp_path: Path) -> None:
    bad = stand_in(tmp_path, "bad", "sys.exit(1)\n")
    good = stand_in(tmp_path, "good", "opened()\n" + _WAITS)
    other = stand_in(tmp_path, "other", "opened()\n" + _WAITS)
    visits = await visit_all({"amd": [bad, good, other]}, folder=tmp_path, pace=_PACE)
    assert [(visit.attempt.name, visit.failure is None) for visit in visits] == [
        ("bad", False),
        ("good", True),
        ("other", True),
    ]
    assert visits[1].looks[-1].t_s - visits[1].looks[0].t_s >= 0.1
    assert len(visits[2].looks) == 1


async def test_one_that_breaks_while_watched_keeps_what_it_told(tmp_path: Path) -> None:
    found = tried(await _visit(tmp_path, stand_in(tmp_path, "breaks", "opened()\nsampled(612)\nsys.exit(1)\n")))
    assert not found.works
    assert found.gpus[0].sample.power_w == 612


async def test_a_device_that_is_never_looked_at_is_left_out(tmp_path: Path) -> None:
    found = tried(await _visit(tmp_path, stand_in(tmp_path, "half", "opened(gpus=2)\n" + _WAITS)))
    assert found.works
    assert [exam.gpu.index for exam in found.gpus] == [0]


async def test_a_capture_of_the_stub_is_the_box_again(rocm: Path, tmp_path: Path) -> None:
    visit = await _on_stub(tmp_path, rocm, BUSY_MI300X)
    path = tmp_path / "capture.jsonl"
    write_capture(path, Header(captured_at="", versions={}, environment={}), [part_of(visit)])
    part = read_capture(path).playable["amd"]
    assert part.opened == visit.opened
    assert part.looks == visit.looks


async def test_a_box_without_gpus_says_so(tmp_path: Path) -> None:
    found, visits = await examine("off", folder=tmp_path, pace=_PACE)
    assert (found.nothing, found.tried, visits, found.unmeasured) == (NOTHING, (), [], ())
    assert found.host.sample.memory_total_bytes > 0
    assert found.host.missing["server_rss_bytes"] == "no server is watched"


async def test_simulated_gpus(tmp_path: Path) -> None:
    visits = await visit_all(backend_options("sim", sim_arguments=("--gpus", "2")), folder=tmp_path, pace=_PACE)
    (found,) = map(tried, visits)
    assert found.works
    assert all(check.plausible for exam in found.gpus for check in exam.checks)
    assert len(found.gpus) == 2


async def test_the_header_has_what_steers_the_libraries_and_nothing_else(tmp_path: Path) -> None:
    found, _ = await examine("off", folder=tmp_path, pace=_PACE)
    environ = {"ROCM_PATH": "/opt/rocm", "LD_LIBRARY_PATH": "/lib", "HOME": "/root", "HF_TOKEN": "hf_1", "CUDA_X": "1"}
    header = header_of(found, environ, "2026-01-02T03:04:05+00:00")
    assert header.environment == {"ROCM_PATH": "/opt/rocm", "LD_LIBRARY_PATH": "/lib", "CUDA_X": "1"}
    assert header.versions == found.versions
