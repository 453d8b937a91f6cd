"""The clients that `benchmarks.peers` compares: how each is found and run, and how its report is read.

All send the same: completions of 128 tokens to prompts of 128, in a closed loop, with the same seed. The prompts are
words of the simulator's vocabulary, and the tokenizer that the peers are given has a token for each, so that every
side counts the same tokens. Options only make the loads equal and switch off what cannot be measured here.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from benchmarks import floor
from benchmarks.environments import install, install_vllm, install_vllm_rs, on_path
from benchmarks.running import began_ns
from benchmarks.watched import OUTPUT
from loadgen.schema.result import Result
from loadgen.simulator.tokens import WORDS
from loadgen.store.foreign.read import read_foreign
from loadgen.store.runs import read_result

ISL = OSL = 128
SEED = 1
MODEL = "simulator"
_OFFLINE = {"HF_HUB_OFFLINE": "1"}
_SPECIAL = ["<unk>", "<s>", "</s>"]


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop, and the folder for what the client reads and writes."""

    url: str
    streams: int
    requests: int
    folder: Path

    @property
    def prompts(self) -> Path:
        return self.folder / "prompts.jsonl"

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer"

    def write(self) -> None:
        """Write the prompts, under the names that the clients know, and a tokenizer."""
        words = [word.strip() for word in WORDS]
        chosen = random.Random(SEED)
        with self.prompts.open("w") as file:
            for _ in range(self.requests):
                text = " ".join(chosen.choices(words, k=ISL - 1))  # the server adds a token for the beginning
                file.write(json.dumps({"prompt": text, "text": text, "output_tokens_count": OSL}) + "\n")
        write_tokenizer(self.tokenizer, words)


def write_tokenizer(folder: Path, words: list[str]) -> None:
    """Write a tokenizer in Hugging Face's format, with a token for each word."""
    folder.mkdir()
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    vocabulary = {word: index for index, word in enumerate(_SPECIAL + words)}
    tokenizer = {
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder")),
        "version": "1.0",
        "added_tokens": [{"id": vocabulary[word], "content": word, "special": True} | flags for word in _SPECIAL],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **dict(zip(("unk_token", "bos_token", "eos_token"), _SPECIAL, strict=True)),
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@dataclass(frozen=True, slots=True)
class Reported:
    """A client's own figures; None for those that it does not report."""

    ttft_mean_ms: float | None
    ttft_p99_ms: float | None = None
    tpot_mean_ms: float | None = None
    tpot_p99_ms: float | None = None
    limited: str | None = None  # why it was the limit itself, if it says so
    since_ns: int = 0  # when its load began, if it sent something before that


def of_result(result: Result) -> Reported:
    stage = result.stages[0]
    ttft, tpot = stage.latency_ms["ttft"], stage.latency_ms["tpot"]
    return Reported(ttft.mean, ttft.p99, tpot.mean, tpot.p99, result.client.why)


def of_foreign(path: Path) -> Reported:
    result = read_foreign(path.read_bytes(), path.name)
    if result is None:
        raise ValueError(f"{path.name} is not a result that vramp knows")
    return of_result(result)


@dataclass(frozen=True, slots=True)
class Client:
    """One row: `find` returns its program or why there is none, `read` takes the file that it leaves in its folder."""

    name: str
    find: Callable[[], Path | str]
    command: Callable[[Path, Load], list[str]]
    file: str
    read: Callable[[Path], Reported] = of_foreign
    env: Mapping[str, str] = field(default_factory=dict)
    request: Callable[[Load], bytes] = lambda _: b""


def vramp_command(program: Path, load: Load) -> list[str]:
    """Return vramp with the defaults of its command line."""
    shape = f"--concurrency {load.streams} --requests {load.requests} --isl {ISL} --osl {OSL} --seed {SEED}"
    # The simulator's truth includes the first wave.
    counted = ["--set", "load.first_wave=counted"]
    return [str(program), "-m", "tui.cli", "run", "--url", load.url, *shape.split(), *counted, "--json", "vramp.json"]


def read_vramp(path: Path) -> Reported:
    result = read_result(path)
    return replace(of_result(result), since_ns=began_ns(result.stages[0]))


def floor_command(program: Path, load: Load) -> list[str]:
    return [str(program), load.url.rpartition(":")[2], str(load.streams), str(load.requests), str(OSL)]


def vllm_command(program: Path, load: Load, isl: int = ISL - 1) -> list[str]:
    # Its random prompts consist of the tokenizer's words, like the file's, which it cannot read without pandas.
    shape = f"--dataset-name random --random-input-len {isl} --random-output-len {OSL} --ignore-eos --seed {SEED}"
    count = f"--num-prompts {load.requests} --max-concurrency {load.streams} --percentile-metrics ttft,tpot,itl,e2el"
    where = ["--base-url", load.url, "--model", MODEL, "--tokenizer", str(load.tokenizer)]
    saved = ["--save-result", "--result-dir", str(load.folder), "--result-filename", "vllm.json", "--disable-tqdm"]
    return [str(program), "bench", "serve", *where, *shape.split(), *count.split(), *saved]


def vllm_rs_command(program: Path, load: Load) -> list[str]:
    # Of the whole run, as is the simulator's truth; to token ids, the server adds none.
    return [*vllm_command(program, load, ISL), "--prompt-token-ids", "--no-steady-state"]


def guidellm_command(program: Path, load: Load) -> list[str]:
    return [
        *(str(program), "run", "--disable-console-interactive"),
        *("--backend", f"kind=openai_http,target={load.url},model={MODEL},request_format=/v1/completions"),
        *("--profile", f"kind=concurrent,streams={load.streams}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--data", json.dumps({"kind": "json_file", "path": str(load.prompts)})),
        *("--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}"),
        *("--seed", f"kind=static,value={SEED}"),
        *("--output", f"kind=json,path={load.folder / 'guidellm.json'}"),
    ]


def aiperf_command(program: Path, load: Load) -> list[str]:
    return [
        *(str(program), "profile", "--model", MODEL, "--url", load.url, "--tokenizer", str(load.tokenizer)),
        *("--endpoint-type", "completions", "--streaming", "--use-server-token-count"),
        *("--concurrency", str(load.streams), "--request-count", str(load.requests), "--random-seed", str(SEED)),
        *("--input-file", str(load.prompts), "--custom-dataset-type", "single_turn"),
        *("--dataset-sampling-strategy", "sequential"),
        *("--extra-inputs", "ignore_eos:true", "--extra-inputs", f"max_tokens:{OSL}"),
        *("--ui", "none", "--no-server-metrics", "--no-gpu-telemetry"),
        *("--artifact-dir", str(load.folder / "aiperf")),
    ]


def endpoints_command(program: Path, load: Load) -> list[str]:
    """Return mlcommons' endpoints, which sends chats: its completions take only prompts of one model's tokens."""
    return [
        *(str(program), "benchmark", "online", "--endpoints", load.url, "--model", MODEL, "--streaming", "on"),
        *("--tokenizer", str(load.tokenizer), "--dataset", f"{load.prompts},parser.prompt=prompt"),
        *("--load-pattern", "concurrency", "--concurrency", str(load.streams), "--num-samples", str(load.requests)),
        *("--duration", "0", "--max-output-tokens", str(OSL), "--report-dir", str(load.folder / "endpoints")),
        # Its default of ten workers takes 40 s to start on two cores, and it would open thousands of connections first.
        *("--workers", "2", "--client.warmup-connections", str(load.streams)),
    ]


class _Series(msgspec.Struct, frozen=True):
    """In nanoseconds."""

    avg: float
    percentiles: dict[str, float]

    @property
    def ms(self) -> tuple[float, float]:
        return self.avg / 1e6, self.percentiles["99.0"] / 1e6


class _EndpointsSummary(msgspec.Struct, frozen=True):
    ttft: _Series
    tpot: _Series


def read_endpoints(path: Path) -> Reported:
    found = msgspec.json.decode(path.read_bytes(), type=_EndpointsSummary)
    return Reported(*found.ttft.ms, *found.tpot.ms)


VRAMP = Client("vramp", lambda: Path(sys.executable), vramp_command, "vramp.json", read_vramp)
FLOOR = Client(
    "floor (C)",
    floor.build,
    floor_command,
    OUTPUT,
    lambda path: Reported(floor.mean_ttft_ms(path.read_text())),
    request=lambda load: floor.request(load.url, ISL, OSL),
)
CLIENTS = (
    VRAMP,
    FLOOR,
    Client("vllm bench serve 0.32.0", lambda: install_vllm("0.32.0"), vllm_command, "vllm.json", env=_OFFLINE),
    Client("vllm-rs bench serve 0.33.0", lambda: install_vllm_rs("0.33.0"), vllm_rs_command, "vllm.json", env=_OFFLINE),
    Client(
        "guidellm 0.8.1",
        lambda: install("guidellm==0.8.1", "guidellm"),
        guidellm_command,
        "guidellm.json",
        env=_OFFLINE,
    ),
    # Offline, it refuses a tokenizer that is a folder.
    Client(
        "aiperf 0.13.0",
        lambda: install("aiperf==0.13.0", "aiperf"),
        aiperf_command,
        "aiperf/profile_export_aiperf.json",
    ),
    Client(
        "mlcommons endpoints",
        lambda: on_path("inference-endpoint", "not on the package registry, and no inference-endpoint on PATH"),
        endpoints_command,
        "endpoints/performance/result_summary.json",
        read_endpoints,
        _OFFLINE,
    ),
)
