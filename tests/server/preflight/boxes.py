"""A fake box that has nothing against any run, and the checks of it."""

from pathlib import Path
from typing import Any

from loadgen.metrics.journal import Finding
from loadgen.plan.from_profile import stages_of
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.server.preflight.check import look_at_box
from loadgen.server.preflight.facts import Box
from loadgen.vendors import Platform
from tests.server.gpu_trees import initial_namespace, write


def healthy_box(tmp_path: Path, **fields: Any) -> Box:
    """All that a check may look at is there, and as it should be."""
    proc, sys, dev = tmp_path / "proc", tmp_path / "sys", tmp_path / "dev"
    initial_namespace(proc)
    write(proc / "sys/kernel/numa_balancing", "0")
    write(sys / "kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    for cpu in range(2):
        write(sys / f"devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", "performance")
    for name in ("kfd", "dri/renderD128", "nvidia0", "shm/x"):
        write(dev / name, "")
    home = tmp_path / "home"
    home.mkdir()
    normal: dict[str, Any] = {
        "open_files": (65536, 65536),
        "clock_synchronised": True,
        "environ": {"PATH": str(tmp_path / "bin")},
    }
    return Box(root=tmp_path, home=home, **(normal | fields))


def profile_of(tmp_path: Path, *overrides: str, **server: Any) -> Profile:
    """A profile of a vLLM whose model is a folder, unless told otherwise."""
    model = tmp_path / "model"
    write(model / "config.json", "{}")
    defaults: dict[str, Any] = {"engine": "vllm", "model": str(model)}
    return build_profile({"name": "p", "server": defaults | server}, where="p.toml", overrides=overrides)


def check(box: Box, profile: Profile, platform: Platform = "cpu") -> list[Finding]:
    return look_at_box(profile, stages_of(profile), box, platform)[1]


def only(box: Box, profile: Profile, platform: Platform = "cpu") -> Finding:
    """The one finding that there is."""
    (finding,) = check(box, profile, platform)
    return finding


def ids(box: Box, profile: Profile, platform: Platform = "cpu") -> list[str]:
    return [finding.id for finding in check(box, profile, platform)]
