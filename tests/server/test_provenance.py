"""Which image and weights a server was started with: from the daemon, the hub's cache, the command line."""

from pathlib import Path
from typing import Any

import pytest

from loadgen.profile.schema import Docker, Server
from loadgen.server.provenance import provenance
from tests.scripts import executable

COMMIT, OTHER = "0123456789abcdef" * 2 + "01234567", "f" * 40


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A hub's cache with one model, of which `main` and a tag are known."""
    refs = tmp_path / "hub" / "models--org--model" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(COMMIT)
    (refs / "v1").write_text(f"{OTHER}\n")
    (refs / "broken").write_text("not a commit")
    return tmp_path / "hub"


def vllm(cache: Path, model: str = "org/model", **args: Any) -> Server:
    return Server(engine="vllm", model=model, args=args, env={"HF_HUB_CACHE": str(cache)})


def docker(tmp_path: Path, image: str, says: str, mounts: list[str]) -> Server:
    """A server in a container, whose daemon says this of the image."""
    program = executable(tmp_path / "docker", f"#!/bin/sh\n{says}\n")
    return Server(
        engine="docker", model="org/model", docker=Docker(image=image, executable=str(program), mounts=mounts)
    )


def test_weights_revision_is_what_the_hub_calls_it(cache: Path) -> None:
    assert provenance(vllm(cache)).weights_revision == COMMIT
    assert provenance(vllm(cache, revision="v1")).weights_revision == OTHER
    assert provenance(vllm(cache, "org/absent", revision=OTHER)).weights_revision == OTHER


def test_weights_revision_of_a_folder_is_that_of_its_snapshot(cache: Path, tmp_path: Path) -> None:
    for name, revision in ((COMMIT, COMMIT), ("weights", None)):
        folder = tmp_path / name
        folder.mkdir()
        found = provenance(vllm(cache, str(folder)))
        assert found.weights_revision == revision
        assert ("weights_revision" in found.missing) == (revision is None)


@pytest.mark.parametrize(("model", "revision"), [("org/absent", "main"), ("org/model", "v2"), ("org/model", "broken")])
def test_weights_revision_that_is_not_known_has_a_reason(cache: Path, model: str, revision: str) -> None:
    found = provenance(vllm(cache, model, revision=revision))
    assert found.weights_revision is None
    assert found.missing["weights_revision"] == f"{cache} has no revision {revision} of it"


def test_image_digest_is_the_registrys(cache: Path, tmp_path: Path) -> None:
    mounts = [f"{cache.parent}:/root/.cache/huggingface"]
    found = provenance(docker(tmp_path, "org/vllm:v1", "echo org/vllm@sha256:abc org/vllm@sha256:def", mounts))
    assert (found.image, found.image_digest, found.weights_revision) == ("org/vllm:v1", "sha256:abc", COMMIT)
    assert found.missing == {}
    given = provenance(docker(tmp_path, "org/vllm@sha256:123", "exit 1", []))
    assert given.image_digest == "sha256:123"
    assert given.missing == {"weights_revision": "the hub's cache is inside the container"}


@pytest.mark.parametrize(
    ("says", "why"),
    [("true", "the image was built or loaded here: no registry has it"), ("exit 1", "image ended with exit code 1")],
)
def test_image_without_a_digest_has_a_reason(tmp_path: Path, says: str, why: str) -> None:
    found = provenance(docker(tmp_path, "mine", says, []))
    assert found.image_digest is None
    assert found.missing["image_digest"].endswith(why)


def test_provenance_of_an_attached_server_is_not_known() -> None:
    found = provenance(Server(engine="attach", url="http://127.0.0.1:8000"))
    assert found.missing == dict.fromkeys(("image_digest", "weights_revision"), "vramp did not start the server")
