"""What was found about a box, as text and as JSON: findings of a preflight, and what a doctor saw."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.report.examination import doctor_text, findings_count, findings_json, findings_text, verdict
from loadgen.report.tabular import json_text
from loadgen.schema.finding import Finding, Severity, Skipped, by_severity, not_checked
from loadgen.schema.samples import (
    DeviceFile,
    Examination,
    GpuExam,
    GpuProcess,
    GpuSample,
    GpuStatic,
    HostExam,
    HostSample,
    Tried,
    UnitCheck,
)

_GIB = 1024**3
_HOST = HostExam(
    HostSample(
        t_s=1.0,
        cores=2,
        memory_used_bytes=3 * _GIB,
        memory_total_bytes=16 * _GIB,
        load_1min=0.5,
        cpu_percent=12.5,
        network_in_bytes_per_s=2.5e6,
        governor="performance",
    ),
    {
        "server_rss_bytes": "no server is watched",
        "server_cpu_percent": "no server is watched",
        "cpu_mhz": "not reported",
    },
)


_WITHOUT = ", without gfx_percent, hbm_used_bytes, temperature_hotspot_c, gfx_clock_mhz"


def _power(index: int, power_w: float, processes: int = 0) -> GpuExam:
    return GpuExam(
        GpuStatic(index=index, vendor="amd", name="MI300X", bdf=f"0000:{index:02x}:00.0", compute_partition="SPX"),
        GpuSample(
            index, 1.0, power_w=power_w, pcie_replays=index, processes=(GpuProcess(7, "python3", _GIB),) * processes
        ),
        {"gfx_percent": "BUSY"} | ({"links_up": "NOT_SUPPORTED"} if index == 1 else {}),
        (UnitCheck("power_w", power_w, power_w, "W", 10, 2000, power_w <= 2000),),
    )


def _tried(**changes: Any) -> Tried:
    values: dict[str, Any] = {
        "vendor": "amd",
        "name": "amdsmi 7.0.2",
        "why": "the installed package",
        "failure": None,
        "first_look_ms": 86.4,
        "meta": {"library": "26.0.2", "driver": None},
        "printed": (),
        "gpus": (),
    }
    return Tried(**values | changes)


def _found(*tried: Tried, **changes: Any) -> Examination:
    values: dict[str, Any] = {
        "versions": {"vramp": "0.1.0", "rocm": None},
        "user": "ada (uid 1000)",
        "groups": ("ada", "render"),
        "devices": (),
        "tried": tried,
        "host": _HOST,
    }
    return Examination(**values | changes)


def test_the_box_comes_first() -> None:
    kfd = DeviceFile("/dev/kfd", "denied", "crw-rw---- root:render", "sudo usermod -aG render,video $USER")
    text = doctor_text(_found(devices=(kfd, DeviceFile("/dev/dri/renderD*", "absent", fix="sudo modprobe amdgpu"))))
    assert text.startswith(
        """\
  versions      vramp 0.1.0
  not here      rocm
  user          ada (uid 1000), groups ada, render
  devices       /dev/kfd: this user may not use it; crw-rw---- root:render; fix: sudo usermod -aG
                render,video $USER
                /dev/dri/renderD*: not there; fix: sudo modprobe amdgpu
"""
    )


def test_gpus_that_say_the_same_are_one_line() -> None:
    text = doctor_text(_found(_tried(gpus=tuple(_power(n, 600.0 + n) for n in range(4)))))
    assert (
        """
amd: amdsmi 7.0.2: works, first look after 86 ms
  why           the installed package
  reported      library 26.0.2
  GPU 0         MI300X  0000:00:00.0  SPX
  GPU 1         MI300X  0000:01:00.0  SPX
  GPU 2         MI300X  0000:02:00.0  SPX
  GPU 3         MI300X  0000:03:00.0  SPX
  data sheet    MI300X: 2100? MHz, 750 W, 5300 GB/s memory, 896? GB/s links
  value                               lowest     highest  unit    can be
  power_w                                600         603  W       10 to 2000
  pcie_replays                             0           3
  null          gfx_percent: BUSY
                links_up: NOT_SUPPORTED (GPU 1)
"""
        in text
    )
    assert text.endswith(f"\namd: 4 GPUs measured with amdsmi 7.0.2{_WITHOUT}")


def test_firmware_and_settings() -> None:
    gpus = [GpuStatic(index=n, vendor="amd", name="X", firmware={"mec": f"0x{n // 3}"}) for n in range(4)]
    exams = tuple(GpuExam(gpu, GpuSample(gpu.index, 1.0), {}, ()) for gpu in gpus)
    host = HostExam(_HOST.sample, {}, {"boost": "off", "governor": "performance"})
    text = doctor_text(_found(_tried(gpus=exams), host=host))
    assert "  firmware      GPU 0-2: mec 0x0\n                GPU 3: mec 0x1\n" in text
    assert "  settings      boost off\n" in text
    assert "  firmware      mec 0x0\n" in doctor_text(_found(_tried(gpus=exams[:3])))


def test_a_value_that_cannot_be_names_its_gpus() -> None:
    found = _found(_tried(gpus=(_power(0, 6e8), _power(1, 600), _power(2, 6e8), _power(3, 6e8))))
    assert "10 to 2000  CANNOT BE: GPU 0, 2-3, raw 6e+08" in doctor_text(found)
    assert verdict(found) == f"amd: 4 GPUs measured with amdsmi 7.0.2{_WITHOUT}, 3 impossible values"


def test_counters_are_in_units_that_a_person_reads_and_columns_stay_apart() -> None:
    large = GpuSample(
        0, 1.0, energy_j=123_456_789.25, link_read_bytes=98_765_432_109_876, ecc_correctable=12_345_678_901_234
    )
    exam = GpuExam(GpuStatic(index=0, vendor="amd", name="MI300X"), large, {}, ())
    rows = [line.split() for line in doctor_text(_found(_tried(gpus=(exam,)))).splitlines()]
    assert ["energy_j", "123.46", "123.46", "MJ"] in rows
    assert ["link_read_bytes", "89.83", "89.83", "TiB"] in rows
    assert ["ecc_correctable", "12.3T", "12.3T"] in rows


def test_partitions_of_a_socket_are_one_line() -> None:
    gpus = [GpuStatic(index=n, vendor="amd", name="MI300X", socket=f"s{n // 8}", partition=n % 8) for n in range(16)]
    exams = tuple(GpuExam(gpu, GpuSample(gpu.index, 1.0), {}, ()) for gpu in gpus)
    assert "  GPU 0-7       MI300X\n  GPU 8-15      MI300X\n" in doctor_text(_found(_tried(gpus=exams)))


def test_processes_are_named_with_what_they_hold() -> None:
    text = doctor_text(_found(_tried(gpus=(_power(0, 600, processes=1), _power(1, 600, processes=1)))))
    assert "  on GPU 0-1    python3 (7) 1.0 GiB\n" in text
    assert "python3 (7) 1.0 GiB\n                2 more\n" in doctor_text(
        _found(_tried(gpus=(_power(0, 600, processes=7),)))
    )


def test_a_process_has_its_user_and_command() -> None:
    holder = GpuProcess(4242, "VLLM::Worker", 170 * _GIB, user="ada", command="vllm serve m --api-key ***")
    exam = GpuExam(GpuStatic(index=0, vendor="amd", name="MI300X"), GpuSample(0, 1.0, processes=(holder,)), {}, ())
    text = doctor_text(_found(_tried(gpus=(exam,))))
    assert "on GPU 0      VLLM::Worker (4242, ada) 170.0 GiB: vllm serve m --api-key ***\n" in text


def test_each_failure_is_reported_with_what_was_printed() -> None:
    bad = _tried(failure="it was killed by SIGABRT", printed=("free(): invalid next size", "abort"), meta={})
    found = _found(bad, _tried(name="amd-sysfs", gpus=(_power(0, 600),)))
    text = doctor_text(found)
    assert "amd: amdsmi 7.0.2: fails: it was killed by SIGABRT\n" in text
    assert "  printed       free(): invalid next size\n                abort\n" in text
    assert "reported" not in text.partition("amd-sysfs")[0]
    assert (verdict(found), found.unmeasured) == (f"amd: 1 GPU measured with amd-sysfs{_WITHOUT}", ())


def test_a_vendor_of_which_nothing_works() -> None:
    found = _found(_tried(failure="no library"), _tried(vendor="nvidia", name="nvml", gpus=(_power(0, 600),)))
    assert verdict(found) == f"amd: nothing works\nnvidia: 1 GPU measured with nvml{_WITHOUT}"
    assert found.unmeasured == ("amd",)


def test_no_gpu_is_no_failure() -> None:
    found = _found(nothing="no sign of a GPU")
    assert doctor_text(found).endswith("\n\nGPUs: no sign of a GPU")
    assert found.unmeasured == ()


def test_the_host_has_a_reason_for_every_null() -> None:
    assert """
host
  value         cores 2, memory_used 3 GiB, memory_total 16 GiB, load_1min 0.5, cpu 12.5 %,
                network_in 2.5 MB/s, governor performance
  null          server_rss_bytes, server_cpu_percent: no server is watched
                cpu_mhz: not reported
""" in doctor_text(_found())


def test_json_has_each_gpu_apart() -> None:
    document = json.loads(json_text(_found(_tried(gpus=(_power(0, 600), _power(1, 601))))))
    assert document["schema"] == "vramp.doctor/1"
    assert document["versions"] == {"vramp": "0.1.0", "rocm": None}
    second = document["tried"][0]["gpus"][1]
    assert (second["sample"]["power_w"], second["missing"]["links_up"]) == (601, "NOT_SUPPORTED")
    assert second["checks"][0] == {
        "quantity": "power_w",
        "raw": 601,
        "value": 601,
        "unit": "W",
        "low": 10,
        "high": 2000,
        "plausible": True,
    }


BLOCKS = Finding("unknown-flag", "blocks", "--swap-space", "vLLM would not start", "remove server.args.swap-space")
WARNS = Finding("numa-balancing", "warns", "kernel.numa_balancing is 1", "it can hang GPUs", source="AMD's guide")
INFO = Finding("governor", "info", "governor performance", "")
SKIPPED = not_checked([Skipped("port", "elsewhere"), Skipped("eager", "no GPUs"), Skipped("clock", "elsewhere")])


def test_the_worst_comes_first_and_what_is_empty_is_left_out() -> None:
    assert findings_text([INFO, WARNS, BLOCKS]) == (
        "blocks unknown-flag: --swap-space\n"
        "       why: vLLM would not start\n"
        "       fix: remove server.args.swap-space\n"
        "\n"
        "warns  numa-balancing: kernel.numa_balancing is 1\n"
        "       why: it can hang GPUs\n"
        "       source: AMD's guide\n"
        "\n"
        "info   governor: governor performance\n"
        "\n"
        "1 blocks, 1 warning, 1 note"
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], "nothing found"),
        ([INFO, INFO], "2 notes"),
        ([BLOCKS, BLOCKS], "2 block"),
        (SKIPPED, "nothing found, 3 not checked"),
        ([INFO, *SKIPPED], "1 note, 3 not checked"),
    ],
)
def test_the_count(found: list[Finding], words: str) -> None:
    assert findings_count(found) == words


def test_what_was_not_checked_is_one_block_with_a_line_for_each_reason() -> None:
    assert findings_text([*SKIPPED, INFO]) == (
        "info   governor: governor performance\n"
        "\n"
        "not checked: port, clock - elsewhere\n"
        "not checked: eager - no GPUs\n"
        "\n"
        "1 note, 3 not checked"
    )
    assert json.loads(findings_json(SKIPPED)) == [
        {
            "id": "not-checked",
            "severity": "info",
            "seen": "port, clock: could not be checked",
            "why": "elsewhere",
            "skipped": [{"rule": "port", "reason": "elsewhere"}, {"rule": "clock", "reason": "elsewhere"}],
        },
        {
            "id": "not-checked",
            "severity": "info",
            "seen": "eager: could not be checked",
            "why": "no GPUs",
            "skipped": [{"rule": "eager", "reason": "no GPUs"}],
        },
    ]


def test_json_has_what_the_text_has() -> None:
    assert json.loads(findings_json([INFO, BLOCKS])) == [
        {
            "id": "unknown-flag",
            "severity": "blocks",
            "seen": "--swap-space",
            "why": "vLLM would not start",
            "fix": "remove server.args.swap-space",
        },
        {"id": "governor", "severity": "info", "seen": "governor performance", "why": ""},
    ]


SEVERITIES: st.SearchStrategy[Severity] = st.sampled_from(["blocks", "warns", "info"])


@given(st.lists(st.builds(Finding, st.text(), SEVERITIES, st.text(), st.text(), st.text(), st.text())))
def test_nothing_is_lost(found: list[Finding]) -> None:
    assert sorted(map(repr, by_severity(found))) == sorted(map(repr, found))
    assert len(json.loads(findings_json(found))) == len(found)


def test_a_command_is_never_broken_inside_a_word() -> None:
    command = "kill " + " ".join(str(100_000 + n) for n in range(30))
    text = findings_text([Finding("leftovers", "warns", "31 processes", "they hold HBM", command)])
    assert command in text.replace("\n         ", " ")
    assert max(map(len, text.splitlines())) <= 100
