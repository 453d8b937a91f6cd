"""Masks secrets in everything that vramp writes or shows.

Secrets are recognised by name, because their values can look like anything, and masking a harmless value is better than
publishing a key; by value: what has such a name in the environment or in a profile is masked wherever it appears, such
as in a log or in a server's error (`learn`); and by form, in texts: credentials in URLs, headers and assignments. The
one exception is a number after a name whose only suspicious word is TOKEN: `--max-num-batched-tokens 8192`.

Documents are masked before they are serialised, which escapes quotes, so that forms are no longer certain.
"""

from __future__ import annotations

import base64
import errno
import json
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from loadgen.format import plain
from loadgen.places import open_file, replacing

MASK = "***"

_MAX_COMMAND_CHARS = 120
_MIN_KNOWN = 8  # shorter values are masked only by name and form: `1` and `true` appear everywhere
_MIN_START = 6
_MAX_LIST = 2000  # characters; without an end, a line of lists that are never closed would take minutes
_MAX_LINE = 1 << 20
_MAX_FILE = 1 << 30  # takes half a minute
_MAX_DEPTH = 64  # none of our documents is nested this deep; anything deeper is masked unseen

_CERTAIN = re.compile(
    r"KEY(?!BOARD|RING)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE"
    r"|AUTH(?!OR(?!I))"  # an author is no secret
    r"|(?<=[_.-])(?:PAT|PWD|PASS)(?![^_.-])|^(?-i:pwd)$",  # PWD alone is the current folder
    re.IGNORECASE,
)
_TOKEN = re.compile(r"TOKEN(?!IZ)", re.IGNORECASE)
_HIDES_NUMBERS = re.compile(r"PASSW|SECRET|PWD", re.IGNORECASE)  # as in `password = 1234`
_PLACE = re.compile(r"(?:FILE|PATH|DIR|HOME|SOCK|AUTHORITY|[_-]ENV)$", re.IGNORECASE)  # it names where a secret is
_NUMBER = re.compile(r"-?[0-9][0-9_.]*[kKmMgG]?")
_ASSIGNMENT = re.compile(r"(-*[A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_NOTHING = ("None", "null", "True", "False", "true", "false", "VALUE")  # `KEY=VALUE` is in every usage

# One of these is in every text with a secret that is recognised by form; most lines of a log have none.
_SUSPICIOUS = "key token secret pass pwd _pat -pat auth credential cookie bearer basic :// hf_ sk- gh glpat nv".split()
_NAME = r"[\w.-]{0,64}(?:key|token|secret|pass|pwd|[_-]pat|auth|credential|cookie)[\w.-]{0,64}"
_CUT = r"\\?\Z"  # where the closing quote would be: what was cut off is a value, too
_VALUE = (
    rf""""(?s:[^"\\]|\\.)*(?:"|{_CUT})|'(?s:[^'\\]|\\.)*(?:'|{_CUT})|"""
    rf"""\[[^\]\n]{{0,{_MAX_LIST}}}\]|[^\s,;&"'(){{}}\[\]]+"""
)
_PAIRS = (
    # What looks like a name, followed by base64 padding at the end of a text, is part of a histogram.
    re.compile(rf"""(?i)(?<![\w.-])(?P<name>{_NAME})(?P<between> ?= ?|\\?["'] *: *)(?!={{1,2}}$)(?P<value>{_VALUE})"""),
    re.compile(rf"(?i)(?<![\w.-])(?P<name>--(?!-){_NAME})(?P<between> +)(?!-)(?P<value>{_VALUE})"),
)
# Without quotes a colon mostly follows a word of prose: only names that end in a word for a secret count.
_LABEL = (
    r"(?:[\w.-]{0,64}[_.-])?(?:secret|passw(?:or)?d|passphrase|credentials?)|(?:access|auth|refresh)token|"
    r"[\w.-]{0,64}[_.-](?:token|auth|pat|pwd|pass)|[\w.-]{0,64}(?:[_.-]|api|access|private|secret)keys?"
)
_LABELLED = (
    re.compile(
        rf"(?im)^(?P<name>[ \t]*(?:- +)?(?:{_LABEL}|(?-i:token|TOKEN)))(?P<between> ?: +)"
        rf"""(?P<value>[^\s,;"'\[{{][^\n,;]*)"""  # several words, as in YAML
    ),
    re.compile(rf"(?i)(?<![\w.-])(?P<name>{_LABEL})(?P<between> ?: *)(?![/:])(?P<value>{_VALUE})"),
)
_LABEL_ENDS = re.compile(r"(?:keys?|token|secret|passw(?:or)?d|passphrase|credentials?|auth|pat|pwd|pass) ?:")
_PROSE = re.compile(
    r"(?:^|[_.-])(?:inter|per|first|next|last|new|input|output|prompt|draft|generated|image|special|stop|eos|bos|pad|unk|"
    r"cls|sep|mask|cache|missing|unexpected|public|primary|dict|sort|state)[_.-](?:token|key)s?$",
    re.IGNORECASE,
)
_SCHEME = r"(?:basic|bearer|digest|token)\s+"
_CREDENTIALS = (
    (re.compile(r'(?<=://)[^/\s?#"]+(?=@)'), MASK),
    (
        re.compile(rf"(?i)((?:authorization\s*[:=]|api-key\s*:)\s*(?:{_SCHEME})?)(?!\*|{_SCHEME})[^\s\"',]+"),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?i)\b(cookie ?: ?)[^\s'\"].*"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]+"), rf"\1{MASK}"),
    (re.compile(r"\b([Bb]asic\s+)(?=\S*[A-Z0-9=])[A-Za-z0-9+/]{6,}={0,2}"), rf"\1{MASK}"),
    (re.compile(r"\b(?:hf_|sk-|gh[a-z]_|github_pat_|glpat-|nvapi-)[\w-]{16,}"), MASK),  # keys in their issuers' formats
)
_QUOTED = re.compile(r"""(["'])(?s:(?!\1)[^\\]|\\.)*\1""")
_PASSWORD_IN_URL = re.compile(r'(?<=://)[^/\s@:]*:([^/\s?#"]+)(?=@)')

_TEXTLESS = frozenset({int, float, bool, bytes, type(None)})
_known: list[str] = []  # values of secrets, the longest first


def learn(document: object) -> None:
    """From now on, mask the values under secret names in this document wherever they appear."""
    found: set[str] = set()
    for name, text in _texts(document):
        secrets = [text] if _is_secret(name, text) else []
        for secret in (*secrets, *(match[1] for match in _PASSWORD_IN_URL.finditer(text))):
            found.update(_forms(secret))
    if not found.issubset(_known):
        _known[:] = sorted(found.union(_known), key=len, reverse=True)


def masked(value: Any, name: str = "", depth: int = _MAX_DEPTH) -> Any:  # noqa: ANN401 - any JSON, and structs
    """A document with its secrets replaced at any depth; `name` is the key under which it is stored.

    It is the document itself if nothing in it is secret, so that large harmless ones are not copied. What is nested
    deeper than `depth` is masked unseen.
    """
    match value:
        case str():
            return _masked_string(value, name)
        case bool():
            return value
        case int() | float():
            return MASK if _HIDES_NUMBERS.search(name) else value
        case _ if depth == 0:
            return MASK
        case list() | tuple():
            harmless = frozenset() if _HIDES_NUMBERS.search(name) else _TEXTLESS
            entries = [entry if type(entry) in harmless else masked(entry, name, depth - 1) for entry in value]
            if all(map(operator.is_, entries, value)):
                return value
            return entries if isinstance(value, list) else tuple(entries)
        case _ if hasattr(value, "__struct_fields__"):
            return _masked_struct(value, depth)
        case Mapping():
            return _masked_table(value, name, depth)
    return value


def masked_text(text: str) -> str:
    """A text without known secret values, and without credentials that are recognised by their form."""
    for secret in _known:
        if secret in text:
            text = text.replace(secret, MASK)
        elif text.find(secret[:_MIN_START], -len(secret)) >= 0:  # a text may have been cut in the middle of it
            start = text.rfind(secret[:_MIN_START])
            text = text[:start] + MASK if secret.startswith(text[start:]) else text
    lowered = text.lower()
    if not any(map(lowered.__contains__, _SUSPICIOUS)):
        return text
    for pattern, replacement in _CREDENTIALS:
        text = pattern.sub(replacement, text)
    for pairs in _PAIRS:
        text = pairs.sub(_masked_pair, text)
    if _LABEL_ENDS.search(lowered):
        for labelled in _LABELLED:
            text = labelled.sub(_masked_labelled, text)
    return text


def masked_command(argv: Sequence[str]) -> list[str]:
    """The argument list with secrets replaced: values of flags such as `--api-key`, of `NAME=value`, and in JSON."""
    shown: list[str] = []
    flag = ""  # `--api-key` takes several values: all words up to the next flag
    for word in argv:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            flag = "" if "=" in word else word
            shown.append(_masked_word(word))
        else:
            shown.append(MASK if word and _is_secret(flag, word) else _masked_word(word))
    return shown


def shown_command(words: Sequence[str]) -> str:
    """A process's command line on one short line."""
    line = plain(" ".join(masked_command(words)))
    return line if len(line) <= _MAX_COMMAND_CHARS else line[: _MAX_COMMAND_CHARS - 3] + "..."


def mask_file(path: Path) -> None:
    """Mask secrets, line by line, in a text file that is no longer written to; raises `OSError`.

    A line that is too long for a log is masked whole, because a secret may lie across any cut.
    """
    if path.stat().st_size > _MAX_FILE:
        raise OSError(errno.EFBIG, f"it is larger than {_MAX_FILE >> 20} MiB", str(path))
    with open_file(path) as old, replacing(path) as new, new.open("wb") as clean:
        is_within_line = False
        for part in iter(partial(old.readline, _MAX_LINE), b""):
            is_long = is_within_line or len(part) == _MAX_LINE
            if not is_long:
                clean.write(masked_text(part.decode(errors="surrogateescape")).encode(errors="surrogateescape"))
            elif not is_within_line:
                clean.write(f"{MASK}\n".encode())
            is_within_line = is_long and not part.endswith(b"\n")


def _masked_table(table: Mapping[Any, Any], name: str, depth: int) -> Mapping[Any, Any]:
    # Everything in a table under a secret's name is secret, whatever its keys.
    inherited = name if _CERTAIN.search(name) else ""
    found = [(key, entry, masked(entry, inherited or str(key), depth - 1)) for key, entry in table.items()]
    keys = [masked_text(key) if isinstance(key, str) else key for key in table]
    if all(new is old for _, old, new in found) and keys == list(table):
        return table
    return {key: new for key, (_, _, new) in zip(keys, found, strict=True)}


def _masked_struct(struct: Any, depth: int) -> Any:  # noqa: ANN401 - any struct
    import msgspec  # imported late: `vramp --help` does not need it, and a struct's owner has imported it

    fields = [(name, getattr(struct, name)) for name in struct.__struct_fields__]
    texts = [(name, entry) for name, entry in fields if type(entry) not in _TEXTLESS]
    changed = {name: new for name, old in texts if (new := masked(old, "", depth - 1)) is not old}
    return msgspec.structs.replace(struct, **changed) if changed else struct


def _masked_string(text: str, name: str) -> str:
    if text and name and _is_secret(name, text):
        return MASK
    nested = _json_in(text)
    if nested is not None and (clean := masked(nested, name)) is not nested:
        return json.dumps(clean)
    return masked_text(text)


def _masked_word(word: str) -> str:
    match = _ASSIGNMENT.fullmatch(word)
    return f"{match[1]}={_masked_string(match[2], match[1])}" if match is not None else _masked_string(word, "")


def _masked_pair(match: re.Match[str]) -> str:
    value = match["value"].strip("\"'")
    if value in ("", MASK, *_NOTHING) or not _is_secret(match["name"], value):
        return match[0]
    entries = match["value"] if value[0] == "[" else None
    shown = _QUOTED.sub(rf"\1{MASK}\1", entries) if entries else match["value"].replace(value, MASK)
    return f"{match['name']}{match['between']}{shown}"


def _masked_labelled(match: re.Match[str]) -> str:
    return match[0] if _PROSE.search(match["name"]) else _masked_pair(match)


def _json_in(text: str) -> Any:  # noqa: ANN401 - any JSON
    """The parsed table or list of a JSON text, such as `--kv-transfer-config`'s; None for any other text."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_secret(name: str, value: str) -> bool:
    if _PLACE.search(name) is not None:
        return False
    if _CERTAIN.search(name) is not None:
        return True
    return _TOKEN.search(name) is not None and _NUMBER.fullmatch(value) is None


def _texts(document: object, name: str = "", depth: int = _MAX_DEPTH) -> Iterator[tuple[str, str]]:
    """Every text of a document with its key, down to the depth below which `masked` hides everything."""
    match document:
        case str():
            nested = _json_in(document)
            yield from _texts(nested, name, depth) if nested is not None else [(name, document)]
        case _ if depth == 0:
            return
        case Mapping():
            for key, entry in document.items():
                yield from _texts(entry, name if _CERTAIN.search(name) else str(key), depth - 1)
        case list() | tuple():
            for entry in document:
                yield from _texts(entry, name, depth - 1)


def _forms(secret: str) -> Iterator[str]:
    """The forms in which a secret may appear: single lines in a log, escaped in JSON, quoted in a URL, encoded."""
    for part in {secret.strip(), *map(str.strip, secret.splitlines())}:
        if len(part) >= _MIN_KNOWN:
            yield from (part, json.dumps(part)[1:-1], *_encoded(part.encode(errors="surrogatepass")))
            for quoted in (
                quote(part, "", errors="surrogatepass"),
                quote(part, "/", errors="surrogatepass"),
                quote_plus(part, errors="surrogatepass"),
            ):
                yield from (quoted, re.sub("%..", lambda code: code[0].lower(), quoted))


def _encoded(secret: bytes) -> Iterator[str]:
    """The hexadecimal form, and the base64 that any text with the secret in it has in common: one for each offset."""
    yield secret.hex()
    for before in range(3):
        text = base64.b64encode(b"\0" * before + secret).decode().rstrip("=")
        inner = text[-(-before * 8 // 6) : (before + len(secret)) * 8 // 6]
        yield from (inner, inner.translate({43: "-", 47: "_"}))


learn(os.environ)
