"""The fallback without a library, on trees of files like those of the kernel."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import TelemetryError
from loadgen.schema.samples import GpuProcess, GpuSample, GpuStatic
from loadgen.telemetry.amd.gpu_metrics import LAYOUTS
from loadgen.telemetry.amd.sysfs import ecc_counts, highest_mhz, open_amd_sysfs, read_number, speed_gts
from loadgen.telemetry.readings import Missing
from tests.server.gpu_trees import add_kfd_node, initial_namespace
from tests.telemetry.amd.test_gpu_metrics import Version, blob

MIB = 1024**2
BUSY = {
    "temperature_hotspot": 78,
    "temperature_mem": 66,
    "average_gfx_activity": 97,
    "average_umc_activity": 41,
    "energy_accumulator": 65536000,
    "current_uclk": 1300,
    "pcie_link_width": 16,
    "pcie_link_speed": 320,
}
MI300X_FILES = {
    "vendor": "0x1002",
    "device": "0x74a1",
    "product_name": "AMD Instinct MI300X OAM",
    "unique_id": "00000000000000ab",
    "current_compute_partition": "SPX",
    "current_memory_partition": "NPS1",
    "mem_info_vram_total": str(196592 * MIB),
    "mem_info_vram_used": str(171234 * MIB),
    "gpu_busy_percent": "93",
    "mem_busy_percent": "40",
    "current_link_width": "8",
    "current_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
    "max_link_speed": "32.0 GT/s PCIe",
    "pcie_replay_count": "2",
    "pp_dpm_sclk": "S: 132Mhz *\n0: 500Mhz\n1: 2100Mhz",
    "pp_dpm_mclk": "0: 900Mhz\n1: 1300Mhz *",
    "ras/umc_err_count": "ue: 1\nce: 4\nde: 2",
    "ras/gfx_err_count": "ue: 0\nce: 3",
    "hwmon/hwmon3/power1_input": "600000000",
    "hwmon/hwmon3/power1_cap": "700000000",
    "hwmon/hwmon3/power1_cap_default": "750000000",
    "hwmon/hwmon3/temp2_label": "junction",
    "hwmon/hwmon3/temp2_input": "77000",
    "hwmon/hwmon3/temp3_label": "mem",
    "hwmon/hwmon3/temp3_input": "65535",
    "hwmon/hwmon3/freq1_label": "sclk",
    "hwmon/hwmon3/freq1_input": "2000000000",
    "hwmon/hwmon3/freq2_label": "mclk",
    "hwmon/hwmon3/freq2_input": "1200000000",
}
UNKNOWN = b"\x20\x00\x01\x09" + bytes(28)
"""A table of version 1.9."""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def add_card(sysfs: Path, card: int, table: bytes | None, *, bus: int = 0x0C, **changes: str) -> Path:
    """A card as the kernel shows it: a link to a PCI device, and connectors next to it."""
    device = sysfs / f"devices/pci0000:00/0000:{bus:02x}:00.0"
    for name, text in {**MI300X_FILES, **changes}.items():
        write(device / name, text)
    if table is not None:
        (device / "gpu_metrics").write_bytes(table)
    folder = sysfs / f"class/drm/card{card}"
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(device)
    (sysfs / f"class/drm/card{card}-DP-1").mkdir()
    return device


def look(sysfs: Path, *, slow: bool = False) -> tuple[GpuSample, ...]:
    return open_amd_sysfs(sysfs).sample(slow, False)


def test_the_identity_and_limits_of_a_card(tmp_path: Path) -> None:
    add_card(tmp_path, 1, blob((1, 8), xgmi_link_status=(1, 1, 1, 1, 1, 0, 1, 0xFFFF)))
    backend = open_amd_sysfs(tmp_path)
    assert backend.opened.backend == "amd-sysfs"
    assert backend.opened.gpus == (
        GpuStatic(
            index=0,
            vendor="amd",
            name="AMD Instinct MI300X OAM",
            uuid="00000000000000ab",
            bdf="0000:0c:00.0",
            engine_name="GPU-00000000000000ab",
            socket="0000:0c:00",
            compute_partition="SPX",
            memory_partition="NPS1",
            hbm_total_bytes=196592 * MIB,
            power_cap_default_w=750.0,
            gfx_clock_max_mhz=2100.0,
            memory_clock_max_mhz=1300.0,
            pcie_width_max=16,
            pcie_speed_max_gts=32.0,
            links_total=7,
        ),
    )
    backend.close()


@pytest.mark.parametrize("version", [version for version in LAYOUTS if version > (1, 3)])
def test_the_table_of_an_mi300_is_preferred_to_the_single_files(tmp_path: Path, version: Version) -> None:
    clocks = (2080, 2090, *[0xFFFF] * 6)
    add_card(tmp_path, 0, blob(version, **BUSY, current_socket_power=612, current_gfxclks=clocks))
    (sample,) = look(tmp_path)
    assert (sample.gfx_percent, sample.memory_percent, sample.power_w, sample.energy_j) == (97, 41, 612, 1000.0)
    assert (sample.temperature_hotspot_c, sample.temperature_memory_c) == (78, 66)
    assert (sample.gfx_clock_mhz, sample.memory_clock_mhz) == (2085.0, 1300)
    assert (sample.pcie_width, sample.pcie_speed_gts, sample.pcie_replays) == (16, 32.0, 2)
    assert sample.hbm_used_bytes == 171234 * MIB


def test_an_mi210_has_a_table_of_its_own(tmp_path: Path) -> None:
    table = blob((1, 3), **BUSY, average_socket_power=215, current_gfxclk=1700, indep_throttle_status=1)
    add_card(tmp_path, 0, table, device="0x740f")
    (sample,) = look(tmp_path)
    assert (sample.power_w, sample.gfx_clock_mhz) == (215, 1700)
    assert sample.throttle_percent
    assert sample.throttle_percent["power"] == 100.0


@pytest.mark.parametrize(
    ("table", "reason"),
    [(UNKNOWN, "gpu_metrics 1.9 is an unknown version"), (None, "gpu_metrics: No such file or directory")],
)
def test_without_a_known_table_the_single_files_are_read(tmp_path: Path, table: bytes | None, reason: str) -> None:
    add_card(tmp_path, 0, table)
    backend = open_amd_sysfs(tmp_path)
    assert backend.opened.meta["gpu_metrics"] == reason.removeprefix("gpu_metrics").lstrip(": ")
    (sample,) = backend.sample(False, False)
    assert sample == GpuSample(
        index=0,
        t_s=sample.t_s,
        gfx_percent=93,
        memory_percent=40,
        hbm_used_bytes=171234 * MIB,
        power_w=600.0,
        temperature_hotspot_c=77.0,
        temperature_memory_c=65.535,
        gfx_clock_mhz=2000.0,
        memory_clock_mhz=1200.0,
        pcie_width=8,
        pcie_speed_gts=16.0,
        pcie_replays=2,
        missing=dict.fromkeys(("energy_j", "link_read_bytes", "link_write_bytes", "throttle_percent"), reason),
    )


def test_the_slow_tier_sums_the_errors_of_all_blocks(tmp_path: Path) -> None:
    add_card(tmp_path, 0, blob((1, 8), xgmi_link_status=(1, 1, 1, 1, 1, 0, 1, 0xFFFF)))
    (sample,) = look(tmp_path, slow=True)
    assert (sample.ecc_correctable, sample.ecc_uncorrectable) == (7, 1)
    assert (sample.power_cap_w, sample.links_up) == (700.0, 6)


def test_throttling_is_a_difference_of_two_looks(tmp_path: Path) -> None:
    held = dict.fromkeys(
        ("prochot_residency_acc", "socket_thm_residency_acc", "vr_thm_residency_acc", "hbm_thm_residency_acc"), 0
    )
    device = add_card(tmp_path, 0, blob((1, 6), accumulation_counter=1000, ppt_residency_acc=0, **held))
    backend = open_amd_sysfs(tmp_path)
    assert backend.sample(False, False)[0].missing["throttle_percent"] == "needs two samples"
    (device / "gpu_metrics").write_bytes(blob((1, 6), accumulation_counter=2000, ppt_residency_acc=370, **held))
    shares = backend.sample(False, False)[0].throttle_percent
    assert shares == {"power": 37.0, "thermal": 0.0, "hbm": 0.0, "vr": 0.0, "prochot": 0.0}


def test_cards_are_counted_in_the_order_of_their_numbers_and_of_amd_only(tmp_path: Path) -> None:
    add_card(tmp_path, 10, UNKNOWN, bus=0x20, gpu_busy_percent="10")
    add_card(tmp_path, 2, UNKNOWN, bus=0x10, gpu_busy_percent="2")
    add_card(tmp_path, 1, UNKNOWN, bus=0x05, vendor="0x10de")
    assert [(sample.index, sample.gfx_percent) for sample in look(tmp_path)] == [(0, 2), (1, 10)]


def test_the_second_die_of_an_mi250_has_no_power_of_its_own(tmp_path: Path) -> None:
    add_card(tmp_path, 0, blob((1, 3), average_socket_power=480, energy_accumulator=65536), bus=0xC1, device="0x740c")
    add_card(tmp_path, 1, blob((1, 3), average_socket_power=0, energy_accumulator=65536), bus=0xC6, device="0x740c")
    backend = open_amd_sysfs(tmp_path)
    assert [(gpu.socket, gpu.partition) for gpu in backend.opened.gpus] == [("0000:c1:00", 0), ("0000:c1:00", 1)]
    assert [(sample.power_w, sample.energy_j) for sample in backend.sample(True, False)] == [(480, 1.0), (None, None)]


def test_a_suspended_card_is_not_asked(tmp_path: Path) -> None:
    device = add_card(tmp_path, 0, blob((1, 8), **BUSY))
    write(device / "power/runtime_status", "suspended")
    (sample,) = look(tmp_path)
    assert sample.gfx_percent is None
    assert sample.missing["gfx_percent"] == "suspended, and not woken"
    assert sample.hbm_used_bytes == 171234 * MIB


def test_files_that_say_nonsense_or_are_gone_cost_their_own_field_only(tmp_path: Path) -> None:
    device = add_card(tmp_path, 0, UNKNOWN, gpu_busy_percent="nonsense", mem_busy_percent="250")
    (device / "mem_info_vram_used").write_text("-5")
    (device / "hwmon/hwmon3/temp2_input").unlink()
    (sample,) = look(tmp_path)
    assert (sample.gfx_percent, sample.memory_percent, sample.hbm_used_bytes) == (None, None, None)
    assert sample.missing["hbm_used_bytes"] == "negative: -5"
    assert (sample.temperature_hotspot_c, sample.temperature_memory_c) == (None, 65.535)


def test_processes_are_those_that_amdkfd_tells_of_this_card(tmp_path: Path) -> None:
    sysfs, proc = tmp_path / "sys", tmp_path / "proc"
    add_card(sysfs, 0, UNKNOWN, bus=0x0C)
    kfd = sysfs / "class/kfd/kfd"
    write(kfd / "topology/nodes/0/properties", "location_id 0\ndomain 0")
    write(kfd / "topology/nodes/2/properties", f"simd_count 304\nlocation_id {0x0C << 8}\ndomain 0")
    write(kfd / "topology/nodes/2/gpu_id", "51234")
    write(kfd / "proc/9/vram_51234", "0")
    write(kfd / "proc/77/vram_51234", str(3 * MIB))
    write(kfd / "proc/77/vram_99", str(9 * MIB))
    write(kfd / "proc/500/vram_51234", "nonsense")
    write(proc / "77/comm", "VLLM::\x1b[31mWorker")
    (sample,) = open_amd_sysfs(sysfs, proc).sample(False, True)
    assert sample.processes == (GpuProcess(77, "", 3 * MIB), GpuProcess(500))  # in a container, 77 is another process
    initial_namespace(proc)
    (sample,) = open_amd_sysfs(sysfs, proc).sample(False, True)
    assert sample.processes == (GpuProcess(77, "VLLM::\u2426[31mWorker", 3 * MIB), GpuProcess(500))


@pytest.mark.parametrize(
    ("version", "arch"),
    [("90402", "gfx942"), ("90010", "gfx90a"), ("90500", "gfx950"), ("110501", "gfx1151"), ("0", None), ("x", None)],
)
def test_the_architecture_as_the_compiler_names_it(tmp_path: Path, version: str, arch: str | None) -> None:
    add_card(tmp_path, 0, UNKNOWN)
    add_kfd_node(tmp_path, 1, 7, 0x0C00)
    properties = tmp_path / "class/kfd/kfd/topology/nodes/1/properties"
    properties.write_text(f"{properties.read_text()}gfx_target_version {version}\n")
    assert open_amd_sysfs(tmp_path).opened.gpus[0].arch == arch


def test_links_are_those_of_amdkfd_where_the_table_has_none(tmp_path: Path) -> None:
    for number in range(1, 4):
        add_card(tmp_path, number, UNKNOWN, bus=number)
        add_kfd_node(tmp_path, number, number, number << 8, links={1: [2], 2: [1], 3: []}[number])
    assert [sample.links_up for sample in look(tmp_path, slow=True)] == [1, 1, 0]


@given(st.text() | st.text("0123456789 \n").map(lambda text: f"location_id {text}\ngfx_target_version {text}"))
def test_no_text_of_the_kernel_breaks_it(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    add_card(folder, 0, UNKNOWN)
    for name in ("gpu_id", "properties", "io_links/0/properties"):
        (folder / "class/kfd/kfd/topology/nodes/1/io_links/0").mkdir(parents=True, exist_ok=True)
        (folder / "class/kfd/kfd/topology/nodes/1" / name).write_text(text)
    backend = open_amd_sysfs(folder)
    assert backend.opened.gpus[0].hbm_total_bytes == 196592 * MIB
    assert len(backend.sample(True, True)) == 1


def test_a_card_stands_for_the_partitions_that_have_none(tmp_path: Path) -> None:
    sysfs, proc = tmp_path / "sys", tmp_path / "proc"
    device = add_card(sysfs, 0, UNKNOWN)
    write(device / "drm/renderD128/dev", "226:128")
    kfd = sysfs / "class/kfd/kfd"
    for node, (location, gpu_id) in {
        1: (0x05 << 8, 900),
        **{n: ((0x0C << 8) + n - 2, n) for n in range(2, 10)},
    }.items():
        write(kfd / f"topology/nodes/{node}/properties", f"simd_count 38\nlocation_id {location}\ndomain 0")
        write(kfd / f"topology/nodes/{node}/gpu_id", str(gpu_id))
    write(kfd / "proc/77/vram_2", str(3 * MIB))
    write(kfd / "proc/77/vram_9", str(2 * MIB))
    backend = open_amd_sysfs(sysfs, proc)
    (gpu,) = backend.opened.gpus
    assert (gpu.engine_index, gpu.engine_devices, gpu.device_file) == (1, 8, "/dev/dri/renderD128")
    assert backend.sample(False, True)[0].processes == (GpuProcess(77, "", 5 * MIB),)


def test_without_amdkfd_there_are_no_processes_to_tell(tmp_path: Path) -> None:
    add_card(tmp_path, 0, UNKNOWN)
    (sample,) = open_amd_sysfs(tmp_path).sample(False, True)
    assert sample.missing["processes"] == "amdkfd does not list processes here"


def test_a_box_without_a_card_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match=r"No GPU of AMD under .*class/drm: is the amdgpu driver loaded\?"):
        open_amd_sysfs(tmp_path)


def test_a_card_without_its_driver_is_refused(tmp_path: Path) -> None:
    device = add_card(tmp_path, 0, None)
    (device / "mem_info_vram_used").unlink()
    with pytest.raises(TelemetryError, match="is another driver bound to the GPU"):
        open_amd_sysfs(tmp_path)


def test_files_in_other_formats_are_missing(tmp_path: Path) -> None:
    write(tmp_path / "current_link_speed", "Unknown")
    write(tmp_path / "pp_dpm_sclk", "")
    write(tmp_path / "vram", "99999999999999999999999")
    assert speed_gts(tmp_path / "current_link_speed") == Missing("current_link_speed: 'Unknown'")
    assert highest_mhz(tmp_path / "pp_dpm_sclk") == Missing("pp_dpm_sclk: ''")
    assert read_number(tmp_path / "vram") == Missing("vram: '99999999999999999999999'")
    assert set(ecc_counts(tmp_path / "ras").values()) == {
        Missing("no counters under ras"),
        Missing("gpu_vram_bad_pages: No such file or directory"),
    }


def test_the_power_cap_of_a_suspended_gpu_is_not_read(tmp_path: Path) -> None:
    device = add_card(tmp_path, 0, None)
    write(device / "power/runtime_status", "suspended")
    (sample,) = look(tmp_path, slow=True)
    assert sample.missing["power_cap_w"] == "suspended, and not woken"
