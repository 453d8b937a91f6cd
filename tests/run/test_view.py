"""What a snapshot has of the stages that are over."""

from pathlib import Path

import pytest

from loadgen.metrics.snapshot import Snapshot
from loadgen.run import Run
from tests.engines import MANAGED, profile
from tests.run.driving import finish

PUBLISHED = {"source": "a publication", "points": [{"figures": {"ttft_p50_ms": 40.0}}]}


async def test_what_was_published_is_beside_the_running_stage_and_in_the_end_beside_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown: list[Snapshot] = []
    load = {"concurrency": [1, 2], "requests": 20}
    run = Run(profile(MANAGED, load=load, reference=PUBLISHED), where="test")
    await finish(run, lambda _, snapshot: shown.append(snapshot))
    by_snapshot = [[one.stage for one in snapshot.reference] for snapshot in shown]
    assert by_snapshot[-1] == [0, 1] and all(stages in ([], [0], [1]) for stages in by_snapshot[:-1])
    assert all(one.difference_percent is not None for one in shown[-1].reference)
