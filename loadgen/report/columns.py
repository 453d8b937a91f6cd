"""The columns of measured figures, each declared once under its CSV name; a table is a list of names.

A row is a stage, a server's or host's part of a stage, or a point of the load curve. A figure that a row lacks is shown
as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from loadgen.format import Statistic, count, percent, signed_percent
from loadgen.record.summary import gpu_mean, hbm_used_gib
from loadgen.report.assessment import titles
from loadgen.report.notes import LATENCY_TITLES, has_numbers, latencies, met_so_far, request_counts
from loadgen.report.tabular import Column, Value, figure
from loadgen.schema.comparison import Comparison
from loadgen.schema.deltas import Summary
from loadgen.schema.result import CurvePoint, HostResult, InstanceResult, Result, StageResult

Measured = StageResult | InstanceResult | HostResult | CurvePoint


def _held(row: Measured) -> float | None:
    if isinstance(row, StageResult):
        return row.concurrency.mean
    return row.held if isinstance(row, CurvePoint | HostResult) else None


def _of_a_time(part: str, name: str) -> Callable[[Measured], Value]:
    """A count; unknown where the file of another tool does not say how long it counted."""
    count = figure(part, name)
    return lambda row: None if isinstance(row, StageResult) and not row.duration_s else count(row)


def _interactivity(row: Measured) -> Value:
    """The inverse of the median TPOT: a user's reading speed once the answer has begun."""
    tpot_ms = _statistic("tpot", "p50", row).value
    return 1000 / tpot_ms if tpot_ms else None


def _scaled(part: str, name: str, *, times: float = 1, per: float = 1) -> Callable[[Measured], Value]:
    """A figure in another unit."""

    def scaled(row: Measured) -> Value:
        value = getattr(getattr(row, part, None), name, None)
        return None if value is None else times * value / per

    return scaled


def _mean_w(row: Measured) -> Value:
    energy = getattr(row, "energy", None)
    return energy.joules / energy.window_s if energy is not None and energy.joules is not None else None


def _of_stage(value: Callable[[StageResult], Value]) -> Callable[[Measured], Value]:
    """A figure that parts of a stage do not have."""
    return lambda row: value(row) if isinstance(row, StageResult) else None


def _shape(row: Measured) -> str:
    """Prompt and answer as asked for; of sessions, whose data has any lengths, the mean of what was sent."""
    if isinstance(row, StageResult) and row.sessions is not None:
        return f"{count(row.tokens.input_per_request)}/{count(row.tokens.output_per_request)}"
    return f"{getattr(row, 'isl', '')}/{getattr(row, 'osl', '')}"


def _statistic(latency: str, statistic: str, row: Measured) -> Statistic:
    match row:
        case StageResult():
            summary = latencies(row).get(latency)
        case InstanceResult() | HostResult():
            summary = row.latency_ms.get(latency)
        case CurvePoint():
            summary = getattr(row, f"{latency}_ms", None)
    return Statistic.of(summary, statistic)


def _latency_column(name: str) -> Column[Measured]:
    """The column of a latency's statistic, such as `ttft_p99_ms` or `itl_count`."""
    latency, statistic = name.removesuffix("_ms").rsplit("_", 1)
    title = LATENCY_TITLES.get(latency, latency)
    first, count = statistic in ("mean", "p50"), statistic == "count"
    return Column(
        "count" if count else f"{title} {statistic}",
        partial(_statistic, latency, statistic),
        unit="" if count else "ms",
        short=f"{title} {statistic}" if first else statistic,
        group=f"{title}, ms",
        under=statistic,
        decimals=0 if count else {"ttft": 1, "e2e": 0}.get(latency, 2),
        width=9 if first else 5 if count else 6,
        role=statistic if statistic in ("p50", "p99") else "dim",
    )


_COLUMNS: dict[str, Column[Measured]] = {
    "shape": Column("ISL/OSL", _shape, words=True),
    "completed": Column("completed", _of_a_time("requests", "completed"), group="requests"),
    "failed": Column("failed", _of_a_time("requests", "failed"), short="fail", group="requests", alarm=True, width=6),
    "measured_s": Column("duration s", _of_a_time("", "measured_s")),
    "concurrency_mean": Column("held", _held, decimals=1, width=6, role="held"),
    "requests_per_s": Column("req/s", figure("throughput", "requests_per_s"), group="requests", width=7),
    "output_tokens_per_s": Column(
        "output tok/s",
        figure("throughput", "output_tokens_per_s"),
        short="tok/s",
        group="tok/s",
        under="output",
        decimals=0,
        width=7,
        role="throughput",
    ),
    "total_tokens_per_s": Column(
        "total tok/s", figure("throughput", "total_tokens_per_s"), group="tok/s", under="total", decimals=0
    ),
    "output_tokens_per_s_per_user": Column(
        "tok/s per user",
        figure("throughput", "output_tokens_per_s_per_user"),
        short="/user",
        group="tok/s",
        under="per user",
        decimals=1,
        width=6,
    ),
    "output_tokens_per_s_per_gpu": Column(
        "tok/s per GPU",
        figure("throughput", "output_tokens_per_s_per_gpu"),
        short="/GPU",
        group="tok/s",
        under="per GPU",
        decimals=0,
        width=6,
    ),
    "total_tokens_per_s_per_gpu": Column(
        "total tok/s per GPU", figure("throughput", "total_tokens_per_s_per_gpu"), decimals=0
    ),
    "interactivity_tokens_per_s": Column(
        "decode tok/s per stream",
        _interactivity,
        short="decode tok/s",
        group="tok/s",
        under="decode, per stream",
        decimals=1,
        width=13,
    ),
    "output_tokens_per_s_per_mw": Column(  # that the server's GPUs drew, not for which a box is rated
        "tok/s per MW",
        _scaled("energy", "tokens_per_s_per_w", times=1e6),
        short="tok/s/MW",
        group="tok/s",
        under="per MW",
        decimals=0,
        width=9,
    ),
    "gpu_gfx_percent": Column(
        "GPU activity %",
        _of_stage(partial(gpu_mean, "gfx_percent")),
        group="GPUs, mean",
        under="activity %",
        decimals=0,
    ),
    "gpu_hbm_used_gib": Column(
        "HBM used GiB", _of_stage(hbm_used_gib), group="GPUs, mean", under="HBM used GiB", decimals=1
    ),
    "gpu_power_w": Column(
        "GPU power W", _of_stage(partial(gpu_mean, "power_w")), group="GPUs, mean", under="power W", decimals=0
    ),
    "joules_per_output_token": Column("J/token", figure("energy", "joules_per_output_token"), short="J/tok", width=6),
    "usd_per_million_output_tokens": Column(
        "$ per million output tokens",
        figure("cost", "usd_per_million_output_tokens"),
        short="$/Mout",
        group="$ per million tokens",
        under="output",
        decimals=3,
        width=7,
    ),
    "usd_per_million_total_tokens": Column(
        "$ per million tokens",
        figure("cost", "usd_per_million_total_tokens"),
        short="$/Mtok",
        group="$ per million tokens",
        under="total",
        decimals=3,
        width=7,
    ),
    "energy_kj": Column("kJ", _scaled("energy", "joules", per=1000), decimals=1),
    "energy_mean_w": Column("mean W", _mean_w, decimals=0, role="power"),
    "tflops_per_gpu": Column(
        "TFLOP/s per GPU",
        figure("compute", "tflops_per_gpu"),
        group="per GPU, by the engine",
        under="TFLOP/s",
        decimals=1,
    ),
    "mfu_percent": Column(
        "MFU %", figure("compute", "mfu_percent"), short="MFU%", group="per GPU, by the engine", decimals=1, width=6
    ),
    "hbm_gb_per_s_per_gpu": Column(
        "HBM GB/s per GPU",
        _scaled("compute", "hbm_bytes_per_s", per=1e9),
        group="per GPU, by the engine",
        under="HBM GB/s",
        decimals=0,
    ),
    "hbm_bandwidth_percent": Column(
        "HBM bandwidth %",
        figure("compute", "hbm_bandwidth_percent"),
        group="per GPU, by the engine",
        under="HBM bandwidth %",
        decimals=1,
    ),
    **{
        f"sessions_{name}": Column(title, figure("sessions", name), decimals=decimals)
        for name, title, decimals in (
            ("live", "live", 1),
            ("context_tokens", "their tokens", 0),
            ("begun", "begun", 0),
            ("finished", "finished", 0),
            ("cut", "cut", 0),
            ("over_context", "too long", 0),
            ("failed", "failed", 0),
            ("lost", "lost", 0),
            ("skipped_s", "skipped s", 0),
            ("e2e_interactivity", "E2E tok/s", 1),
        )
    },
    **{
        f"hits_{name}": Column(title, _scaled("hits", name, times=100), decimals=1)
        for name, title in {
            "measured": "measured %",
            "engine": "by the engine %",
            "infinite": "without limit %",
            "pool": "KV cache's size %",
        }.items()
    },
    "output_tokens_per_s_p25": Column("P25 tok/s", figure("throughput", "output_tokens_per_s_p25"), decimals=1),
    "cached_input_tokens_per_s_per_gpu": Column(
        "cached tok/s/GPU", figure("throughput", "cached_input_tokens_per_s_per_gpu"), decimals=0
    ),
    "uncached_input_tokens_per_s_per_gpu": Column(
        "uncached tok/s/GPU", figure("throughput", "uncached_input_tokens_per_s_per_gpu"), decimals=0
    ),
    "met_limits": Column("limits", _of_stage(met_so_far), short="SLO", words=True, width=6),
}


def columns(names: str, *, decimals: int | None = None) -> list[Column[Measured]]:
    """Columns by name, such as `requests_per_s ttft_p99_ms`; `decimals` overrides those of all."""
    found = [_COLUMNS[name] if name in _COLUMNS else _latency_column(name) for name in names.split()]
    return found if decimals is None else [replace(column, decimals=decimals) for column in found]


NEAR = 3.0
"""A limit further above the plotted values than this factor would squeeze them, and is not drawn."""


class Axes(NamedTuple):
    """A chart with a point per load: column `y` against column `x`; published figures have the columns' names."""

    x: str
    y: str

    def labels(self) -> tuple[str, str]:
        x, y = (", ".join(filter(None, (column.label, column.unit))) for column in columns(f"{self.x} {self.y}"))
        return x, y

    def title(self) -> str:
        x, y = self.labels()
        return f"{y[0].upper()}{y[1:]} against {x}"

    def point(self, row: Measured) -> tuple[float | None, float | None]:
        x, y = (column.number(row) for column in columns(f"{self.x} {self.y}"))
        return x, y

    def published(self, comparisons: Iterable[Comparison]) -> list[tuple[float, float, str]]:
        """The points with both coordinates published for the load of a stage, each with the hardware it is of."""
        found: dict[tuple[int, str], dict[str, float]] = {}
        for one in comparisons:
            found.setdefault((one.stage, one.of), {})[one.figure] = one.published
        return [
            (figures[self.x], figures[self.y], of)
            for (_, of), figures in found.items()
            if self.x in figures and self.y in figures
        ]


TOTAL_BY_E2E = Axes(x="e2e_p50_ms", y="total_tokens_per_s")
OUTPUT_BY_USER = Axes(x="output_tokens_per_s_per_user", y="output_tokens_per_s")
FRONTIER = Axes(x="output_tokens_per_s_per_user", y="output_tokens_per_s_per_gpu")


def frontier_axes(rows: Iterable[Measured]) -> Axes:
    """Tokens per GPU against tokens per user; per server if the number of GPUs is unknown."""
    known = all(FRONTIER.point(row)[1] is not None for row in rows if OUTPUT_BY_USER.point(row)[1] is not None)
    return FRONTIER if known else OUTPUT_BY_USER


# Used by the cockpit's table (and the copy made by y), past runs, the HTML page, and Markdown.
COCKPIT_COLUMNS = columns(
    "concurrency_mean requests_per_s output_tokens_per_s output_tokens_per_s_per_user "
    "ttft_p50_ms ttft_p99_ms tpot_p50_ms tpot_p99_ms met_limits failed joules_per_output_token "
    "output_tokens_per_s_per_gpu interactivity_tokens_per_s output_tokens_per_s_per_mw "
    "usd_per_million_output_tokens usd_per_million_total_tokens mfu_percent"
)
COCKPIT_IF_ROOM = columns(
    "joules_per_output_token output_tokens_per_s_per_user output_tokens_per_s_per_gpu usd_per_million_output_tokens "
    "mfu_percent interactivity_tokens_per_s usd_per_million_total_tokens output_tokens_per_s_per_mw"
)
"""Columns of the cockpit that are dropped if there is little room, the most important first."""
COCKPIT_GIVE_WAY = columns(
    "ttft_count tpot_p50_ms itl_p50_ms ttft_p50_ms requests_per_s concurrency_mean tpot_p99_ms itl_p99_ms ttft_p99_ms"
)
"""Columns of the cockpit's tables that go after those, if there is still too little room, the least important first."""
PAST_RUN_COLUMNS = columns("requests_per_s output_tokens_per_s ttft_p50_ms ttft_p99_ms tpot_p50_ms tpot_p99_ms")
THROUGHPUT = columns(
    "shape concurrency_mean completed failed measured_s requests_per_s output_tokens_per_s total_tokens_per_s",
    decimals=2,
)
LIMITS_MET = columns("met_limits")
EFFICIENCY = columns(
    "output_tokens_per_s_per_user interactivity_tokens_per_s output_tokens_per_s_per_gpu output_tokens_per_s_per_mw "
    "joules_per_output_token usd_per_million_output_tokens usd_per_million_total_tokens "
    "energy_kj gpu_gfx_percent gpu_hbm_used_gib gpu_power_w tflops_per_gpu mfu_percent "
    "hbm_gb_per_s_per_gpu hbm_bandwidth_percent"
)
"""The figures for comparing boxes, in a table of their own."""


SESSIONS = columns(
    "sessions_live sessions_context_tokens concurrency_mean sessions_begun sessions_finished sessions_cut "
    "sessions_over_context sessions_failed sessions_lost sessions_skipped_s output_tokens_per_s_p25 "
    "sessions_e2e_interactivity"
)
HITS = columns(
    "hits_measured hits_engine hits_infinite hits_pool cached_input_tokens_per_s_per_gpu "
    "uncached_input_tokens_per_s_per_gpu"
)


def known(shown: Sequence[Column[Measured]], rows: Sequence[Measured]) -> list[Column[Measured]]:
    """The columns that are known in at least one row."""
    return [column for column in shown if any(column.value(row) is not None for row in rows)]


def instance_columns(*, decimals: int | None = None) -> list[Column[InstanceResult]]:
    names = "completed failed output_tokens_per_s ttft_p50_ms tpot_p50_ms"
    return [Column("server", lambda one: one.url, words=True, width=28), *columns(names, decimals=decimals)]


def host_columns(*, decimals: int | None = None) -> list[Column[HostResult]]:
    return [
        Column("host", lambda one: one.name, words=True, width=16),
        Column("share", lambda one: percent(one.share), width=6),
        *columns("concurrency_mean output_tokens_per_s ttft_p50_ms ttft_p99_ms tpot_p50_ms", decimals=decimals),
        Column("CPU", lambda one: percent(one.cpu_share), width=6),
        Column("read lag", lambda one: one.read_lag_p99_ms, unit="ms", short="lag p99", decimals=1, width=8),
        Column("clock", lambda one: f"{one.offset_ms:+.2f} ms ±{one.uncertainty_ms:.2f}", words=True, width=21),
        *columns("completed failed", decimals=decimals),
        Column("limit", lambda one: "LOST" if one.lost else one.why or "", words=True),
    ]


def load_column(stages: Sequence[StageResult]) -> Column[StageResult]:
    names = titles(stages)
    return Column("load", lambda stage: names[stage.index], words=True)


def outcome_columns(stages: Sequence[StageResult]) -> list[Column[StageResult]]:
    """A column per outcome of requests that occurred."""
    names = dict.fromkeys(name for stage in stages for name in request_counts(stage.requests))
    return [
        Column(name, lambda stage, name=name: request_counts(stage.requests, names)[name])  # type: ignore[misc]
        for name in names
    ]


PUBLISHED: tuple[Column[Comparison], ...] = (
    Column("figure", lambda one: f"{one.figure} ({one.of})" if one.of else one.figure, words=True),
    Column("published", lambda one: one.published, width=12),
    Column("measured", lambda one: one.measured, width=12),
    Column("difference", lambda one: signed_percent(one.difference_percent), width=12),
)


def published_columns(stages: Sequence[StageResult]) -> list[Column[Comparison]]:
    """The columns of published figures for several stages, with the load of each."""
    names = titles(stages)
    return [Column("load", lambda one: names[one.stage], words=True), *PUBLISHED]


class NamedSummary(NamedTuple):
    title: str
    summary: Summary
    load: str = ""
    is_counted: bool = True  # otherwise another tool's file does not say of how many values it is


def statistic_columns(names: str) -> list[Column[NamedSummary]]:
    """Columns for statistics of a latency, such as `mean p50 p999`."""
    return [
        Column(
            {"p999": "p99.9"}.get(name, name),
            lambda row, name=name: (  # type: ignore[misc]
                Statistic.of(row.summary, name) if row.is_counted or name != "count" else None
            ),
            short="median" if name == "p50" else "",
            decimals=0 if name == "count" else 2,
            width=12,
        )
        for name in names.split()
    ]


def load_words(point: CurvePoint) -> str:
    """The load of a point, and its direction if it was moving."""
    return f"{point.load:.4g} {point.direction}".rstrip()


SHAPE = columns("shape")
CURVE: tuple[Column[CurvePoint], ...] = (
    Column("load", load_words, words=True, width=8),
    *columns("concurrency_mean"),
    *columns("output_tokens_per_s", decimals=1),
    replace(_COLUMNS["output_tokens_per_s_per_user"], decimals=None),
    *columns("ttft_p50_ms ttft_p99_ms ttft_count itl_p50_ms itl_p99_ms itl_count"),
)
"""The load curve: figures by streams held, with counts of tokens and gaps.

A moving load has no other figures; up and down are kept apart.
"""


def run_curve(result: Result) -> tuple[CurvePoint, ...]:
    """The whole run's curve, if some load occurred several times; otherwise the stages' curves suffice."""
    parts = sum(
        len(stage.curve) or int(stage.target.rate is None and has_numbers(stage) and bool(stage.measured_s))
        for stage in result.stages
        if (stage.pass_number or 1) == 1
    )
    return result.curve if parts > len(result.curve) else ()


def moving_points(result: Result) -> tuple[CurvePoint, ...]:
    """The points to draw against streams held: the run's curve, if its load moved or repeated."""
    moved = any(stage.curve for stage in result.stages)
    return result.curve if moved or run_curve(result) else ()
