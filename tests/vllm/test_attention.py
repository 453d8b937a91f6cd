"""The table of attention backends against the selector of the installed vLLM, which runs without a GPU."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from loadgen.server.preflight.attention import attention_backend
from loadgen.server.preflight.facts import Facts, ModelFacts
from loadgen.server.vllm.installation import python_of
from tests.vllm.engine import VLLM

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

CLASSES = {
    "RocmAttentionBackend": "ROCM_ATTN",
    "AiterFlashAttentionBackend": "ROCM_AITER_FA",
    "RocmAiterUnifiedAttentionBackend": "ROCM_AITER_UNIFIED_ATTN",
}


def test_the_engine_chooses_what_the_table_says(tmp_path: Path) -> None:
    python = python_of(str(VLLM))
    assert python is not None
    command = [python, Path(__file__).with_name("selector.py"), tmp_path]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    result = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=True)
    lines = [line.removeprefix("selected ") for line in result.stdout.splitlines() if line.startswith("selected ")]
    assert len(lines) == 48
    for answer in map(json.loads, lines):
        args: dict[str, object] = {"kv-transfer-config": {}} if answer["connector"] else {}
        model = ModelFacts(64, 8, attention_sinks=answer["sinks"])
        facts = Facts(vllm="0.32.0", model=model, env=answer["env"], args=args)
        assert attention_backend(facts) == CLASSES[answer["backend"]], answer
