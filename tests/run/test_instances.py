"""Runs on two servers of one profile: even shares, parts that add up, and one fate for both."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ProfileError, ServerError, WorkerError
from loadgen.profile.schema import Profile
from loadgen.run.probe import identify, probe, probe_twin
from loadgen.run.run import Run
from loadgen.schema.result import Result
from loadgen.schema.snapshot import Snapshot
from loadgen.server.vllm.client import ServerClient
from loadgen.store.recover import folded
from tests.engines import MANAGED, profile, simulator
from tests.run.driving import Act, finish, flowing, left_behind, noted, once, processes_of_ours, run_of

ENDLESS: dict[str, Any] = {"requests": None, "duration": "60s"}


def twins(**parts: Any) -> Profile:
    return profile(MANAGED | {"instances": 2}, **parts)


async def outcome(parts: Profile, act: Act | None = None) -> tuple[Result, Run]:
    run = run_of(parts)
    return await finish(run, act), run


async def test_streams_are_spread_and_the_parts_add_up() -> None:
    seen: list[Snapshot] = []
    result, run = await outcome(twins(), noted(seen))
    assert (result.state, run.error, result.client.workers) == ("complete", None, 2)
    stage = result.stages[0]
    parts = stage.instances
    assert [(part.requests.sent, part.requests.completed) for part in parts] == [(10, 10), (10, 10)]
    assert (stage.requests.completed, stage.concurrency.peak) == (20, 4)
    assert [part.latency_ms["ttft"].count for part in parts] == [8, 8]
    assert [part.latency_ms["tpot"].count for part in parts] == [8, 8]
    # What the servers themselves say of it.
    assert [part.engine.generation_tokens for part in parts if part.engine is not None] == [80, 80]
    assert stage.engine is not None
    assert (stage.engine.generation_tokens, stage.engine.ttft_count) == (160, 20)
    for name in ("requests_per_s", "input_tokens_per_s", "output_tokens_per_s", "total_tokens_per_s"):
        of_parts = sum(getattr(part.throughput, name) for part in parts)
        assert of_parts == pytest.approx(getattr(stage.throughput, name))
    assert left_behind() == []
    shown = seen[-1].server.instances
    assert [(view.url, view.state) for view in shown] == [(part.url, "stopped") for part in parts]
    assert len({view.pid for view in shown}) == 2
    assert [instance["url"] for instance in result.environment["server_instances"]] == [part.url for part in parts]
    assert result.environment["server_command"] == result.environment["server_instances"][0]["command"]
    assert folded(run.folder / "journal.jsonl") == result
    assert {"server-0.log", "server-1.log"} <= {path.name for path in files(run.folder)}


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_shares_are_as_even_as_they_can_be() -> None:
    stages = [
        {"concurrency": 5, "requests": 21},
        {"concurrency": 1, "requests": 6},  # one stream cannot be on two servers
        {"rate": 100.0, "arrival": "constant", "requests": 31},
    ]
    result, _ = await outcome(twins(load={"workers": 3, "requests": None}, stages=stages))
    shares = [[part.requests.completed for part in stage.instances] for stage in result.stages]
    assert shares == [[11, 10], [6, 0], [16, 15]]
    assert result.client.workers == 4  # as many for each: three become four


async def test_a_server_without_workers_is_not_left_out_silently() -> None:
    def kill_one(_: Run) -> None:
        processes_of_ours("loadgen.worker")[0].kill()

    result, run = await outcome(twins(load=ENDLESS), once(flowing, kill_one))
    assert isinstance(run.error, WorkerError)
    assert "all workers of an instance are gone" in result.reason
    assert left_behind() == []


async def test_too_few_devices_are_refused_before_a_folder_is_claimed(tmp_path: Path) -> None:
    server = {"engine": "vllm", "model": "m", "platform": "cuda", "instances": 2, "env": {"CUDA_VISIBLE_DEVICES": "3"}}
    with pytest.raises(ProfileError, match="they take 2 devices"):
        run_of(profile(server))
    assert files(tmp_path) == []


async def test_servers_that_differ_are_refused() -> None:
    parts = profile(MANAGED)
    with simulator() as first, simulator("--max-model-len", "4096") as shorter, simulator() as broken:
        async with ServerClient(first.url) as client:
            served = await identify(client, None, parts.load, [])
            accepted = await probe(client, served, parts.load)
        async with ServerClient(shorter.url) as client:
            with pytest.raises(ServerError, match="max_model_len is 4096, but 8192 on http"):
                await probe_twin(client, served, accepted, parts.load, [])
        await asyncio.to_thread(broken.faults, "http_503")
        async with ServerClient(broken.url) as client:
            with pytest.raises(ServerError, match="the first request failed: HTTP 503"):
                await probe_twin(client, served, accepted, parts.load, [])
            await asyncio.to_thread(broken.forget)
            twin = await probe_twin(client, served, accepted, parts.load, [])
        assert broken.url.endswith(f":{twin.address.port}")
