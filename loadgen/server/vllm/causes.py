"""The known causes for which servers fail to start or die: log patterns and remedies. Data only, for `diagnosis`.

The order is the priority, root causes before consequences: a failed allocation kills the engine, whose death ends the
API server, and each leaves lines in the log. A pattern is matched against single lines without prefix. Its named groups
may be used in title and remedy; a group `signal` also gives `who_sent`, the usual sender of such a signal.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Phase = Literal["starting", "serving"]


class Cause(NamedTuple):
    id: str  # stable, for scripts; two patterns of one cause share it
    pattern: str
    title: str
    remedy: str
    phase: Phase | None = None  # None: both
    context: str = ""  # a pattern that some line of the log must match, too; lines of tracebacks included


_OOM = (
    r"torch\S*\.OutOfMemoryError|(?:CUDA|HIP)(?: error:)? out of memory|hipErrorOutOfMemory"
    r"|BLAS_STATUS_ALLOC_FAILED|Cuda failure (?:\d+ )?'out of memory'"
)

# {'EngineCore': -9}; Worker proc W-0 died unexpectedly (exit code: -9); Process X (PID: 1) died with exit code -9
_ENDED_BY = (
    r"(?:core proc\(s\): \{.*?'|[Pp]roc(?:ess)? )(?P<who>[\w.-]+)"
    r"(?:': | died unexpectedly \(exit code: | \(PID: \d+\) died with exit code )-"
)

CAUSES = (
    Cause(
        "unknown-flag",
        r"error: unrecognized arguments: .*?--no-(?P<flag>[\w.-]+)",
        "this vLLM has no flag --no-{flag}",
        "remove {flag} = false (or no-{flag}) from [server.args]; `vllm serve --help=all` lists its flags",
    ),
    Cause(
        "unknown-flag",
        r"error: unrecognized arguments: .*?--(?P<flag>[\w.-]+)",
        "this vLLM has no flag --{flag}",
        "remove server.args.{flag}; `vllm serve --help=all` lists the flags of this version",
    ),
    Cause(
        "unknown-flag",
        r"error: (?:unrecognized arguments|ambiguous option): (?P<what>.+)",
        "this vLLM does not understand {what}",
        "correct [server.args]; `vllm serve --help=all` lists the flags of this version",
    ),
    Cause(
        "bad-value",
        r"error: argument (?:-[\w-]+/)*--(?P<flag>[\w-]+)\S*: (?P<why>.+)",
        "--{flag}: {why}",
        "correct server.args.{flag}",
    ),
    Cause(
        "shared-memory",
        r"shared memory segment /dev/shm|failed to extend /dev/shm|/dev/shm/.*No space left|posix_fallocate failed"
        r"|insufficient shared memory|No space left on device: '/psm_|</torch_\S*>: No space left",
        "too little shared memory (/dev/shm) for the workers",
        'in a container set server.docker.ipc = "host" or server.docker.shm_size = "16g"; else enlarge /dev/shm',
    ),
    Cause(
        "python-headers",
        r": Python\.h: |'Python\.h' (?:file )?not found",
        "the headers of Python are missing (Python.h), and Triton compiles its launcher with them",
        "install them for the server's own Python: python3-dev or python3.X-dev (Debian), python3-devel (RHEL), or a "
        "Python from uv or conda, which brings them",
    ),
    Cause(
        "no-compiler",
        r"Failed to find C compiler|No working C\+\+ compiler found"
        r"|(?:No such file or directory: |/bin/sh: (?:\d+: |line \d+: )?)'?(?:\S*/)?"
        r"(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|ninja)(?:'?$|: (?:command )?not found)",
        "there is no C compiler (or ninja), and kernels are compiled while the server starts",
        "install one where the server runs: build-essential or gcc and g++ (and ninja), or name it in CC and CXX in "
        "[server.env]",
    ),
    Cause(
        "no-nvcc",
        r"[Cc]ould not find nvcc|\bnvcc'?: (?:command )?not found|No such file or directory: '(?:\S*/)?nvcc'"
        r"|NVCC (?:compiler )?not found|CUDA_HOME (?:environment variable )?is not set|Cannot find CUDA_HOME",
        "there is no nvcc, and FlashInfer (or another library) compiles kernels with it while the server starts",
        "install the CUDA toolkit of torch's CUDA version and set CUDA_HOME in [server.env], or do without: "
        'VLLM_USE_FLASHINFER_SAMPLER = "0" in [server.env], another server.args.attention-backend, or the wheel '
        "flashinfer-jit-cache",
    ),
    Cause(
        "no-libcuda",
        r"cannot find -l(?:cuda|amdhip64)\b",
        "the linker does not find the driver's library, with which Triton links its launcher",
        "run ldconfig, or name the folder of libcuda.so in LIBRARY_PATH in [server.env]; a container needs the "
        "driver's libraries (the NVIDIA Container Toolkit)",
    ),
    Cause(
        "user-without-name",
        r"getpwuid\(\): uid not found: (?P<uid>\d+)",
        "the user of the server has no name: uid {uid} is not in /etc/passwd",
        'set USER = "vllm" and HOME to a folder that can be written in [server.env]; with an older torch also '
        "TORCHINDUCTOR_CACHE_DIR and VLLM_CACHE_ROOT",
    ),
    Cause(
        "user-without-name",
        r"^OSError: No username set in the environment",
        "the user of the server has no name in /etc/passwd",
        'set USER = "vllm" and HOME to a folder that can be written in [server.env]',
    ),
    Cause(
        "cache-not-writable",
        r"Permission denied: '(?P<folder>[^']*/(?:\.(?:cache|config|triton|local|aiter|nv)\b|torchinductor_)[^']*)'",
        "the server may not write its caches to {folder}",
        "set HOME in [server.env] to a folder that this user may write, or each cache for itself: VLLM_CACHE_ROOT, "
        "HF_HOME, TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR, XDG_CACHE_HOME",
    ),
    Cause(
        "no-bfloat16",
        r"[Bb]float16 is only supported on GPUs.*? Your (?P<gpu>.+?) GPU ",
        "{gpu} has no bfloat16, which this model uses",
        'set server.args.dtype = "half" (vLLM: "You can use float16 instead by explicitly setting the `dtype` flag in '
        'CLI, for example: --dtype=half"), or take a GPU that has it',
    ),
    Cause(
        "no-bfloat16",
        r"[Bb](?:float|F)16 is (?:only supported on GPUs|not supported (?:on|by) (?:this|the current|your) )",
        "the GPU has no bfloat16, which this model uses",
        'set server.args.dtype = "half" (--dtype=half), or take a GPU that has it',
    ),
    Cause(
        "disk-full",
        r"No space left on device",
        "the disk is full",
        "make room where the line points: the model cache, the compile cache (~/.cache/vllm) or /tmp",
    ),
    Cause(
        "docker-permission",
        r"permission denied while trying to connect to the [Dd]ocker",
        "this user may not talk to docker",
        "add the user to the group docker and log in again, or set server.docker.executable to podman",
    ),
    Cause(
        "docker-down",
        r"Cannot connect to the Docker daemon|[Ff]ailed to connect to the docker API",
        "the docker daemon does not answer",
        "start it: `systemctl start docker`",
    ),
    Cause(
        "docker-gpu",
        r"could not select device driver|error gathering device information while adding custom device",
        "docker cannot give the GPUs to the container",
        "check server.docker.devices or server.docker.gpus; NVIDIA needs the NVIDIA Container Toolkit",
    ),
    Cause(
        "docker-image",
        r"pull access denied|manifest (?:for .* not found|unknown)|[Nn]o such image",
        "docker has no such image",
        "check server.docker.image, and pull it first: `docker pull IMAGE`",
    ),
    Cause(
        "gpu-permission",
        r"/dev/(?:kfd|dri)\S*.*(?:[Pp]ermission denied|not permitted)|not member of \"?(?:render|video)\"? group",
        "this user may not open the GPU",
        "add the user to the groups render and video and log in again; in a container, server.docker.groups",
    ),
    Cause(
        "gpu-driver",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient"
        r"|(?:libcuda|libamdhip64)\.so\S*: cannot open|driver/library version mismatch|\bError 80[34]:",
        "the GPU driver is missing, or too old for this installation",
        "update the driver, or take a vLLM that was built for this one",
    ),
    Cause(
        "fabric-manager",
        r"system not yet initialized|SystemNotReady|SYSTEM_NOT_READY|\b[Ee]rror:? 802\b",
        "the GPUs wait for NVIDIA's fabric manager, which sets up the NVSwitches of this box",
        "start it: `sudo systemctl enable --now nvidia-fabricmanager`, of the very version of the driver; "
        "`nvidia-smi -q | grep -A3 Fabric` says Completed once it is done; for a container, on its host",
    ),
    Cause(
        "visible-devices",
        r"Inconsistent GPU visibility env vars: (?P<seen>.+?)(?:\. |$)",
        "two variables choose different GPUs: {seen}",
        "set only HIP_VISIBLE_DEVICES, in [server.env] or around vramp, and unset the other",
    ),
    Cause(
        "duplicate-gpu",
        r"Duplicate GPU detected : (?P<ranks>.+?) both on",
        "two workers were given the same GPU: {ranks}",
        "check that no GPU is listed twice in HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES, and that the GPUs are not "
        "partitioned (`amd-smi static --partition`, `nvidia-smi -L`): set them back to SPX, or MIG off, or lower "
        "server.args.tensor-parallel-size",
    ),
    Cause(
        "no-gpu",
        r"No (?:HIP|CUDA) GPUs are available|Failed to infer device type|Found no NVIDIA driver|hipErrorNoDevice"
        r"|no (?:ROCm|CUDA)-capable device is detected|Torch not compiled with CUDA|/dev/kfd.*[Nn]o such file",
        "the server sees no GPU",
        "check rocm-smi or nvidia-smi, HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES in [server.env], the devices given "
        "to the container, and that this vLLM was built for this kind of GPU",
    ),
    Cause(
        "gated-model",
        r"access (?:a )?gated repo|GatedRepoError|Access to model .* is restricted"
        r"|Invalid (?:user token|credentials in Authorization)",
        "the model needs permission: it is gated, or the token is missing or wrong",
        "accept the licence on the model's page, and start vramp with HF_TOKEN of that account in its environment; a "
        "container does not see that: `hf auth login`, and mount ~/.cache/huggingface (server.docker.mounts)",
    ),
    Cause(
        "not-cached",
        r"LocalEntryNotFoundError|outgoing traffic has been disabled|OfflineModeIsEnabled"
        r"|couldn't connect to 'https://huggingface\.co'",
        "the model is not in the local cache, and the hub cannot be reached",
        "download it first where there is a network, unset HF_HUB_OFFLINE, or set server.model to a local folder",
    ),
    Cause(
        "model-not-found",
        r"RepositoryNotFoundError|Repository Not Found for url|Repo id must|Invalid repository ID or local directory"
        r"|is not a local folder and is not a valid model|Cannot find any model weights",
        "there is no such model",
        "check server.model: a folder with config.json and weights, or a name on the hub; a container needs the folder "
        "in server.docker.mounts; a private model needs HF_TOKEN in the environment, or `hf auth login`",
    ),
    Cause(
        "broken-weights",
        r"SafetensorError|Error while deserializing header|PytorchStreamReader failed",
        "a weight file is incomplete or damaged",
        "compare the sizes of the files with the hub, and download them again",
    ),
    Cause(
        "newer-tokenizer",
        r"Tokenizer class (?P<name>\w+Backend) does not exist",
        "the tokenizer is of transformers 5 ({name}), and the transformers of this vLLM is older",
        "use a newer vLLM that comes with transformers 5; or give the tokenizer of the original model in "
        "server.args.tokenizer, or save it again with transformers 4",
    ),
    Cause(
        "newer-tokenizer",
        r"'list' object has no attribute 'keys'",
        "the tokenizer is of transformers 5 (a list in extra_special_tokens), and the transformers of this vLLM is "
        "older",
        "use a newer vLLM that comes with transformers 5; or give the tokenizer of the original model in "
        "server.args.tokenizer, or save it again with transformers 4",
        context=r"_set_model_specific_special_tokens|special_tokens\.keys\(\)",
    ),
    Cause(
        "newer-transformers",
        r"has no attribute '?all_special_tokens_extended",
        "the installed transformers 5 is newer than this vLLM supports",
        "install `transformers<5` into the server's own Python environment, or use a newer vLLM",
    ),
    Cause(
        "unknown-tokenizer",
        r"Tokenizer class (?P<name>\w+) does not exist or is not currently imported",
        "the transformers of this vLLM has no tokenizer class {name}",
        "use a newer vLLM (and transformers), or server.args.trust-remote-code = true if the model brings the class",
    ),
    Cause(
        "unsupported-model",
        r"Model architectures \[.*are not supported|does not recognize this architecture",
        "this vLLM cannot run this kind of model",
        "use a newer vLLM (and transformers), or another model",
    ),
    Cause(
        "parallel-size",
        r"World size \(\d+\) is larger than the number of available GPUs|must be divisible by tensor parallel",
        "the parallel sizes fit neither the GPUs nor the model",
        "lower server.args.tensor-parallel-size; check HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES, and the partition "
        "mode of the GPUs (`amd-smi static --partition`: CPX makes eight small devices of one)",
    ),
    Cause(
        "max-model-len",
        r"max_model_len \((?P<len>\d+)\) is greater than the derived max_model_len \(\D*(?P<most>\d+)",
        "the model has no context of {len} tokens",
        "set server.args.max-model-len to {most} or less",
    ),
    Cause(
        "gpu-memory-taken",
        r"Free memory on device .*is less than|Error in memory profiling",
        "the GPU's memory is in use by something else",
        "end the processes that hold it (a server that died may have left some), or lower "
        "server.args.gpu-memory-utilization",
    ),
    Cause(
        "kv-cache",
        r"estimated maximum model length is (?P<most>\d+)",
        "the KV cache does not hold one request of full length",
        "set server.args.max-model-len to {most} or less, or raise server.args.gpu-memory-utilization",
    ),
    Cause(
        "kv-cache",
        r"max seq len \((?P<len>\d+)\) is larger than the maximum number of tokens .*KV cache \((?P<most>\d+)\)",
        "the KV cache holds {most} tokens, less than one request of {len}",
        "set server.args.max-model-len to {most} or less, or raise server.args.gpu-memory-utilization",
    ),
    Cause(
        "kv-cache",
        r"larger than the available KV cache memory",
        "the KV cache does not hold one request of full length",
        "lower server.args.max-model-len, or raise server.args.gpu-memory-utilization",
    ),
    Cause(
        "kv-cache",
        r"No available memory for the cache blocks",
        "the weights leave no memory for the KV cache",
        "raise server.args.gpu-memory-utilization, raise server.args.tensor-parallel-size, or take a smaller or "
        "quantized model",
    ),
    Cause(
        "gpu-out-of-memory",
        r"out of memory occurred when warming up \w+.* with (?P<requests>\d+) dummy requests",
        "GPU out of memory in the warm-up with {requests} requests",
        "lower server.args.max-num-seqs or server.args.gpu-memory-utilization",
    ),
    Cause(
        "gpu-out-of-memory",
        _OOM,
        "GPU out of memory while the server started",
        "lower server.args.gpu-memory-utilization (it leaves room for graphs and activations), "
        "server.args.max-num-batched-tokens or server.args.max-num-seqs; raise server.args.tensor-parallel-size if the "
        "weights do not fit; check that nothing else holds the memory",
        "starting",
    ),
    Cause(
        "gpu-out-of-memory",
        _OOM,
        "GPU out of memory under load",
        "lower server.args.gpu-memory-utilization, server.args.max-num-seqs or server.args.max-num-batched-tokens",
        "serving",
    ),
    Cause(
        "locked-memory",
        r"ibv_reg_(?:dmabuf_)?mr\S* failed with error Cannot allocate memory|RLIMIT_MEMLOCK",
        "too little memory may be locked (memlock), so the network adapters cannot register it",
        "`ulimit -l unlimited` in the shell that starts vramp (LimitMEMLOCK=infinity in a unit of systemd); for "
        'a container server.docker.ulimits = ["memlock=-1"]',
    ),
    Cause(
        "host-out-of-memory",
        r"Cannot allocate memory|can't allocate memory|^MemoryError|std::bad_alloc",
        "the machine is out of memory (RAM, not HBM)",
        "free memory, raise the container's limit, or lower VLLM_CPU_KVCACHE_SPACE in [server.env] of a CPU server",
    ),
    Cause(
        "port-taken",
        r"[Aa]ddress already in use|EADDRINUSE|port is already allocated",
        "the port is in use",
        "set server.port to 0 for a free one, or end what listens there (`ss -ltnp`)",
    ),
    Cause(
        "gpu-unsupported",
        r"hipErrorNoBinaryForGpu|no kernel image is available|(?:HIP|CUDA) error: invalid device function|"
        r"GPU archs of .* is invalid or not supported",
        "this build has no code for this GPU",
        "take a vLLM and torch that were built for the GPU's architecture (rocminfo: gfx...; nvidia-smi: compute_cap)",
    ),
    Cause(
        "custom-all-reduce",
        r"custom_all_reduce\.cuh?:\d+",
        "the all-reduce between the GPUs failed, in vLLM's or AITER's own kernel",
        'set VLLM_ROCM_USE_AITER_CUSTOM_AR = "0" in [server.env] for AITER\'s, or '
        "server.args.disable-custom-all-reduce = true for both; they need peer access between all GPUs, which `vramp "
        "check` looks at",
    ),
    Cause(
        "gpu-fault",
        r"illegal memory access|Memory access fault by GPU|hipErrorIllegalAddress|unspecified launch failure"
        r"|device-side assert|HSA_STATUS_ERROR|GPU Hang|uncorrectable ECC",
        "a GPU kernel crashed",
        "try once more; if it repeats, switch off what is special, one at a time (AITER variables in [server.env], "
        "quantization, server.args.enforce-eager = true), and look at dmesg for faults of the hardware",
    ),
    Cause(
        "collectives",
        r"unhandled system error|nccl(?:System|Unhandled)Error: System call",
        "a system call of NCCL or RCCL failed; in a container mostly for too little shared memory (/dev/shm)",
        'set server.docker.ipc = "host" or server.docker.shm_size = "16g" (outside of docker: `df -h /dev/shm`), or '
        'NCCL_DEBUG = "INFO" in [server.env] to learn which call failed',
    ),
    Cause(
        "collectives",
        r"\b[NR]CCL error|nccl(?:UnhandledCuda|System|Internal|Remote)Error|DistBackendError"
        r"|Watchdog caught collective",
        "the GPUs could not talk to each other (NCCL or RCCL)",
        'set NCCL_DEBUG = "INFO" in [server.env] and start again; check /dev/shm, server.docker.ipc, and '
        'NCCL_P2P_DISABLE = "1" as a trial',
    ),
    Cause(
        "gpu-error",
        r"(?:HIP|CUDA) error:|torch\.AcceleratorError",
        "the GPU runtime reported an error",
        "look at dmesg; set AMD_SERIALIZE_KERNEL or CUDA_LAUNCH_BLOCKING in [server.env] to learn where it happens",
    ),
    Cause(
        "bad-value",
        r"^ *(?:Value error|Assertion failed), (?P<why>.+?)(?:\. | \[|$)",
        "a setting does not fit: {why}",
        "correct it in [server.args]",
    ),
    Cause(
        "bad-value",
        r"^ *(?P<why>(?:Input should be|Invalid JSON|Extra inputs|Unexpected keyword)[^\[]*)",
        "a setting does not fit: {why}",
        "correct it in [server.args]",
    ),
    Cause(
        "process-killed",
        # Of several EngineCores, vLLM itself ends the others by SIGTERM once one has failed to start.
        _ENDED_BY + r"(?P<signal>9|(?<!': -)(?:1|2|3|13|15))\b",
        "a process of the engine was killed: {who}, by {signal}",
        "{who_sent}",
    ),
    Cause(
        "process-crashed",
        _ENDED_BY + r"(?P<signal>4|6|7|8|11)\b",
        "a process of the engine crashed in native code: {who}, with {signal}",
        "{who_sent}",
    ),
    Cause(
        "process-crashed",
        r"^Fatal Python error|Segmentation fault|Segfault encountered",
        "a process of the engine crashed in native code",
        "look at dmesg; check that driver, ROCm or CUDA, torch and vLLM belong together",
    ),
    Cause(
        "compiler-failed",
        r"CalledProcessError: Command '\['\S*(?:gcc|g\+\+|cc|clang)', .*(?:cuda_utils|hip_utils|launcher|main\.c)",
        "the C compiler failed to compile Triton's launcher",
        "read the compiler's own error above this line in the log; often the headers of Python (python3-dev) or the "
        "driver's library are missing",
    ),
    Cause(
        "installation",
        r"PackageNotFoundError|ModuleNotFoundError|^ImportError|undefined symbol"
        r"|operator torchvision::nms does not exist",
        "vLLM's installation is broken",
        "install what is missing into the server's own Python environment, or reinstall vLLM there",
    ),
    Cause(
        "engine-died",
        r"died unexpectedly|EngineDeadError|Engine process .*died|MQLLMEngine is already dead|core proc\(s\): \{\}",
        "the engine died of something that vramp does not know",
        'look at dmesg; start again with VLLM_LOGGING_LEVEL = "DEBUG" in [server.env]',
    ),
)
