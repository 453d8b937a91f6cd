"""Boxes for the stub: what each device says, in the library's own fields and units."""

BUSY_MI300X = """\
* gpus 8
* asic_info.market_name AMD Instinct MI300X
* asic_info.device_id 0x74a1
* asic_info.target_graphics_version 0x942
* driver_info.driver_version 6.14.14
* compute SPX
* memory NPS1
* virtualization 1
* kfd_info.current_partition_id 0
* vram_usage.vram_total 196592
* vram_usage.vram_used 171234
* power_cap_info0.power_cap 750000000
* power_cap_info0.default_power_cap 750000000
* clk_info0.max_clk 2100
* clk_info4.max_clk 1300
* pcie_info.pcie_static.max_pcie_width 16
* pcie_info.pcie_static.max_pcie_speed 32000
* error_count.correctable_count 0
* error_count.uncorrectable_count 0
* error_count.deferred_count 0
* bad_pages 0
* gpu_metrics.temperature_hotspot 78
* gpu_metrics.temperature_mem 66
* gpu_metrics.average_gfx_activity 97
* gpu_metrics.average_umc_activity 41
* gpu_metrics.current_socket_power 612
* gpu_metrics.energy_accumulator 65536000
* gpu_metrics.current_gfxclks 2080,2080,2080,2080,2090,2090,2090,2090
* gpu_metrics.current_uclk 1300
* gpu_metrics.pcie_link_width 16
* gpu_metrics.pcie_link_speed 320
* gpu_metrics.pcie_replay_count_acc 3
* gpu_metrics.xgmi_read_data_acc 1000,1000,1000,1000,1000,1000,1000
* gpu_metrics.xgmi_write_data_acc 2000,2000,2000,2000,2000,2000,2000
* gpu_metrics.accumulation_counter 1000
* gpu_metrics.prochot_residency_acc 0
* gpu_metrics.ppt_residency_acc 0
* gpu_metrics.socket_thm_residency_acc 0
* gpu_metrics.vr_thm_residency_acc 0
* gpu_metrics.hbm_thm_residency_acc 0
* xgmi_link_status.total_links 8
* proc_info.pid 4242
* proc_info.name python3
* proc_info.memory_usage.vram_mem 179000000000
""" + "".join(
    f"""\
{gpu} bus {16 * gpu + 12:#x}
{gpu} uuid {gpu:02x}ff74a1-0000-1000-8000-000000000000
{gpu} enumeration_info.hip_id {7 - gpu}
{gpu} enumeration_info.hip_uuid GPU-{gpu:016x}
{gpu} enumeration_info.drm_render {128 + gpu}
{gpu} xgmi_link_status.status {",".join("2" if link == gpu else "1" for link in range(8))}
"""
    for gpu in range(8)
)

MI210 = """\
* gpus 1
* asic_info.market_name AMD Instinct MI210
* asic_info.device_id 0x740f
* vram_usage.vram_total 65520
* vram_usage.vram_used 65535
* gpu_metrics.temperature_edge 41
* gpu_metrics.temperature_hotspot 55
* gpu_metrics.temperature_mem 49
* gpu_metrics.average_gfx_activity 88
* gpu_metrics.average_umc_activity 30
* gpu_metrics.average_socket_power 215
* gpu_metrics.energy_accumulator 32768
* gpu_metrics.current_gfxclk 1700
* gpu_metrics.current_uclk 1600
* gpu_metrics.pcie_link_width 16
* gpu_metrics.pcie_link_speed 160
* gpu_metrics.throttle_status 1
* gpu_metrics.indep_throttle_status 0x1000000001
"""
"""65535 MiB are in use: a true number that looks like "not available"."""

MI250 = """\
* gpus 4
* asic_info.market_name AMD Instinct MI250X
* asic_info.device_id 0x7408
* vram_usage.vram_total 65520
* vram_usage.vram_used 1000
* gpu_metrics.average_gfx_activity 50
* gpu_metrics.temperature_hotspot 60
* gpu_metrics.energy_accumulator 65536
0 bus 0xc6
0 gpu_metrics.average_socket_power 0
1 bus 0xc1
1 gpu_metrics.average_socket_power 480
2 bus 0xc9
2 gpu_metrics.average_socket_power 500
3 bus 0xce
3 gpu_metrics.average_socket_power 0
"""
"""Listed in another order than that of PCI addresses."""


def _partitions(devices: int, *, of_socket: int) -> str:
    """Where each device stands: so many of a socket have one bus, and count up in its functions."""
    return "".join(
        f"""\
{device} bus {16 * (device // of_socket) + 12:#x}
{device} function {device % of_socket}
{device} kfd_info.current_partition_id {device % of_socket}
"""
        for device in range(devices)
    )


CPX = (
    BUSY_MI300X
    + """\
* gpus 64
* compute CPX
* memory NPS4
* vram_usage.vram_total 24574
* vram_usage.vram_used 20000
"""
    + "".join(f"* gpu_metrics.xcp_stats.{n}.gfx_busy_inst {10 * n},na,na,na,na,na,na,na\n" for n in range(8))
    + _partitions(64, of_socket=8)
)
"""Every partition repeats the figures of its socket, as drivers before 6.4.1 did."""

DPX = (
    BUSY_MI300X
    + """\
* gpus 16
* compute DPX
* memory NPS2
* vram_usage.vram_total 98296
* vram_usage.vram_used 80000
* gpu_metrics.xcp_stats.0.gfx_busy_inst 100,90,80,70,na,na,na,na
* gpu_metrics.xcp_stats.1.gfx_busy_inst 0,0,0,0,na,na,na,na
"""
    + _partitions(16, of_socket=2)
)

GUEST = """\
* gpus 1
* virtualization 3
* vram_usage.vram_total 196592
* vram_usage.vram_used 283
* asic_info.device_id 0x74b5
"""

STORM = """\
* gpus 1
* vram_usage.vram_total 196592
* vram_usage.vram_used 283
* gpu_metrics.temperature_hotspot na
* gpu_metrics.temperature_mem 65535
* gpu_metrics.average_gfx_activity 65535
* gpu_metrics.average_umc_activity 255
* gpu_metrics.energy_accumulator na
* gpu_metrics.pcie_replay_count_acc 4294967295
* gpu_metrics.xgmi_read_data_acc na,4294967295,na
* gpu_metrics.accumulation_counter 4294967295
* power_cap_info0.power_cap 4294967295
* power_cap_info0.default_power_cap na
* clk_info0.max_clk 65535
* pcie_info.pcie_static.max_pcie_width na
* pcie_info.pcie_static.max_pcie_speed na
* enumeration_info.hip_id na
* kfd_info.current_partition_id na
* error_count.correctable_count 4294967295
* error_count.uncorrectable_count na
* error_count.deferred_count na
"""
"""All bits set, at the width of the field and leaked from narrower ones."""
