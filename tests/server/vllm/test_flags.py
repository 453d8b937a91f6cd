import os
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.format import harmless
from loadgen.profile.schema import Server
from loadgen.schema.finding import Finding
from loadgen.server.vllm.flags import (
    REMOVED_FLAGS,
    REMOVED_VARIABLES,
    WELL_KNOWN_VARIABLES,
    flag_findings,
    list_form,
    normal_args,
)
from loadgen.server.vllm.installation import newest_recorded, recorded_installation, recorded_versions

KNOWN = recorded_installation("0.32.0")


@pytest.fixture(autouse=True)
def _no_variables_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        monkeypatch.delenv(name)


def findings(args: dict[str, Any] | None = None, env: dict[str, str] | None = None) -> list[Finding]:
    return flag_findings(Server(engine="vllm", model="m", args=args or {}, env=env or {}), KNOWN)


@pytest.mark.parametrize(
    "args",
    [
        {"max-model-len": 8192, "max_num_seqs": 512, "enforce-eager": True},
        {"enable-prefix-caching": False},
        {"no-enable-prefix-caching": True},
        {"enable_prefix_caching": False},
        {"compilation-config": {"cudagraph_mode": "FULL"}},
        {"compilation-config": '{"cudagraph_mode": "FULL"}'},
        {"compilation_config.cudagraph_mode": "FULL"},
        {"allowed-origins": ["a", "b"]},
        {"lora-modules": [{"name": "x", "path": "y"}]},
        {"lora-modules": "x=y"},
        {"middleware": ["a", "b"]},
        {"middleware": []},
        {"kv-cache-dtype": "fp8", "dtype": "bfloat16", "max-lora-rank": 16},
        {"moe-backend": "FlashInfer-CUTLASS"},
        {"collect-detailed-traces": ["model", "worker"]},
        {"hf-token": True},
        {"hf-token": "hf_x"},
        {"quantization": "fp8", "block-size": 64, "gpu-memory-utilization": 0.95},
    ],
)
def test_what_vllm_takes_passes(args: dict[str, Any]) -> None:
    assert findings(args) == []


@pytest.mark.parametrize(
    ("args", "name", "fix"),
    [
        ({"disable-log-requests": True}, "unknown-flag", "not logged now"),
        ({"disable-LOG-requests": True}, "unknown-flag", "not logged now"),
        ({"swap_space": 16}, "unknown-flag", "swaps nothing"),
        ({"max-seq-len-to-capture": 16384}, "unknown-flag", "max-cudagraph-capture-size"),
        ({"num-scheduler-steps": 15}, "unknown-flag", "async-scheduling"),
        ({"num-scheduler-step": 15}, "unknown-flag", "async-scheduling"),
        ({"compilation-config": {"full_cuda_graph": True}}, "unknown-flag", 'cudagraph_mode = "FULL"'),
        ({"compilation-config": '{"full_cuda_graph": true}'}, "unknown-flag", 'cudagraph_mode = "FULL"'),
        ({"compilation-config.full_cuda_graph": "true"}, "unknown-flag", 'cudagraph_mode = "FULL"'),
        ({"max-model-length": 8}, "unknown-flag", "did you mean max-model-len?"),
        ({"-tp": 8}, "unknown-flag", "did you mean tensor-parallel-size?"),
        ({"qqqqqq": 8}, "unknown-flag", "take it out"),
        ({"no-such-thing": False}, "unknown-flag", "take it out"),
        ({"headless": False}, "no-negation", "take it out"),
        ({"max-model-len": False}, "no-negation", "take it out"),
        ({"no-enforce-eager": False}, "no-negation", "take it out"),
        ({"max-num": 8}, "ambiguous-flag", "whole name"),
        ({"enable-chunked-prefill": "False"}, "flag-value", "write true or false"),
        ({"max-num-batched-tokens": True}, "flag-value", "instead of true"),
        ({"compilation-config": True}, "flag-value", "instead of true"),
        ({"max-model-len": [1, 2]}, "flag-value", "one value"),
        ({"max-model-len": {"a": 1}}, "flag-value", "plain value"),
        ({"max-model-len.a": 1}, "flag-value", "write max-model-len"),
        ({"api-key": []}, "flag-value", "take it out"),
        ({"kv-cache-dtype": "fp9"}, "flag-choice", "did you mean fp8?"),
        ({"dtype": "BFloat16"}, "flag-choice", "did you mean float16?"),
        ({"dtype": "zzzzz"}, "flag-choice", ""),
        ({"collect-detailed-traces": ["model", "wrker"]}, "flag-choice", "did you mean worker?"),
    ],
)
def test_what_vllm_refuses_blocks(args: dict[str, Any], name: str, fix: str) -> None:
    (finding,) = findings(args)
    assert (finding.id, finding.severity) == (name, "blocks")
    assert fix in finding.fix
    assert next(iter(args)) in finding.seen


def test_an_abbreviation_is_only_mentioned() -> None:
    (finding,) = findings({"tensor-parallel": 8})
    assert (finding.id, finding.severity, finding.fix) == ("abbreviated-flag", "info", "write tensor-parallel-size")
    assert [finding.id for finding in findings({"tensor-parallel": [8]})] == ["abbreviated-flag", "flag-value"]


def test_no_secret_and_no_escape_is_shown() -> None:
    shown = repr(findings({"hf-token.x": "hf_secret", "a\x1b[2J": "sk-secret", "dtype": "\x1b[2J"}))
    assert "secret" not in shown
    assert "\\x1b" not in shown


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("VLLM_USE_AITER_UNIFIED_ATTENTION", 'use the flag attention-backend = "ROCM_AITER_UNIFIED_ATTN"'),
        ("VLLM_USE_AITER_TRITON_ROPE", "use VLLM_ROCM_USE_AITER_TRITON_ROPE"),
        ("VLLM_ROCM_USE_AITER_TRITON_LINEAR", "VLLM_ROCM_USE_AITER_LINEAR"),
        ("VLLM_ROCM_USE_AITER_FUSED_MOE_A16W4", "VLLM_ROCM_USE_AITER_MOE"),
        ("VLLM_V1_USE_PREFILL_DECODE_ATTENTION", "attention-backend"),
        ("VLLM_ROCM_USE_AITER_TRITON_FUSED_ROPE_ZEROS_KV_CACHE", "fuse_rope_kvcache"),
        ("VLLM_USE_TRITON_FLASH_ATTN", "attention-backend"),
        ("VLLM_USE_V1", "only engine"),
        ("VLLM_RPC_TIMEOUT", "VLLM_ENGINE_READY_TIMEOUT_S"),
        ("VLLM_ROCM_USE_ATIER", "did you mean VLLM_ROCM_USE_AITER?"),
        ("VLLM_QQQQ", "take it out"),
    ],
)
def test_an_unknown_variable_is_ignored_by_vllm(name: str, fix: str) -> None:
    (finding,) = findings(env={name: "1"})
    assert (finding.id, finding.severity) == ("unknown-variable", "warns")
    assert fix in finding.fix
    (strict,) = findings({"fail-on-environ-validation": True}, {name: "1"})
    assert strict.severity == "blocks"


def test_a_variable_of_the_shell_is_judged_where_the_server_inherits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "1")
    (finding,) = findings()
    assert finding.seen == "VLLM_USE_V1 in the environment of vramp"
    docker = Server.model_validate({"engine": "docker", "model": "m", "docker": {"image": "i"}})
    assert flag_findings(docker, KNOWN) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HIP_FORCE_DEV_KERNARGS", "HIP_FORCE_DEV_KERNARG"),
        ("NCCL_MIN_CHANNELS", "NCCL_MIN_NCHANNELS"),
        ("HF_HUB_OFLINE", "HF_HUB_OFFLINE"),
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_slip_in_a_well_known_name(name: str, meant: str) -> None:
    (finding,) = findings(env={name: "1"})
    assert (finding.id, finding.severity, finding.fix) == ("misspelt-variable", "warns", f"did you mean {meant}?")


def test_variables_of_others_pass() -> None:
    names = [*WELL_KNOWN_VARIABLES, "MY_OWN", "PATH", "NCCL_NTHREADS", "VLLM_ROCM_USE_AITER", "CUDA_HOME"]
    assert findings(env=dict.fromkeys(names, "1")) == []


def test_the_tables_explain_only_what_is_gone() -> None:
    newest = newest_recorded()
    assert not REMOVED_FLAGS.keys() & newest.flags.keys()
    assert not REMOVED_VARIABLES.keys() & set(newest.variables)
    named = {name for fix in REMOVED_VARIABLES.values() for name in re.findall(r"VLLM_\w+", fix)}
    assert named <= set(newest.variables)
    for fix in [*REMOVED_FLAGS.values(), *REMOVED_VARIABLES.values()]:
        for flag in re.findall(r"\b[a-z]+(?:-[a-z0-9]+)+\b", fix):
            assert flag in {*newest.flags, "multi-step"}, fix


@pytest.mark.parametrize(
    ("version", "args", "env", "fix"),
    [
        ("0.33.0", {}, {"VLLM_ROCM_USE_AITER_FP4_ASM_GEMM": "1"}, "take it out, or run vLLM 0.32.0, which knows it"),
        ("0.33.0", {}, {"VLLM_ROCM_MONO_DECODE": "1"}, "use the flag monokernel"),
        ("0.32.0", {"watchdog-config": {}}, {}, "take it out, or run vLLM 0.33.0, which knows it"),
        ("0.32.0", {"no-monokernel": True}, {}, "take it out, or run vLLM 0.33.0, which knows it"),
    ],
)
def test_what_another_version_knows_names_that_version(
    version: str, args: dict[str, Any], env: dict[str, str], fix: str
) -> None:
    server = Server(engine="vllm", model="m", args=args, env=env)
    (finding,) = flag_findings(server, recorded_installation(version))
    assert finding.fix == fix


@pytest.mark.parametrize("version", recorded_versions())
def test_every_switch_can_be_turned_off_as_vramp_does_it(version: str) -> None:
    known = recorded_installation(version)
    switches: dict[str, Any] = {flag: False for flag, info in known.flags.items() if f"--no-{flag}" in info.names}
    assert {"enable-prefix-caching", "enable-chunked-prefill", "enable-log-requests"} <= switches.keys()
    assert flag_findings(Server(engine="vllm", model="m", args=switches), known) == []


def test_vllm_0_33_takes_the_old_opposite_of_a_switch_again() -> None:
    server = Server(engine="vllm", model="m", args={"disable-log-requests": True, "disable-prefix-caching": True})
    assert flag_findings(server, recorded_installation("0.33.0")) == []


@pytest.mark.parametrize(
    ("flag", "form"),
    [
        ("allowed-origins", "json"),
        ("--allowed_origins", "json"),
        ("middleware", "repeat"),
        ("middlew", "repeat"),
        ("lora-modules", "several"),
        ("max-model-len", "several"),
        ("no-such-flag", "several"),
        ("max", "several"),
    ],
)
def test_how_a_flag_wants_a_list(flag: str, form: str) -> None:
    assert list_form(KNOWN, flag) == form
    assert list_form(None, flag) == form


def test_arguments_by_their_long_names() -> None:
    given = {
        "max_num_seqs": 1,
        "--tensor-parallel": 8,
        "no-enable-prefix-caching": True,
        "x_y": 2,
        "enable-lora": False,
        "disable-chunked-prefill": True,
        "enable-custom-all-reduce": True,
    }
    assert normal_args(given) == {
        "max-num-seqs": 1,
        "tensor-parallel-size": 8,
        "enable-prefix-caching": False,
        "x-y": 2,
        "enable-lora": False,
        "enable-chunked-prefill": False,
        "disable-custom-all-reduce": False,
    }


@given(
    st.dictionaries(
        st.text(max_size=12) | st.sampled_from(sorted(KNOWN.flags)),
        st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers() | st.text(max_size=3)),
        max_size=4,
    )
)
def test_no_profile_breaks_it(args: dict[str, Any]) -> None:
    for finding in findings(args):
        assert finding.severity in ("blocks", "info")
        assert harmless(finding.seen + finding.why + finding.fix) == finding.seen + finding.why + finding.fix
    normal_args(args)
