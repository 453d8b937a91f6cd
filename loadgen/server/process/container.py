"""A server's container, identified to its daemon by id, never by a name that someone else may have used.

`docker run --cidfile` writes the id to a file of ours after the daemon has created the container and before it starts:
without an id, nothing of ours runs there. The label and the random name find a container whose file is lost.
Invariants: every query has a time limit; if a daemon does not answer, its container is assumed to exist.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from loadgen.errors import ServerError
from loadgen.server.process.log import clean_line
from loadgen.system import text_in

LABEL = "vramp.server"
_ANSWER_WAIT_S = 5.0
_REMOVE_WAIT_S = 10.0
_GOING_WAIT_S = 3.0
_POLL_S = 0.2
_ID = re.compile(r"[0-9a-f]{64}")
_DAEMON_VARIABLES: list[str] = """
    DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG DOCKER_TLS DOCKER_TLS_VERIFY DOCKER_CERT_PATH
    CONTAINER_HOST CONTAINER_CONNECTION CONTAINER_SSHKEY XDG_RUNTIME_DIR
""".split()
"""The variables that tell docker or podman which daemon to use."""


class Container(msgspec.Struct, frozen=True):
    program: str  # the path of docker or podman
    id_file: str
    label: str  # the mark of the server
    environment: dict[str, str]  # the variables that chose the daemon when it was started

    @property
    def flags(self) -> list[str]:
        """The flags of `run` that make its container identifiable: a unique name for people, the id file, the label."""
        return ["--name", self.name, "--label", f"{LABEL}={self.label}", "--cidfile", self.id_file]

    @property
    def top_command(self) -> str:
        """What lists its processes."""
        return f"{Path(self.program).name} top {self.name}"

    @property
    def name(self) -> str:
        return f"vramp-{Path(self.id_file).stem}"


def container_of(program: str, *, id_file: Path, label: str, environment: Mapping[str, str]) -> Container:
    chosen = {name: environment[name] for name in _DAEMON_VARIABLES if name in environment}
    return Container(program, str(id_file), label, chosen)


def container_ids(container: Container) -> list[str]:
    """The container's ids, none once it is gone; raises `ServerError` if the daemon does not answer."""
    known = read_id(container.id_file)
    # The label alone is not enough: an image committed from the container inherits it.
    marked = (f"label={LABEL}={container.label}", f"name={container.name}")
    return _listed(container.program, container.environment, *(marked if known is None else (f"id={known}",)))


def read_id(id_file: str) -> str | None:
    text = text_in(Path(id_file))
    return text if _ID.fullmatch(text) else None


def remove_container(container: Container) -> str:
    """Remove a container and wait until the daemon no longer has it; returns an error message, empty on success."""
    give_up_s = time.monotonic() + _GOING_WAIT_S
    problem = ""
    try:
        # With --rm the daemon may be removing it already: removing it then fails, and it is gone a moment later.
        while ids := container_ids(container):
            if problem and time.monotonic() > give_up_s:
                return problem
            failures = []
            for one in ids:
                try:
                    _run([container.program, "rm", "--force", one], container.environment, within_s=_REMOVE_WAIT_S)
                except ServerError as error:
                    failures.append(f"the container {one[:12]} could not be removed: {error}")
            problem = "; ".join(failures) or f"the container {ids[0][:12]} is still there after it was removed"
            time.sleep(_POLL_S if failures else 0)
        return ""
    except ServerError as error:
        return problem or str(error)


def registry_digest(program: str, image: str) -> str | None:
    """The digest by which a registry has an image of the daemon; None if it was built or loaded there.

    Raises `ServerError` if the daemon does not answer, or does not have the image.
    """
    _, at, digest = image.partition("@")
    if at:
        return digest
    found = inspect_image(program, image, '{{join .RepoDigests " "}}').split()
    return found[0].partition("@")[2] or None if found else None


def inspect_image(program: str, image: str, form: str) -> str:
    """What the daemon says of an image in this form; raises `ServerError` without an answer or such an image."""
    return _run([program, "image", "inspect", "--format", form, "--", image], {}, within_s=_ANSWER_WAIT_S)


def labels_of_containers(program: str) -> list[str]:
    """The labels of all vramp containers that the daemon has; raises `ServerError` if it does not answer."""
    ids = _listed(program, {}, f"label={LABEL}")
    form = f'{{{{index .Config.Labels "{LABEL}"}}}}'
    return _run([program, "inspect", "--format", form, *ids], {}, within_s=_ANSWER_WAIT_S).split() if ids else []


def _listed(program: str, environment: Mapping[str, str], *filters: str) -> list[str]:
    """The ids of the containers that match all filters."""
    words = [program, "ps", "--all", "--quiet", "--no-trunc", *(f"--filter={wanted}" for wanted in filters)]
    return [line for line in _run(words, environment, within_s=_ANSWER_WAIT_S).split() if _ID.fullmatch(line)]


def _run(words: list[str], environment: Mapping[str, str], *, within_s: float) -> str:
    shown = " ".join(words[:2])
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **environment},
            timeout=within_s,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServerError(f"{shown} did not end within {within_s:g} s") from None
    except OSError as error:
        raise ServerError(f"cannot run {shown}: {error.strerror}") from None
    if done.returncode != 0:
        said = [clean_line(line) for line in done.stderr.splitlines() if line.strip()]
        raise ServerError(f"{shown} ended with exit code {done.returncode}{f': {said[-1]}' if said else ''}")
    return done.stdout.decode("utf-8", "replace")
