"""GPUs of another machine, from the Prometheus page of NVIDIA's dcgm-exporter or AMD's device-metrics-exporter.

A name of an exporter is a row of `NAMES`: the field it becomes, the factor to its unit, and the most that can be true.
Invariants: a value that an exporter writes for "not available", or that cannot be true in its unit, is missing with its
reason; a GPU that disappears from the page, or all if the page does not come, are listed without values and with the
reason, until they are back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from loadgen.errors import TelemetryError
from loadgen.format import harmless
from loadgen.schema.samples import GpuSample, GpuStatic
from loadgen.telemetry.protocol import Backend, Opened
from loadgen.telemetry.readings import Measured, Missing, number, split
from loadgen.vendors import VendorName

TIMEOUT_S = 2.0
MAX_PAGE_BYTES = 8 << 20
# What DCGM writes for "blank", "not found", "not supported" and "not permitted" (dcgm_structs.h).
_BLANK_INT32 = range(0x7FFFFFF0, 0x7FFFFFFF)
_BLANK_DOUBLE = range(1 << 47, (1 << 47) + 16)
_BLANK_INT64_FROM = 0x7FFFFFFFFFFFFFF0
_MIB = 1 << 20
_TIB = 1 << 40


class Name(NamedTuple):
    """One metric of an exporter."""

    metric: str
    field: str  # of `GpuSample`, or of `GpuStatic`
    factor: float = 1.0
    most: float = math.inf  # in the field's unit; a larger value is in another unit
    where: str = ""  # how the label `clock_type` has to end
    whole: bool = False


class Exporter(NamedTuple):
    name: str
    vendor: VendorName
    prefixes: tuple[str, ...]  # with which its names begin
    identity: tuple[str, ...]  # labels that tell GPUs apart, the most telling first
    # The labels of the machine, the kind of GPU and its PCI address.
    host: str
    model: str
    bdf: str
    names: tuple[Name, ...]
    throttles: Mapping[str, str]  # counters of nanoseconds, by reason


DCGM = Exporter(
    name="dcgm-exporter",
    vendor="nvidia",
    prefixes=("DCGM_FI_",),
    identity=("UUID", "gpu"),
    host="Hostname",
    model="modelName",
    bdf="pci_bus_id",
    names=(
        Name("DCGM_FI_DEV_GPU_UTIL", "gfx_percent", most=100),
        Name("DCGM_FI_DEV_MEM_COPY_UTIL", "memory_percent", most=100),
        Name("DCGM_FI_PROF_SM_ACTIVE", "sm_percent", 100, most=100),
        Name("DCGM_FI_PROF_DRAM_ACTIVE", "dram_percent", 100, most=100),
        Name("DCGM_FI_DEV_SM_CLOCK", "gfx_clock_mhz", most=10_000),
        Name("DCGM_FI_DEV_MEM_CLOCK", "memory_clock_mhz", most=20_000),
        Name("DCGM_FI_DEV_MAX_SM_CLOCK", "gfx_clock_max_mhz", most=10_000),
        Name("DCGM_FI_DEV_GPU_TEMP", "temperature_hotspot_c", most=150),
        Name("DCGM_FI_DEV_MEMORY_TEMP", "temperature_memory_c", most=150),
        Name("DCGM_FI_DEV_POWER_USAGE", "power_w", most=5_000),
        Name("DCGM_FI_DEV_POWER_MGMT_LIMIT", "power_cap_w", most=5_000),
        Name("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "energy_j", 1e-3),
        Name("DCGM_FI_DEV_FB_USED", "hbm_used_bytes", _MIB, most=_TIB, whole=True),
        Name("DCGM_FI_DEV_FB_TOTAL", "hbm_total_bytes", _MIB, most=_TIB, whole=True),
        Name("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "pcie_replays", whole=True),
        Name("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "ecc_correctable", whole=True),
        Name("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "ecc_uncorrectable", whole=True),
        Name("DCGM_FI_DEV_XID_ERRORS", "xid_last", most=10_000, whole=True),
    ),
    throttles={"power": "DCGM_FI_DEV_POWER_VIOLATION", "thermal": "DCGM_FI_DEV_THERMAL_VIOLATION"},
)
AMD = Exporter(
    name="device-metrics-exporter",
    vendor="amd",
    prefixes=("gpu_", "amd_gpu_"),
    identity=("serial_number", "gpu_uuid", "gpu_id"),
    host="hostname",
    model="card_model",
    bdf="pcie_bus_id",
    names=(
        Name("gpu_gfx_activity", "gfx_percent", most=100),
        Name("gpu_umc_activity", "memory_percent", most=100),
        Name("gpu_clock", "gfx_clock_mhz", most=10_000, where="system"),
        Name("gpu_clock", "memory_clock_mhz", most=20_000, where="memory"),
        Name("gpu_junction_temperature", "temperature_hotspot_c", most=150),
        Name("gpu_memory_temperature", "temperature_memory_c", most=150),
        Name("gpu_package_power", "power_w", most=5_000),
        Name("gpu_average_package_power", "power_w", most=5_000),
        Name("gpu_power_usage", "power_w", most=5_000),
        Name("gpu_energy_consumed", "energy_j", 1e-6),
        Name("gpu_used_vram", "hbm_used_bytes", _MIB, most=_TIB, whole=True),
        Name("gpu_total_vram", "hbm_total_bytes", _MIB, most=_TIB, whole=True),
        Name("gpu_ecc_correct_total", "ecc_correctable", whole=True),
        Name("gpu_ecc_uncorrect_total", "ecc_uncorrectable", whole=True),
        Name("gpu_ecc_deferred_total", "ecc_deferred", whole=True),
        Name("gpu_xgmi_link_rx", "link_read_bytes", 1024, whole=True),
        Name("gpu_xgmi_link_tx", "link_write_bytes", 1024, whole=True),
        Name("pcie_replay_count", "pcie_replays", whole=True),
    ),
    throttles={},
)
EXPORTERS = (DCGM, AMD)
_SUMMED = ("link_read_bytes", "link_write_bytes")  # over links
_STATIC = ("hbm_total_bytes", "gfx_clock_max_mhz")


class RemoteGpu(msgspec.Struct, frozen=True):
    """One GPU on a page: its labels, its values by field, and its counters of throttling in nanoseconds."""

    labels: Mapping[str, str]
    values: Mapping[str, Measured]
    throttled_ns: Mapping[str, float]


Page = dict[str, RemoteGpu]  # by the GPU's identity
_Lines = list[tuple[str, Mapping[str, str], float]]  # name, labels, value


def read_page(text: str) -> tuple[Exporter, Page]:
    """The GPUs on an exporter's page; raises `TelemetryError` if it is neither exporter's."""
    try:
        lines: _Lines = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise TelemetryError(f"not in the Prometheus format: {harmless(str(error))}") from None
    for exporter in EXPORTERS:
        page = _gpus(exporter, lines)
        if page:
            return exporter, page
    raise TelemetryError("neither dcgm-exporter's page nor AMD's device-metrics-exporter's: it names no GPU")


def _gpus(exporter: Exporter, lines: _Lines) -> Page:
    by_gpu: dict[str, _Lines] = {}
    for line in lines:
        labels = line[1]
        identity = next((labels[name] for name in exporter.identity if labels.get(name)), None)
        # An instance of MIG or a partition has lines of its own next to its GPU's.
        is_part = bool(labels.get("GPU_I_ID")) or labels.get("gpu_partition_id", "0") not in ("", "0")
        if identity is not None and line[0].startswith(exporter.prefixes) and not is_part:
            by_gpu.setdefault(identity, []).append(line)
    return {identity: _gpu(exporter, own) for identity, own in by_gpu.items()}


def _gpu(exporter: Exporter, lines: _Lines) -> RemoteGpu:
    values: dict[str, Measured] = {}
    for row in exporter.names:
        for name, labels, value in lines:
            if name.removeprefix("amd_") != row.metric and name != row.metric:
                continue
            if row.where and not labels.get("clock_type", "").lower().endswith(row.where):
                continue
            read = _value(row, value)
            before = values.get(row.field)
            if row.field in _SUMMED and not isinstance(before, Missing | None) and not isinstance(read, Missing):
                values[row.field] = before + read
            elif isinstance(before, Missing | None):
                values[row.field] = read
    throttled = {
        reason: value
        for reason, metric in exporter.throttles.items()
        for name, _, value in lines
        if name == metric and not _is_blank(value)
    }
    return RemoteGpu(lines[0][1], values, throttled)


def _value(row: Name, raw: float) -> Measured:
    value = Missing("not available") if _is_blank(raw) else number(raw)
    if isinstance(value, Missing):
        return value
    converted = value * row.factor
    if converted > row.most:
        return Missing(f"{raw:g} cannot be true in the unit of {row.metric}")
    return int(converted) if row.whole else converted


def _is_blank(value: float) -> bool:
    if not math.isfinite(value) or value >= _BLANK_INT64_FROM:
        return True
    return value in _BLANK_INT32 or value in _BLANK_DOUBLE


class _Remote:
    """The GPUs behind one page, in the order in which it first listed them."""

    def __init__(self, fetch: Callable[[], str], url: str) -> None:
        self._fetch = fetch
        self._read_s = time.monotonic()
        self.exporter, self._page = read_page(fetch())
        self._known = list(self._page)
        self._xids = [0] * len(self._known)  # how often a GPU's last Xid changed
        address = httpx.URL(url)
        self.gpus = tuple(self._static(index, self._page[one], address) for index, one in enumerate(self._known))

    def _static(self, index: int, gpu: RemoteGpu, url: httpx.URL) -> GpuStatic:
        labels, exporter = gpu.labels, self.exporter
        totals, _ = split({name: gpu.values[name] for name in _STATIC if name in gpu.values})
        return GpuStatic(
            index=index,
            vendor=exporter.vendor,
            name=harmless(labels.get(exporter.model, "")) or exporter.vendor,
            host=harmless(labels.get(exporter.host, "")) or url.host,
            uuid=harmless(labels.get("UUID") or labels.get("serial_number", "")) or None,
            bdf=harmless(labels.get(exporter.bdf, "")) or None,
            socket=f"{url.netloc.decode()} {index}",
            **totals,
        )

    def sample(self, slow: bool, processes: bool) -> tuple[GpuSample, ...]:
        """One sample of each GPU, without values if the page does not come or is another's."""
        try:
            exporter, page = read_page(self._fetch())
            if exporter is not self.exporter:
                raise TelemetryError(f"the page was {self.exporter.name}'s and is {exporter.name}'s now")
        except TelemetryError as error:
            return tuple(self._nothing(gpu.index, str(error)) for gpu in self.gpus)
        now_s = time.monotonic()
        samples = tuple(self._sample(index, page.get(one), now_s) for index, one in enumerate(self._known))
        self._page, self._read_s = page, now_s
        return samples

    def _nothing(self, index: int, why: str) -> GpuSample:
        return GpuSample(index, t_s=time.monotonic(), missing=dict.fromkeys(_fields(self.exporter), why))

    def _sample(self, index: int, gpu: RemoteGpu | None, now_s: float) -> GpuSample:
        if gpu is None:
            return self._nothing(index, "the exporter no longer lists this GPU")
        read = {name: gpu.values.get(name, Missing("not on the exporter's page")) for name in _fields(self.exporter)}
        values, missing = split(read)
        before = self._page.get(self._known[index])
        # By reason, the share of the time since the last page; None without counters.
        throttle: dict[str, float] | None = None
        span_s = now_s - self._read_s
        if before is not None and span_s > 0 and before.throttled_ns.keys() & gpu.throttled_ns.keys():
            throttle = {
                reason: min(100.0, (ns - before.throttled_ns[reason]) / 1e7 / span_s)
                for reason, ns in gpu.throttled_ns.items()
                if ns >= before.throttled_ns.get(reason, math.inf)
            }
        last = values.get("xid_last")
        if before is not None and last and last != before.values.get("xid_last"):
            self._xids[index] += 1
        xids = self._xids[index] if last is not None else None
        if last == 0:  # there was none
            del values["xid_last"]
        return GpuSample(index, t_s=now_s, throttle_percent=throttle, missing=missing, xids=xids, **values)


def _fields(exporter: Exporter) -> Iterable[str]:
    return dict.fromkeys(row.field for row in exporter.names if row.field not in _STATIC)


def open_exporter(url: str) -> Backend:
    """The exporter at a URL; raises `TelemetryError` if it does not answer, or with something else."""
    client = httpx.Client(timeout=TIMEOUT_S, trust_env=False)

    def fetch() -> str:
        page = bytearray()
        try:
            with client.stream("GET", url) as response:
                response.raise_for_status()
                until_s = time.monotonic() + TIMEOUT_S
                for chunk in response.iter_bytes():
                    page += chunk
                    if time.monotonic() > until_s:
                        raise TelemetryError(f"its page was not complete after {TIMEOUT_S:g} s")
                    if len(page) > MAX_PAGE_BYTES:
                        raise TelemetryError(f"its page is larger than {MAX_PAGE_BYTES >> 20} MiB")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TelemetryError(f"{url}: {harmless(str(error)) or type(error).__name__}") from error
        return page.decode("utf-8", errors="replace")

    remote = _Remote(fetch, url)
    meta = {"exporter": remote.exporter.name, "url": url}
    return Backend(Opened("exporter", meta, remote.gpus), remote.sample, client.close)
