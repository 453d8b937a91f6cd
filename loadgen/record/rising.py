"""What rose in a stage while its load stayed the same: latencies, and the memory of the server and its GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from loadgen.metrics.drift import FALSE_ALARMS
from loadgen.metrics.trend import means, rise
from loadgen.record.stage import StageRecord

_SKIPPED = 4  # the first quarter: caches fill, and the first streams find an empty engine
_MIN_RISE = {"TTFT": 0.1, "TPOT": 0.1}
_MIN_MEMORY_RISE = 0.05


def rising_words(stage: StageRecord, gpus: Collection[int]) -> str | None:
    """What rose, of all that is watched; these are the numbers of the server's GPUs."""
    series = [*_latencies(stage), *_memory(stage, gpus)] if not stage.started.steps else []
    found = []
    for name, values in series:
        by = rise(values[len(values) // _SKIPPED :], FALSE_ALARMS / len(series))
        if by is not None and by >= _MIN_RISE.get(name, _MIN_MEMORY_RISE):
            found.append(f"{name} {by:+.0%}")
    return f"rising at the same load: {', '.join(found)}" if found else None


def _latencies(stage: StageRecord) -> Iterator[tuple[str, Sequence[float]]]:
    """Not those of an overloaded open loop, whose queue grows, nor of conversations, whose prompts do."""
    started = stage.started
    is_queueing = started.rate is not None and (stage.waiting_mean or 0.0) >= 1
    if not is_queueing and not started.meant_hits and not started.thinks:
        yield "TTFT", stage.blocks.means_ms("ttft")
        yield "TPOT", stage.blocks.means_ms("tpot")


def _memory(stage: StageRecord, gpus: Collection[int]) -> Iterator[tuple[str, Sequence[float]]]:
    if stage.metrics.window is None:
        return
    samples, (start_s, end_s) = stage.hardware_samples, stage.metrics.window
    resident = [one.server_rss_bytes for one in samples.host if start_s <= one.t_s <= end_s]
    yield "server memory", means([value for value in resident if value is not None])
    for index, looks in samples.within(start_s, end_s).items():
        if index in gpus:
            used = [look.hbm_used_bytes for look in looks]
            yield f"HBM of gpu {index}", means([value for value in used if value is not None])
