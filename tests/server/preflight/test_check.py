"""The preflight as a whole: its parts come together, the worst first, and nothing ends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ServerError
from loadgen.plan.from_profile import stages_of
from loadgen.profile.document import build_profile
from loadgen.schema.finding import Finding, Skipped
from loadgen.server.preflight.check import blocked_words, check_profile, image_environment
from loadgen.server.preflight.facts import Box
from loadgen.vendors import Platform, platform_here
from tests.scripts import executable
from tests.server.gpu_trees import add_amd_gpu, add_process, write
from tests.server.preflight.boxes import check, healthy_box, ids, only, profile_of
from tests.server.vllm.test_installation import FakeEnvironment


async def findings(recorded: str | None = None, **server: Any) -> list[Finding]:
    profile = build_profile({"server": server}, where="test")
    return await check_profile(profile, stages_of(profile), recorded=recorded)


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


async def test_the_program_that_is_started_is_the_one_that_is_asked(tmp_path: Path) -> None:
    environment = FakeEnvironment(tmp_path / "env")
    environment.executable("vllm", f"#!{environment.python}\n")
    found = await findings(**OLD, env={"PATH": str(environment.folder / "bin")})
    assert named(found)["unknown-flag"] == "blocks"
    assert environment.requested() == 1


async def test_a_model_that_cannot_be_looked_at_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "docker").touch(mode=0o755)
    container = {"image": "vllm:1", "executable": str(tmp_path / "docker")}
    unreadable = f"/{'m' * 300}"  # too long for a name: root may enter any folder
    found = await findings(**OLD | {"engine": "docker", "docker": container, "model": unreadable})
    assert named(found)["unknown-flag"] == "warns"


async def test_a_container_is_judged_by_the_record(tmp_path: Path) -> None:
    (tmp_path / "docker").touch(mode=0o755)
    container = {"image": "vllm:1", "executable": str(tmp_path / "docker"), "ipc": "host"}
    found = await findings(**OLD | {"engine": "docker", "docker": container})
    assert named(found)["unknown-flag"] == "warns"
    assert found == sorted(found, key=lambda finding: ("blocks", "warns", "info").index(finding.severity))


@pytest.mark.parametrize(
    ("script", "variables"),
    [
        ("""echo '["A=1","B=x=y","C="]'""", {"A": "1", "B": "x=y", "C": ""}),
        ("echo null", {}),
        ("echo 'Error: No such image' >&2; exit 1", None),
        ("echo '{half'", None),
    ],
)
def test_an_image_says_what_its_containers_will_see(
    tmp_path: Path, script: str, variables: dict[str, str] | None
) -> None:
    docker = executable(tmp_path / "docker", f"#!/bin/sh\n[ \"$1 $2\" = 'image inspect' ] || exit 2\n{script}\n")
    container = {"image": "vllm:1", "executable": str(docker)}
    server = build_profile({"server": OLD | {"engine": "docker", "docker": container}}, where="test").server
    assert image_environment(server) == variables


def test_without_a_container_or_its_program_there_is_no_image() -> None:
    container = {"image": "vllm:1", "executable": "/no/such/docker"}
    assert image_environment(build_profile({"server": OLD}, where="test").server) is None
    server = build_profile({"server": OLD | {"engine": "docker", "docker": container}}, where="test").server
    assert image_environment(server) is None


async def test_servers_without_flags_of_vllm_are_not_judged_by_them() -> None:
    assert "unknown-flag" not in named(await findings(engine="simulator", args={"swap-space": 16}))
    assert set(named(await findings("0.32.0", engine="attach", url="http://127.0.0.1:1"))) == {"not-checked"}


@pytest.mark.parametrize("platform", ["rocm", "cpu"])
def test_a_healthy_box_has_nothing_against_a_run(tmp_path: Path, platform: Platform) -> None:
    add_amd_gpu(tmp_path / "sys", 0, 5, used=300 * 1024**2)
    assert check(healthy_box(tmp_path), profile_of(tmp_path), platform) == []


def sick_box(tmp_path: Path) -> Box:
    box = healthy_box(tmp_path, open_files=10, clock_synchronised=False)
    write(box.proc / "sys/kernel/numa_balancing", "1")
    write(box.sys / "kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
    write(box.sys / "devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave")
    add_process(box.proc, 50, "VLLM::EngineCore")
    return box


CLIENT = ["open-files", "cpu-governor", "clock-unsynchronised"]


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ({"engine": "attach", "url": "http://127.0.0.1:1", "model": "m"}, CLIENT),
        ({"engine": "simulator", "model": "m"}, CLIENT),  # it needs no GPU
        ({}, ["not-checked", "leftover-server", "numa-balancing", "huge-pages", *CLIENT]),
    ],
)
def test_each_engine_gets_the_checks_that_concern_it(
    tmp_path: Path, server: dict[str, Any], expected: list[str]
) -> None:
    assert ids(sick_box(tmp_path), profile_of(tmp_path, **server), "rocm") == expected


def test_what_cannot_be_read_is_said_and_the_other_checks_go_on(tmp_path: Path) -> None:
    box = sick_box(tmp_path)
    numa = box.proc / "sys/kernel/numa_balancing"
    numa.unlink()
    numa.mkdir()
    findings = check(box, profile_of(tmp_path))
    (unread,) = [finding for finding in findings if finding.id == "not-checked"]
    assert (unread.severity, unread.seen) == ("info", "numa-balancing: could not be checked")
    assert unread.why == f"{numa}: Is a directory"
    assert unread.skipped == (Skipped("numa-balancing", unread.why),)
    assert {finding.id for finding in findings} > set(CLIENT)


def test_an_argument_that_is_no_number_is_no_traceback(tmp_path: Path) -> None:
    findings = check(healthy_box(tmp_path), profile_of(tmp_path, args={"tensor-parallel-size": "many"}))
    assert [finding.id for finding in findings] == ["not-checked"]
    assert findings[0].seen.startswith("shared-memory, gpu-memory, ")
    assert "server.args.tensor-parallel-size = 'many'" in findings[0].why


def test_a_box_without_gpu_counters_says_why(tmp_path: Path) -> None:
    finding = only(healthy_box(tmp_path), profile_of(tmp_path), "cuda")
    assert finding.id == "not-checked"
    assert finding.why == "libnvidia-ml.so.1 was not found"


@pytest.mark.parametrize(
    ("devices", "platform"),
    [
        (["kfd"], "rocm"),
        (["nvidia0", "nvidiactl"], "cuda"),
        (["kfd", "nvidia7"], "cuda"),
        (["dxg"], "cuda"),
        (["nvidiactl"], "cpu"),
        ([], "cpu"),
    ],
)
def test_the_platform_is_what_the_devices_say(tmp_path: Path, devices: list[str], platform: Platform) -> None:
    for name in devices:
        write(tmp_path / name, "")
    assert platform_here(tmp_path) == platform


def test_this_machine_can_be_checked(tmp_path: Path) -> None:
    box = Box()
    assert box.open_files > 0
    assert box.clock_synchronised in (True, False, None)
    profile = profile_of(tmp_path)
    for platform in ("cpu", platform_here(box.dev)):
        assert all(finding.seen and finding.why for finding in check(box, profile, platform))


@pytest.mark.parametrize(
    ("system", "seen"),
    [
        ({}, None),
        ({"requests": 80}, None),
        ({"requests": 1000}, "requests 80, not 1,000"),
        ({"image": "rocm/vllm:1"}, "image no container, not rocm/vllm:1"),
        ({"gpu": "MI300X", "gpus": 8, "version": "0.6.2"}, None),  # nothing is known of these here
    ],
)
def test_only_what_is_known_to_differ_is_named(tmp_path: Path, system: dict[str, object], seen: str | None) -> None:
    box = healthy_box(tmp_path)
    given = [f"reference.system.{key}={value!r}".replace("'", '"') for key, value in system.items()]
    profile = profile_of(tmp_path, 'reference.source="a publication"', "load.requests=80", *given)
    found = [finding.seen for finding in check(box, profile) if finding.id == "unlike-publication"]
    assert found == ([seen] if seen else [])
