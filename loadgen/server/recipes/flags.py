"""From the words after `vllm serve` to the keys of `[server]`.

Flags keep the value that the source gives them; one that no recorded vLLM knows is taken over as it is, and the
preflight judges it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from loadgen.server.recipes.imported import is_secret
from loadgen.server.vllm.installation import FlagInfo, newest_recorded

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?[0-9]{1,17}\.[0-9]{1,17}")
_FLAG = re.compile(r"-(?![0-9][0-9.]*\Z).+", re.DOTALL)
_LEVEL = re.compile(r"-O=?([0-9])")
_SEVERAL_MACHINES = (
    "nnodes",
    "node-rank",
    "master-addr",
    "headless",
    "data-parallel-address",
    "data-parallel-start-rank",
)
MAX_PORT = 65535
_MAX_SHOWN = 100  # characters of a value


class Word(NamedTuple):
    text: str
    missing: tuple[str, ...] = ()
    """The shell variables in it without a value; the text has them as they were written."""


class ServedCommand(msgspec.Struct):
    model: str | None = None
    served_model_name: str | None = None
    port: int | None = None
    args: dict[str, Any] = {}
    left_out: list[str] = []

    def document(
        self, description: str, platform: str | None, env: dict[str, str], docker: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """A profile of this server, without a load."""
        server = {
            "engine": "vllm" if docker is None else "docker",
            "model": self.model,
            "served_model_name": self.served_model_name,
            "port": self.port,
            "platform": platform,
            "docker": docker,
            "args": self.args or None,
            "env": env or None,
        }
        server = {key: value for key, value in server.items() if value is not None}
        return {"description": description, "server": server}


def served(words: Sequence[Word]) -> ServedCommand:
    """What these words say, in their order: a flag that is given twice has its last value."""
    known = newest_recorded().flags
    short = {name: flag for flag, info in known.items() for name in info.names if not name.startswith("--")}
    found = ServedCommand()
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word.text != "-" and not _FLAG.fullmatch(word.text):
            _add_model(found, word)
            continue
        name, value = _split(word, short)
        on = not name.startswith("no-")
        info = known.get(name.removeprefix("no-"))
        values = [] if value is None else [value]
        if value is None and (info is None or info.takes != "nothing"):
            values = list(takewhile(lambda word: not _FLAG.fullmatch(word.text), words[position:]))
            values = values if info is not None and info.takes == "several" else values[:1]
            position += len(values)
        _add(found, name.removeprefix("no-"), values, info, on=on)
    several = [f"--{name}" for name in _SEVERAL_MACHINES if found.args.get(name, 1) != 1]
    if several:
        found.left_out.append(
            f"{', '.join(several)}: of a server on several machines; vramp starts the one on this machine only"
        )
    return found


def scalar(text: str) -> str | int | float:
    """The number that a text is, or the text."""
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _split(word: Word, short: Mapping[str, str]) -> tuple[str, Word | None]:
    """The name of a flag and the value behind `=`: `--max_model_len` is max-model-len, `-tp` tensor-parallel-size."""
    if level := _LEVEL.fullmatch(word.text):
        return "optimization-level", Word(level[1])
    spelling, separator, value = word.text.partition("=")
    head, dot, rest = spelling.partition(".")
    long = short.get(head, head).lstrip("-").replace("_", "-")
    return f"{long}{dot}{rest}", Word(value, word.missing) if separator else None


def _add_model(found: ServedCommand, word: Word) -> None:
    if word.missing:
        found.left_out.append(f"{word.text}: {no_value(word.missing)}")
    elif found.model is None and word.text:
        found.model = word.text
    else:
        found.left_out.append(f"{word.text}: a second word that belongs to no flag")


def _add(found: ServedCommand, name: str, values: Sequence[Word], info: FlagInfo | None, *, on: bool) -> None:
    missing = [variable for value in values for variable in value.missing]
    texts = [value.text for value in values]
    shown = f"--{name}" if on else f"--no-{name}"
    secret = any(is_secret(shown, text) for text in texts)  # also what is left out is masked from here on
    if name == "api-key":
        found.left_out.append(f"the value of {shown}, a secret; export VLLM_API_KEY, and name it in server.api_key_env")
    elif secret:
        found.left_out.append(f"the value of {shown}, a secret")
    elif missing:
        found.left_out.append(f"{shown} {' '.join(texts)[:_MAX_SHOWN]}: {no_value(missing)}")
    elif name in ("model", "model-tag") and any(texts):
        found.model = texts[0]
    elif name == "served-model-name" and texts:
        found.served_model_name = texts[0]
        found.left_out += [f"{shown} {text}: vramp asks for the first name" for text in texts[1:]]
    elif name == "port" and texts:
        text = texts[0]
        if text.isascii() and text.isdecimal() and int(text[:6]) <= MAX_PORT:
            found.port = int(text[:6])
        else:
            found.left_out.append(f"--port {text}: not a port; a free one is taken")
    elif name == "host":
        found.left_out.append(f"{shown} {' '.join(texts)}: a server of vramp listens on 127.0.0.1; see server.host")
    else:
        _add_arg(found, name, texts, info, on=on)


def _add_arg(found: ServedCommand, name: str, texts: Sequence[str], info: FlagInfo | None, *, on: bool) -> None:
    if not texts:
        value: Any = on
    elif len(texts) > 1 or (info is not None and info.takes == "several"):
        value = [scalar(text) for text in texts]
    else:
        value = scalar(texts[0])
    name = name if on or value is False else f"no-{name}"
    if not name:
        found.left_out.append(f"{' '.join(['--', *texts])}: no flag")
    elif info is not None and info.repeats and name in found.args:
        before = found.args[name]
        found.args[name] = [*(before if isinstance(before, list) else [before]), value]
    else:
        found.args.pop(name, None)
        found.args[name] = value


def no_value(missing: Sequence[str]) -> str:
    """Why a word is left out: variables can be defined, and nothing of a script is run."""
    names = list(dict.fromkeys(missing))
    if all(re.fullmatch(r"\w+", name) for name in names):
        return f"{', '.join(names)} has no value here; --define NAME=VALUE gives it one"
    return "it takes a shell to know the value, and nothing of a script is run"
