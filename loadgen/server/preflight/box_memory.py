"""Check of the GPUs' memory: what is in use before the start, by whom, and whether the rest suffices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loadgen.metrics.journal import Finding
from loadgen.server.preflight.box import Box, Setup, command_of, gib, shown_command
from loadgen.server.preflight.flags import normal_args
from loadgen.server.process.gpu_memory import GpuMemory, Holder
from loadgen.server.vllm.command import devices_each

_IDLE_SHARE = 0.05  # of a GPU's memory: an idle driver takes less
_UTILIZATION = 0.9  # vLLM's default of gpu-memory-utilization; later versions ask for a little more
_SHOWN_HOLDERS = 3
_RENUMBERING = {"rocm": ("ROCR_VISIBLE_DEVICES",)}
_VISIBLE = {"rocm": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), "cuda": ("CUDA_VISIBLE_DEVICES",)}


def gpu_memory(setup: Setup) -> Iterator[Finding]:
    """GPUs of the server that are in use already."""
    needed = devices_each(setup.server.args) * setup.server.instances
    chosen = _chosen(setup, needed)
    meant = [gpu for gpu in setup.gpus if chosen is None or gpu.index in chosen]
    share = _utilization(setup)
    full = [gpu for gpu in meant if gpu.total_bytes - gpu.used_bytes < share * gpu.total_bytes]
    if full and len(meant) - len(full) < (needed if chosen is None else len(meant)):
        yield Finding(
            "gpu-memory-taken",
            "blocks",
            "; ".join(_shown(setup.box, gpu) for gpu in full),
            f"vLLM takes {share:g} of a GPU's memory, and refuses to start where less is free",
            "end those processes, choose other GPUs, or lower gpu-memory-utilization",
        )
        meant = [gpu for gpu in meant if gpu not in full]
    used = [gpu for gpu in meant if gpu.used_bytes > _IDLE_SHARE * gpu.total_bytes]
    if used:
        yield Finding(
            "gpu-memory-used",
            "warns",
            "; ".join(_shown(setup.box, gpu) for gpu in used),
            "somebody else computes there, or left memory behind: it costs room for the KV cache, and maybe speed",
            "end those processes, or choose other GPUs",
        )


def _shown(box: Box, gpu: GpuMemory) -> str:
    held = [_holder(box, holder) for holder in gpu.holders[:_SHOWN_HOLDERS]]
    more = len(gpu.holders) - len(held)
    names = ", ".join([*held, *([f"{more} more"] if more else [])]) or "nobody who can be seen"
    return f"GPU {gpu.index} ({gpu.name}): {gib(gpu.used_bytes)} of {gib(gpu.total_bytes)} in use by {names}"


def _holder(box: Box, holder: Holder) -> str:
    # Without a name the pid is another namespace's, and ours of that number is somebody else.
    words = command_of(box, holder.pid) if holder.name else []
    return f"pid {holder.pid} ({shown_command(words)})" if words else str(holder)


def _utilization(setup: Setup) -> float:
    value = normal_args(setup.server.args).get("gpu-memory-utilization", _UTILIZATION)
    try:
        return float(value)
    except (TypeError, ValueError):
        return _UTILIZATION  # vLLM says what is wrong with it


def _chosen(setup: Setup, needed: int) -> set[int] | None:
    """The GPUs that the server will take; None if that cannot be told."""
    docker = setup.server.docker
    if any(gpu.devices > 1 for gpu in setup.gpus) or (docker is not None and docker.gpus not in (None, "all")):
        return None
    if docker is not None and any("renderD" in device for device in docker.devices):
        return None
    visible: list[int] | None = sorted(gpu.index for gpu in setup.gpus)
    for names in (_RENUMBERING.get(setup.platform, ()), _VISIBLE.get(setup.platform, ())):
        visible = _narrowed(visible, names, setup.environment)
    return None if visible is None else set(visible[:needed])


def _narrowed(visible: list[int] | None, names: Sequence[str], environment: Mapping[str, str]) -> list[int] | None:
    """What the first variable that is set leaves of the devices, in its order; None if it uses other names for them."""
    listed = next((environment[name] for name in names if environment.get(name)), None)
    if listed is None or visible is None:
        return visible
    positions = [word.strip() for word in listed.split(",")]
    if not all(word.isdecimal() and int(word) < len(visible) for word in positions):
        return None
    return [visible[int(word)] for word in positions]
