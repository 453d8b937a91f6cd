"""The tables of the views as Markdown, for the clipboard: what one sees, with units in the heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadgen import format as fmt
from loadgen.metrics.deltas import Summary
from tui.panels.frame import METRICS, Frame
from tui.panels.gpus import sample_of
from tui.panels.health import ENGINE_HEADS, engine_figures, engines
from tui.panels.latency import HEADS, statistics_of, stretches, unit_of
from tui.panels.loads import tells_more
from tui.panels.messages import happened, seen


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that GitHub draws; a bar in a cell does not end it."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def stages(view: Frame) -> str:
    heads = ("stage", "load", "held", "req/s", "output tok/s", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms")
    rows = [
        (
            str(stage.number),
            fmt.target(stage.concurrency, stage.rate),
            fmt.number(stage.held_mean),
            fmt.number(stage.requests_per_s),
            fmt.number(stage.output_tokens_per_s),
            *_percentiles(stage.latency.get("ttft"), "p50", "p99"),
            *_percentiles(stage.latency.get("tpot"), "p50", "p99"),
            {None: fmt.UNKNOWN, True: "ok", False: "MISS"}[stage.slo_met],
            fmt.count(stage.failed),
            fmt.number(stage.joules_per_output_token),
        )
        for stage in view.snapshot.stages
    ]
    return markdown((*heads, "TPOT p99 ms", "SLO", "failed", "J/token"), rows)


def loads(view: Frame) -> str:
    """The load curve; the stages where it says no more than they do."""
    if not tells_more(view):
        return stages(view)
    heads = ("load", "held", "output tok/s", "tok/s per user", "TTFT p50 ms", "TTFT p99 ms", "of", "ITL p50 ms")
    rows = [
        (
            f"{fmt.setting(point.load)} {point.direction}".rstrip(),
            fmt.number(point.held),
            fmt.number(point.output_tokens_per_s),
            fmt.number(point.output_tokens_per_s_per_user),
            *_percentiles(point.ttft_ms, "p50", "p99"),
            fmt.count(point.ttft_ms.count),
            *_percentiles(point.itl_ms, "p50", "p99"),
            fmt.count(point.itl_ms.count),
        )
        for point in view.snapshot.curve
    ]
    return markdown((*heads, "ITL p99 ms", "of"), rows)


def percentiles(view: Frame) -> str:
    rows = []
    for name in METRICS:
        for stretch, latencies in stretches(view.snapshot):
            summary = latencies.get(name, Summary(count=0))
            head = (f"{name} {unit_of(name)}", stretch, fmt.count(summary.count))
            rows.append((*head, *statistics_of(summary, name)))
    return markdown(("latency", "of", "count", *HEADS), rows)


def gpus(view: Frame) -> str:
    rows = []
    for gpu in view.snapshot.gpus:
        now = sample_of(gpu)
        numbers = (
            now.gfx_percent,
            fmt.gib(now.hbm_used_bytes),
            now.power_w,
            now.temperature_hotspot_c,
            now.gfx_clock_mhz,
        )
        cells = [fmt.count(number) for number in numbers]
        rows.append((str(gpu.static.index), fmt.plain(gpu.static.name), *cells, fmt.plain("; ".join(gpu.flags))))
    return markdown(("gpu", "name", "busy %", "HBM GiB", "power W", "hot C", "MHz", "flags"), rows)


def engine(view: Frame) -> str:
    """What the engine says of itself."""
    return markdown(
        ("engine", *ENGINE_HEADS), [(fmt.plain(name), *engine_figures(each)) for name, each in engines(view)]
    )


def log(view: Frame) -> str:
    """The lines of the log that pass the filter, as they are."""
    wanted = view.log_filter.casefold()
    lines = [fmt.plain(line) for line in view.snapshot.server.log_tail if wanted in line.casefold()]
    return "\n".join(lines) + "\n"


def errors(view: Frame) -> str:
    found = view.snapshot.errors
    rows = [(fmt.plain(one.kind), str(one.count), seen(view, one.kind), fmt.plain(one.message)) for one in found]
    return markdown(("kind", "count", "seen", "message"), rows)


def events(view: Frame) -> str:
    rows = [(fmt.clock(one.t_s), one.kind, fmt.plain(one.text)) for one in happened(view)]
    return markdown(("time", "kind", "event"), rows)


def verdicts(view: Frame) -> str:
    """What is wrong, and what the preflight found."""
    found = view.snapshot.findings
    rows = [(one.subject, "bad" if one.bad else "info", fmt.plain(one.text)) for one in view.snapshot.verdicts]
    rows += [("preflight", one.severity, fmt.plain(f"{one.seen}: {one.why}; {one.fix}")) for one in found]
    return markdown(("of", "weight", "what"), rows)


def _percentiles(summary: Summary | None, *which: str) -> list[str]:
    return [fmt.statistic(summary, name) for name in which]
