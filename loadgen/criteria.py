"""The phases of an acceptance, and the figures that its criteria are about, a row each.

A new figure is a row here and, unless its rule finds it by name, its value in `loadgen.record.acceptance`; the profile
checks names, directions and phases against these rows, and certificates and reports take units from them.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

PhaseName = Literal["box", "silicon", "start", "output", "performance", "burn-in"]
PHASES: dict[PhaseName, str] = {
    "box": "the machine, its GPUs, drivers and firmware, as doctor and preflight see them",
    "silicon": "the vendors' own tools on idle GPUs",
    "start": "how the server starts, and whether its starts are alike",
    "output": "whether the answers are right, idle and under load",
    "performance": "latency and throughput below saturation, over several starts",
    "burn-in": "hours under load: nothing breaks, and nothing drifts",
}
"""In the order in which they run."""

Direction = Literal["at_most", "at_least", "equal", "none_of"]
"""`none_of` is a count of what must not happen at all."""
Rule = Literal["mean", "each", "share", "events", "trend", "text"]
"""How a figure is judged: `mean`, the interval of its mean over starts; `each`, every value by itself; `share`, the
interval of a share of independent trials; `events`, none may occur; `trend`, its change over the burn-in; `text`, equal
or not."""


EXACT_MATCH = "exact_match_percent"
WARM_UP_S = 600.0
"""A fresh engine's memory grows for minutes, its caches fill and its GPUs warm up: this much of a run, or its first
quarter, is in no trend, and what is left must be as long."""


class FigureKind(NamedTuple):
    """Figures of one kind, named by a pattern."""

    pattern: str
    phase: PhaseName
    unit: str
    rule: Rule
    directions: tuple[Direction, ...]
    meaning: str
    named: str = ""  # the names in words, where the pattern does not list them

    @property
    def names(self) -> str:
        return self.named or self.pattern.replace("|", ", ")


_LOWER: tuple[Direction, ...] = ("at_most",)
_HIGHER: tuple[Direction, ...] = ("at_least",)
_RANGE: tuple[Direction, ...] = ("at_most", "at_least", "equal")
_NONE: tuple[Direction, ...] = ("none_of",)
FIGURES = (
    FigureKind("driver|kernel|vllm|gpu_name", "box", "", "text", ("equal",), "a version or name, as doctor shows it"),
    FigureKind(
        r"firmware\.\S+|host\.\S+",
        "box",
        "",
        "text",
        ("equal",),
        "firmware of GPUs, settings of the host",
        "firmware.NAME, host.NAME",
    ),
    FigureKind("gpus", "box", "", "each", _RANGE, "the number of GPUs"),
    FigureKind("blocking_findings", "box", "", "events", _NONE, "findings of the preflight that prevent a start"),
    FigureKind("probe_failures", "silicon", "", "events", _NONE, "tools that report a failure"),
    FigureKind(
        r"probe\..+", "silicon", "", "each", _HIGHER, "a figure of a vendor's tool, on each GPU", "probe.FIGURE"
    ),
    FigureKind("start_s|weights_s|graphs_s|compile_s", "start", "s", "each", _LOWER, "a time of each start"),
    FigureKind("kv_cache_tokens", "start", "tokens", "each", _RANGE, "the KV cache of each start"),
    FigureKind("kv_cache_gib|weights_gib", "start", "GiB", "each", _RANGE, "memory on each GPU after each start"),
    FigureKind("start_differences", "start", "", "events", _NONE, "figures of a start unlike those of the first"),
    FigureKind("output_faults", "output", "", "events", _NONE, "verdicts of canaries and sampled answers"),
    FigureKind(EXACT_MATCH, "output", "%", "share", _HIGHER, "questions answered right under load"),
    FigureKind(
        "(ttft|ttft_from_intended|tpot|itl|e2e)_(mean|p[1-9][0-9]{0,3})_ms",
        "performance",
        "ms",
        "mean",
        _LOWER,
        "latency at a load",
        "ttft_p99_ms (also ttft_from_intended, tpot, itl, e2e; mean, p50, p999)",
    ),
    FigureKind("requests_per_s", "performance", "/s", "mean", _HIGHER, "requests completed at a load"),
    FigureKind(
        "(input|output|total)_tokens_per_s",
        "performance",
        "tok/s",
        "mean",
        _HIGHER,
        "throughput at a load",
        "output_tokens_per_s (also input, total)",
    ),
    FigureKind("tokens_per_joule", "performance", "tok/J", "mean", _HIGHER, "output tokens per joule at a load"),
    FigureKind("goodput_percent", "performance", "%", "mean", _HIGHER, "streams that met every limit of a stream"),
    FigureKind("failed_percent", "performance", "%", "share", _LOWER, "requests that failed or were never sent"),
    FigureKind("failed_requests", "performance", "", "events", _NONE, "requests that failed or were never sent"),
    FigureKind(
        "ecc_uncorrectable|xids|gpu_resets|server_restarts|links_lost|stalls",
        "burn-in",
        "",
        "events",
        _NONE,
        "what must not happen",
    ),
    FigureKind(
        "(ttft|tpot|server_memory|hbm|power)_rise_percent",
        "burn-in",
        "%",
        "trend",
        _LOWER,
        "growth at a steady load",
        "ttft_rise_percent (also tpot, server_memory, hbm, power)",
    ),
    FigureKind("clock_fall_percent", "burn-in", "%", "trend", _LOWER, "loss of GPU clock at a steady load"),
)


def figure_kind(name: str) -> FigureKind | None:
    """The row of a figure; None if no criterion can be about it."""
    return next((kind for kind in FIGURES if re.fullmatch(kind.pattern, name)), None)
