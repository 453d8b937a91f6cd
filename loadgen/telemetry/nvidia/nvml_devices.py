"""The devices of NVML and what does not change about them; its errors in words.

A GPU that is lost is listed too, as one that tells nothing: that it is there and lost is what an operator must see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pynvml

from loadgen.errors import TelemetryError
from loadgen.metrics.samples import GpuStatic
from loadgen.telemetry.sanitize import Missing, amount, divided, number, text, value_of

GTS_BY_GENERATION = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_VIRTUALIZATION = {
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE: "BAREMETAL",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH: "PASSTHROUGH",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU: "GUEST",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU: "HOST",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA: "HOST",
}
_REASONS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found: install NVIDIA's driver, "
    "or give the container the GPUs (docker run --gpus all)",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "NVIDIA's driver is not loaded: try `modprobe nvidia`, and see `dmesg`",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "library and kernel module of NVIDIA's driver differ in version: "
    "it was upgraded while in use; reboot",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission: ask as root, or look at the rights of /dev/nvidia*",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost: it fell off the bus; see Xid in `dmesg`",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU must be reset: see Xid in `dmesg`",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not supported by this GPU",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the installed driver is too old to tell",
    pynvml.NVML_ERROR_UNINITIALIZED: "NVML was shut down",
}


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """One GPU, or one MIG instance of it."""

    handle: Any  # none for a GPU that is lost
    static: GpuStatic
    instance: bool = False  # A MIG instance: memory and processes are all that it tells
    split: bool = False  # A GPU that is split into instances: memory and processes are theirs
    links: tuple[int, ...] = ()  # the NVLinks that were up when it was opened
    lost: str = ""  # why it has no handle


def reason_of(error: pynvml.NVMLError) -> str:
    """What an error of NVML means, in words."""
    return _REASONS.get(error.value, str(error))


def read(function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - what the library has
    """What the library says, or `Missing` with the reason."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        return Missing(reason_of(error))


def memory_of(handle: Any) -> Any:  # noqa: ANN401 - a handle and a struct of the library
    """Total and used bytes; older drivers count what they reserve as used."""
    separate = read(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return read(pynvml.nvmlDeviceGetMemoryInfo, handle) if isinstance(separate, Missing) else separate


def part(struct: Any, name: str) -> Any:  # noqa: ANN401 - a struct of the library
    """A field of a struct, unless the struct is missing."""
    return struct if isinstance(struct, Missing) else getattr(struct, name)


def list_devices() -> list[NvmlDevice]:
    """Every GPU in PCI order, each followed by its MIG instances; raises `TelemetryError` if there is none to ask."""
    count = read(pynvml.nvmlDeviceGetCount)
    if isinstance(count, Missing):
        raise TelemetryError(f"NVML does not list GPUs: {count.reason}")
    devices: list[NvmlDevice] = []
    for position in range(count):
        devices += _gpu(position, len(devices))
    if not devices:
        raise TelemetryError("NVML works but finds no GPU: does the container or NVIDIA_VISIBLE_DEVICES hide them?")
    if all(device.handle is None for device in devices):
        raise TelemetryError(f"no GPU answers: {devices[0].lost}")
    return devices


def _gpu(position: int, index: int) -> Iterator[NvmlDevice]:
    handle = read(pynvml.nvmlDeviceGetHandleByIndex, position)
    if isinstance(handle, Missing):
        lost = GpuStatic(index=index, vendor="nvidia", name="NVIDIA GPU that does not answer", socket=f"#{position}")
        yield NvmlDevice(None, lost, lost=handle.reason)
        return
    instances = list(_instances(handle))
    links = _links_up(handle)
    static = _static(handle, index, socket=f"#{position}", links=len(links), split=bool(instances))
    yield NvmlDevice(handle, static, split=bool(instances), links=links)
    for partition, instance in enumerate(instances, start=1):
        yield NvmlDevice(instance, _instance(instance, static, partition), instance=True)


def _instances(handle: Any) -> Iterator[Any]:  # noqa: ANN401 - handles of the library
    mode = read(pynvml.nvmlDeviceGetMigMode, handle)
    if isinstance(mode, Missing) or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return
    count = read(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    for position in range(0 if isinstance(count, Missing) else count):
        instance = read(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, position)
        if not isinstance(instance, Missing):  # a place that no instance has
            yield instance


def _links_up(handle: Any) -> tuple[int, ...]:  # noqa: ANN401
    links = range(pynvml.NVML_NVLINK_MAX_LINKS)
    # A GPU without a bridge has links too, all down: only those that ever were up can fail.
    return tuple(link for link in links if read(pynvml.nvmlDeviceGetNvLinkState, handle, link) == 1)


def _static(handle: Any, index: int, *, socket: str, links: int, split: bool) -> GpuStatic:  # noqa: ANN401
    uuid = text(read(pynvml.nvmlDeviceGetUUID, handle))
    generation = read(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    return GpuStatic(
        index=index,
        vendor="nvidia",
        name=text(read(pynvml.nvmlDeviceGetName, handle)) or "NVIDIA GPU",
        uuid=uuid,
        bdf=_bdf(read(pynvml.nvmlDeviceGetPciInfo, handle)),
        arch=_arch(read(pynvml.nvmlDeviceGetCudaComputeCapability, handle)),
        socket=uuid or socket,
        hbm_total_bytes=None if split else value_of(amount(part(memory_of(handle), "total"))),
        power_cap_default_w=value_of(divided(read(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle), 1000)),
        gfx_clock_max_mhz=value_of(number(read(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM))),
        memory_clock_max_mhz=value_of(number(read(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM))),
        pcie_width_max=value_of(number(read(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle))),
        pcie_speed_max_gts=None if isinstance(generation, Missing) else GTS_BY_GENERATION.get(generation),
        links_total=links or None,
        virtualization=_virtualization(read(pynvml.nvmlDeviceGetVirtualizationMode, handle)),
    )


def _instance(handle: Any, parent: GpuStatic, partition: int) -> GpuStatic:  # noqa: ANN401
    name = text(read(pynvml.nvmlDeviceGetName, handle)) or parent.name
    return GpuStatic(
        index=parent.index + partition,
        vendor="nvidia",
        name=name,
        uuid=text(read(pynvml.nvmlDeviceGetUUID, handle)),
        bdf=parent.bdf,
        arch=parent.arch,
        socket=parent.socket,
        partition=partition,
        # "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
        compute_partition=name.partition(" MIG ")[2] or "MIG",
        hbm_total_bytes=value_of(amount(part(memory_of(handle), "total"))),
        virtualization=parent.virtualization,
    )


def _bdf(pci: Any) -> str | None:  # noqa: ANN401
    return None if isinstance(pci, Missing) else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _arch(capability: Any) -> str | None:  # noqa: ANN401
    return None if isinstance(capability, Missing) else "sm_{}{}".format(*capability)


def _virtualization(mode: Any) -> str | None:  # noqa: ANN401
    return None if isinstance(mode, Missing) else _VIRTUALIZATION.get(mode)
