"""The share of the peak: of the right GPU in the right precision, or none and the reason."""

import pytest

from loadgen.metrics.mfu import compute_of, flags_of
from loadgen.schema.engine import EngineStage, EngineView
from loadgen.schema.hardware_result import ComputeResult
from loadgen.schema.samples import GpuStatic

BF16 = ["vllm", "serve", "m", "--dtype", "bfloat16", "--enable-mfu-metrics"]


def gpus(*names: str, partition: str | None = None) -> list[GpuStatic]:
    return [
        GpuStatic(index=index, vendor="amd", name=name, compute_partition=partition) for index, name in enumerate(names)
    ]


def computed(command: list[str] | None, found: list[GpuStatic]) -> ComputeResult:
    compute = compute_of(EngineStage(tflops_per_gpu=100.0, hbm_bytes_per_s=2e12), command, found)
    assert compute is not None and (compute.tflops_per_gpu, compute.hbm_bytes_per_s) == (100.0, 2e12)
    return compute


@pytest.mark.parametrize(
    ("name", "sixteen_bit", "fp8"),
    [
        ("AMD Instinct MI300X", 1307.4, 2614.9),
        ("AMD Instinct MI300X VF", 1307.4, 2614.9),
        ("AMD Instinct MI355X", 2516.6, 5033.2),
        ("NVIDIA H100 80GB HBM3", 989.5, 1979.0),
        ("NVIDIA H100 PCIe", 756.5, 1513.0),
        ("NVIDIA H100 NVL", 835.5, 1670.5),
        ("NVIDIA H200 NVL", 835.5, 1670.5),
        ("NVIDIA H200", 989.5, 1979.0),
        ("NVIDIA B200", 2250.0, 4500.0),
        ("NVIDIA L40", 181.05, 362.0),
        ("NVIDIA L40S", 362.05, 733.0),
    ],
)
def test_a_gpu_has_the_peak_of_its_name_and_precision(name: str, sixteen_bit: float, fp8: float) -> None:
    found = computed(BF16, gpus(name, name))
    assert (found.precision, found.peak_tflops, found.why) == ("bf16", sixteen_bit, "")
    assert found.mfu_percent == pytest.approx(100 * 100 / sixteen_bit)
    quantized = computed([*BF16, "--quantization", "fp8"], gpus(name))
    assert (quantized.precision, quantized.peak_tflops) == ("fp8", fp8)


@pytest.mark.parametrize(
    ("command", "found", "why"),
    [
        (None, gpus("AMD Instinct MI300X"), "vramp did not start this server"),
        (["vllm", "serve", "m"], gpus("AMD Instinct MI300X"), "does not state its precision"),
        ([*BF16[:-2], "auto"], gpus("AMD Instinct MI300X"), "does not state its precision"),
        ([*BF16, "--quantization", "mxfp4"], gpus("AMD Instinct MI300X"), "in which mxfp4 computes is not known"),
        (["vllm", "serve", "a/m-FP8-KV", *BF16[3:]], gpus("AMD Instinct MI300X"), "a/m-FP8-KV is quantized"),
        (["api_server", "--model", "m-w8a8", *BF16[3:]], gpus("AMD Instinct MI300X"), "m-w8a8 is quantized"),
        (BF16, gpus(), "no GPU is measured"),
        (BF16, gpus("NVIDIA GB200"), "no peak is known of NVIDIA GB200"),
        (BF16, gpus("NVIDIA H20"), "no peak is known of NVIDIA H20"),
        (BF16, gpus("AMD Instinct MI300X", "AMD Instinct MI210"), "GPUs of 2 kinds"),
        (BF16, gpus("AMD Instinct MI300X", partition="CPX"), "are partitions of a GPU"),
        ([*BF16, "--quantization", "fp8"], gpus("AMD Instinct MI210"), "MI210 has no matrix cores for fp8"),
    ],
)
def test_where_a_part_is_not_known_there_is_no_share(
    command: list[str] | None, found: list[GpuStatic], why: str
) -> None:
    compute = computed(command, found)
    assert why in compute.why
    assert (compute.precision, compute.peak_tflops, compute.mfu_percent) == (None, None, None)


def test_an_engine_without_operation_counts_has_no_mfu() -> None:
    assert compute_of(EngineView(), BF16, gpus("AMD Instinct MI300X")) is None


def test_a_gpu_in_one_piece_is_whole() -> None:
    assert computed(BF16, gpus("AMD Instinct MI300X", partition="SPX")).peak_tflops == 1307.4


def test_flags_have_their_values() -> None:
    command = ["docker", "run", "--rm", "image", "vllm", "serve", "m", "--dtype=half", "--cuda", "1", "2", "--eager"]
    assert flags_of(command) == {"rm": "image vllm serve m", "dtype": "half", "cuda": "1 2", "eager": ""}


@pytest.mark.parametrize(
    ("name", "percent"),
    [
        ("AMD Instinct MI300X", 100 * 2000 / 5300),
        ("NVIDIA H200 NVL", 100 * 2000 / 4800),
        ("NVIDIA A100-SXM4-80GB", 100 * 2000 / 2039),
        ("NVIDIA A100-PCIE-40GB", 100 * 2000 / 1555),
        ("NVIDIA L40S", 100 * 2000 / 864),
        ("NVIDIA H20", None),
    ],
)
def test_the_share_of_hbm_bandwidth_needs_no_precision(name: str, percent: float | None) -> None:
    attached = computed(None, gpus(name))
    assert attached.hbm_bandwidth_percent == pytest.approx(percent)
    assert attached.mfu_percent is None and attached.why


def test_no_bandwidth_share_without_memory_traffic() -> None:
    compute = compute_of(EngineStage(tflops_per_gpu=100.0), BF16, gpus("AMD Instinct MI300X"))
    assert compute is not None and compute.mfu_percent is not None and compute.hbm_bandwidth_percent is None
