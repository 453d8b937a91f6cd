"""The preflight as a whole: its parts come together, the worst first, and nothing ends it."""

from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ServerError
from loadgen.metrics.journal import Finding
from loadgen.plan import plan_of
from loadgen.profile import build_profile
from loadgen.server.preflight.check import blocked_words, check_profile


async def findings(recorded: str | None = None, **server: Any) -> list[Finding]:
    profile = build_profile({"server": server}, where="test")
    return await check_profile(profile, plan_of(profile), recorded=recorded)


def named(found: list[Finding]) -> dict[str, str]:
    return {finding.id: finding.severity for finding in found}


OLD: dict[str, Any] = {"engine": "vllm", "model": "m", "platform": "cpu", "args": {"swap-space": 16}}


async def test_against_a_record_no_box_is_looked_at() -> None:
    found = await findings("0.32.0", **OLD)
    assert named(found)["unknown-flag"] == "blocks"
    assert not {"model-not-cached", "clock-unsynchronised", "no-server-program"} & named(found).keys()


async def test_a_version_without_a_record_is_refused() -> None:
    with pytest.raises(ServerError, match=r"there are: 0\.32\.0"):
        await findings("0.1.0", **OLD)


async def test_a_program_that_is_not_there_blocks_and_its_flags_do_not() -> None:
    found = await findings(**OLD, command="/no/such/vllm")
    assert found[0].id == "no-server-program"
    assert found[0].seen == "server.command = '/no/such/vllm': does not exist"
    assert (named(found)["unknown-flag"], named(found)["installation-unknown"]) == ("warns", "info")
    assert blocked_words(found[:1]).splitlines()[1:] == [
        f"  no-server-program: {found[0].seen}",
        f"    -> {found[0].fix}",
    ]


async def test_a_program_that_says_nothing_of_itself_is_judged_by_the_record(tmp_path: Path) -> None:
    (tmp_path / "vllm").touch(mode=0o755)
    found = await findings(**OLD, command=str(tmp_path / "vllm"))
    assert named(found)["unknown-flag"] == "warns"
    assert "no-server-program" not in named(found)


async def test_a_container_is_judged_by_the_record(tmp_path: Path) -> None:
    (tmp_path / "docker").touch(mode=0o755)
    container = {"image": "vllm:1", "executable": str(tmp_path / "docker"), "ipc": "host"}
    found = await findings(**OLD | {"engine": "docker", "docker": container})
    assert named(found)["unknown-flag"] == "warns"
    assert found == sorted(found, key=lambda finding: ("blocks", "warns", "info").index(finding.severity))


async def test_servers_without_flags_of_vllm_are_not_judged_by_them() -> None:
    assert "unknown-flag" not in named(await findings(engine="simulator", args={"swap-space": 16}))
    assert await findings("0.32.0", engine="attach", url="http://127.0.0.1:1") == []
