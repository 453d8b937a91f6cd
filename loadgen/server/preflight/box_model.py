"""Checks where the model is, locally or to be downloaded, and whether there is room for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from loadgen.format import GIB, memory
from loadgen.places import expanded
from loadgen.schema.finding import Finding
from loadgen.server.preflight.facts import Setup, hub_snapshots, hub_token, local_cache, model_facts, mounted

_REFUSED = "vLLM refuses to start without it"


class _WeightIndex(msgspec.Struct):
    weight_map: dict[str, str]  # the file of each tensor


def local_model(setup: Setup) -> Iterator[Finding]:
    name = setup.server.model or ""
    path = _local_path(setup, name)
    if path is None:
        return
    shown = f"server.model = {name}"
    if not path.exists():
        yield Finding("model-missing", "blocks", f"{shown}: does not exist", _REFUSED, "correct the path")
    elif path.is_dir():
        yield from _incomplete(shown, path)


def _configured(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("config.json", "params.json"))


def _incomplete(shown: str, folder: Path) -> Iterator[Finding]:
    if not _configured(folder):
        yield Finding("model-missing", "blocks", f"{shown}: no config.json in it", _REFUSED, "name the model's folder")
        return
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return
    files = sorted(set(msgspec.json.decode(index.read_bytes(), type=_WeightIndex).weight_map.values()))
    missing = [file for file in files if not (folder / file).exists()]
    if missing:
        seen = f"{shown}: {len(missing)} of {len(files)} weight files are missing, such as {missing[0]}"
        why = "the server fails after loading the files that are there"
        yield Finding("model-incomplete", "blocks", seen, why, "fetch the model again; what is there already is kept")


def hub_model(setup: Setup) -> Iterator[Finding]:
    name, environment = setup.server.model or "", setup.environment
    other_hub = environment.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true")
    is_name = not name.startswith(("/", "~", ".")) and name.count("/") <= 1 and "://" not in name
    if other_hub or not is_name or _local_path(setup, name) is not None:
        return
    cache = local_cache(setup.server, setup.environment, setup.box.home)
    if cache is None:
        seen = f"no mount of the container keeps what is fetched of {name}"
        fix = 'server.docker.mounts = ["~/.cache/huggingface:/root/.cache/huggingface"]'
        yield Finding("model-not-kept", "warns", seen, "every start would download the model again", fix)
        return
    switch = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    offline = switch.upper() in ("1", "ON", "YES", "TRUE")
    whole = [folder for folder in hub_snapshots(name, cache) if _configured(folder)]
    if not whole and offline:
        seen = f"{name} is not in {cache}, and HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set"
        why = "offline, the server takes models from the cache only"
        yield Finding("model-not-cached", "blocks", seen, why, f"hf download {name}, with the variable unset")
    elif not whole:
        yield from _download(setup, name, cache)
    elif offline and all(list(_incomplete(name, folder)) for folder in whole):
        yield from _incomplete(f"{name} in {cache}", whole[0])


def _download(setup: Setup, name: str, cache: Path) -> Iterator[Finding]:
    yield Finding("model-download", "info", f"{name} is not in {cache}", "it is downloaded while the server starts")
    if not _has_token(setup):
        why = "if the model is gated, the hub refuses it without a token of an account that was granted access"
        # A container gets none of our variables, but a mounted folder can hold the token of a login.
        fix = "hf auth login, or set HF_TOKEN" if setup.server.docker is None else "hf auth login"
        yield Finding("hub-token-missing", "info", "no token for the hub is set", why, fix)
    facts = model_facts(name, {"HF_HUB_CACHE": str(cache)})
    known = facts.weight_bytes if facts is not None else None
    needed_bytes = known or 50 * GIB
    where = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free_bytes = shutil.disk_usage(where).free
    if free_bytes < needed_bytes:
        size = f"the model has {memory(known)}" if known else "large models have hundreds of GiB"
        seen = f"{memory(free_bytes)} free in {where}, and {name} is to be fetched"
        why = f"{size}; a full disk ends the start"
        yield Finding("disk-space", "warns", seen, why, "set HF_HOME to a larger disk")


def disk_space(setup: Setup) -> Iterator[Finding]:
    free_bytes = shutil.disk_usage(setup.box.home).free
    if free_bytes < 5 * GIB:
        seen = f"{memory(free_bytes)} free in {setup.box.home}"
        why = "compiled kernels, logs and results are written there"
        yield Finding("disk-space", "warns", seen, why, "make room, or set XDG_CACHE_HOME and VLLM_CACHE_ROOT")


def _local_path(setup: Setup, name: str) -> Path | None:
    """The local path of a model that is not a name on the hub; None if unknown."""
    if "://" in name:
        return None
    if setup.server.docker is not None:
        return mounted(setup.server.docker, Path(expanded(name))) if name.startswith(("/", "~")) else None
    path = Path(expanded(name))
    named = name.startswith(("/", "~", "./", "../")) or name.count("/") > 1
    return path if named or path.exists() else None


def _has_token(setup: Setup) -> bool:
    environment, docker = setup.environment, setup.server.docker
    if environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN"):
        return True
    if docker is None:
        return hub_token(environment, setup.box.home).exists()
    token = mounted(docker, hub_token(environment, Path("/root")))
    return token is not None and token.exists()
