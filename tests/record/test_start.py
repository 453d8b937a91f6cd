"""Two starts with the same flags are distinguished by what matters, and by nothing else."""

from __future__ import annotations

import msgspec
import pytest

from loadgen.record.start import differences, start_verdicts
from loadgen.schema.start import ServerStart

FULL = ServerStart(kv_cache_tokens=100_000, attention=("ROCM_AITER_FA",), total_s=60.0, compile_cache_hit=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_cache_tokens": 96_000}, "KV cache 100,000 tokens 96,000 tokens"),
        ({"attention": ("TRITON_ATTN",)}, "attention backend ROCM_AITER_FA TRITON_ATTN"),
        ({"total_s": 180.0, "compile_cache_hit": None}, "start 60 s 180 s without a compile cache"),
    ],
)
def test_two_starts_differ_in(changes: dict[str, object], words: str) -> None:
    found = differences(FULL, msgspec.structs.replace(FULL, **changes))
    assert [f"{one.what} {one.before} {one.now}" for one in found] == [words]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_cache_tokens": 98_000},
        {"kv_cache_tokens": None},
        {"attention": ()},
        {"total_s": 80.0},
        {"weights_s": 9.0},
    ],
)
def test_two_starts_that_are_alike_are_not_distinguished(changes: dict[str, object]) -> None:
    assert differences(FULL, msgspec.structs.replace(FULL, **changes)) == []


def test_the_verdict_names_both_starts() -> None:
    [verdict] = start_verdicts(differences(FULL, msgspec.structs.replace(FULL, kv_cache_tokens=96_000)))
    assert verdict.bad
    assert verdict.text == "same flags, other start: KV cache 100,000 tokens before, 96,000 tokens now"


@pytest.mark.parametrize("changes", [{"version": "0.33.0", "kv_cache_tokens": 90_000}, {"total_s": 300.0}])
def test_what_another_version_or_time_alone_explains_is_not_bad(changes: dict[str, object]) -> None:
    before = msgspec.structs.replace(FULL, version="0.32.0")
    now = msgspec.structs.replace(before, **changes)
    assert [verdict.bad for verdict in start_verdicts(differences(before, now))] == [False]
