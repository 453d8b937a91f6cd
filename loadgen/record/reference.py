"""The publication in a profile: its figures next to the measured ones, its conditions next to those of the run.

No figure is compared without its conditions, and only what the profile's `[reference]` gives is compared. What is not
known here is unknown, and not the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from pydantic import ValidationError

from loadgen.errors import ResultError
from loadgen.metrics.frontier import Price
from loadgen.profile.schema import Reference
from loadgen.profile.values import slo_problem
from loadgen.record.stage import StageRecord
from loadgen.schema.comparison import Comparison, Condition
from loadgen.schema.hardware_result import ComputeResult
from loadgen.schema.journal import RunStarted
from loadgen.schema.shared import DataFile

NO_CONTAINER = "no container"
_LATENCY = re.compile(r"(?P<metric>[a-z0-9]+)_(?:mean|p(?P<percent>\d+))_ms")


def conditions(
    reference: Reference,
    *,
    models: Sequence[str],
    version: str | None,
    image: str | None,
    gpus: Sequence[str] | None,
    requests: Sequence[int | None],
    data: DataFile | None,
    canaries: int,
) -> tuple[Condition, ...]:
    """Every published condition, and canaries, which no publication sends; None is unknown.

    `models` are the names that profile and server use, `gpus` the name of each GPU of the server, `requests` those of
    each stage with load (None for one that is bounded by time), `data` is None for synthetic prompts.
    """
    system = reference.system
    is_model = system.model.casefold() in map(str.casefold, models) if models else None
    is_version = None if version is None else version.removeprefix("v").partition("+")[0] == system.version
    names = sorted({*(gpus or ())})
    # As a word: an L40S is no L40.
    part = re.compile(rf"(?<![A-Za-z0-9]){re.escape(system.gpu)}(?![A-Za-z0-9])", re.IGNORECASE)
    count, wanted_count = str(len(gpus)) if gpus else None, str(system.gpus or "")
    wanted_requests = "" if system.requests is None else f"{system.requests:,}"
    sent = [*dict.fromkeys("as many as in a time" if each is None else f"{each:,}" for each in requests)]
    found = [
        Condition("model", system.model, models[0] if models else None, is_model),
        Condition("version", system.version, version, is_version),
        Condition("image", system.image, image, None if image is None else image == system.image),
        Condition("GPU", system.gpu, ", ".join(names) or None, all(map(part.search, names)) if names else None),
        Condition("GPUs", wanted_count, count, count == wanted_count if count else None),
        Condition("requests", wanted_requests, ", ".join(sent) or None, sent == [wanted_requests] if sent else None),
        Condition(
            "data",
            reference.data,
            data.words if data is not None else "synthetic prompts",
            same=data is not None and data.sha256 == reference.data_sha256,
        ),
    ]
    named = [condition for condition in found if condition.published]
    if canaries:
        named.append(Condition("canaries", "none", f"{canaries:,}", same=False))
    return tuple(named)


class _RequestedPlan(msgspec.Struct, frozen=True):
    goodput: float = 0.95


class _RequestedImage(msgspec.Struct, frozen=True):
    image: str


class RequestedServer(msgspec.Struct, frozen=True):
    """The server that a profile describes."""

    engine: str = ""
    model: str | None = None
    docker: _RequestedImage | None = None

    @property
    def image(self) -> str | None:
        """The container's image; unknown for a server that vramp did not start."""
        if self.engine == "attach":
            return None
        return self.docker.image if self.docker is not None else NO_CONTAINER


class _Requested(msgspec.Struct, frozen=True):
    """The parts of a profile that are needed here."""

    server: RequestedServer | None = None
    slo: dict[str, float] | None = None
    plan: _RequestedPlan | None = None
    cost: Price | None = None


def published_reference(run: RunStarted) -> Reference | None:
    """The published reference in a run's profile; raises `ResultError` if this version cannot read it."""
    published = run.profile.get("reference")
    try:
        requested = msgspec.convert(run.profile, _Requested)
        problem = next(filter(None, (slo_problem(name) for name in requested.slo or {} if name != "failed")), None)
        if problem is None:
            return Reference.model_validate(published) if published else None
    except (msgspec.ValidationError, ValidationError) as error:
        problem = str(error)
    raise ResultError(f"{run.run_id}: this version of vramp cannot read the profile of this run: {problem}")


def requested_server(run: RunStarted) -> RequestedServer:
    """The server of a run's profile, which `published_reference` could read."""
    return msgspec.convert(run.profile, _Requested).server or RequestedServer()


def compare(
    reference: Reference,
    stage: StageRecord,
    compute: ComputeResult | None = None,
    earlier: Sequence[StageRecord] = (),
) -> list[Comparison]:
    """Every published figure for this stage's load, next to the measured one; `earlier` are the passes before it."""
    load = {key: getattr(stage.started, key) for key in ("concurrency", "rate", "isl", "osl", "pass_number")}
    same = [point for point in reference.points if all(getattr(point, key) in (None, load[key]) for key in load)]
    found = []
    for point in same:
        for figure, published in point.figures.items():
            measured = _measured(figure, stage, compute, earlier)
            percent = None if measured is None or published == 0 else round(100 * (measured - published) / published, 2)
            found.append(Comparison(stage.started.index, point.of, figure, published, measured, percent))
    return found


def _measured(
    figure: str, stage: StageRecord, compute: ComputeResult | None, earlier: Sequence[StageRecord]
) -> float | None:
    if stage.counters["completed"] == 0:
        return None
    if figure == "mfu_percent":
        return None if compute is None else compute.mfu_percent
    if figure == "prefix_hit_percent":
        return _prefix_hit_percent([*earlier, stage])
    match = _LATENCY.fullmatch(figure)
    if match is None:
        return _plain_figures(stage)[figure]
    histogram, digits = stage.histogram(match["metric"]), match["percent"]
    if digits is None:
        return histogram.mean_ms()
    return histogram.percentile_ms(float(f"{digits[:2]}.{digits[2:] or 0}"))  # `50` is 50, `999` is 99.9


def _prefix_hit_percent(passes: Sequence[StageRecord]) -> float | None:
    """Over all passes, weighted by tokens: an engine's own rate counts since its start."""
    engines = [stage.engine for stage in passes if stage.engine is not None]
    known = [(one.prefix_hit_rate, one.prompt_tokens) for one in engines]
    tokens = sum(count or 0 for _, count in known)
    if len(engines) < len(passes) or not tokens or any(rate is None for rate, _ in known):
        return None
    return 100 * sum((rate or 0.0) * (count or 0) for rate, count in known) / tokens


def _plain_figures(stage: StageRecord) -> dict[str, float | None]:
    rate = stage.per_second("window_requests")
    return {
        "requests_per_s": rate,
        "requests_per_min": None if rate is None else 60 * rate,
        "input_tokens_per_s": stage.per_second("window_input_tokens"),
        "output_tokens_per_s": stage.per_second("window_output_tokens"),
        "total_tokens_per_s": stage.per_second("window_input_tokens", "window_output_tokens"),
        "duration_s": stage.window_s,
        "completed": stage.counters["completed"],
        "input_tokens": stage.counters["input_tokens"],
        "output_tokens": stage.counters["output_tokens"],
    }
