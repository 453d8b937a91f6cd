"""The figures of a start are read from the logs of many versions, and two starts are distinguished by them."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.schema.start import ServerStart
from loadgen.server.vllm.start_figures import read_line, with_cache_config

LOGS = Path(__file__).parent / "logs"


def read(*lines: str) -> ServerStart:
    return reduce(read_line, lines, ServerStart())


def read_log(name: str) -> ServerStart:
    return read(*(LOGS / name).read_text().splitlines())


def test_vllm_0_32_with_two_gpus() -> None:
    start = read_log("cuda_0.32_tp2.log")
    assert (start.kv_cache_tokens, start.kv_cache_gib, start.full_length_streams) == (1_949_520, 37.18, 29.75)
    assert (start.weights_gib, start.weights_s, start.graphs_gib, start.graphs_s) == (12.66, 7.10753, 0.49, 6.0)
    assert (start.compile_s, start.engine_s, start.version) == (57.46, 82.71, "0.32.0")


def test_vllm_0_10_on_eight_amd_gpus_keeps_the_least_memory_and_the_slowest_worker() -> None:
    start = read_log("rocm_0.10_tp8.log")
    assert (start.kv_cache_tokens, start.kv_cache_gib, start.max_length_tokens) == (4_017_504, 150.31, 32_768)
    assert (start.weights_s, start.graphs_s) == (87.812345, 27.0)


def test_vllm_0_6_counts_blocks() -> None:
    start = read_log("cuda_0.6_v0.log")
    assert (start.kv_cache_blocks, start.kv_cache_tokens) == (62_689, None)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("INFO [rocm.py:200] Using Triton Attention backend on V1 engine.", "attention", ("Triton Attention",)),
        ("INFO [rocm.py:200] Using Triton Attention backend.", "attention", ("Triton",)),
        ("INFO Using Flash Attention backend on V1 engine.", "attention", ("Flash Attention",)),
        ("INFO Using FLASH_ATTN backend on V1 engine.", "attention", ("FLASH_ATTN",)),
        ("INFO Using FLASH_ATTN attention backend out of potential backends: (..)", "attention", ("FLASH_ATTN",)),
        ("INFO Using ROCM_AITER_FA backend out of potential backends", "attention", ("ROCM_AITER_FA",)),
        ("INFO Using FLASHINFER backend (selected via --attention-backend).", "attention", ("FLASHINFER",)),
        ("INFO Using CPU_MLA backend.", "attention", ("CPU_MLA",)),
        ("INFO Using AiterExperts MoE backend", "moe", ("AiterExperts",)),
        ("INFO Using TRTLLM MLA prefill backend", "attention", ("TRTLLM",)),
        ("WARNING Found incompatible backend(s) X for y. Overriding with TRITON_ATTN", "attention", ("TRITON_ATTN",)),
        ("INFO Using 'AITER' Mxfp4 MoE backend", "moe", ("AITER Mxfp4",)),
        ("INFO Using DEEPGEMM for MXFP4 GEMM", "gemm", ("DEEPGEMM for MXFP4",)),
        ("INFO Selected Mxfp8EmulationTritonExperts", "emulated", ("Mxfp8EmulationTritonExperts",)),
        ("INFO Directly load the compiled graph(s) for dynamic shape from the cache", "compile_cache_hit", True),
        ("INFO GPU + host KV cache size: 1,000 tokens, Maximum concurrency", "kv_cache_tokens", 1000),
    ],
)  # fmt: skip
def test_a_line_gives_its_figure(line: str, field: str, value: object) -> None:
    assert getattr(read(line), field) == value


def test_a_second_attention_backend_is_the_drafters() -> None:
    backends = ("ROCM_AITER_FA", "TRITON_ATTN")
    start = read(*(f"Using {name} backend out of potential backends" for name in backends))
    assert start.attention == backends


@pytest.mark.parametrize(
    "line",
    [
        "Verwendung von KV-Cache: 1 000 Token",
        "Available KV cache memory: 1.2.3 GiB",
        "LLM engine (v0.32.0) with config: quantization=None, kv_cache_dtype=auto"[:40],
        "the client is using FLASH backend",
        "INFO Using Flash Attention backend for ViT model.",
        "Encoder Graph capturing finished in 3 secs, took 1.00 GiB",
    ],
)
def test_another_line_gives_nothing(line: str) -> None:
    assert msgspec.structs.replace(read(line), version=None) == ServerStart()


def test_the_metric_adds_what_the_log_does_not_say() -> None:
    labels = {"num_gpu_blocks": "1000", "block_size": "16", "cache_dtype": "fp8"}
    start = with_cache_config(ServerStart(), labels)
    assert (start.kv_cache_tokens, start.kv_block_tokens, start.kv_cache_dtype) == (16_000, 16, "fp8")
    assert with_cache_config(ServerStart(kv_cache_tokens=15_990), labels).kv_cache_tokens == 15_990


@pytest.mark.parametrize("labels", [{}, {"num_gpu_blocks": "None", "block_size": "16"}, {"num_gpu_blocks": "9" * 40}])
def test_the_metric_without_figures_adds_nothing(labels: dict[str, str]) -> None:
    assert with_cache_config(ServerStart(), labels).kv_cache_tokens is None


@given(st.lists(st.text(), max_size=5))
def test_any_log_is_read(lines: list[str]) -> None:
    read(*lines)
