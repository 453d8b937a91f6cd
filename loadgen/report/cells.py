"""Numbers and words in the cells of a report's tables: the same in text, Markdown and HTML."""

from __future__ import annotations

from functools import partial

from loadgen.format import Statistic, bounded, fixed, grouped
from loadgen.metrics.deltas import Summary
from loadgen.metrics.result import Comparison, Result

LATENCY_TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
"""The latencies that tables and figures show."""


def statistic(summary: Summary, name: str, decimals: int | None = None) -> str:
    """A statistic of a latency, by itself without `decimals`; `>= 2,310` where it is only known to be at least that."""
    one = Statistic.of(summary, name)
    return bounded(one) if decimals is None else bounded(one, partial(grouped, decimals=decimals))


def published_statistic(summary: Summary, name: str) -> str:
    """The same in the tables of the published benchmarks, which scripts read: no thousands."""
    return bounded(Statistic.of(summary, name), fixed)


def published_name(one: Comparison) -> str:
    """What was published: the figure, and of what where that is said."""
    return f"{one.figure} ({one.of})" if one.of else one.figure


def model_of(result: Result) -> str:
    """The model that answered, or the one that was to."""
    server = result.profile.get("server") or {}
    named = result.environment.get("model") or server.get("served_model_name") or server.get("model")
    return str(named or result.profile.get("name") or "unknown model")


def hardware_of(result: Result) -> str:
    """The GPUs in words, each name with its count; the processor where none are known."""
    names: dict[str, int] = {}
    for gpu in result.gpus:
        names[gpu.name] = names.get(gpu.name, 0) + 1
    if names:
        return ", ".join(
            f"{count} \N{MULTIPLICATION SIGN} {name}" if count > 1 else name for name, count in names.items()
        )
    return str(result.environment.get("cpu") or "unknown hardware")


def engine_of(result: Result) -> str:
    environment = result.environment
    engine, version = environment.get("engine"), environment.get("vllm_version")
    words = {"docker": "vLLM", "vllm": "vLLM", "simulator": "the simulator", "attach": "an attached server"}
    name = words.get(str(engine), str(engine or "no server"))
    return f"{name} {version}" if version and engine != "simulator" else name


def flattened(document: object, prefix: str = "") -> dict[str, object]:
    """A document as dotted keys and values, without what is empty or unknown: `{"load.isl": 512}`."""
    if not isinstance(document, dict):
        return {prefix: document}
    flat: dict[str, object] = {}
    for key, value in document.items():
        if value not in (None, [], {}, ""):
            flat |= flattened(value, f"{prefix}.{key}" if prefix else str(key))
    return flat
