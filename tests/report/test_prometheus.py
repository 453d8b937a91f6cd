"""What is exported of a moment: what is not known has no sample, and no text can break out of its label."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from loadgen.record.record import Record
from loadgen.report.prometheus import KEPT_S, ExportedState, metric_families, moment_of
from loadgen.run.view import ShownStages
from loadgen.schema.engine import EngineLatencyMs, EngineView, OthersTraffic
from loadgen.schema.finding import Verdict
from loadgen.schema.journal import StageEnded, StageStarted
from loadgen.schema.snapshot import Snapshot
from tests.journal import STARTED
from tests.tui.scripted import running


def exported(snapshot: Snapshot) -> dict[tuple[str, ...], float]:
    """Every sample by its name and labels, these by their names, as a scraper reads them."""
    moment = ExportedState(snapshot, "a run", ())

    class Now(Collector):
        def collect(self) -> list[Metric]:
            return list(metric_families(moment))

    registry = CollectorRegistry()
    registry.register(Now())
    text = generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_what_is_not_known_has_no_sample() -> None:
    found = exported(running(engine=None))
    assert found["vramp_streams_open",] == 64 and found["vramp_streams_target",] == 64
    assert not [key for key in found if key[0].startswith(("vramp_engine", "vramp_gpu", "vramp_others"))]
    assert ("vramp_request_rate_target",) not in found


def test_percentiles_of_the_engine_are_reported_as_bounds() -> None:
    within: dict[str, tuple[float, float | None]] = {"p50": (80.0, 100.0), "p99": (640.0, None)}
    engine = EngineView(running=3, latency_ms={"ttft": EngineLatencyMs(count=9, mean=91.0, within=within)})
    found = exported(running(engine=engine, others=OthersTraffic(requests_per_s=2.5)))
    bounds = {key[1:]: value for key, value in found.items() if key[0] == "vramp_engine_latency_bound_seconds"}
    assert bounds == {
        ("lower", "ttft", "50"): 0.08,
        ("upper", "ttft", "50"): 0.1,
        ("lower", "ttft", "99"): 0.64,
        ("upper", "ttft", "99"): math.inf,
    }
    assert found["vramp_engine_requests_running",] == 3
    assert found["vramp_others_requests_per_second",] == 2.5


def test_a_verdict_is_a_sample_while_it_holds() -> None:
    snapshot = running(
        verdicts=(Verdict("throttled", "gpu 5", "text"), Verdict("kv-limited", "stage 1", "", bad=False))
    )
    found = [key for key in exported(snapshot) if key[0] == "vramp_verdict"]
    assert found == [("vramp_verdict", "throttled", "gpu 5", "bad"), ("vramp_verdict", "kv-limited", "stage 1", "note")]


@given(st.text(), st.text())
def test_no_text_breaks_out_of_its_label(model: str, profile: str) -> None:
    snapshot = running()
    server = msgspec.structs.replace(snapshot.server, model=model)
    found = exported(msgspec.structs.replace(snapshot, server=server, profile=profile))
    (info,) = [key for key in found if key[0] == "vramp_run_info"]
    assert len(info) == 7 and all(word.isprintable() for word in info)


def started(index: int, t_s: float) -> StageStarted:
    known: dict[str, Any] = {"label": f"conc {index + 1}", "concurrency": index + 1, "rate": None, "arrival": "poisson"}
    return StageStarted(t_s=t_s, index=index, isl=16, osl=8, requests=None, duration_s=60.0, warmup_s=0.0, **known)


@pytest.mark.parametrize(("since_s", "stages"), [(KEPT_S - 1, ["1", "2"]), (KEPT_S + 1, ["2"])])
def test_a_stage_stays_for_a_minute_after_its_end(since_s: float, stages: list[str]) -> None:
    record = Record()
    for line in (
        STARTED,
        started(0, 0.0),
        StageEnded(t_s=10.0, index=0, reason="its time was over"),
        started(1, 10.0),
    ):
        record.apply(line)
    snapshot = running(t_s=10.0 + since_s, stages=ShownStages().of(record))
    assert [stage.labels[0] for stage in moment_of(snapshot, record).stages] == stages
