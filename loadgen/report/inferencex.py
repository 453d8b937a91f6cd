"""The stages of a closed loop as rows of InferenceX, as `utils/process_result.py` there makes them from vLLM's file.

A row identifies a configuration by more than a run knows: what is unknown is null, to be filled in by who uploads it.
Throughput is divided by the GPUs as there, by tensor, pipeline and prefill context parallelism, or by the GPUs that the
server was seen on if its command is unknown.
"""

from __future__ import annotations

import re
from typing import Any

from loadgen.metrics.mfu import flags_of
from loadgen.record.subject import hardware_of, model_of
from loadgen.report.vllm_json import vllm_documents
from loadgen.schema.result import Result

_PART = re.compile(r"\b(MI\d{3}[A-Z]?|G?[BH]\d{3})\b", re.IGNORECASE)
_FRAMEWORKS = {"docker": "vllm", "vllm": "vllm", "sglang": "sglang"}
_PARALLEL = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dcp_size": "decode-context-parallel-size"}
_PARALLEL |= {"pcp_size": "prefill-context-parallel-size"}


def inferencex_rows(result: Result) -> list[dict[str, Any]]:
    """A row a stage; stages without a fixed number of streams have none there."""
    rows = []
    for document in vllm_documents(result):
        if document["request_rate"] == "inf" and document["max_concurrency"]:
            times_ms = {key.replace("_ms", ""): value for key, value in document.items() if key.endswith("_ms")}
            seconds = {name: value / 1000 for name, value in times_ms.items()}
            # The tokens a second of one user.
            users = {name.replace("tpot", "intvty"): 1000 / ms for name, ms in times_ms.items() if "tpot" in name}
            figures = _per_gpu(result, document) | seconds | users
            rows.append(_identity(result, document) | figures | {"vramp": document["vramp"]})
    return rows


def _identity(result: Result, document: dict[str, Any]) -> dict[str, Any]:
    flags = flags_of(result.environment.get("server_command") or [])
    part = _PART.search(hardware_of(result))
    docker = (result.profile.get("server") or {}).get("docker") or {}
    known = bool(flags)
    return {
        "hw": part[1].lower() if part is not None else None,
        "conc": document["max_concurrency"],
        "image": docker.get("image"),
        "model": model_of(result),
        "infmax_model_prefix": None,
        "framework": _FRAMEWORKS.get(str(result.environment.get("engine"))),
        "precision": None,
        "spec_decoding": ("other" if "speculative-config" in flags else "none") if known else None,
        "disagg": False,
        "recipe_fingerprint": "",
        "isl": document["vramp"]["isl"],
        "osl": document["vramp"]["osl"],
        "is_multinode": False,
        **_parallelism(flags),
    }


def _parallelism(flags: dict[str, str]) -> dict[str, Any]:
    """As the command asks for it; null without a command. Expert parallelism spans the tensor-parallel GPUs."""
    if not flags:
        return dict.fromkeys([*_PARALLEL, "ep", "dp_attention"])
    sizes = {name: int(flags[flag]) if flags.get(flag, "").isdecimal() else 1 for name, flag in _PARALLEL.items()}
    ep = sizes["tp"] if "enable-expert-parallel" in flags else 1
    return {**sizes, "ep": ep, "dp_attention": "true" if flags.get("data-parallel-size", "1") != "1" else "false"}


def _per_gpu(result: Result, document: dict[str, Any]) -> dict[str, float | None]:
    sizes = _parallelism(flags_of(result.environment.get("server_command") or []))
    gpus = 0
    if sizes["tp"]:
        gpus = sizes["tp"] * sizes["pp"] * sizes["pcp_size"]
    else:
        # The sockets on which the server computed in this stage.
        rates = result.stages[document["vramp"]["stage"] - 1].throughput
        each, all_of_them = rates.output_tokens_per_s_per_gpu, rates.output_tokens_per_s
        gpus = round(all_of_them / each) if each and all_of_them else 0
    total, output = document["total_token_throughput"], document["output_throughput"]
    figures = {"tput_per_gpu": total, "output_tput_per_gpu": output, "input_tput_per_gpu": total - output}
    return {name: value / gpus if gpus else None for name, value in figures.items()}
