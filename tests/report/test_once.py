"""One snapshot as text: a GPU of another machine names it, one of this machine does not."""

import json

import pytest
from msgspec.structs import replace

from loadgen.report.once import once_json, once_text
from tests.tui.scripted import with_gpus


def test_without_gpus_the_reason_is_said() -> None:
    lines = once_text(replace(with_gpus(), gpus=(), telemetry="no GPU found")).splitlines()
    assert "GPUs: no GPU found" in lines


def test_a_gpu_of_another_machine_names_it() -> None:
    here = with_gpus()
    first, second, *_ = here.gpus
    there = replace(first, static=replace(first.static, host="node7"))
    lines = once_text(replace(here, gpus=(there, replace(there, sample=None), second))).splitlines()
    told = [line.split(",")[0] for line in lines if line.startswith("gpu ")][:3]
    assert [" in node7" in words for words in told] == [True, True, False]


@pytest.mark.parametrize(
    ("is_measured", "well", "healthy"), [(True, True, True), (False, True, None), (False, False, False)]
)
def test_health_is_unknown_if_nothing_was_measured(is_measured: bool, well: bool, healthy: bool | None) -> None:
    now = replace(with_gpus(), healthy=well, engine=None)
    seen = json.loads(once_json(now if is_measured else replace(now, gpus=())))
    assert seen["healthy"] is healthy
