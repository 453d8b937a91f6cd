"""Every judgement in every situation: what is said is what was reviewed, and nothing contradicts anything else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.schema.journal import EngineMeasured, GpusSampled, HostSampled, TelemetryChanged
from tests.report.situations import SITUATIONS, Situation, said

REVIEWED = Path(__file__).with_name("situations.md")
EXCLUSIVE = [
    {"client-limited", "stream-buffered"},  # the path's doing is not the client's
    {"host-limited", "compute-bound"},  # GPUs that wait for the host are not full
    {"host-limited", "bandwidth-bound"},
    {"compute-bound", "bandwidth-bound"},
]
OF_A_LOAD = {"client-limited", "stream-buffered", "host-limited", "compute-bound", "bandwidth-bound"}


def reviewed() -> dict[str, list[str]]:
    sections = REVIEWED.read_text().split("\n## ")[1:]
    parts = (section.partition("\n") for section in sections)
    return {name: [line.removeprefix("- ") for line in text.splitlines() if line] for name, _, text in parts}


def verdicts(lines: list[str]) -> dict[str, str]:
    """The lines of verdicts by their id; answers end their first word with a question mark."""
    found = (line.partition(",") for line in lines if "? " not in line.partition(",")[0] and line[:8] != "Header: ")
    return {name.removesuffix(" (information)"): text for name, _, text in found}


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_is_said_was_reviewed(name: str) -> None:
    assert list(said(SITUATIONS[name])) == reviewed()[name]


def test_nothing_was_reviewed_that_is_not_tried() -> None:
    assert list(reviewed()) == list(SITUATIONS)


@pytest.mark.parametrize("name", SITUATIONS)
def test_no_verdict_contradicts_another(name: str) -> None:
    found = set(verdicts(reviewed()[name]))
    assert not [pair for pair in EXCLUSIVE if pair <= found]


@pytest.mark.parametrize("name", [name for name, situation in SITUATIONS.items() if situation.streams == 0])
def test_nothing_limits_a_load_that_nobody_sends(name: str) -> None:
    if not SITUATIONS[name].others:
        assert not OF_A_LOAD & set(verdicts(reviewed()[name]))


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_box_is_healthy_unless_a_verdict_or_a_failure_says_why_not(name: str) -> None:
    lines = reviewed()[name]
    (healthy,) = (line for line in lines if line.startswith("Healthy? "))
    of_gpus = [line for line in lines if ", gpu " in line.partition(":")[0] and " (information)" not in line]
    for line in of_gpus:
        assert f": {line.partition(': ')[2]}" in healthy
    if of_gpus:
        assert healthy.startswith("Healthy? No")


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_header_is_not_ok_where_something_is_bad(name: str) -> None:
    lines = reviewed()[name]
    (header,) = (line for line in lines if line.startswith("Header: "))
    bad = [line for line in lines if ": " in line and "? " not in line and " (information)" not in line]
    if [line for line in bad if line != header]:
        assert header.startswith("Header: bad: ")


GAUGES = dict.fromkeys(("running", "waiting", "kv_usage", "preemptions", "requests_per_s"))


def blind(situation: Situation) -> Situation:
    """Without GPUs, host and engine, and without what only they would show."""
    without = (*situation.without, TelemetryChanged, GpusSampled, HostSampled, EngineMeasured)
    unseen: dict[str, Any] = {"gpu": {}, "one_gpu": {}, "host": {}, "measured": {}, "used_before_gib": 0.0, "looks": 1}
    return replace(situation, without=tuple(dict.fromkeys(without)), view=GAUGES, **unseen)


@pytest.mark.parametrize("situation", {repr(blind(one)): blind(one) for one in SITUATIONS.values()}.values())
def test_without_gpus_host_and_engine_nothing_is_said_of_them(situation: Situation) -> None:
    lines = list(said(situation))
    assert not [line for line in lines if ", gpu " in line or "host-limited" in line or "bound: " in line]
    assert not [line for line in lines if "queue built up" in line or "0 requests of others" in line]


OF_SOURCE = {
    "GPUs": ((TelemetryChanged, GpusSampled), (", gpu ", "bound: ", "GPUs ")),
    "engine": ((EngineMeasured,), ("queue built up in the engine", "KV cache")),
    "host": ((HostSampled,), ("host-limited",)),
}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("GPUs", "throttled by heat"),
        ("GPUs", "host busy"),
        ("engine", "overload"),
        ("engine", "others use the server, too"),
        ("host", "host busy"),
    ],
)
def test_without_one_source_nothing_is_said_that_it_alone_knows(name: str, source: str) -> None:
    missing, of_it = OF_SOURCE[source]
    view = GAUGES if source == "engine" else {}
    lines = list(said(replace(SITUATIONS[name], without=missing, view=view)))
    assert not [line for line in lines if any(words in line for words in of_it)]
    assert [line for line in lines if line.startswith("Healthy? ")]
