"""Sessions on a real vLLM with prefix caching: its hits are the computed ones, down to the size of its blocks."""

from pathlib import Path
from typing import Any

import pytest

from loadgen.server.supervisor import ManagedServer
from tests.vllm.engine import attach, finish, here

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

SESSIONS = {"data": "generated", "scale": 0.01, "max_gap": 0.5, "max_context": 3000, "start": "beginning"}
REQUESTS = 60


async def test_hits_are_the_computed_ones(tmp_path: Path) -> None:
    server = here("server.args.enable-prompt-tokens-details=true").server
    async with ManagedServer(server, log_path=tmp_path / "server.log") as managed:
        await managed.wait_ready()
        load: dict[str, Any] = {"concurrency": [4], "requests": REQUESTS, "sessions": SESSIONS}
        (stage,) = (await finish(attach(managed.base_url, **load))).stages
    assert (stage.requests.completed, stage.requests.failed) == (REQUESTS, 0)
    hits, engine = stage.hits, stage.engine
    assert hits is not None and hits.measured is not None and hits.infinite is not None
    assert engine is not None and stage.tokens.input is not None
    by_source = engine.prompt_tokens_by_source
    cached = by_source.get("local_cache_hit", 0)
    assert cached == round(hits.measured * stage.tokens.input)
    # A hit is of whole blocks: at most one block of each prompt less than what it shares with earlier ones.
    lost = hits.infinite * stage.tokens.input - cached
    assert -REQUESTS <= lost <= REQUESTS * 128
    assert hits.measured > 0.5
