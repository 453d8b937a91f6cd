"""`vramp check` as scripts see it."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from loadgen.profile.document import load_document, variant_names
from tests.tui.cli.commands import Said

PROFILES = sorted((Path(__file__).parents[3] / "profiles").glob("*.toml"))
OLD = """
[server]
engine = "vllm"
model = "org/model"
args.swap-space = 16
env.VLLM_USE_V1 = "1"
[variants.fine]
unset = ["server.args.swap-space", "server.env.VLLM_USE_V1"]
"""


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "old.toml"
    path.write_text(OLD)
    return str(path)


def test_what_blocks_is_exit_code_3_and_says_what_to_do(profile: str, said: Said) -> None:
    code, out, _ = said("check", profile, "--installation", "0.32.0")
    assert code == 3
    assert out.startswith("blocks unknown-flag: ")
    assert "swap-space" in out and "fix: " in out
    assert "warns  unknown-variable: " in out and "VLLM_USE_V1" in out


def test_json_is_for_scripts(profile: str, said: Said) -> None:
    code, out, _ = said("check", profile, "--installation", "0.32.0", "--json")
    found = json.loads(out)
    assert code == 3
    assert (found[0]["id"], found[0]["severity"]) == ("unknown-flag", "blocks")


def test_a_variant_is_checked_as_it_would_run(profile: str, said: Said) -> None:
    code, out, _ = said("check", profile, "--installation", "0.32.0", "--variant", "fine")
    assert code == 0
    assert "swap-space" not in out


def test_a_version_that_is_not_recorded(profile: str, said: Said) -> None:
    code, _, err = said("check", profile, "--installation", "0.1")
    assert code == 3 and "there are: 0.32.0" in err


def test_a_port_that_is_taken_blocks_here(said: Said) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, out, _ = said("check", "simulator", "--set", f"server.port={taken.getsockname()[1]}")
    assert code == 3
    assert out.startswith("blocks port-taken: ")


SHIPPED = [(path, variant) for path in PROFILES for variant in [None, *variant_names(load_document(path))]]


@pytest.mark.parametrize(("path", "variant"), SHIPPED, ids=lambda value: getattr(value, "stem", value))
def test_no_shipped_profile_is_blocked(path: Path, variant: str | None, said: Said) -> None:
    chosen = ["--variant", variant] if variant is not None else []
    code, out, _ = said("check", str(path), "--installation", "0.32.0", "--json", *chosen)
    assert (code, [finding["id"] for finding in json.loads(out) if finding["severity"] == "blocks"]) == (0, [])


HF_CONFIG = '{"num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 131072}'
LARGE = """
[server]
engine = "vllm"
model = "{model}"
"""


@pytest.fixture
def large(tmp_path: Path) -> str:
    """A model of 120 billion parameters in BF16 on one GPU, of whose weights only the size is there."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(HF_CONFIG)
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(240_000_000_000)
    path = tmp_path / "large.toml"
    path.write_text(LARGE.format(model=folder))
    return str(path)


def found_for(said: Said, *words: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """The exit code, the findings by id, and why rules were skipped."""
    code, out, _ = said("check", *words, "--json")
    findings = json.loads(out)
    skipped = {one["rule"]: one["reason"] for finding in findings for one in finding.get("skipped", [])}
    return code, {finding["id"]: finding for finding in findings}, skipped


def test_what_does_not_fit_into_a_named_box_is_found_from_elsewhere(large: str, said: Said) -> None:
    code, found, _ = found_for(said, large, "--box", "l40s", "--installation", "0.32.0")
    assert (code, found["weights-too-large"]["severity"]) == (3, "blocks")
    assert found["weights-too-large"]["seen"] == "223.5 GiB of weights a GPU in 41.4 GiB"
    code, found, _ = found_for(
        said, large, "--box", "mi300x", "--installation", "0.32.0", "--set", "server.args.tensor-parallel-size=2"
    )
    assert (code, "weights-too-large" in found) == (0, False)


@pytest.mark.parametrize(("box", "code"), [("4xmi300x", 3), ("mi300x", 0), ("16xmi300x", 0)])
def test_the_number_of_gpus_is_that_of_the_box(large: str, box: str, code: int, said: Said) -> None:
    requested = ("--set", "server.args.tensor-parallel-size=8", "--box", box, "--installation", "0.32.0")
    ended, found, skipped = found_for(said, large, *requested)
    assert (ended, "too-few-gpus" in found) == (code, code == 3)
    assert "enough-devices" not in skipped


def test_cards_are_as_many_as_the_profile_needs(large: str, said: Said) -> None:
    requested = ("--set", "server.args.tensor-parallel-size=6", "--box", "l40s", "--installation", "0.32.0")
    _, found, _ = found_for(said, large, *requested)
    assert not {"too-few-gpus", "weights-too-large"} & found.keys()


def test_what_only_the_box_can_tell_is_listed_and_blocks_nothing(said: Said) -> None:
    words = ("mi300x-gpt-oss-120b", "--box", "mi300x", "--installation", "0.32.0")
    code, found, skipped = found_for(said, *words)
    assert (code, list(found)) == (0, ["not-checked"])
    assert set(skipped.values()) == {"needs the box itself"}
    assert {"port", "gpu-memory", "numa-balancing", "hub-model", "clock"} <= skipped.keys()
    assert not {"enough-devices", "weights-too-large", "aiter-unused"} & skipped.keys()
    code, out, _ = said("check", *words)
    assert out.startswith("not checked: gpu-devices, port, ")
    assert " ".join(out.split()).endswith(f"clock - needs the box itself nothing found, {len(skipped)} not checked")


def test_without_a_box_what_needs_its_gpus_is_listed(said: Said) -> None:
    _, _, skipped = found_for(said, "mi300x-gpt-oss-120b", "--installation", "0.32.0")
    for rule in ("enough-devices", "aiter-unused", "weights-too-large"):
        assert skipped[rule] == "the GPUs are unknown: name them with --box"
    # These are of other platforms, or read nothing but the profile.
    assert not {"rocm-variable-elsewhere", "chunked-prefill-off-cuda", "eager", "batch-below-seqs"} & skipped.keys()


def test_a_recipe_for_other_gpus_is_refused(said: Said) -> None:
    code, found, _ = found_for(said, "mi300x-gpt-oss-120b", "--box", "h100-sxm", "--installation", "0.32.0")
    assert (code, found["other-platform"]["severity"]) == (3, "blocks")
    code, found, _ = found_for(said, "vllm-cpu-tiny", "--box", "mi300x", "--installation", "0.32.0")
    assert (code, "other-platform" in found) == (0, False)


def test_without_a_version_flags_are_doubted(profile: str, said: Said) -> None:
    code, found, _ = found_for(said, profile, "--box", "mi300x")
    assert (code, found["unknown-flag"]["severity"]) == (0, "warns")
    assert "--installation was not given" in found["installation-unknown"]["why"]


def test_the_environment_of_this_machine_is_not_that_of_the_box(
    large: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("VLLM_NO_SUCH_VARIABLE", "1")
    requested = ("--set", "server.args.tensor-parallel-size=8", "--box", "h100-sxm", "--installation", "0.32.0")
    code, found, _ = found_for(said, large, *requested)
    assert (code, {"too-few-gpus", "unknown-variable"} & found.keys()) == (0, set())


def test_an_unknown_part_is_exit_code_2(profile: str, said: Said) -> None:
    code, _, err = said("check", profile, "--box", "8xh100")
    assert code == 2 and "such as h100-pcie, h100-nvl, h100-sxm" in err


def test_hosts_are_not_asked_for_another_box(said: Said) -> None:
    code, _, skipped = found_for(said, "simulator", "--hosts", "no.such.host", "--box", "mi300x")
    assert (code, skipped["hosts"]) == (3, "needs the box itself")


def test_a_box_without_gpus_lists_what_needs_them(
    large: str, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()  # a driver is not found, or is no library
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    _, _, skipped = found_for(said, large, "--set", "server.platform=cuda")
    assert skipped["weights-too-large"] == skipped["gpu-memory"]
    assert "no GPU can be read here: libnvidia-ml.so.1 was not found" in skipped["gpu-memory"]
