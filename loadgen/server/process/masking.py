"""Secrets out of command lines and environments, before they are shown or recorded.

By name, since a secret's value looks like anything: it is better to mask a harmless value than to publish a key.
The one exception is a number behind a name whose only suspicious word is TOKEN: `--max-num-batched-tokens 8192`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.server.process.log import clean_line

MASK = "***"

_MAX_COMMAND_CHARS = 120
_CERTAIN = re.compile(r"KEY(?!FILE)|SECRET|PASSW|AUTH|CREDENTIAL", re.IGNORECASE)
_TOKEN = re.compile(r"TOKEN(?!IZ)", re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9][0-9_.]*[kKmMgG]?")
_ASSIGNMENT = re.compile(r"(-*[A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_IN_TEXT = [
    (re.compile(r"(?<=://)[^/\s@]+(?=@)"), MASK),
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), rf"\1 {MASK}"),
    (re.compile(r"(?i)([?&][^=&\s]*(?:key|token|secret|passw|auth)[^=&\s]*=)[^&\s]+"), rf"\1{MASK}"),
    (re.compile(r'(?i)("[^"]*(?:key|token|secret|passw|auth)[^"]*"\s*:\s*)"(?:[^"\\]|\\.)*"'), rf'\1"{MASK}"'),
]


def masked_command(argv: Sequence[str]) -> list[str]:
    """The argument list with secrets replaced: values of flags such as `--api-key`, of `NAME=value`, and in URLs."""
    shown: list[str] = []
    secret_flag = ""
    for word in argv:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            secret_flag = word if "=" not in word and (_CERTAIN.search(word) or _TOKEN.search(word)) else ""
            shown.append(_masked_word(word))
        else:
            # `--api-key` takes several values: all of them up to the next flag.
            shown.append(MASK if secret_flag and _is_secret(secret_flag, word) else _masked_word(word))
    return shown


def shown_command(words: Sequence[str]) -> str:
    line = clean_line(" ".join(masked_command(words)).encode())
    return line if len(line) <= _MAX_COMMAND_CHARS else line[: _MAX_COMMAND_CHARS - 3] + "..."


def masked_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: MASK if value and _is_secret(name, value) else masked_text(value) for name, value in environment.items()
    }


def masked_document(value: Any, name: str = "") -> Any:  # noqa: ANN401 - any JSON
    """A JSON value with what stands under a telling name replaced, however deep; `name` is what it stands under."""
    match value:
        case dict():
            return {str(key): masked_document(entry, str(key)) for key, entry in value.items()}
        case list() | tuple():
            return [masked_document(entry, name) for entry in value]
        case str():
            return MASK if value and _is_secret(name, value) else masked_text(value)
        case _:
            return value


def masked_text(text: str) -> str:
    """A text without the credentials that show by their form: in URLs, headers and JSON."""
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


def _masked_word(word: str) -> str:
    match = _ASSIGNMENT.fullmatch(word)
    if match is not None and match[2] and _is_secret(match[1], match[2]):
        return f"{match[1]}={MASK}"
    return masked_text(word)


def _is_secret(name: str, value: str) -> bool:
    if _CERTAIN.search(name) is not None:
        return True
    return _TOKEN.search(name) is not None and _NUMBER.fullmatch(value) is None
