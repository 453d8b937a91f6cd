"""The real child and the real pynvml against a stand-in of NVIDIA's library."""

from pathlib import Path

import pytest

from loadgen.schema.samples import GpuProcess, GpuSample
from loadgen.system import has_host_pids
from tests.c_library import build_library
from tests.telemetry.children import Heard, listen

_SOURCE = Path(__file__).parent / "nvml_stub" / "nvml_stub.c"
_GIB = 1024**3
GPM = ("sm_percent", "dram_percent", "pcie_bytes_per_s")


def _build(folder: Path, *flags: str) -> Path:
    build_library(folder / "libnvidia-ml.so.1", _SOURCE, "-Wall", "-Wextra", "-Werror", *flags)
    return folder


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("nvml_old"), "-DOLD")


def _listen(library: Path, scenario: str, *, samples: int = 2, orders: bytes = b"") -> Heard:
    env = {"LD_LIBRARY_PATH": str(library), "NVML_STUB": scenario}
    return listen("--backend", "nvml", env=env, samples=samples, orders=orders)


def test_two_busy_gpus(library: Path) -> None:
    heard = _listen(library, "busy", samples=3)
    assert heard.opened is not None
    assert heard.opened.meta["driver"] == "570.133.20"
    assert heard.opened.meta["cuda"] == "12.8"
    first, second = heard.opened.gpus
    assert (first.name, first.uuid, first.bdf, first.arch) == (
        "NVIDIA H100 80GB HBM3",
        "GPU-stub-0",
        "0000:1b:00.0",
        "sm_90",
    )
    assert (first.hbm_total_bytes, first.power_cap_default_w) == (80 * _GIB, 700)
    assert (first.pcie_width_max, first.pcie_speed_max_gts) == (16, 32)
    assert (second.engine_index, second.engine_name) == (1, "GPU-stub-1")
    assert (first.virtualization, first.socket, first.partition) == ("PASSTHROUGH", "GPU-stub-0", 0)
    assert (first.links_total, second.links_total) == (18, None)
    assert heard.samples[0].gpus[0] == GpuSample(
        index=0,
        t_s=heard.samples[0].gpus[0].t_s,
        gfx_percent=97,
        memory_percent=41,
        hbm_used_bytes=60 * _GIB,
        power_w=65.535,
        power_cap_w=650,
        temperature_hotspot_c=55,
        temperature_memory_c=61,
        gfx_clock_mhz=1755,
        memory_clock_mhz=2619,
        energy_j=123456.789,
        throttle_percent={"power": 0, "thermal": 0, "brake": 100, "hardware": 0},
        pcie_width=8,
        pcie_speed_gts=16,
        pcie_replays=3,
        link_read_bytes=2000 * 1024,
        link_write_bytes=1000 * 1024,
        links_up=18,
        fabric="Completed",
        ecc_correctable=70000,
        ecc_uncorrectable=1,
        rows_remapped=1,
        remap_pending=False,
        remap_failed=False,
        xids=0,
        missing=dict.fromkeys(GPM, "needs two samples"),
    )


def test_throttling_is_counted_where_there_is_a_counter_and_else_seen(library: Path) -> None:
    first, second = _listen(library, "busy").samples[1].gpus
    assert first.throttle_percent == {"power": 100, "thermal": 0, "brake": 100, "hardware": 0}
    # Without a counter, and with a slowdown that names no cause.
    assert second.throttle_percent == {"power": 0, "thermal": 0, "brake": 0, "hardware": 100}


def test_activity_is_measured_between_two_samples(library: Path) -> None:
    heard = _listen(library, "busy", samples=3)
    for look in heard.samples[1:]:
        now = look.gpus[0]
        assert (now.sm_percent, now.dram_percent, now.pcie_bytes_per_s) == (80.25, 55.5, 2048 * 1024**2)
    older = [look.gpus[1] for look in heard.samples]
    assert older[0].missing["sm_percent"] == "only Hopper and newer GPUs report it"
    assert "sm_percent" not in older[1].missing  # it is said once in a while


def test_xid_errors_are_counted_as_they_come_and_retired_memory_is_reported(library: Path) -> None:
    heard = _listen(library, "failing", samples=4)
    first = [look.gpus[0] for look in heard.samples]
    assert [(now.xids, now.xid_last) for now in first] == [(0, None), (None, None), (2, 79), (None, None)]
    assert (first[0].rows_remapped, first[0].remap_pending, first[0].bad_pages) == (2, True, None)
    older = heard.samples[0].gpus[1]
    assert (older.rows_remapped, older.bad_pages, older.xids) == (None, 1, 0)
    assert older.missing["rows_remapped"] == "not supported by this GPU"
    # What cannot be had of the one is no reason to do without the rest.
    assert first[0].missing["sm_percent"] == "Insufficient Memory"


def test_the_slow_tier_is_not_read_at_each_beat(library: Path) -> None:
    later = _listen(library, "busy").samples[1].gpus[0]
    assert (later.power_cap_w, later.pcie_width, later.ecc_uncorrectable, later.links_up) == (None, None, None, None)


def test_processes_are_listed_on_request(library: Path) -> None:
    heard = _listen(library, "busy", samples=4, orders=b"true\n")
    lists = [look.gpus for look in heard.samples if look.gpus[0].processes is not None]
    assert len(lists) == 1
    first, second = ("python4000", "python4001") if has_host_pids() else ("", "")
    assert lists[0][0].processes == (GpuProcess(4000, first, 60 * _GIB),)
    # What a process holds can be unknown.
    assert lists[0][1].processes == (GpuProcess(4001, second, None),)


def test_what_a_library_prints_is_no_line(library: Path) -> None:
    heard = _listen(library, "busy")
    assert heard.stderr.count("NVML says hello") == 2
    assert heard.status == 0


def test_mig_has_memory_in_its_instances_and_the_rest_in_its_parent(library: Path) -> None:
    heard = _listen(library, "mig", orders=b"true\n")
    assert heard.opened is not None
    parent, one, two, other = heard.opened.gpus
    assert [gpu.index for gpu in heard.opened.gpus] == [0, 1, 2, 3]
    assert [gpu.partition for gpu in heard.opened.gpus] == [0, 1, 2, 0]
    assert {gpu.engine_index for gpu in heard.opened.gpus} == {None}
    assert [gpu.socket for gpu in heard.opened.gpus] == ["GPU-stub-0"] * 3 + ["GPU-stub-1"]
    assert (parent.hbm_total_bytes, one.hbm_total_bytes, other.hbm_total_bytes) == (None, 40 * _GIB, 80 * _GIB)
    assert (parent.compute_partition, one.compute_partition, two.uuid) == ("MIG", "3g.40gb", "MIG-stub-1")
    parent_now, one_now, _, other_now = heard.samples[0].gpus
    assert parent_now.power_w == other_now.power_w == 65.535
    assert parent_now.missing == {
        "hbm_used_bytes": "belongs to the MIG instances",
        "gfx_percent": "not supported by this GPU",
        "memory_percent": "not supported by this GPU",
        **dict.fromkeys(GPM, "needs two samples"),
    }
    assert one_now == GpuSample(index=1, t_s=one_now.t_s, hbm_used_bytes=60 * _GIB, processes=one_now.processes)


def test_what_is_not_supported_is_missing_for_that_reason(library: Path) -> None:
    now = _listen(library, "unsupported").samples[0].gpus[0]
    assert now.hbm_used_bytes == 60 * _GIB
    assert {"power_w", "energy_j", "gfx_percent", "throttle_percent", "ecc_uncorrectable", "pcie_speed_gts"} <= set(
        now.missing
    )
    assert set(now.missing.values()) == {"not supported by this GPU"}
    assert now.power_w is None


def test_a_gpu_that_falls_off_the_bus_takes_no_other_with_it(library: Path) -> None:
    heard = _listen(library, "lost", samples=3)
    whole, lost = heard.samples[-1].gpus
    assert whole.power_w == 65.535
    assert (lost.power_w, lost.hbm_used_bytes) == (None, None)
    assert set(lost.missing.values()) == {"the GPU is lost: it fell off the bus; see Xid in `dmesg`"}


def test_a_gpu_that_was_lost_before_is_shown_as_such(library: Path) -> None:
    heard = _listen(library, "lost-at-start")
    assert heard.opened is not None
    assert [gpu.name for gpu in heard.opened.gpus] == ["NVIDIA H100 80GB HBM3", "NVIDIA GPU that does not answer"]
    assert "the GPU is lost" in heard.samples[0].gpus[1].missing["power_w"]


def test_an_old_driver_tells_what_it_can(old_library: Path) -> None:
    now = _listen(old_library, "busy").samples[0].gpus[0]
    assert now.hbm_used_bytes == 61 * _GIB
    assert now.power_w == 65.535
    assert now.missing == dict.fromkeys(
        ["throttle_percent", "temperature_memory_c", "fabric", "link_read_bytes", "link_write_bytes", *GPM],
        "the installed driver is too old to report it",
    )


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("status 9", "NVIDIA's driver is not loaded"),
        ("status 18", "differ in version"),
        ("status 4", "no permission"),
        ("status 15", "the GPU is lost"),
        ("status 999", "Unknown Error"),
        ("empty", "finds no GPU"),
        ("lost-all", "no GPU answers: the GPU is lost"),
    ],
)
def test_what_does_not_work_is_refused_with_its_reason(library: Path, scenario: str, words: str) -> None:
    heard = _listen(library, scenario)
    assert heard.refused is not None
    assert words in heard.refused.reason
    assert (heard.opened, heard.samples, heard.status) == (None, [], 1)


def test_no_library(tmp_path: Path) -> None:
    heard = _listen(tmp_path, "busy")
    assert heard.refused is not None
    assert "libnvidia-ml.so.1 was not found" in heard.refused.reason
