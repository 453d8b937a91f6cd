"""A run that really took place, for the reports on it."""

import asyncio
import json
import os
from pathlib import Path

import msgspec
import pytest

from loadgen.run.operations import Note
from loadgen.schema.result import Result
from tests.engines import MANAGED, profile
from tests.run.driving import finish, run_of

REFERENCE = {
    "source": "a publication",
    "notes": ["measured on another box"],
    "points": [
        {"concurrency": 2, "figures": {"ttft_p50_ms": 40.0, "output_tokens_per_s": 500.0}},
        {"concurrency": 2, "figures": {"e2e_p50_ms": 90.0, "total_tokens_per_s": 1500.0}},
    ],
}


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Two stages on a simulator with GPUs, one of which misses a limit, and a note."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("measured"))
    try:
        run = run_of(
            profile(
                MANAGED,
                telemetry="sim",
                load={"concurrency": [2, 4], "requests": 40},
                slo={"ttft_p99": "0.001ms", "tpot_p99": "100s", "tpot": "100s"},
                reference=REFERENCE,
            )
        )
        run.apply(Note("the fan is loud"))
        return asyncio.run(finish(run))
    finally:
        os.chdir(before)


EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>|[x](javascript:x)`\x1b[2J\u202e"


@pytest.fixture(scope="session")
def hostile(measured: Result) -> Result:
    """The same run, every text of which that comes from outside means harm."""
    document = json.loads(msgspec.json.encode(measured))
    document["environment"] |= {"model": EVIL, "host": EVIL, EVIL: EVIL, "server_command": ["vllm", EVIL, "--x", EVIL]}
    document["environment"]["server_env"] = {"A": EVIL}
    document["profile"]["description"] = EVIL
    document["telemetry_meta"] = {EVIL: EVIL}
    document["events"] += [{"t_s": 1.0, "kind": "note", "text": EVIL}, {"t_s": 2.0, "kind": "error", "text": EVIL}]
    document["findings"] = [{"id": EVIL, "severity": "warns", "seen": EVIL, "why": EVIL, "fix": EVIL}]
    document["diagnosis"] = {"cause": EVIL, "title": EVIL, "evidence": [EVIL], "remedy": EVIL}
    document["reference"] |= {"source": EVIL, "notes": [EVIL]}
    document["verdicts"] = [{"id": "throttled", "subject": EVIL, "text": EVIL}]
    document["reason"] = EVIL
    answer = {"name": EVIL, "instance": 0, "text": EVIL}
    document["canary"] = {"method": None, "answers": [answer], "unchecked": [EVIL]}
    document["state"] = "failed"
    document["client"] |= {"limited": True, "why": EVIL}
    for comparison in document["reference"]["comparisons"]:
        comparison["of"] = EVIL
    for gpu in document["gpus"]:
        gpu["name"] = EVIL
    for number, stage in enumerate(document["stages"]):
        stage |= {"label": f"{EVIL}{number}", "inconclusive": EVIL, "why": EVIL, "limited": True}
        stage["compute"] = {"tflops_per_gpu": 1.0, "why": f"no peak is known of {EVIL}"}
        stage["requests"] |= {"failed": 3, "errors": {EVIL: 3}, "messages": {EVIL: [EVIL]}}
        stage["verdicts"] = [{"id": "queueing", "subject": EVIL, "text": EVIL}]
    return msgspec.convert(document, Result)
