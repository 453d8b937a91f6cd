"""One reading of `/metrics`, whichever engine it comes from.

Every figure is optional: a missing one is None, never 0. Several engines in one server (data parallel) are summed and
also kept apart in `engines`; KV cache usage is that of the fullest, work per GPU the mean. Gauges that an engine
computes over its own time span are read only where it has no counter for them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any, TypeVar

import msgspec

from loadgen.errors import ServerError
from loadgen.format import harmless
from loadgen.schema.engine import EngineKind
from loadgen.server.engines.names import (
    COUNTER_FIELDS,
    ENGINES,
    LATENCIES,
    MEANS,
    SHOWN,
    EngineFigure,
    EngineHistogram,
    EngineNames,
    EngineSample,
)

_Part = TypeVar("_Part")
_MAX_LINES = 50_000  # 64 engines have 13,000; these take a second
_MAX_PARTS = 1024  # a label with more values than this does not stand for engines, statuses or positions
_MAX_LABEL = 64
_BEYOND = 1e30  # no engine counts this far
_NOTHING = 1e-15  # nor this little: a mean over it would overflow
_STARTED = EngineFigure((("process_start_time_seconds", {}),))


def parse_engine_metrics(text: str) -> EngineSample:
    """Read the text of `/metrics`; raises `ServerError` if it is not in the Prometheus format."""
    lines = text.splitlines()
    found = (kind for line in lines for kind, engine in ENGINES.items() if line.startswith(engine.prefix))
    kind = next(found, None)
    if kind is None:
        return EngineSample()
    try:
        page = _one_rank(_page(lines, kind))
        engines = {name: _sample(one, kind) for name, one in _by_engine(page, ENGINES[kind].label).items()}
        return msgspec.structs.replace(_sample(page, kind), engines=engines)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise ServerError(f"the server's /metrics is not in the Prometheus format: {error}") from None


_Labels = Mapping[str, str]
_Page = dict[str, list[tuple[_Labels, float]]]  # labels and value, by name


def _page(lines: Sequence[str], kind: EngineKind) -> _Page:
    # Parsing is slow, and most of the page is about Python and HTTP: only the engine's lines are parsed.
    figures = (_STARTED, *ENGINES[kind].figures.values())
    families = tuple({name for figure in figures for name, _ in figure.series})
    ours = [line for line in lines if line.startswith(families)]
    if len(ours) > _MAX_LINES:
        raise ServerError(
            f"the server's /metrics has {len(ours):,} lines of {ENGINES[kind].title}: no engine has so many"
        )
    # Imported late: it loads web servers, and no page is read before the cockpit is shown.
    from prometheus_client.parser import text_string_to_metric_families

    found: _Page = {}
    for family in text_string_to_metric_families("\n".join([*ours, ""])):
        for sample in family.samples:
            if abs(sample.value) < _BEYOND:  # neither infinite nor NaN
                value = sample.value if abs(sample.value) > _NOTHING else 0.0
                found.setdefault(sample.name, []).append((sample.labels, value))
    return found


def _one_rank(page: _Page) -> _Page:
    """The page without SGLang's duplicates: its pipeline ranks, and its totals split by priority."""
    ranks: dict[str, tuple[int, int]] = {}
    for labels, _ in chain.from_iterable(page.values()):
        if "tp_rank" in labels:
            engine, rank = labels.get("dp_rank", ""), _rank(labels)
            ranks[engine] = min(rank, ranks.get(engine, rank))
    if not ranks:
        return page

    def is_counted(labels: _Labels) -> bool:
        if "tp_rank" not in labels:
            return True
        return not labels.get("priority") and _rank(labels) == ranks[labels.get("dp_rank", "")]

    return {name: [one for one in samples if is_counted(one[0])] for name, samples in page.items()}


def _rank(labels: _Labels) -> tuple[int, int]:
    return int(labels.get("pp_rank", 0)), int(labels["tp_rank"])


def _by_engine(page: _Page, label: str) -> dict[str, _Page]:
    """The series of each engine; empty unless there are several."""
    found: dict[str, _Page] = {}
    for name, samples in page.items():
        for labels, value in samples:
            if label in labels:
                _part(found, labels[label], {}).setdefault(name, []).append((labels, value))
    return found if len(found) > 1 else {}


def _sample(page: _Page, kind: EngineKind) -> EngineSample:
    engine = ENGINES[kind]
    values: dict[str, Any] = {}
    for name, figure in engine.figures.items():
        if name in LATENCIES:
            values[name] = _histogram(page, figure)
        elif figure.label:
            values[name] = _parts(page, figure, engine.parts)
        else:
            values[name] = _number(page, name, figure)
    started = _number(page, "started_unix_s", _STARTED)
    return EngineSample(**values, kind=kind, started_unix_s=started, unavailable=_unavailable(values, engine))


def _unavailable(values: Mapping[str, Any], engine: EngineNames) -> dict[str, str]:
    """Which figures are missing, or 0 because they are not counted, and why; by the names that the views use."""
    found = dict(engine.unavailable)
    for name, value in values.items():
        figure = engine.figures[name]
        why = figure.zero if value == 0 else ""
        if value is None:
            why = figure.absent or f"this version of {engine.title} does not tell"
        if why:
            found.setdefault(SHOWN.get(name, name), why)
    return found


def _values(page: _Page, name: str, where: _Labels) -> list[tuple[_Labels, float]]:
    samples = page.get(name, ())
    return [one for one in samples if all(one[0].get(label) == value for label, value in where.items())]


def _number(page: _Page, name: str, figure: EngineFigure) -> float | None:
    found = next((values for series in figure.series if (values := _values(page, *series))), None)
    return None if found is None else _together(name, [value for _, value in found])


def _parts(page: _Page, figure: EngineFigure, renamed: Mapping[str, str]) -> dict[str, float] | None:
    found: dict[str, list[float]] = {}
    for labels, value in chain.from_iterable(_values(page, *series) for series in figure.series):
        part = labels[figure.label]
        _part(found, renamed.get(part, part), []).append(value)
    return {part: sum(values) for part, values in found.items()} or None


def _part(parts: dict[str, _Part], label: str, new: _Part) -> _Part:
    """The part for a label value, created if new; values are external input, so their number is limited."""
    if len(parts) > _MAX_PARTS:
        raise ServerError(f"the server's /metrics has more than {_MAX_PARTS} engines, or parts of one figure")
    return parts.setdefault(harmless(label[:_MAX_LABEL]), new)


def _histogram(page: _Page, figure: EngineFigure) -> EngineHistogram | None:
    for name, where in figure.series:
        sums, counts, counted = (_values(page, f"{name}_{part}", where) for part in ("sum", "count", "bucket"))
        if sums and counts:
            buckets: dict[float, float] = defaultdict(float)
            for labels, value in counted:
                bound = float(labels["le"])
                if not (abs(bound) < _BEYOND or bound == math.inf):
                    raise ValueError(f"the bound of a bucket of {name} is no number of seconds")
                buckets[bound] += value
            return EngineHistogram(
                sum(value for _, value in sums), sum(value for _, value in counts), tuple(sorted(buckets.items()))
            )
    return None


def _together(name: str, values: Sequence[float]) -> float:
    """Combine a figure of several engines or servers."""
    if name == "kv_usage":
        return max(values)
    return fmean(values) if name in MEANS else sum(values)


def sum_of(samples: Sequence[EngineSample | None]) -> EngineSample | None:
    """All samples combined; None if a sample is missing, and a figure is None if a sample lacks it.

    For engines whose series appear late, a missing figure counts as zero.
    """
    known = [sample for sample in samples if sample is not None]
    if len(known) < len(samples) or not known:
        return None
    if len(known) == 1:
        return known[0]
    # The same label means different engines on different servers.
    names = set(EngineSample.__struct_fields__) - {"kind", "started_unix_s", "unavailable", "engines"}
    kinds = {sample.kind for sample in known}
    late = all(kind is not None and ENGINES[kind].late for kind in kinds)
    unavailable = {name: why for sample in known for name, why in sample.unavailable.items()}
    values = {name: _sum(name, [getattr(sample, name) for sample in known], late=late) for name in names}
    return EngineSample(**values, kind=known[0].kind if len(kinds) == 1 else None, unavailable=unavailable)


def _sum(name: str, values: list[Any], *, late: bool = False) -> Any:  # noqa: ANN401 - as the field is
    if None in values and not late and name != "errors":  # `errors` appears with the first answer
        return None
    values = [value for value in values if value is not None]
    if not values:
        return None
    if isinstance(values[0], Mapping):
        return {key: sum(value.get(key, 0.0) for value in values) for key in sorted({*chain(*values)})}
    return sum_histograms(values) if isinstance(values[0], EngineHistogram) else _together(name, values)


def sum_histograms(parts: Iterable[EngineHistogram]) -> EngineHistogram:
    """Sum histograms; if their bounds differ (between versions), over the common bounds, where counts are exact."""
    parts = tuple(parts)
    shared = set.intersection(*({bound for bound, _ in part.buckets} for part in parts))
    buckets = Counter[float]()
    for part in parts:
        buckets.update({bound: count for bound, count in part.buckets if bound in shared})
    return EngineHistogram(
        sum(part.sum_s for part in parts), sum(part.count for part in parts), tuple(sorted(buckets.items()))
    )


def continued(earlier: EngineSample, sample: EngineSample) -> EngineSample:
    """A restarted server's sample, as if it had continued counting from the earlier one."""
    values = {name: _continued(name, getattr(earlier, name), getattr(sample, name)) for name in COUNTER_FIELDS}
    engines = {
        name: continued(earlier.engines[name], one) if name in earlier.engines else one
        for name, one in sample.engines.items()
    }
    unavailable = {name: why for name, why in sample.unavailable.items() if name in earlier.unavailable}
    return msgspec.structs.replace(sample, **values, unavailable=unavailable, engines=engines)


def _continued(name: str, earlier: Any, later: Any) -> Any:  # noqa: ANN401 - as the field is
    if isinstance(earlier, float) and isinstance(later, float):
        return earlier + later  # also where several engines have a mean
    return _sum(name, [earlier, later], late=True)


def without_counts(sample: EngineSample) -> EngineSample:
    """Only the figures of the moment."""
    nothing: dict[str, Any] = dict.fromkeys(COUNTER_FIELDS)
    return msgspec.structs.replace(
        sample, **nothing, engines={name: without_counts(one) for name, one in sample.engines.items()}
    )
