"""Model FLOPs utilization (MFU) and the share of HBM bandwidth: what the engine reports, against its GPUs' peaks.

The engine estimates its operations from the model's shapes; vLLM does with `--enable-mfu-metrics`. The peak is the data
sheet's, dense, in the precision that the server's command states. If either is unknown there is no share, and the
reason is given: the wrong precision would be off by a factor of two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from loadgen.parts import Part, part_called
from loadgen.schema.engine import EngineSpan
from loadgen.schema.hardware_result import ComputeResult
from loadgen.schema.samples import GpuStatic
from loadgen.vendors import is_partition

_SIXTEEN_BIT = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}  # both have the same peak on all GPUs here
_FP8_QUANTIZATIONS = ("fp8", "fbgemm_fp8", "ptpc_fp8")
# vLLM takes the quantization from the configuration of such a model, whatever the command says.
_QUANTIZED_MODEL = re.compile(r"fp8|fp4|int8|int4|w[48]a|awq|gptq", re.IGNORECASE)


def compute_of(engine: EngineSpan, command: Sequence[str] | None, gpus: Sequence[GpuStatic]) -> ComputeResult | None:
    """What each of these GPUs computed for the server with this command; None if the engine does not report it."""
    if engine.tflops_per_gpu is None:
        return None
    found = ComputeResult(tflops_per_gpu=engine.tflops_per_gpu, hbm_bytes_per_s=engine.hbm_bytes_per_s)
    with suppress(_UnknownError):  # which is why there is no MFU either
        used, hbm_peak = engine.hbm_bytes_per_s, 1e9 * _part_of(gpus).hbm_gb_per_s
        hbm_percent = None if used is None else 100 * used / hbm_peak
        found = replace(found, peak_hbm_bytes_per_s=hbm_peak, hbm_bandwidth_percent=hbm_percent)
    try:
        precision, part = _precision(command), _part_of(gpus)
        peak_tflops = part.fp8 if precision == "fp8" else part.sixteen_bit
        if peak_tflops is None:
            raise _UnknownError(f"{gpus[0].name} has no matrix cores for {precision}")
    except _UnknownError as unknown:
        return replace(found, why=str(unknown))
    percent = 100 * found.tflops_per_gpu / peak_tflops
    return replace(found, precision=precision, peak_tflops=peak_tflops, mfu_percent=percent)


class _UnknownError(Exception):
    """Why MFU is unknown."""


def _precision(command: Sequence[str] | None) -> str:
    """The precision of the server's matrix multiplications, as stated by its command."""
    if command is None:
        raise _UnknownError("vramp did not start this server and does not know its precision")
    flags = flags_of(command)
    quantization, dtype = flags.get("quantization"), flags.get("dtype", "auto")
    if quantization in _FP8_QUANTIZATIONS:
        return "fp8"
    if quantization is not None:
        raise _UnknownError(f"the precision in which {quantization} computes is not known")
    after_serve = command[command.index("serve") + 1 :] if "serve" in command else []
    model = flags.get("model") or next(iter(after_serve), "")
    if _QUANTIZED_MODEL.search(model):
        raise _UnknownError(f"{model} is quantized, and the server's command does not say how: set quantization")
    if dtype not in _SIXTEEN_BIT:
        raise _UnknownError("the server's command does not state its precision: set server.args.dtype or quantization")
    return _SIXTEEN_BIT[dtype]


def _part_of(gpus: Sequence[GpuStatic]) -> Part:
    names = {gpu.name for gpu in gpus}
    if len(names) != 1:
        raise _UnknownError(f"the box has GPUs of {len(names)} kinds" if names else "no GPU is measured")
    if any(is_partition(gpu.compute_partition) for gpu in gpus):
        raise _UnknownError("these devices are partitions of a GPU, whose peak is not known")
    (name,) = names
    known = part_called(name)
    if known is None:
        raise _UnknownError(f"no peak is known of {name}")
    return known


def flags_of(command: Sequence[str]) -> dict[str, str]:
    """`--max-num-seqs 8 --async-scheduling` as a mapping; words without a flag are ignored."""
    flags: dict[str, str] = {}
    name = ""
    for word in command:
        if word.startswith("--"):
            name, _, value = word.removeprefix("--").partition("=")
            flags[name] = value
        elif name:
            flags[name] = f"{flags[name]} {word}".strip()
    return flags
