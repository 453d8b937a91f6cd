"""The charts of the cockpit, declared once: a chart is an entry here, a series is a line of it.

The column of a series is the name of a field of `SeriesPoint` or `EngineView`, or one of those that `timeline` derives.
A role has the same colour on all charts.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loadgen import format as fmt
from loadgen.schema.samples import GpuSample, GpuStatic
from tui.charts.canvas import Ink


class Series(msgspec.Struct, frozen=True):
    """One line of a chart: the column of the history, the name in the legend, its role and ink."""

    column: str
    label: str
    role: str
    ink: Ink = "line"
    scale: float = 1.0  # 100: a share, shown as a percentage


class Chart(msgspec.Struct, frozen=True):
    """What a chart shows; the first series is drawn lowest."""

    title: str
    series: tuple[Series, ...]
    log: bool = False
    number: Callable[[float | None], str] = fmt.number
    most: float | None = None  # the top of the axis, if it is known: 100 for a percentage


OVERVIEW_CHARTS = {
    "throughput": Chart(
        "throughput tok/s",
        (
            Series("others_tokens_per_s", "others", "before", "dots"),
            Series("output_tokens_per_s", "out", "throughput"),
        ),
    ),
    "ttft": Chart(
        "TTFT ms", (Series("ttft_p99_ms", "p99", "p99", "dots"), Series("ttft_p50_ms", "p50", "p50")), log=True
    ),
    "tpot": Chart("TPOT ms", (Series("tpot_p99_ms", "p99", "p99", "dots"), Series("tpot_p50_ms", "p50", "p50"))),
    "engine": Chart(
        "streams",
        (
            Series("engine_waiting", "waiting", "waiting", "area"),
            Series("engine_running", "running", "running", "dots"),
            Series("held", "held", "held"),
        ),
        number=fmt.setting,
    ),
}
"""By the id of the panel, in their order on the screen, like those of the engine view below."""

ENGINE_CHARTS = {
    "engine-queue": Chart(
        "requests",
        (Series("engine_waiting", "waiting", "waiting", "area"), Series("engine_running", "running", "running")),
        number=fmt.setting,
    ),
    "engine-kv": Chart("KV cache %", (Series("kv_usage", "used", "kv", "area", scale=100),), most=100.0),
    "engine-tokens": Chart(
        "tok/s",
        (
            Series("prompt_tokens_per_s", "prompt", "p99", "dots"),
            Series("generation_tokens_per_s", "generation", "throughput"),
        ),
    ),
    "engine-prefix": Chart("prefix hit %", (Series("prefix_hit_rate", "hit", "p50", scale=100),), most=100.0),
    "engine-preemptions": Chart("preemptions/s", (Series("preemptions_per_s", "preempted", "warn"),)),
    "engine-reasons": Chart(
        "waiting for",
        (Series("waiting_deferred", "deferred", "p99", "dots"), Series("waiting_capacity", "capacity", "waiting")),
        number=fmt.setting,
    ),
}

SESSION_CHARTS = {
    "session-live": Chart(
        "live sessions",
        (
            Series("pausing_sessions", "in a pause", "waiting", "area"),
            Series("held", "requests", "running", "dots"),
            Series("live_sessions", "live", "held"),
        ),
        number=fmt.setting,
    ),
    "session-context": Chart(
        "tokens of their contexts",
        (Series("kv_tokens", "KV cache", "hbm", "dots"), Series("context_tokens", "contexts", "kv")),
    ),
    "session-hits": Chart(
        "prefix hit %",
        (
            Series("infinite_hit_percent", "without limit", "before", "dots"),
            Series("pool_hit_percent", "KV cache's size", "p99", "dots"),
            Series("hit_percent", "measured", "p50"),
        ),
        most=100.0,
    ),
}

BOX_CHARTS = {
    "box-busy": Chart(
        "GPUs busy %",
        (Series("gpu_busy_least", "least", "p99", "dots"), Series("gpu_busy_most", "most", "busy")),
        most=100.0,
    ),
    "box-power": Chart("GPU power W", (Series("gpu_power_w", "all", "power"),)),
    "box-heat": Chart(
        "GPU hotspot C", (Series("gpu_coolest_c", "coolest", "p99", "dots"), Series("gpu_hottest_c", "hottest", "heat"))
    ),
    "box-cpu": Chart(
        "CPU %",
        (Series("cpu_busiest_percent", "busiest core", "p99", "dots"), Series("cpu_percent", "all", "p50")),
        most=100.0,
    ),
    "box-memory": Chart("host memory GiB", (Series("memory_used_gib", "used", "hbm", "area"),)),
    "box-network": Chart(
        "network MB/s",
        (Series("network_out_mb_per_s", "out", "p99", "dots"), Series("network_in_mb_per_s", "in", "p50")),
    ),
    "box-disk": Chart(
        "disk MB/s",
        (Series("disk_write_mb_per_s", "write", "p99", "dots"), Series("disk_read_mb_per_s", "read", "p50")),
    ),
}
"""The overview of a box without a server: the first four if it has GPUs, else the last four."""

COLUMNS = {
    series.column: series.scale
    for charts in (OVERVIEW_CHARTS, ENGINE_CHARTS, SESSION_CHARTS, BOX_CHARTS)
    for chart in charts.values()
    for series in chart.series
}
"""The columns that the history keeps, with their scale."""


class GpuStrip(msgspec.Struct, frozen=True):
    """A figure of a GPU over time, on a fixed range from 0, so that GPUs can be compared by eye."""

    label: str
    role: str
    most: float
    value: Callable[[GpuStatic, GpuSample], float | None]
    text: Callable[[GpuStatic, GpuSample], str]

    def column(self, gpu: int) -> str:
        return f"{gpu} {self.role}"


GPU_STRIPS = (
    GpuStrip("busy", "busy", 100.0, lambda _, now: now.gfx_percent, lambda _, now: f"{fmt.count(now.gfx_percent)} %"),
    GpuStrip(
        "HBM",
        "hbm",
        100.0,
        lambda gpu, now: _percent_of(now.hbm_used_bytes, gpu.hbm_total_bytes),
        lambda gpu, now: f"{of_most(fmt.gib(now.hbm_used_bytes), fmt.gib(gpu.hbm_total_bytes))} G",
    ),
    GpuStrip(
        "power",
        "power",
        100.0,
        lambda gpu, now: _percent_of(now.power_w, now.power_cap_w or gpu.power_cap_default_w),
        lambda _, now: f"{of_most(now.power_w, now.power_cap_w)} W",
    ),
    GpuStrip(
        "hot",
        "heat",
        110.0,
        lambda _, now: now.temperature_hotspot_c,
        lambda _, now: f"{fmt.count(now.temperature_hotspot_c)} C",
    ),
)
"""The most needed first."""


def _percent_of(value: float | None, most: float | None) -> float | None:
    return None if value is None or not most else 100 * value / most


def of_most(value: float | None, most: float | None) -> str:
    return fmt.count(value) if most is None else f"{fmt.count(value)}/{fmt.count(most)}"
