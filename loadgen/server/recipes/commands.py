"""A command line of a server as a profile: `vllm serve`, its Python module, or `docker run` with either."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from loadgen.errors import ProfileError
from loadgen.masking import shown_command
from loadgen.profile.schema import Docker
from loadgen.server.recipes.flags import MAX_PORT, Word, no_value, served
from loadgen.server.recipes.hardware import node_called
from loadgen.server.recipes.imported import Imported, RecipeChoice, default_load, environment, profile_name
from loadgen.server.recipes.shell import ShellCommand, commands, why_no_script
from loadgen.server.vllm.command import CONTAINER_FLAGS
from loadgen.vendors import AMD, NVIDIA

_CONTAINERS = ("docker", "podman", "nerdctl")
_SPEAKERS = ("echo", "printf", "cat", "grep", "pip", "pip3", "pgrep", "pkill", "tee", "which", "man")
_USUAL_WRAPPERS = {"env", "exec", "nohup", "time", "uv", "run"}
_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
_DEFAULT_PORT = 8000
_CLI_MODULE = "vllm.entrypoints.cli.main"
_OTHER_ENGINES = re.compile(r"\b(?:sglang|trtllm|tensorrt_llm|text-generation-launcher|llama-server|lmdeploy)\b")
_HOME = re.compile(r"^(?:\$HOME|\$\{HOME\})(?=/|:|$)")
_SWITCHES = """
    --rm -d --detach -i --interactive -t --tty -it -ti -dit -itd --init --privileged --read-only -P --publish-all
    --no-healthcheck --oom-kill-disable --quiet -q --sig-proxy
""".split()
_OURS = ("--rm", "--detach", "-d", "-it", "-ti", "-dit", "-itd", "-i", "-t", "--interactive", "--tty", "--name")
_SHORT = {"-v": "--volume", "-e": "--env", "-p": "--publish", "-u": "--user", "-w": "--workdir", "--net": "--network"}
_PUBLISHED = re.compile(r"(?:.*:)?([0-9]{1,5}):([0-9]{1,5})(?:/tcp)?")
_KEYS = CONTAINER_FLAGS | {"--network": "network"}


class _Container(msgspec.Struct):
    table: dict[str, Any] = {}
    env: dict[str, Word] = {}
    inherited: list[str] = []  # variables that `docker run` passes on
    entry_point: str = ""
    before: list[Word] = []  # the words in front of `docker run`
    words: list[Word] = []  # behind the image
    left_out: list[str] = []
    ports: dict[int, int] = {}  # of the host, by the container's


def import_command(text: str, choice: RecipeChoice) -> Imported:
    """The first server that a script starts; raises `ProfileError` if it starts none."""
    found = commands(text, choice.defines, _starts_server)
    if not found:
        hint = ""
        if other := _OTHER_ENGINES.search(text):
            hint = f"; it is about {other[0]}, and vramp imports servers of vLLM"
        elif "vllm serve" in text and (why := why_no_script(text)):
            hint = f"; {why}"
        raise ProfileError(f"no `vllm serve`, nor `docker run` of a vLLM image, in it{hint}")
    first, *others = found
    imported = _imported(first, choice)
    if first.unsure:
        listed = ", ".join(f"{name} (line {line})" for name, line in first.unsure.items())
        imported.left_out.append(f"what the script sets only under a condition: {listed}")
    if others:
        lines = ", ".join(str(other.line) for other in others[:8])
        imported.left_out.append(f"the other servers in it: {len(others)} (line {lines})")
    return imported


def _imported(command: ShellCommand, choice: RecipeChoice) -> Imported:
    container, words = _parts(command)
    start, after = _server_start(words) or (0, 0)
    given, rest = _assignments(words[:start])
    found = served(words[after:])
    left_out = found.left_out
    if container is not None:  # which shares the host's network
        found.port = container.ports.get(found.port or _DEFAULT_PORT, found.port)
    if found.model is None:
        raise ProfileError(f"the command names no model{': ' + left_out[0] if left_out else ''}")
    outside = command.within[:-2] if container is None else ()  # without `bash -c`
    wrappers = {"server": [*outside, *rest], "container": [] if container is None else container.before}
    for what, wrapper in wrappers.items():
        texts = [word.text for word in wrapper]
        if not _USUAL_WRAPPERS.issuperset(texts):
            left_out.append(f"what starts the {what}: {shown_command(texts)}")
    variables = command.env | given if container is None else container.env | given
    left_out += [f"variable {name}: {no_value(word.missing)}" for name, word in variables.items() if word.missing]
    env = environment({name: word.text for name, word in variables.items() if not word.missing}, left_out)
    left_out += [] if container is None else container.left_out
    name = profile_name(choice.hardware or "", found.model.rpartition("/")[2].lower())
    notes = ["the load below is vramp's: a command has none"]
    docker = None if container is None else container.table
    platform: str | None = None
    if choice.hardware is not None:
        platform = node_called(choice.hardware).platform
    elif docker is not None and "/dev/kfd" in docker.get("devices", []):
        platform = AMD.platform
    elif docker is not None and "gpus" in docker:
        platform = NVIDIA.platform
    hardware = f" on {choice.hardware}" if choice.hardware else ""
    document = found.document(f"{found.model}{hardware}, imported from a command line", platform, env, docker)
    document["load"] = default_load(found.args)
    return Imported(f"a command line (line {command.line})", name, document, notes, left_out)


def _starts_server(words: Sequence[Word]) -> bool:
    if not words or _program(words[0].text) in _SPEAKERS:
        return False
    if _server_start(words) is not None:
        return True
    container = _container(words)
    return container is not None and "vllm" in container.table["image"] and bool(container.words)


def _server_start(words: Sequence[Word]) -> tuple[int, int] | None:
    """Where the server's own command begins, and where its arguments do."""
    texts = [word.text for word in words]
    for number, text in enumerate(texts):
        following = texts[number + 1 : number + 3]
        if _program(text) == "vllm" and following[:1] == ["serve"]:
            return number, number + 2
        if text == "-m" and following[:1] and following[0] in _MODULES:
            return max(number - 1, 0), number + 2
        if text == "-m" and following == [_CLI_MODULE, "serve"]:
            return max(number - 1, 0), number + 3
    return None


def _program(word: str) -> str:
    return word.rpartition("/")[2]


def _parts(command: ShellCommand) -> tuple[_Container | None, Sequence[Word]]:
    """The container that the server runs in, and the words of the server's command."""
    container = _container([*command.within, Word("")])
    if container is not None:
        container.env |= command.env
        _inherit(container, command.env)
        return container, command.words
    container = _container(command.words)
    if container is None:
        return None, command.words
    container.before = [*command.within[:-2], *container.before]
    _inherit(container, command.env)
    words = [Word(container.entry_point), *container.words] if container.entry_point else container.words
    has_start = _server_start(words) is not None
    if not has_start or "vllm-openai" in container.table["image"]:  # its entry point is the server
        container.table["serve"] = []
    return container, words if has_start else [Word("vllm"), Word("serve"), *words]


def _inherit(container: _Container, env: Mapping[str, Word]) -> None:
    """Give a container the variables that `docker run` passes on, and report those that stay outside."""
    given, container.before = _assignments(container.before)
    outside = {**env, **given}
    for name in container.inherited:
        if name in outside:
            container.env[name] = outside[name]
        else:
            container.left_out.append(f"--env {name}: it comes from the environment; set server.env.{name}")
    if stays := [name for name in outside if name not in container.env]:
        container.left_out.append(f"variables that are not passed on to the container: {', '.join(stays)}")


def _assignments(words: Sequence[Word]) -> tuple[dict[str, Word], list[Word]]:
    """Variables such as those behind `env`, and the other words."""
    given: dict[str, Word] = {}
    rest = []
    for word in words:
        match = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word.text, re.ASCII | re.DOTALL)
        if match is None:
            rest.append(word)
        else:
            given[match[1]] = Word(match[2], word.missing)
    return given, rest


def _container(words: Sequence[Word]) -> _Container | None:
    """What a `docker run` among these words says; None if there is none."""
    texts = [word.text for word in words]
    start = next(
        (n for n, text in enumerate(texts[:-1]) if _program(text) in _CONTAINERS and texts[n + 1] == "run"), None
    )
    if start is None:
        return None
    container = _Container(before=list(words[:start]))
    rest = iter(words[start + 2 :])
    for word in rest:
        if not word.text.startswith("-"):
            container.table = {"image": word.text} | container.table
            if word.missing:
                raise ProfileError(f"the image is {word.text}, which has no value here: --define NAME=VALUE")
            container.words = list(rest)
            break
        _add_option(container, word, rest)
    if (program := _program(texts[start])) != "docker":
        container.table["executable"] = program
    return container if "image" in container.table else None


def _add_option(container: _Container, word: Word, rest: Iterator[Word]) -> None:
    option, separator, text = word.text.partition("=")
    value = Word(text, word.missing)
    if word.text[:2] in _SHORT and word.text[2:]:  # -eNAME=value
        option, value = word.text[:2], Word(word.text[2:].removeprefix("="), word.missing)
    elif not separator and option not in _SWITCHES:
        value = next(rest, Word(""))
    option = _SHORT.get(option, option)
    if option == "--env":
        name, assigned, of_it = value.text.partition("=")
        if assigned:
            container.env[name] = Word(of_it, value.missing)
        else:
            container.inherited.append(name)
    elif option == "--entrypoint":
        container.entry_point = value.text
    elif option in _KEYS:
        _add_key(container, option, value)
    elif option == "--publish":
        published = _PUBLISHED.fullmatch(value.text)
        if published and int(published[1]) <= MAX_PORT:
            container.ports[int(published[2])] = int(published[1])
    elif option not in _OURS:
        container.left_out.append(f"{option}: there is no such key in server.docker")


def _add_key(container: _Container, option: str, value: Word) -> None:
    text = _HOME.sub("~", value.text) if option == "--volume" else value.text
    if value.missing and (option != "--volume" or set(value.missing) != {"HOME"} or "$" in text):
        container.left_out.append(f"{option} {text}: {no_value(value.missing)}")
    elif isinstance(Docker.model_fields[_KEYS[option]].default, list):
        container.table.setdefault(_KEYS[option], []).append(text)
    elif option == "--network" and text != "host":
        container.left_out.append(
            f"--network {text}: the container shares the host's network; see server.docker.network"
        )
    else:
        container.table[_KEYS[option]] = text
