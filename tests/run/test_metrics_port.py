"""The run's figures for Prometheus: what a scraper gets while a run goes on, and that the port ends with it."""

import asyncio
import json
import re
import socket
from pathlib import Path

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from loadgen.errors import ProfileError
from loadgen.metrics.histogram import EXPORTED_BOUNDS_US
from loadgen.run.metrics_port import MetricsPort
from loadgen.run.run import Run
from loadgen.schema.snapshot import Snapshot
from tests.engines import Simulator, attach
from tests.run.driving import finish, run_of

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
LADDER = {"concurrency": [2, 4], "requests": 20}


def scraped(port: MetricsPort) -> dict[str, Metric]:
    answer = httpx.get(port.url, trust_env=False).raise_for_status()
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def values(family: Metric, suffix: str = "", **labels: str) -> list[float]:
    return [
        sample.value
        for sample in family.samples
        if sample.name == family.name + suffix and labels.items() <= sample.labels.items()
    ]


Exported = tuple[Run, dict[str, Metric]]


@pytest.fixture(scope="module")
def exported(shared: Simulator, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A run of two stages, and the last scrape that it answered."""
    last: dict[str, Metric] = {}

    async def scraped_run() -> Run:
        run = run_of(attach(shared, load=LADDER), metrics_address=("127.0.0.1", 0))
        port = run.metrics_port
        assert port is not None

        def scrape(_: Run, snapshot: Snapshot) -> None:
            nonlocal last
            if snapshot.phase != "done":
                last = scraped(port)

        await finish(run, scrape)
        with pytest.raises(httpx.ConnectError):
            scraped(port)
        return run

    shared.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("exported"))
        return asyncio.run(scraped_run()), last


def test_what_is_scraped_is_what_the_result_says(exported: Exported) -> None:
    run, found = exported
    assert run.result is not None
    for stage in run.result.stages:
        labels = {"stage": str(stage.index + 1), "load": stage.label, "isl": "16", "osl": "8"}
        assert values(found["vramp_requests"], "_total", outcome="completed", **labels) == [stage.requests.completed]
        assert values(found["vramp_output_tokens"], "_total", **labels) == [stage.tokens.output]
        for name in ("ttft", "tpot", "itl", "e2e"):
            family, summary = found[f"vramp_{name}_seconds"], stage.latency_ms[name]
            assert summary.mean is not None
            assert values(family, "_count", **labels) == [summary.count]
            assert values(family, "_sum", **labels) == [pytest.approx(summary.count * summary.mean / 1000)]
            buckets = values(family, "_bucket", **labels)
            assert len(buckets) == len(EXPORTED_BOUNDS_US) + 1
            assert buckets == sorted(buckets)
            assert buckets[-1] == summary.count
    assert values(found["vramp_client_limited"]) == [0]
    assert values(found["vramp_run_info"], profile="test", run_id=run.folder.name) == [1]


def test_every_expression_of_the_dashboard_names_what_is_exported(exported: Exported) -> None:
    _, found = exported
    # A counter that counts nothing yet has no sample.
    known = {sample.name for family in found.values() for sample in family.samples} | set(found)
    known |= {f"{name}_total" for name, family in found.items() if family.type == "counter"}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    named = {name for expression in expressions for name in re.findall(r"vramp_\w+", expression)}
    assert len(named) > 20
    assert named <= known


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(ProfileError, match=rf"--metrics-port {number}: .*; nothing was started") as reported:
            MetricsPort("127.0.0.1", number)
    assert "\n" not in str(reported.value)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 80, "é..x", "203.0.113.1"])
def test_an_address_that_is_none_of_this_machine_is_one_line(host: str) -> None:
    with pytest.raises(ProfileError, match=r"cannot be listened on: .*; nothing was started"):
        MetricsPort(host, 0)


def test_before_the_first_moment_there_is_nothing_to_scrape() -> None:
    port = MetricsPort("127.0.0.1", 0)
    try:
        assert scraped(port) == {}
    finally:
        port.close()


def test_who_hangs_up_in_the_middle_is_not_reported(capfd: pytest.CaptureFixture[str]) -> None:
    port = MetricsPort("::1", 0)
    try:
        address = re.search(r"\[::1\]:(\d+)", port.url)
        assert address is not None
        for requested in (b"GET /met", b"\x16\x03\x01 no HTTP\r\n\r\n", b"GET /metrics HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("::1", int(address[1]))) as hasty:
                hasty.sendall(requested)
                hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        assert scraped(port) == {}
    finally:
        port.close()
    assert capfd.readouterr().err == ""
