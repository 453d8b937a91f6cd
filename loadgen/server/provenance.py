"""Which image and which weights a server was started with, exactly; what is unknown has its reason."""

from __future__ import annotations

import re
from pathlib import Path

from loadgen.errors import ServerError
from loadgen.places import expanded, home_folder
from loadgen.profile.schema import Server
from loadgen.schema.start import Provenance
from loadgen.server.preflight.facts import local_cache
from loadgen.server.process.container import registry_digest
from loadgen.server.vllm.command import find_container_program, server_environment
from loadgen.system import text_in

_COMMIT = re.compile(r"[0-9a-f]{40}")


def provenance(server: Server) -> Provenance:
    """Asks the container's daemon and reads the hub's cache: call it once the server is ready."""
    digest, no_digest = _image_digest(server)
    revision, no_revision = _weights_revision(server)
    missing = {"image_digest": no_digest, "weights_revision": no_revision}
    return Provenance(
        image=server.docker.image if server.docker is not None else None,
        image_digest=digest,
        weights_revision=revision,
        missing={name: why for name, why in missing.items() if why},
    )


def _image_digest(server: Server) -> tuple[str | None, str]:
    """The digest, or why there is none."""
    if server.docker is None:
        return None, "vramp did not start the server" if server.engine == "attach" else "no container"
    try:
        digest = registry_digest(find_container_program(server, server.docker), server.docker.image)
    except ServerError as error:
        return None, str(error)
    return digest, "" if digest is not None else "the image was built or loaded here: no registry has it"


def _weights_revision(server: Server) -> tuple[str | None, str]:
    """The commit of the weights on the hub, or why it is not known."""
    if server.engine not in ("vllm", "docker") or server.model is None:
        return None, "vramp did not start the server" if server.engine == "attach" else "no weights"
    revision = str(server.args.get("revision") or "main")
    if _COMMIT.fullmatch(revision):
        return revision, ""
    folder = Path(expanded(server.model))
    if folder.is_absolute() or folder.is_dir():
        name = folder.resolve().name
        return (name, "") if _COMMIT.fullmatch(name) else (None, "a folder, which names no revision")
    environment = server.env if server.docker is not None else server_environment(server)
    cache = local_cache(server, environment, home_folder())
    if cache is None:
        return None, "the hub's cache is inside the container"
    commit = text_in(cache / f"models--{server.model.replace('/', '--')}" / "refs" / revision)
    return (commit, "") if _COMMIT.fullmatch(commit) else (None, f"{cache} has no revision {revision} of it")
