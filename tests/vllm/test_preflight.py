"""The preflight against the real installation, and what a start says that fails in spite of it."""

from pathlib import Path

import pytest

from loadgen.errors import ServerError
from loadgen.plan.from_profile import stages_of
from loadgen.server.preflight.check import check_profile
from loadgen.server.vllm.installation import ask_installation, python_of, recorded_installation
from tests.run.driving import run_of
from tests.vllm.engine import VLLM, engine_processes, here, over

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


async def test_recorded_installation_matches_the_real_one(tmp_path: Path) -> None:
    python = python_of(str(VLLM))
    assert python is not None
    assert await ask_installation(python, cache=tmp_path) == recorded_installation("0.32.0")
    # Once asked, it is not asked again: nothing there could answer.
    assert await ask_installation(python, cache=tmp_path, timeout_s=0) == recorded_installation("0.32.0")


async def test_the_shipped_profile_is_not_blocked() -> None:
    profile = here()
    findings = await check_profile(profile, stages_of(profile))
    assert [finding for finding in findings if finding.severity == "blocks"] == []


async def test_a_flag_that_is_gone_is_reported_before_the_start() -> None:
    run = await over(run_of(here("server.args.num-scheduler-steps=10")))
    assert isinstance(run.error, ServerError)
    assert "unknown-flag" in str(run.error) and "num-scheduler-steps" in str(run.error)
    assert run.result is not None
    assert run.result.findings[0].id == "unknown-flag"
    assert "server_command" not in run.result.environment
    assert engine_processes() == []


@pytest.mark.parametrize(
    ("override", "code", "cause", "words"),
    [
        ("server.args.num-scheduler-steps=10", 2, "unknown-flag", "unrecognized arguments: --num-scheduler-steps"),
        ("server.args.max-model-len=99999999", 1, "max-model-len", "99999999"),
    ],
)
async def test_a_start_against_the_preflight_is_diagnosed(override: str, code: int, cause: str, words: str) -> None:
    run = await over(run_of(here(override), force=True))
    assert f"exit code {code}" in str(run.error)
    assert run.result is not None and run.result.diagnosis is not None
    assert run.result.diagnosis.cause == cause
    assert any(words in line for line in run.result.diagnosis.evidence)
    assert run.result.diagnosis.remedy in str(run.error)
    assert engine_processes() == []
