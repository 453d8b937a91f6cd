"""Where the model is, and whether there is room for it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from loadgen.profile.schema import Profile
from loadgen.schema.finding import Finding
from loadgen.server.preflight.facts import Box
from tests.scripts import executable
from tests.server.gpu_trees import GIB, write
from tests.server.preflight.boxes import check, healthy_box, ids, only, profile_of

HUB = "org/Model-8B"
FOLDER = "models--org--Model-8B"
OFFLINE = {"HF_HUB_OFFLINE": "1"}
TOKEN = {"HF_TOKEN": "secret"}


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many bytes are free, by a word in the path: no test fills a disk."""
    free: dict[str, int] = {}
    real = shutil.disk_usage

    def usage(path: Path) -> Any:
        known = [amount for word, amount in free.items() if word in str(path)]
        return real(path)._replace(free=known[0] if known else 1000 * GIB)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return free


def cached(box: Box, *files: str, cache: str = ".cache/huggingface/hub") -> Path:
    snapshot = box.home / cache / FOLDER / "snapshots/0123"
    for file in files:
        write(snapshot / file, "{}")
    return snapshot


@pytest.mark.parametrize("name", ["/no/such/model", "./no-model", "~/no-such-model-here", "deep/er/path"])
def test_a_path_that_does_not_exist(tmp_path: Path, name: str) -> None:
    finding = only(healthy_box(tmp_path), profile_of(tmp_path, model=name))
    assert (finding.id, finding.severity) == ("model-missing", "blocks")
    assert finding.seen == f"server.model = {name}: does not exist"


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    finding = only(healthy_box(tmp_path), profile_of(tmp_path, model=str(tmp_path)))
    assert (finding.id, finding.seen) == ("model-missing", f"server.model = {tmp_path}: no config.json in it")


@pytest.mark.parametrize("name", ["model/params.json", "model.gguf"])
def test_other_forms_of_models(tmp_path: Path, name: str) -> None:
    profile = profile_of(tmp_path)
    shutil.rmtree(tmp_path / "model")
    write(tmp_path / name, "{}")
    model = str(tmp_path / name.removesuffix("/params.json"))
    server = profile.server.model_copy(update={"model": model})
    assert check(healthy_box(tmp_path), profile.model_copy(update={"server": server})) == []


def sharded(folder: Path, *, there: int, of: int) -> None:
    names = [f"model-{number:05}.safetensors" for number in range(of)]
    weights = {f"layer.{number}": name for number, name in enumerate(names * 3)}
    write(folder / "model.safetensors.index.json", json.dumps({"metadata": {"total_size": 1}, "weight_map": weights}))
    for name in names[:there]:
        write(folder / name, "")


def test_a_model_of_which_a_part_is_missing(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    sharded(tmp_path / "model", there=3, of=5)
    finding = only(healthy_box(tmp_path), profile)
    assert (finding.id, finding.severity) == ("model-incomplete", "blocks")
    assert finding.seen.endswith("2 of 5 weight files are missing, such as model-00003.safetensors")
    sharded(tmp_path / "model", there=5, of=5)
    assert check(healthy_box(tmp_path / "other"), profile) == []


def test_an_index_that_is_none(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    write(tmp_path / "model/model.safetensors.index.json", '{"weight_map": [')
    finding = only(healthy_box(tmp_path), profile)
    assert (finding.id, finding.seen) == ("not-checked", "local-model: could not be checked")


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize("value", ["1", "yes", "True"])
def test_offline_without_the_model(tmp_path: Path, variable: str, value: str) -> None:
    box = healthy_box(tmp_path, environ={variable: value})
    finding = only(box, profile_of(tmp_path, model=HUB))
    assert (finding.id, finding.severity) == ("model-not-cached", "blocks")
    assert finding.seen.startswith(f"{HUB} is not in {box.home}/.cache/huggingface/hub")


@pytest.mark.parametrize(
    ("environment", "cache"),
    [
        ({}, ".cache/huggingface/hub"),
        ({"HF_HOME": "~/hf"}, "hf/hub"),
        ({"HF_HUB_CACHE": "~/models", "HF_HOME": "/elsewhere"}, "models"),
        ({"HUGGINGFACE_HUB_CACHE": "~/old"}, "old"),
        ({"XDG_CACHE_HOME": "~/xdg"}, "xdg/huggingface/hub"),
    ],
)
def test_offline_with_the_model_in_the_cache(tmp_path: Path, environment: dict[str, str], cache: str) -> None:
    box = healthy_box(tmp_path)
    cached(box, "config.json", cache=cache)
    assert check(box, profile_of(tmp_path, model=HUB, env=OFFLINE | environment)) == []


def test_offline_with_a_download_that_was_interrupted(tmp_path: Path) -> None:
    box, profile = healthy_box(tmp_path), profile_of(tmp_path, model=HUB, env=OFFLINE)
    sharded(cached(box, "config.json"), there=1, of=2)
    assert ids(box, profile) == ["model-incomplete"]
    assert check(box, profile_of(tmp_path, model=HUB)) == []  # online, the rest is fetched


@pytest.mark.parametrize("files", [(), ("README.md",)])
def test_a_model_that_is_to_be_fetched(tmp_path: Path, files: tuple[str, ...]) -> None:
    box = healthy_box(tmp_path)
    cached(box, *files)
    finding = only(box, profile_of(tmp_path, model=HUB, env=TOKEN))
    assert (finding.id, finding.severity) == ("model-download", "info")
    assert "secret" not in repr(finding)


def test_a_gated_model_needs_a_token(tmp_path: Path) -> None:
    box = healthy_box(tmp_path)
    assert ids(box, profile_of(tmp_path, model=HUB)) == ["model-download", "hub-token-missing"]
    write(box.home / ".cache/huggingface/token", "secret")
    assert ids(box, profile_of(tmp_path, model=HUB)) == ["model-download"]


@pytest.mark.parametrize(
    ("environment", "token"),
    [
        ({"HF_HUB_CACHE": "~/models/hub"}, ".cache/huggingface/token"),
        ({"HF_HOME": "~/hf"}, "hf/token"),
        ({"HF_HOME": "~/hf", "HF_TOKEN_PATH": "~/login"}, "login"),
    ],
)
def test_where_the_token_of_a_login_is(tmp_path: Path, environment: dict[str, str], token: str) -> None:
    box, profile = healthy_box(tmp_path), profile_of(tmp_path, model=HUB, env=environment)
    write(box.home / "models/token", "not there")
    assert ids(box, profile) == ["model-download", "hub-token-missing"]
    write(box.home / token, "secret")
    assert ids(box, profile) == ["model-download"]


@pytest.mark.parametrize(
    ("model", "free_gib", "warned"),
    [
        (HUB, 49, "large models have"),
        (HUB, 51, None),
        ("meta-llama/Llama-3.1-405B-Instruct", 700, "the model has 756.0 GiB"),
        ("meta-llama/Llama-3.1-405B-Instruct", 800, None),
        ("meta-llama/Llama-2-7b-hf", 20, None),
    ],
)
def test_room_for_the_download(
    tmp_path: Path, disk: dict[str, int], model: str, free_gib: int, warned: str | None
) -> None:
    disk["cache-of-hub"] = free_gib * GIB
    (tmp_path / "cache-of-hub").mkdir()
    env = TOKEN | {"HF_HUB_CACHE": str(tmp_path / "cache-of-hub/not/yet")}
    findings = check(healthy_box(tmp_path), profile_of(tmp_path, model=model, env=env))
    warnings = [finding for finding in findings if finding.id == "disk-space"]
    assert [finding.severity for finding in warnings] == (["warns"] if warned else [])
    if warned:
        assert warnings[0].why.startswith(warned)
        assert f"{free_gib:.1f} GiB free in {tmp_path}/cache-of-hub," in warnings[0].seen


def test_room_for_what_every_server_writes(tmp_path: Path, disk: dict[str, int]) -> None:
    disk["/home"] = 4 * GIB
    finding = only(healthy_box(tmp_path), profile_of(tmp_path))
    assert (finding.id, finding.severity, finding.seen) == (
        "disk-space",
        "warns",
        f"4.0 GiB free in {tmp_path}/home",
    )


@pytest.mark.parametrize(
    ("model", "env"), [("s3://bucket/model", {}), (HUB, {"VLLM_USE_MODELSCOPE": "True"}), ("s3://a", OFFLINE)]
)
def test_models_from_elsewhere_are_not_judged(tmp_path: Path, model: str, env: dict[str, str]) -> None:
    assert check(healthy_box(tmp_path), profile_of(tmp_path, model=model, env=env)) == []


def in_container(tmp_path: Path, model: str, *mounts: str, **env: str) -> Profile:
    docker = executable(tmp_path / "bin/docker", "#!/bin/sh")
    table = {"image": "i", "ipc": "host", "executable": str(docker), "mounts": list(mounts)}
    return profile_of(tmp_path, engine="docker", model=model, docker=table, env=env)


def findings_in_container(tmp_path: Path, model: str, *mounts: str, **env: str) -> list[Finding]:
    return check(healthy_box(tmp_path, environ=OFFLINE), in_container(tmp_path, model, *mounts, **env))


def test_a_path_in_a_container_is_looked_for_where_it_is_mounted(tmp_path: Path) -> None:
    mount = f"{tmp_path}:/models:ro"
    assert findings_in_container(tmp_path, "/models/model", mount) == []
    (finding,) = check(healthy_box(tmp_path / "b"), in_container(tmp_path, "/models/other", mount))
    assert finding.seen == "server.model = /models/other: does not exist"


def test_a_path_in_the_image_is_not_judged(tmp_path: Path) -> None:
    assert findings_in_container(tmp_path, "/app/model", "named-volume") == []


def test_a_container_that_forgets_what_it_fetched(tmp_path: Path) -> None:
    (finding,) = findings_in_container(tmp_path, HUB)
    assert (finding.id, finding.severity) == ("model-not-kept", "warns")


def test_a_container_with_the_cache_of_the_host(tmp_path: Path) -> None:
    mount = f"{tmp_path}/hf:/root/.cache/huggingface"
    (finding,) = findings_in_container(tmp_path, HUB, mount, **OFFLINE)
    assert finding.seen.startswith(f"{HUB} is not in {tmp_path}/hf/hub,")
    write(tmp_path / "hf/hub" / FOLDER / "snapshots/1/config.json", "{}")
    assert check(healthy_box(tmp_path / "b"), in_container(tmp_path, HUB, mount, **OFFLINE)) == []
