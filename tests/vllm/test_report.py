"""vLLM's own benchmark and vramp against the same engine: one script reads the files of both."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from loadgen.report.vllm_json import vllm_documents
from tests.report.test_vllm_json import consumed
from tests.vllm.engine import CACHE, VLLM, attach, finish

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

LOAD = {
    "model": "tiny",
    "tokenizer": str(CACHE / "tiny-llama"),
    "dataset-name": "random",
    "random-input-len": 256,
    "random-output-len": 64,
    "num-prompts": 32,
    "max-concurrency": 4,
    "percentile-metrics": "ttft,tpot,itl,e2el",
    "metric-percentiles": "90,95,99,99.9",
    "seed": 1,
}
"""What `attach` asks for, in the words of vLLM."""
ONLY_OURS = {"benchmark_start_time_unix", "benchmark_end_time_unix", "vramp"}
SPECULATIVE = "spec_decode"


async def vllm_bench(url: str, folder: Path) -> dict[str, Any]:
    """The file that `vllm bench serve --save-result` leaves."""
    options = [word for name, value in LOAD.items() for word in (f"--{name}", str(value))]
    where = ["--base-url", url, "--result-dir", str(folder), "--result-filename", "theirs.json"]
    process = await asyncio.create_subprocess_exec(
        *(str(VLLM), "bench", "serve", *where, *options, "--ignore-eos", "--save-result", "--disable-tqdm"),
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-3000:]
    document: dict[str, Any] = json.loads((folder / "theirs.json").read_text())
    return document


async def test_both_files_are_of_one_kind(url: str, tmp_path: Path) -> None:
    theirs = await vllm_bench(url, tmp_path)
    result = await finish(attach(url, concurrency=[4], requests=32, first_wave="counted"))
    (ours,) = vllm_documents(result)
    if result.stages[0].latency_ms["tpot"].p50 == 0:
        # On few cores the engine can keep the client from running until whole streams lie ready. Consumers divide by
        # each TPOT, so ours leaves out one of 0.
        theirs = {key: value for key, value in theirs.items() if key in ours or "tpot" not in key}
    keys = [key for key in theirs if not key.startswith(SPECULATIVE)]
    assert [key for key in ours if key not in ONLY_OURS] == keys
    for key in keys:
        # Theirs names a label or tokenizer where ours knows none.
        if ours[key] is not None and theirs[key] is not None:
            numbers = isinstance(ours[key], int | float) and isinstance(theirs[key], int | float)
            assert numbers or type(ours[key]) is type(theirs[key]), key
    for key in ("backend", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency", "completed"):
        assert ours[key] == theirs[key], key
    assert ours["total_output_tokens"] == theirs["total_output_tokens"] == 32 * 64
    assert len(ours["latencies"]) == len(theirs["latencies"]) == 32
    left, right = consumed(ours), consumed(theirs)
    assert left.keys() == right.keys()
    # Printed, not asserted: two cores are shared by engine and client.
    printed = ("output_tput_per_gpu", "mean_ttft", "median_ttft", "mean_tpot", "median_tpot", "mean_e2el")
    for key in (key for key in printed if key in left):
        print(f"{key}: vramp {left[key]:.4g}, vllm bench {right[key]:.4g}")
