"""Starts of the real vLLM, compared: the KV cache that one says it has, and another size of it with the same flags."""

import msgspec
import pytest

from loadgen.places import cache_folder
from loadgen.profile.document import build_profile, load_document
from loadgen.profile.schema import Profile
from loadgen.report.compare import compare_runs
from loadgen.schema.start import ServerStart
from loadgen.server.vllm.startup import last_start, remember_start, start_key
from tests.vllm.engine import HERE, PROFILE, finish

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
_SPACE = "VLLM_CPU_KVCACHE_SPACE"
TWO_GIB_TOKENS = 4_194_304  # of the tiny model, as vLLM says


def without_a_size() -> Profile:
    """The shipped profile, with the size of the KV cache left to the environment that vramp runs in."""
    document = load_document(PROFILE)
    del document["server"]["env"][_SPACE]
    load = ["load.concurrency=1", "load.duration=2s", "load.warmup=0", "canary.enabled=false"]
    return build_profile(document, where="test", overrides=[*HERE, *load])


async def test_the_same_flags_in_another_environment_are_another_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """One real start of 1 GiB, after one of 2 GiB of which vramp kept the line."""
    profile = without_a_size()
    folder, key = cache_folder("starts"), start_key(profile)
    two = ServerStart(version="0.32.0", kv_cache_tokens=TWO_GIB_TOKENS, kv_block_tokens=128, max_length_tokens=8192)
    assert remember_start(folder, key, two) is None
    monkeypatch.setenv(_SPACE, "1")
    result = await finish(profile)
    assert result.server is not None
    start = result.server.start
    assert start.kv_cache_tokens == TWO_GIB_TOKENS // 2
    (difference,) = result.server.differences
    assert difference.words == f"KV cache {TWO_GIB_TOKENS:,} tokens before, {TWO_GIB_TOKENS // 2:,} tokens now"
    (verdict,) = (verdict for verdict in result.verdicts if verdict.id == "other-start")
    assert verdict.bad and difference.words in verdict.text
    kept = last_start(folder, key)
    assert kept is not None
    assert (kept.kv_cache_tokens, kept.attention) == (start.kv_cache_tokens, start.attention)
    larger = msgspec.structs.replace(start, kv_cache_tokens=TWO_GIB_TOKENS)
    before = msgspec.structs.replace(result, server=msgspec.structs.replace(result.server, start=larger))
    named = [
        setting for setting in compare_runs(("A", before), ("B", result)).configuration if setting.key == "KV cache"
    ]
    assert len(named) == 1
    assert compare_runs(("B", result), ("B", result)).configuration == []
