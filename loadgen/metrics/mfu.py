"""Model FLOPs utilization (MFU): the operations that the engine reports as a share of its GPUs' peak.

The engine estimates its operations from the model's shapes; vLLM does with `--enable-mfu-metrics`. The peak is the data
sheet's, dense, in the precision that the server's command states. If either is unknown there is no share, and the
reason is given: the wrong precision would be off by a factor of two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from loadgen.schema.engine import EngineSpan
from loadgen.schema.hardware_result import ComputeResult
from loadgen.schema.samples import GpuStatic
from loadgen.vendors import is_partition

_SIXTEEN_BIT = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}  # both have the same peak on all GPUs here
_FP8_QUANTIZATIONS = ("fp8", "fbgemm_fp8", "ptpc_fp8")
# vLLM takes the quantization from the configuration of such a model, whatever the command says.
_QUANTIZED_MODEL = re.compile(r"fp8|fp4|int8|int4|w[48]a|awq|gptq", re.IGNORECASE)


class _Peak(NamedTuple):
    """The dense peaks of one GPU in TFLOP/s."""

    name: re.Pattern[str]  # matches the name in the vendor's library
    sixteen_bit: float
    fp8: float | None  # None if its matrix cores have no FP8


def _peak(name: str, sixteen_bit: float, fp8: float | None) -> _Peak:
    return _Peak(re.compile(name), sixteen_bit, fp8)


_PEAKS = (
    # Data sheets of AMD Instinct MI210, MI300X and MI325X, and the MI355X brochure: rows without sparsity.
    _peak(r"\bMI210\b", 181.0, None),
    _peak(r"\bMI300X\b", 1307.4, 2614.9),
    _peak(r"\bMI325X\b", 1307.4, 2614.9),
    _peak(r"\bMI355X\b", 2516.6, 5033.2),
    # Data sheets of NVIDIA A100, H100, H200 and HGX B200; from H100 on they print peaks with sparsity: half of these.
    _peak(r"\bA100\b", 312.0, None),
    _peak(r"\bH100 PCIe\b", 756.5, 1513.0),
    _peak(r"\bH[12]00 NVL\b", 835.5, 1670.5),
    _peak(r"\bH100\b.*\bHBM3\b", 989.5, 1979.0),
    _peak(r"\bH200\b", 989.5, 1979.0),
    _peak(r"\bB200\b", 2250.0, 4500.0),
    # The simulator's GPUs behave like MI300X.
    _peak(r"^Simulated GPU$", 1307.4, 2614.9),
)


def compute_of(engine: EngineSpan, command: Sequence[str] | None, gpus: Sequence[GpuStatic]) -> ComputeResult | None:
    """What each of these GPUs computed for the server with this command; None if the engine does not report it."""
    tflops_per_gpu, hbm_bytes_per_s = engine.tflops_per_gpu, engine.hbm_bytes_per_s
    if tflops_per_gpu is None:
        return None
    try:
        precision = _precision(command)
        peak_tflops = _peak_tflops(gpus, precision)
    except _UnknownError as unknown:
        return ComputeResult(tflops_per_gpu=tflops_per_gpu, hbm_bytes_per_s=hbm_bytes_per_s, why=str(unknown))
    return ComputeResult(
        tflops_per_gpu=tflops_per_gpu,
        precision=precision,
        peak_tflops=peak_tflops,
        mfu_percent=100 * tflops_per_gpu / peak_tflops,
        hbm_bytes_per_s=hbm_bytes_per_s,
    )


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
    model = _model(command, flags)
    if _QUANTIZED_MODEL.search(model):
        raise _UnknownError(f"{model} is quantized, and the server's command does not say how: set quantization")
    if dtype not in _SIXTEEN_BIT:
        raise _UnknownError("the server's command does not state its precision: set server.args.dtype or quantization")
    return _SIXTEEN_BIT[dtype]


def _model(command: Sequence[str], flags: Mapping[str, str]) -> str:
    after_serve = command[command.index("serve") + 1 :] if "serve" in command else []
    return flags.get("model") or next(iter(after_serve), "")


def _peak_tflops(gpus: Sequence[GpuStatic], precision: str) -> float:
    names = {gpu.name for gpu in gpus}
    if len(names) != 1:
        raise _UnknownError(f"the box has GPUs of {len(names)} kinds" if names else "no GPU is measured")
    if any(is_partition(gpu.compute_partition) for gpu in gpus):
        raise _UnknownError("these devices are partitions of a GPU, whose peak is not known")
    (name,) = names
    known = next((peak for peak in _PEAKS if peak.name.search(name)), None)
    if known is None:
        raise _UnknownError(f"no peak is known of {name}")
    found = known.fp8 if precision == "fp8" else known.sixteen_bit
    if found is None:
        raise _UnknownError(f"{name} has no matrix cores for {precision}")
    return found


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
