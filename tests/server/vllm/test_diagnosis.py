"""Recorded failures of vLLM 0.32.0, and lines as other versions, libraries and the kernel write them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.server.process.guard_client import ServerExit
from loadgen.server.process.log import clean_line
from loadgen.server.vllm.causes import CAUSES
from loadgen.server.vllm.diagnosis import (
    MAX_EVIDENCE,
    MAX_EVIDENCE_CHARS,
    diagnose,
    is_oom_kill,
    kernel_kills,
    read_oom_kills,
)

LOGS = Path(__file__).with_name("logs")
FAILED = ServerExit(code=1)
KILLED = ServerExit(signal=9)
KERNEL = "Memory cgroup out of memory: Killed process 2811 (VLLM::EngineCor) total-vm:16420540kB, anon-rss:13951040kB"


def log(name: str) -> list[str]:
    return (LOGS / f"{name}.log").read_text().splitlines()[1:]


@pytest.mark.parametrize(
    ("name", "cause", "title", "evidence", "remedy"),
    [
        (
            "unknown_flag",
            "unknown-flag",
            "this vLLM has no flag --num-scheduler-steps",
            "vllm: error: unrecognized arguments: --num-scheduler-steps 10",
            "remove server.args.num-scheduler-steps",
        ),
        (
            "bad_choice",
            "bad-value",
            "--dtype: invalid choice: 'float99'",
            "vllm serve: error: argument --dtype: invalid choice",
            "correct server.args.dtype",
        ),
        (
            "bad_int",
            "bad-value",
            "--max-model-len: invalid human_readable_int_or_auto value: 'lots'",
            "vllm serve: error: argument --max-model-len",
            "correct server.args.max-model-len",
        ),
        (
            "bad_json",
            "bad-value",
            "--compilation-config: 1 validation error",
            "vllm serve: error: argument --compilation-config/-cc",
            "correct server.args.compilation-config",
        ),
        (
            "bad_len",
            "max-model-len",
            "the model has no context of 99999999 tokens",
            "Value error, User-specified max_model_len (99999999) is greater",
            "set server.args.max-model-len to 32768 or less",
        ),
        (
            "bad_util",
            "bad-value",
            "a setting does not fit: max_num_batched_tokens (10) is smaller than max_model_len (8192)",
            "Value error, max_num_batched_tokens (10)",
            "[server.args]",
        ),
        ("no_model", "model-not-found", "no such model", "huggingface_hub.errors.HFValidationError", "server.model"),
        (
            "no_model_hub",
            "not-cached",
            "the model is not in the local cache",
            "huggingface_hub.errors.LocalEntryNotFoundError",
            "HF_HUB_OFFLINE",
        ),
        ("port_taken", "port-taken", "the port is in use", "OSError: [Errno 98] Address", "server.port to 0"),
        (
            "kv_small",
            "kv-cache",
            "the KV cache does not hold one request",
            "ValueError: To serve at least one request with the model's max seq len (32768)",
            "set server.args.max-model-len to 128 or less",
        ),
        (
            "no_ram",
            "host-out-of-memory",
            "the machine is out of memory",
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory",
            "free memory",
        ),
        (
            "start_killed",
            "process-killed",
            "a process of the engine was killed",
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore'",
            "dmesg",
        ),
    ],
)
def test_what_a_real_start_died_of(name: str, cause: str, title: str, evidence: str, remedy: str) -> None:
    found = diagnose(log(f"fails_{name}"), FAILED, phase="starting")
    assert found.cause == cause
    assert title in found.title
    assert found.evidence[0].startswith(evidence)
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("name", "cause", "title", "evidence", "remedy"),
    [
        (
            "engine_killed",
            "process-killed",
            "EngineCore was killed without a word: SIGKILL",
            "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
            "the kernel's OOM killer",
        ),
        (
            "engine_killed_under_load",
            "process-killed",
            "EngineCore was killed without a word: SIGKILL",
            "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
            "the kernel's OOM killer",
        ),
        (
            "engine_terminated",
            "process-killed",
            "EngineCore was killed (SIGTERM)",
            "[shutdown] EngineCore: trigger received signal=SIGTERM",
            "Kubernetes or docker that ended the container",
        ),
        (
            "engine_segfault",
            "process-crashed",
            "a process of the engine crashed in native code",
            "!!!!!!! Segfault encountered !!!!!!!",
            "dmesg",
        ),
        (
            "worker_killed",
            "process-killed",
            "a process of the engine was killed: VllmWorker-0, by SIGKILL",
            "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)",
            "kubectl describe pod",
        ),
    ],
)
def test_what_a_real_server_died_of(name: str, cause: str, title: str, evidence: str, remedy: str) -> None:
    lines = log(f"fails_{name}")
    found = diagnose(lines, ServerExit(code=0), phase="serving")
    assert (found.cause, found.title) == (cause, title)
    assert found.evidence[0].startswith(evidence)
    assert remedy in found.remedy


@pytest.mark.parametrize("name", ["engine_killed", "worker_killed"])
def test_the_kernel_tells_whether_it_killed(name: str) -> None:
    lines = log(f"fails_{name}")
    by_kernel = diagnose([*lines, KERNEL], ServerExit(code=0), phase="serving")
    assert (by_kernel.cause, by_kernel.evidence[0]) == ("oom-killer", KERNEL)
    assert by_kernel.title.endswith("at the memory limit of its control group (a container, pod, job or unit)")
    not_by_kernel = diagnose(lines, ServerExit(code=0), phase="serving", oom_kills=0)
    assert "the kernel counted no OOM kill" in not_by_kernel.remedy


CORE = "(EngineCore_DP0 pid=1) ERROR 10-21 09:00:09 [core.py:700] "
V0 = "(VllmWorkerProcess pid=1252) ERROR 12-25 01:10:28 multiproc_worker_utils.py:229] "
RANK = "[rank0]: "


@pytest.mark.parametrize(
    ("line", "cause", "says"),
    [
        (
            "vllm serve: error: ambiguous option: --max-num could match --max-num-seqs, --max-num-partial",
            "unknown-flag",
            "",
        ),
        ("api_server.py: error: unrecognized arguments: nonsense", "unknown-flag", "does not understand nonsense"),
        (
            CORE + "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 3 has",
            "gpu-out-of-memory",
            "",
        ),
        (RANK + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "gpu-out-of-memory", ""),
        (V0 + "RuntimeError: HIP error: out of memory", "gpu-out-of-memory", ""),
        (
            CORE
            + "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try",
            "gpu-out-of-memory",
            "256 requests",
        ),
        (CORE + "ValueError: No available memory for the cache blocks. Try increasing", "kv-cache", "leave no memory"),
        (
            RANK + "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can "
            "be stored in KV cache (93760). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`",
            "kv-cache",
            "93760 tokens, less than one request of 131072",
        ),
        (
            CORE
            + "ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (4.1 GiB). Try",
            "kv-cache",
            "",
        ),
        (
            CORE + "ValueError: Free memory on device (3.27/15.98 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 14.39 GiB). Decrease GPU memory utilization",
            "gpu-memory-taken",
            "",
        ),
        (
            CORE
            + "AssertionError: Error in memory profiling. Initial free memory 1.0 GiB, current free memory 2.0 GiB.",
            "gpu-memory-taken",
            "",
        ),
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 1): address already in use",
            "port-taken",
            "",
        ),
        (
            "docker: Error response from daemon: Bind for 127.0.0.1:80 failed: port is already allocated.",
            "port-taken",
            "",
        ),
        ("OSError: You are trying to access a gated repo.", "gated-model", "permission"),
        ("Cannot access gated repo for url https://huggingface.co/m/resolve/main/config.json.", "gated-model", ""),
        ("Access to model meta-llama/Llama-3.2-1B is restricted. You must have access to it", "gated-model", ""),
        ("If you are trying to access a private or gated repo, make sure you are authenticated.", "unknown", ""),
        (
            "OSError: Qwen/Qwen9 is not a local folder and is not a valid model identifier listed on 'https://hugging",
            "model-not-found",
            "",
        ),
        ("  Value error, Invalid repository ID or local directory specified: '/m'", "model-not-found", ""),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't", "not-cached", ""),
        (
            CORE + "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
            "broken-weights",
            "",
        ),
        ("  Value error, Model architectures ['X'] are not supported for now. Supported: [", "unsupported-model", ""),
        (
            "  Value error, World size (8) is larger than the number of available GPUs (4) in this node.",
            "parallel-size",
            "",
        ),
        ("RuntimeError: Failed to infer device type, please set the environment variable", "no-gpu", "no GPU"),
        ("RuntimeError: No HIP GPUs are available", "no-gpu", ""),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
            "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
            "fabric-manager",
            "fabric manager",
        ),
        (CORE + "torch.AcceleratorError: CUDA error: system not yet initialized", "fabric-manager", ""),
        ("cudaGetDeviceCount returned Error 802", "fabric-manager", ""),
        ("Error 804: forward compatibility was attempted on non supported HW", "gpu-driver", ""),
        (
            "ValueError: Inconsistent GPU visibility env vars: HIP_VISIBLE_DEVICES='0' vs CUDA_VISIBLE_DEVICES='1'. "
            "Please set only one, or ensure they match.",
            "visible-devices",
            "HIP_VISIBLE_DEVICES='0' vs CUDA_VISIBLE_DEVICES='1'",
        ),
        (
            "box:1:2 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 75000",
            "duplicate-gpu",
            "rank 1 and rank 0",
        ),
        (
            "box:1:2 [0] ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
            "locked-memory",
            "memlock",
        ),
        (
            "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'",
            "custom-all-reduce",
            "all-reduce",
        ),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have", "no-gpu", ""),
        ("Unable to open /dev/kfd read-write: No such file or directory", "no-gpu", ""),
        ("Unable to open /dev/kfd read-write: Permission denied", "gpu-permission", "may not open"),
        ('me is not member of "render" group, the default DRM access group.', "gpu-permission", ""),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "gpu-driver", ""),
        (CORE + "RuntimeError: HIP error: invalid device function", "gpu-unsupported", "no code for this GPU"),
        ("hipErrorNoBinaryForGpu: Unable to find code object for all current devices!", "gpu-unsupported", ""),
        (
            CORE + "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "gpu-unsupported",
            "",
        ),
        (CORE + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "gpu-fault", ""),
        (
            "Memory access fault by GPU node-4 (Agent handle: 0x26ff9f00) on address 0x7edbdee00000. Reason: Unknown.",
            "gpu-fault",
            "kernel crashed",
        ),
        (V0 + "RuntimeError: HIP error: invalid argument", "gpu-error", ""),
        (
            V0 + "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
            "collectives",
            "",
        ),
        ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94", "collectives", ""),
        (
            "Error while creating shared memory segment /dev/shm/nccl-cj (size 1061), error: No space left on device",
            "shared-memory",
            "",
        ),
        ("OSError: [Errno 28] No space left on device: '/cache/x'", "disk-full", ""),
        ("importlib.metadata.PackageNotFoundError: No package metadata was found for vllm", "installation", "broken"),
        ("ModuleNotFoundError: No module named 'vllm._C'", "installation", ""),
        ("ImportError: /x/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEab", "installation", ""),
        (
            CORE + "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
            "process-killed",
            "",
        ),
        (
            CORE + "Worker proc VllmWorker-5 died unexpectedly (exit code: -11), shutting down",
            "process-crashed",
            "VllmWorker-5, with SIGSEGV",
        ),
        ("RuntimeError: Process ApiServer_1 (PID: 77) died with exit code -15", "process-killed", "by SIGTERM"),
        (CORE + "Worker proc VllmWorker-5 died unexpectedly, shutting down executor.", "engine-died", ""),
        (
            "CRITICAL 01-22 00:13:36 launcher.py:99] MQLLMEngine is already dead, terminating server process",
            "engine-died",
            "",
        ),
        ("permission denied while trying to connect to the Docker daemon socket at unix://", "docker-permission", ""),
        ("docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "docker-down", ""),
        (
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
            "docker-gpu",
            "",
        ),
        (
            "docker: Error response from daemon: error gathering device information while adding custom device "
            '"/dev/kfd": no such file or directory.',
            "docker-gpu",
            "",
        ),
        ("docker: Error response from daemon: pull access denied for x, repository does not exist", "docker-image", ""),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "gpu-driver", ""),
        (
            "/tmp/tmps1rkq3y3/main.c:5:10: fatal error: Python.h: No such file or directory",
            "python-headers",
            "Python.h",
        ),
        ("/tmp/tmpk/cuda_utils.c:9:10: fatal error: 'Python.h' file not found", "python-headers", ""),
        ("tcc: error: include file 'Python.h' not found", "python-headers", ""),
        ("main.c:5:10: schwerwiegender Fehler: Python.h: Datei oder Verzeichnis nicht gefunden", "python-headers", ""),
        (
            CORE + "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC "
            "environment variable or set triton.knobs.build.impl.",
            "no-compiler",
            "no C compiler",
        ),
        (
            "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: "
            "(None, 'g++')",
            "no-compiler",
            "",
        ),
        (CORE + "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "no-compiler", ""),
        ("/bin/sh: 1: gcc: not found", "no-compiler", ""),
        (
            CORE + "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
            "no-nvcc",
            "nvcc",
        ),
        (
            "(Worker_TP1 pid=3534) ERROR 10-11 22:28:17 [multiproc_executor.py:694] RuntimeError: Could not find nvcc",
            "no-nvcc",
            "",
        ),
        ("/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found", "no-nvcc", ""),
        (CORE + "FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'", "no-nvcc", ""),
        ("OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.", "no-nvcc", ""),
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "no-libcuda", ""),
        (
            CORE + "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpe7/main.c', '-O3', '-shared', "
            "'-o', '/tmp/tmpe7/cuda_utils.so', '-lcuda']' returned non-zero exit status 1.",
            "compiler-failed",
            "",
        ),
        (
            CORE + "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla "
            "T4 GPU has compute capability 7.5. You can use float16 instead by explicitly setting the `dtype` flag",
            "no-bfloat16",
            "Tesla T4 has no bfloat16",
        ),
        (
            RANK
            + "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your gfx906 "
            "GPU does not have a compute capability. You can use float16 instead by explicitly setting the `dtype`",
            "no-bfloat16",
            "gfx906 has no",
        ),
        (CORE + "RuntimeError: bfloat16 is not supported on this GPU", "no-bfloat16", "the GPU has no"),
        ("KeyError: 'getpwuid(): uid not found: 1000770000'", "user-without-name", "uid 1000770000"),
        ("OSError: No username set in the environment", "user-without-name", ""),
        (
            CORE + "PermissionError: [Errno 13] Permission denied: '/.cache'",
            "cache-not-writable",
            "/.cache",
        ),
        (
            CORE + "PermissionError: [Errno 13] Permission denied: '/tmp/torchinductor_root/fx'",
            "cache-not-writable",
            "",
        ),
        (
            CORE + "ValueError: Free memory on device cuda:0 (16.9/79.18 GiB) on startup is less than the engine's "
            "budget after excluding external process's weights (0.9, 65.32 GiB). Decrease GPU memory utilization",
            "gpu-memory-taken",
            "",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system error (run with "
            "NCCL_DEBUG=INFO for details)",
            "collectives",
            "/dev/shm",
        ),
        (
            "RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)",
            "collectives",
            "",
        ),
        ("RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO)", "collectives", "could not talk"),
        (
            "box:1:2 [0] misc/shmutils.cc:72 NCCL WARN Call to posix_fallocate failed : No space left on device",
            "shared-memory",
            "",
        ),
        ("OSError: [Errno 28] No space left on device: '/psm_5f0c'", "shared-memory", ""),
        (
            "ValueError: Tokenizer class TokenizersBackend does not exist or is not currently imported.",
            "newer-tokenizer",
            "TokenizersBackend",
        ),
        (
            "AttributeError: Qwen2Tokenizer has no attribute all_special_tokens_extended. Did you mean: "
            "'num_special_tokens_to_add'?",
            "newer-transformers",
            "transformers 5",
        ),
        (
            "AttributeError: 'TokenizersBackend' object has no attribute 'all_special_tokens_extended'",
            "newer-transformers",
            "",
        ),
        (
            "ValueError: Tokenizer class FunnyTokenizer does not exist or is not currently imported.",
            "unknown-tokenizer",
            "FunnyTokenizer",
        ),
    ],
)
def test_what_a_line_means(line: str, cause: str, says: str) -> None:
    after = [
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"
    ]
    found = diagnose([line, *after], FAILED, phase="starting")
    assert found.cause == cause
    assert says in found.title


def test_list_without_keys_is_the_tokenizer_only_below_its_function() -> None:
    error = "AttributeError: 'list' object has no attribute 'keys'"
    place = '(APIServer pid=1)   File "/x/tokenization_utils_base.py", line 1190, in _set_model_specific_special_tokens'
    assert diagnose([place, error], FAILED, phase="starting").cause == "newer-tokenizer"
    assert diagnose([error], FAILED, phase="starting").cause == "unknown"


END = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
ADVISED = "ValueError: The model type 'gemma2' does not support float16. Reason: unstable. Please use bfloat16 instead."


@pytest.mark.parametrize("end", [[END], []], ids=["engine core", "one process"])
@pytest.mark.parametrize(
    ("error", "title", "remedy"),
    [
        (
            ADVISED,
            "the engine says: The model type 'gemma2' does not support float16",
            'as it says: "Please use bfloat16 instead."',
        ),
        (
            "RuntimeError: Cannot find module x. Try `pip install x`, or pass --no-x.",
            "the engine says: Cannot find module x",
            'as it says: "Try `pip install x`, or pass --no-x."',
        ),
    ],
)
def test_error_with_its_own_remedy_is_quoted(end: list[str], error: str, title: str, remedy: str) -> None:
    worker = "(Worker_TP1 pid=2) ERROR 10-21 09:00:08 [x.py:1] KeyError: 'x'"
    found = diagnose([worker, CORE + error, *end], FAILED, phase="starting")
    assert (found.cause, found.title, found.evidence, found.remedy) == ("engine-error", title, (error,), remedy)


def test_error_with_its_own_remedy_is_not_quoted_where_it_may_be_about_something_else() -> None:
    dead = CORE + "EngineDeadError: EngineCore encountered an issue."
    assert diagnose([CORE + ADVISED, dead], FAILED, phase="serving").cause == "engine-died"
    assert diagnose([CORE + ADVISED], ServerExit(signal=15), phase="starting").cause == "killed"
    routine = "WARNING 10-21 09:00:09 [x.py:1] " + ADVISED
    assert diagnose([routine, END], FAILED, phase="starting").cause != "engine-error"
    without = "ValueError: expected 3 values, not 4."
    found = diagnose([CORE + without, END], FAILED, phase="starting")
    assert (found.cause, found.evidence) == ("engine-died", (without,))
    assert "dmesg" not in found.remedy
    behind = "RuntimeError: Worker failed with error 'x', please check the stack trace above for the root cause"
    assert diagnose([CORE + behind, END], FAILED, phase="starting").cause != "engine-error"


@pytest.mark.parametrize(
    "line",
    [
        "INFO 10-21 09:00:09 [x.py:1] Could not find nvcc; FlashInfer's sampler is not used",
        "WARNING 10-21 09:00:09 [x.py:1] Your Tesla T4 device doesn't support torch.bfloat16. Falling back to float16",
        "    5 | #include <Python.h>",
        "checking for Python.h... yes",
        "ValueError: no compiler pass named gcc",
    ],
)
def test_line_that_is_no_cause_of_death(line: str) -> None:
    assert diagnose([line], FAILED, phase="starting").cause == "unknown"


def test_every_cause_fills_its_title_and_remedy() -> None:
    for cause in CAUSES:
        values = dict.fromkeys([*re.compile(cause.pattern).groupindex, "who_sent"], "x")
        assert "{" not in cause.title.format_map(values) + cause.remedy.format_map(values)


def test_memory_under_load_has_another_remedy_than_at_the_start() -> None:
    lines = [
        CORE + "torch.OutOfMemoryError: CUDA out of memory.",
        CORE + "EngineDeadError: EngineCore encountered an issue.",
    ]
    starting, serving = (diagnose(lines, FAILED, phase=phase) for phase in ("starting", "serving"))
    assert starting.cause == serving.cause == "gpu-out-of-memory"
    assert (starting.title, starting.remedy) != (serving.title, serving.remedy)


def test_each_worker_says_it_but_the_evidence_is_short() -> None:
    lines = [
        f"(Worker_TP{rank} pid=1) ERROR 10-21 09:00:09 [x.py:1] torch.OutOfMemoryError: HIP out of memory. GPU {rank}"
        for rank in range(8)
    ]
    assert len(diagnose(lines, FAILED, phase="starting").evidence) == MAX_EVIDENCE
    same = [line.replace("GPU", "") for line in lines[:1]] * 8
    assert len(diagnose(same, FAILED, phase="starting").evidence) == 1


def test_routine_lines_prove_nothing() -> None:
    lines = [
        "INFO 10-21 09:00:09 logger.py:37] Received request: prompt: 'torch.OutOfMemoryError: CUDA out of memory'",
        "WARNING 10-21 09:00:09 [system_utils.py:255] OSError: No space left on device",
        "[W1121 10:21:01.128190313 utils.cpp:68] Warning: CUDA error: invalid device function",
        'INFO:     127.0.0.1:1 - "POST /v1/completions?CUDA out of memory HTTP/1.1" 200 OK',
        '    raise ValueError("No available memory for the cache blocks.")',
        "KeyError: 'rope_type'",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
    ]
    found = diagnose(lines, FAILED, phase="starting")
    assert (found.cause, found.evidence) == ("unknown", ("KeyError: 'rope_type'",))
    assert found.title == "the server ended with exit code 1 while it started; its log has no cause that vramp knows"


def test_an_engine_that_died_of_something_new_shows_it() -> None:
    lines = [CORE + "KeyError: 'x'", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."]
    found = diagnose(lines, FAILED, phase="serving")
    assert (found.cause, found.evidence) == ("engine-died", ("KeyError: 'x'",))


def test_an_engine_that_was_killed_while_it_started_may_leave_no_exit_code() -> None:
    line = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    found = diagnose([line], FAILED, phase="starting")  # vLLM issue 45626
    assert (found.cause, found.title) == ("process-killed", "EngineCore was killed without a word: SIGKILL")
    several = line.replace("{}", "{'EngineCore_DP0': 0, 'EngineCore_DP1': -9}")
    assert "EngineCore_DP1, by SIGKILL" in diagnose([several], FAILED, phase="starting").title
    unknown = diagnose([CORE + "KeyError: 'x'", line], FAILED, phase="starting")
    assert (unknown.cause, unknown.evidence) == ("engine-died", ("KeyError: 'x'",))
    ended_by_vllm = line.replace("{}", "{'EngineCore_DP0': 1, 'EngineCore_DP1': -15}")
    assert diagnose([CORE + "KeyError: 'x'", ended_by_vllm], FAILED, phase="starting").cause == "unknown"


def test_what_follows_a_misspelt_flag_is_kept_secret() -> None:
    lines = ["vllm: error: unrecognized arguments: --api-keys sk-secret --max-model-length 4"]
    found = diagnose(lines, ServerExit(code=2), phase="starting")
    assert "remove server.args.api-keys" in found.remedy
    assert found.evidence == ("vllm: error: unrecognized arguments: --api-keys *** --max-model-length 4",)


@pytest.mark.parametrize(
    ("exit", "oom_kills", "cause", "title"),
    [
        (KILLED, 0, "killed", "somebody killed the server (SIGKILL)"),
        (KILLED, None, "killed", "somebody, or the kernel's OOM killer, killed the server (SIGKILL)"),
        (KILLED, 2, "oom-killer", "the kernel's OOM killer ended the server: out of memory (RAM, not HBM)"),
        (ServerExit(code=137), 1, "oom-killer", "the kernel's OOM killer ended the server: out of memory (RAM"),
        (ServerExit(code=143), 0, "killed", "somebody killed the server (SIGTERM)"),
        (ServerExit(signal=15), None, "killed", "somebody killed the server (SIGTERM)"),
        (ServerExit(signal=11), None, "process-crashed", "the server crashed in native code (SIGSEGV)"),
        (ServerExit(signal=7), None, "process-crashed", "the server crashed in native code (SIGBUS)"),
        (ServerExit(signal=40), None, "killed", "somebody killed the server (signal 40)"),
        (ServerExit(code=3), 0, "unknown", "the server ended with exit code 3 while it served; its log has no"),
        (ServerExit(), None, "unknown", "the server lost its guard process and was killed while it served; its log"),
        (None, None, "unknown", "the server is in trouble while it served; its log has no cause"),
    ],
)
def test_an_end_without_a_word(exit: ServerExit | None, oom_kills: int | None, cause: str, title: str) -> None:
    found = diagnose(["a last word"], exit, phase="serving", oom_kills=oom_kills)
    assert found.cause == cause
    assert found.title.startswith(title)
    assert "a last word" in found.evidence


def test_a_kill_elsewhere_does_not_hide_what_the_log_proves() -> None:
    lines = [KERNEL, "vllm: error: unrecognized arguments: --x"]
    assert diagnose(lines, ServerExit(code=2), phase="starting", oom_kills=1).cause == "unknown-flag"
    assert diagnose([KERNEL, "KeyError: 'x'"], FAILED, phase="starting").cause == "unknown"
    assert diagnose([KERNEL, "plain words"], FAILED, phase="starting").cause == "oom-killer"


@given(
    lines=st.lists(
        st.one_of(st.text(), st.binary().map(clean_line), st.sampled_from(log("fails_no_ram")), st.text(min_size=900)),
        max_size=12,
    ),
    exit=st.one_of(
        st.none(), st.builds(ServerExit, code=st.integers(0, 255)), st.builds(ServerExit, signal=st.integers(1, 64))
    ),
    oom_kills=st.one_of(st.none(), st.integers(0, 3)),
)
def test_any_lines_give_a_short_and_harmless_diagnosis(
    lines: list[str], exit: ServerExit | None, oom_kills: int | None
) -> None:
    found = diagnose(lines, exit, phase="starting", oom_kills=oom_kills)
    assert len(found.evidence) <= MAX_EVIDENCE
    for text in (found.title, found.remedy, *found.evidence):
        assert text
        assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in text)
    assert all(len(text) <= MAX_EVIDENCE_CHARS for text in found.evidence)


KILL = "Memory cgroup out of memory: Killed process 23793 (leaker) total-vm:2623712kB, anon-rss:506500kB"


def tree(folder: Path, **files: str) -> tuple[Path, Path]:
    """`proc__self__cgroup="..."` writes proc/self/cgroup; a second underscore in a row separates folders."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__"))
        path = path.with_name(path.name.replace("_dot_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "proc", folder / "cgroup"


def test_the_groups_own_counter_v2(tmp_path: Path) -> None:
    events = "low 0\nhigh 0\nmax 3\noom 3\noom_kill 2\noom_group_kill 0\n"
    where = tree(tmp_path, proc__self__cgroup="0::/user.slice/run\n", proc__vmstat="oom_kill 9\n")
    (tmp_path / "cgroup/user.slice/run").mkdir(parents=True)
    (tmp_path / "cgroup/user.slice/run/memory.events").write_text(events)
    assert read_oom_kills(*where) == 2
    assert read_oom_kills(*where, own_group=False) == 9


def test_in_a_container_the_groups_path_is_the_hosts(tmp_path: Path) -> None:
    where = tree(tmp_path, proc__self__cgroup="0::/../../docker/abc\n", cgroup__memory_dot_events="oom_kill 1\n")
    assert read_oom_kills(*where) == 1


def test_the_groups_counter_v1(tmp_path: Path) -> None:
    where = tree(
        tmp_path,
        proc__self__cgroup="5:devices:/\n4:cpu,memory:/box\n0::/\n",
        cgroup__memory__box__memory_dot_oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
    )
    assert read_oom_kills(*where) == 5


def test_else_the_machines_counter_or_none(tmp_path: Path) -> None:
    where = tree(tmp_path, proc__self__cgroup="0::/\nnonsense\n", proc__vmstat="pgfault 1\noom_kill 7\n")
    assert read_oom_kills(*where) == 7
    assert read_oom_kills(tmp_path / "no", tmp_path / "no") is None


def test_this_machine_has_a_counter_or_not() -> None:
    kills = read_oom_kills()
    assert kills is None or kills >= 0


def test_the_kernels_words_since_a_moment(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(
        f"6,1,1000000,-;{KILL} early\n SUBSYSTEM=x\n".encode()
        + f"3,2,9000000,-;{KILL}\x1b[31m\n3,3,9000001,-;oom_reaper: reaped process 23793\nnonsense\n;\n".encode()
    )
    assert kernel_kills(5.0, log) == [KILL]
    assert kernel_kills(0.0, log) == [f"{KILL} early", KILL]


def test_a_kernel_log_that_may_not_be_read_says_nothing(tmp_path: Path) -> None:
    assert kernel_kills(0.0, tmp_path / "none") == []
    assert kernel_kills(0.0, tmp_path) == []
    assert all(is_oom_kill(line) for line in kernel_kills(0.0))


@pytest.mark.parametrize(
    ("line", "kill"),
    [
        (KILL, True),
        ("Out of memory: Killed process 2811 (python3) total-vm:16420540kB", True),
        ("Out of memory (oom_kill_allocating_task): Killed process 1 (x)", True),
        ("torch.OutOfMemoryError: CUDA out of memory.", False),
        ("oom_reaper: reaped process 23793 (leaker)", False),
    ],
)
def test_what_is_a_kill(line: str, kill: bool) -> None:
    assert is_oom_kill(line) is kill
