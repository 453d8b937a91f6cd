"""The amdsmi backend through the real wrapper, in a real process, on a library of ours that tells known values."""

import asyncio
from pathlib import Path

from loadgen.schema.samples import GpuProcess, GpuSample, GpuStatic
from loadgen.telemetry.backends import BackendOption
from loadgen.telemetry.monitor import Monitor
from tests.telemetry.amdsmi_stub.probe import environment, probe
from tests.telemetry.amdsmi_stub.scenarios import BUSY_MI300X, CPX, DPX, GUEST, MI210, MI250, STORM

MIB = 1024**2
NO_THROTTLE = {"power": 0.0, "thermal": 0.0, "hbm": 0.0, "vr": 0.0, "prochot": 0.0}


def test_the_identity_and_limits_of_eight_busy_mi300x_come_back_exactly(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, BUSY_MI300X) as child:
        assert len(child.opened.gpus) == 8
        assert child.opened.gpus[3] == GpuStatic(
            index=3,
            vendor="amd",
            name="AMD Instinct MI300X",
            uuid="03ff74a1-0000-1000-8000-000000000000",
            bdf="0000:3c:00.0",
            arch="gfx942",
            engine_index=4,
            engine_name="GPU-0000000000000003",
            device_file="/dev/dri/renderD131",
            socket="0000:3c:00",
            compute_partition="SPX",
            memory_partition="NPS1",
            hbm_total_bytes=196592 * MIB,
            power_cap_default_w=750.0,
            gfx_clock_max_mhz=2100,
            memory_clock_max_mhz=1300,
            pcie_width_max=16,
            pcie_speed_max_gts=32.0,
            links_total=7,
            virtualization="BAREMETAL",
        )


def test_what_was_found_is_recorded(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, BUSY_MI300X) as child:
        meta = child.opened.meta
        assert (meta["wrapper"], meta["library"], meta["rocm"], meta["driver"]) == (
            "7.0.2",
            "26.0.2",
            "7.0.2",
            "6.14.14",
        )
        assert meta["library_path"] == str(rocm / "lib/libamd_smi.so")


def test_the_samples_of_eight_busy_mi300x_come_back_exactly_units_included(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, BUSY_MI300X) as child:
        samples = child.look()
        assert [sample.index for sample in samples] == list(range(8))
        times = [sample.t_s for sample in samples]
        assert times == sorted(times)
        assert samples[5] == GpuSample(
            index=5,
            t_s=samples[5].t_s,
            gfx_percent=97,
            memory_percent=41,
            hbm_used_bytes=171234 * MIB,
            power_w=612,
            temperature_hotspot_c=78,
            temperature_memory_c=66,
            gfx_clock_mhz=2085.0,
            memory_clock_mhz=1300,
            energy_j=1000.0,
            pcie_width=16,
            pcie_speed_gts=32.0,
            pcie_replays=3,
            link_read_bytes=7000 * 1024,
            link_write_bytes=14000 * 1024,
            missing={"throttle_percent": "the counters have not moved"},
        )


def test_the_slow_tier_and_processes_come_only_on_request(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, BUSY_MI300X) as child:
        plain, slow, with_processes = child.look()[0], child.look("slow")[0], child.look("processes")[0]
        assert (plain.power_cap_w, plain.ecc_uncorrectable, plain.links_up, plain.processes) == (None, None, None, None)
        assert (slow.power_cap_w, slow.ecc_correctable, slow.ecc_uncorrectable, slow.links_up) == (750.0, 0, 0, 7)
        assert (slow.ecc_deferred, slow.bad_pages, slow.xcp_percent) == (0, 0, None)
        assert slow.processes is None
        assert with_processes.processes == (GpuProcess(4242, "python3", 179000000000),)


def test_throttling_is_the_share_of_the_time_between_two_looks(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, BUSY_MI300X) as child:
        shares = []
        text = BUSY_MI300X
        for looks, held in ((2000, 370), (3000, 1370), (4000, 1370)):
            text += f"* gpu_metrics.accumulation_counter {looks}\n2 gpu_metrics.ppt_residency_acc {held}\n"
            child.becomes(text)
            shares.append(child.look()[2].throttle_percent)
        assert shares == [NO_THROTTLE | {"power": 37.0}, NO_THROTTLE | {"power": 100.0}, NO_THROTTLE]


def test_counters_that_were_reset_give_no_share(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, BUSY_MI300X) as child:
        child.becomes(BUSY_MI300X + "* gpu_metrics.accumulation_counter 10\n")
        assert child.look()[0].missing == {"throttle_percent": "the counters were reset"}
        child.becomes(BUSY_MI300X + "* gpu_metrics.accumulation_counter 20\n")
        assert child.look()[0].throttle_percent == NO_THROTTLE


def test_an_uncorrectable_error_appears_and_a_link_goes_down(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, BUSY_MI300X) as child:
        assert [sample.ecc_uncorrectable for sample in child.look("slow")] == [0] * 8
        child.becomes(BUSY_MI300X + "3 error_count.uncorrectable_count 1\n3 xgmi_link_status.status 1,0,1,2,1,1,1,1\n")
        samples = child.look("slow")
        assert [sample.ecc_uncorrectable for sample in samples] == [0, 0, 0, 1, 0, 0, 0, 0]
        assert [sample.links_up for sample in samples] == [7, 7, 7, 6, 7, 7, 7, 7]


def test_an_mi210_has_bits_of_throttling_average_power_and_one_clock(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, MI210) as child:
        (sample,) = child.look("slow")
        assert (sample.power_w, sample.energy_j, sample.gfx_clock_mhz, sample.pcie_speed_gts) == (215, 0.5, 1700, 16.0)
        assert sample.hbm_used_bytes == 65535 * MIB
        assert sample.throttle_percent == NO_THROTTLE | {"power": 100.0, "thermal": 100.0, "current": 0.0}
        assert sample.missing["links_up"] == "NOT_SUPPORTED"


def test_the_power_of_an_mi250_is_that_of_its_first_die_by_pci_address(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, MI250) as child:
        assert [(gpu.socket, gpu.partition) for gpu in child.opened.gpus] == [
            ("0000:c1:00", 1),
            ("0000:c1:00", 0),
            ("0000:c9:00", 0),
            ("0000:c9:00", 1),
        ]
        samples = child.look()
        assert [sample.power_w for sample in samples] == [None, 480, 500, None]
        assert [sample.energy_j for sample in samples] == [None, 1.0, 1.0, None]
        assert [sample.temperature_hotspot_c for sample in samples] == [60] * 4
        assert samples[0].missing["power_w"] == "belongs to the socket: see its partition 0"


def test_sixty_four_partitions_count_each_socket_once(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, CPX) as child:
        gpus, samples = child.opened.gpus, child.look("slow")
        assert len(gpus) == len(samples) == 64
        assert len({gpu.socket for gpu in gpus}) == 8
        carriers = [sample for gpu, sample in zip(gpus, samples, strict=True) if gpu.partition == 0]
        others = [sample for gpu, sample in zip(gpus, samples, strict=True) if gpu.partition]
        assert (
            sum(sample.power_w or 0 for sample in samples) == sum(sample.power_w or 0 for sample in carriers) == 8 * 612
        )
        assert {sample.hbm_used_bytes for sample in samples} == {20000 * MIB}
        reported = {
            name
            for sample in others
            for name in ("gfx_percent", "energy_j", "ecc_uncorrectable")
            if getattr(sample, name)
        }
        assert reported == set()
        assert others[0].missing["temperature_hotspot_c"] == "belongs to the socket: see its partition 0"


def test_a_partition_has_an_activity_of_its_own(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, CPX) as child:
        assert [sample.xcp_percent for sample in child.look()[:9]] == [0, 10, 20, 30, 40, 50, 60, 70, 0]
    with probe(rocm, tmp_path, DPX) as child:
        assert [gpu.memory_partition for gpu in child.opened.gpus] == ["NPS2"] * 16
        samples = child.look()
        assert [sample.xcp_percent for sample in samples[:4]] == [85.0, 0, 85.0, 0]
        assert [sample.power_w for sample in samples[:4]] == [612, None, 612, None]


def test_partition_activity_with_a_newer_library(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, DPX + "* library_minor 4\n") as child:
        sample = child.look()[1]
        assert sample.xcp_percent is None
        assert sample.missing["xcp_percent"] == "amdsmi 7.0.2 does not know where this library tells it"


def test_deferred_errors_and_bad_pages_are_reported(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, MI210 + "* error_count.deferred_count 2\n* bad_pages 3\n") as child:
        (sample,) = child.look("slow")
        assert (sample.ecc_deferred, sample.bad_pages) == (2, 3)


def test_a_guest_tells_its_memory_and_why_nothing_else(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, GUEST) as child:
        (gpu,) = child.opened.gpus
        assert (gpu.virtualization, gpu.name, gpu.hbm_total_bytes) == ("GUEST", "AMD GPU 0x74b5", 196592 * MIB)
        (sample,) = child.look("slow processes")
        assert sample.hbm_used_bytes == 283 * MIB
        assert sample.power_w is None
        assert set(sample.missing.values()) == {"NOT_SUPPORTED"}


def test_every_way_of_saying_not_available_becomes_null(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, STORM) as child:
        (gpu,) = child.opened.gpus
        limits = (gpu.power_cap_default_w, gpu.gfx_clock_max_mhz, gpu.pcie_width_max, gpu.pcie_speed_max_gts)
        assert limits == (None, None, None, None)
        assert (gpu.engine_index, gpu.partition, gpu.links_total) == (None, 0, None)
        (sample,) = child.look("slow")
        assert sample == GpuSample(index=0, t_s=sample.t_s, hbm_used_bytes=283 * MIB, missing=sample.missing)
        assert set(sample.missing) == {
            "gfx_percent", "memory_percent", "power_w", "temperature_hotspot_c", "temperature_memory_c",
            "gfx_clock_mhz", "memory_clock_mhz", "energy_j", "pcie_width", "pcie_speed_gts", "pcie_replays",
            "link_read_bytes", "link_write_bytes", "throttle_percent", "power_cap_w", "ecc_correctable",
            "ecc_uncorrectable", "ecc_deferred", "bad_pages", "links_up",
        }  # fmt: skip


def test_a_busy_device_costs_its_own_fields_only(rocm: Path, tmp_path: Path) -> None:
    busy = BUSY_MI300X + "4 fail.amdsmi_get_gpu_metrics_info 30\n"
    with probe(rocm, tmp_path, busy) as child:
        samples = child.look()
        assert [sample.power_w for sample in samples] == [612, 612, 612, 612, None, 612, 612, 612]
        assert samples[4].hbm_used_bytes == 171234 * MIB
        assert samples[4].missing["power_w"] == "BUSY"


def test_a_handle_that_became_invalid_ends_the_backend(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, BUSY_MI300X) as child:
        child.becomes(BUSY_MI300X + "* gpus 4\n")
        child.ask()
        child.first = child.read()
        assert child.refused == "GPU 4 says NOT_FOUND: the devices have changed, open again"


def test_a_slow_library_delays_and_is_still_right(rocm: Path, tmp_path: Path) -> None:
    with probe(rocm, tmp_path, MI210) as child:
        child.becomes(MI210 + "* delay_ms 20\n")
        assert child.look()[0].power_w == 215


async def test_an_open_of_sixty_four_slow_handles_is_waited_for(rocm: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario"
    scenario.write_text(CPX + "* delay_ms 1\n")
    option = BackendOption("amdsmi", "amdsmi", env=environment(rocm, scenario))
    monitor = Monitor({"amd": [option]}, folder=tmp_path)
    monitor.start()
    try:
        async with asyncio.timeout(60):
            while not monitor.settled:
                await monitor.change()
        assert (len(monitor.gpus), monitor.status[0].works, monitor.status[0].failures) == (64, True, {})
    finally:
        await monitor.close()


def test_a_structure_that_grew_within_the_major_version_overruns_nothing(rocm: Path, tmp_path: Path) -> None:
    grown = BUSY_MI300X + "* library_minor 5\n* grown_bytes 4096\n"
    with probe(rocm, tmp_path, grown) as child:
        assert child.opened.meta["library"] == "26.5.2"
        assert {sample.power_w for sample in child.look()} == {612}
