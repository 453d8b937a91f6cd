"""Finds the commands of a shell script with the variables that they have, without running anything.

Assignments count where a shell would certainly have made them: before the command, and not in a branch, a loop, a
subshell or a function that the command is not in itself. What might have been set is reported.
"""

from __future__ import annotations

import contextlib
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from loadgen.errors import ProfileError
from loadgen.server.recipes.flags import Word
from loadgen.server.recipes.lexer import Part, ShellError, Token, tokens

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_VARIABLE = re.compile(r"([A-Za-z_]\w*|[0-9@*#?$!-])(\[[@*]\])?(?:(:?[-=?+])(.*))?", re.ASCII | re.DOTALL)
_PROMPT = re.compile(r"^[ \t]*[$>][ \t]+", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"(?:\\\r?\n|[^\n])+")
_DECLARATIONS = ("export", "declare", "typeset", "local", "readonly")
_SHELLS = ("bash", "sh", "zsh", "dash", "ash")
_TRANSPARENT = ("then", "do", "!", "time")
_CERTAIN = "{ ... }"  # a group that is always run
_TESTS = ("[", "[[", "test")
_MAX_DEPTH = 4
_MAX_SCOPES = 200
_MAX_WORD = 1 << 16
_MAX_WORDS = 4096
_MAX_NAMES = 8  # of the variables without a value in a word
_EMPTY: Mapping[str, Word] = MappingProxyType({})


class Unsure(NamedTuple):
    """An assignment that is made only under a condition."""

    name: str
    line: int
    exported: bool


class Command(NamedTuple):
    """A command with the environment that the script gives it."""

    words: list[Word]
    env: dict[str, Word]
    line: int
    within: tuple[Word, ...] = ()
    """The words before the text that this is a command of: `docker run image bash -c`."""
    unsure: tuple[Unsure, ...] = ()
    """What may be different for this command."""


def commands(text: str, defines: Mapping[str, str], wanted: Callable[[Sequence[Word]], bool]) -> list[Command]:
    """The wanted commands of a script, of the code blocks of a Markdown page, or of the lines of other text.

    Raises `ProfileError` for a text that grows beyond all measure.
    """
    fenced = [_Shell(defines, wanted).run(block[1]) for block in _FENCE.finditer(text)]
    if found := [command for block in fenced for command in block]:
        return found
    bare = _PROMPT.sub("", text)
    with contextlib.suppress(ShellError):  # prose has apostrophes
        if found := _Shell(defines, wanted).run(bare, strict=True):
            return found
    by_lines = _Shell(defines, wanted)
    return [command for line in _LINE.finditer(bare) for command in by_lines.run(line[0])]


class _Scope:
    def __init__(self, kind: str) -> None:
        self.kind = kind  # the word that opened it
        self.assigned: dict[str, int] = {}  # names, and the lines in which they get a value


class _Shell:
    def __init__(self, defines: Mapping[str, str], wanted: Callable[[Sequence[Word]], bool]) -> None:
        self._wanted = wanted
        self._variables: ChainMap[str, list[Word]] = ChainMap({name: [Word(text)] for name, text in defines.items()})
        self._exported: ChainMap[str, bool] = ChainMap({})
        self._scopes = [_Scope("")]
        self._unsure: list[tuple[_Scope, Unsure]] = []
        self._uses: dict[str, set[str]] = {}
        self._found: list[Command] = []
        self._within: tuple[Word, ...] = ()
        self._depth = 0
        self._in_doubt = False  # behind a test and `&&`, or behind `||`
        self._defines_function = False  # its body comes next

    def run(self, text: str, *, strict: bool = False) -> list[Command]:
        """The commands of this text; `strict` raises `ShellError` where it is no script."""
        self._found = []
        try:
            self._run(tokens(text))
        except ShellError:
            if strict:
                raise
        return self._found

    def _run(self, stream: Iterator[Token]) -> None:
        words: list[tuple[Part, ...]] = []
        array: tuple[str, list[tuple[Part, ...]]] | None = None  # NAME=( ... ) until its end
        line = 0
        for token in stream:
            if array is not None:
                if token.kind == "word":
                    array[1].append(token.parts)
                elif token.text == ")":
                    self._assign(array[0], array[1], line, array=True)
                    array = None
            elif token.kind == "word":
                line = line if words else token.line
                words.append(token.parts)
            elif token.kind == "heredoc":
                self._nested(token.text, ())
            elif token.text == "(" and token.adjacent and words and (named := _array_name(words[-1])):
                array = (named, [])
                line = token.line
                words.pop()
            else:
                self._end_command(words, line)
                self._defines_function |= bool(words) and token.text == "(" and token.adjacent
                self._operate(token.text)
                words = []
        self._end_command(words, line)

    def _operate(self, operator: str) -> None:
        if operator == "(":
            self._open("(")
        elif operator == ")" and self._scopes[-1].kind == "(":
            self._close()
        elif operator.startswith(";;") and self._scopes[-1].kind == "case":
            self._close()
            self._open("case")
        elif operator == "||":
            self._in_doubt = True
        elif operator in ("\n", ";", "&"):
            self._in_doubt = False

    def _open(self, kind: str) -> None:
        if len(self._scopes) > _MAX_SCOPES:
            raise ShellError(f"more than {_MAX_SCOPES} blocks within each other")
        self._scopes.append(_Scope(kind))
        self._variables = self._variables.new_child()
        self._exported = self._exported.new_child()

    def _close(self) -> None:
        if len(self._scopes) == 1:
            return
        scope = self._scopes.pop()
        values, exported = self._variables.maps[0], self._exported.maps[0]
        self._variables, self._exported = self._variables.parents, self._exported.parents
        if scope.kind == _CERTAIN:
            self._variables.update(values)
            self._exported.update(exported)
            self._scopes[-1].assigned.update(scope.assigned)
            return
        for name, line in scope.assigned.items():
            self._unsure.append((scope, Unsure(name, line, exported.get(name, False))))

    def _end_command(self, words: Sequence[tuple[Part, ...]], line: int) -> None:
        """Do what a simple command does: reserved words, assignments, declarations, or a command to be found."""
        rest = list(words)
        while rest and (reserved := self._reserved(rest, line)):
            rest = rest[reserved:]
        assignments = []
        while rest and (assigned := _assigned(rest[0])) is not None:
            assignments.append(assigned)
            rest = rest[1:]
        if not rest:
            for name, parts in assignments:
                self._assign(name, [parts], line)
            return
        head = _literal(rest[0])
        if head in _DECLARATIONS:
            self._declare(head, rest[1:], line)
        elif head == "unset":
            for parts in rest[1:]:
                self._variables.pop(_literal(parts) or "", None)
                self._exported[_literal(parts) or ""] = False
        else:
            self._in_doubt |= head in _TESTS
            prefix = {name.removesuffix("+"): _joined(self._expand(parts, split=False)) for name, parts in assignments}
            self._add(rest, prefix, line)

    def _reserved(self, words: Sequence[tuple[Part, ...]], line: int) -> int:
        """How many of the words are the shell's grammar; 0 if the first is none of its words."""
        word = _literal(words[0])
        if word in ("for", "select", "case"):
            self._open(word)
            name = _literal(words[1]) if len(words) > 1 else None
            if word != "case" and name:
                self._variables[name] = [Word(f"${name}", (name,))]
            return len(words)
        if word in ("if", "while", "until"):
            self._open(word)
        elif word in ("elif", "else"):
            self._close()
            self._open(word)
        elif word in ("fi", "done", "esac"):
            self._close()
        elif word == "function":
            self._defines_function = True
            return 2
        elif word == "{":
            self._open("{" if self._defines_function or self._in_doubt else _CERTAIN)
            self._defines_function = False
        elif word == "}" and self._scopes[-1].kind in ("{", _CERTAIN):
            self._close()
        elif word not in _TRANSPARENT:
            return 0
        return 1

    def _declare(self, head: str, rest: Sequence[tuple[Part, ...]], line: int) -> None:
        options = [word for parts in rest if (word := _literal(parts) or "").startswith("-")]
        exports = (head == "export" and "-n" not in options) or any("x" in option for option in options)
        for parts in rest:
            assigned = _assigned(parts)
            name = assigned[0].removesuffix("+") if assigned is not None else _literal(parts) or ""
            if assigned is not None:
                self._assign(assigned[0], [assigned[1]], line, exported=exports)
            if exports and name and not self._in_doubt:
                self._exported[name] = True

    def _assign(
        self, name: str, parts: Sequence[Sequence[Part]], line: int, *, array: bool = False, exported: bool = False
    ) -> None:
        appends, name = name.endswith("+"), name.removesuffix("+")
        used: set[str] = set()
        if array:
            value = [word for one in parts for word in self._expand(one, used=used)]
        else:
            value = [_joined([word for one in parts for word in self._expand(one, split=False, used=used)])]
        self._uses[name] = self._uses.get(name, set()) | used
        if self._in_doubt:
            self._unsure.append((_Scope("&&"), Unsure(name, line, exported or self._exported.get(name, False))))
            return
        before = self._variables.get(name, []) if appends else []
        if before and not array:
            before, value = before[:-1], [_joined([before[-1], *value], "")]
        self._variables[name] = _measured([*before, *value])
        self._scopes[-1].assigned[name] = line

    def _add(self, rest: Sequence[tuple[Part, ...]], prefix: Mapping[str, Word], line: int) -> None:
        used: set[str] = set()
        words = _measured([word for parts in rest for word in self._expand(parts, used=used)])
        if (script := _script_of(words)) is not None:
            self._nested(words[script].text, tuple(words[:script]), prefix)
        elif self._wanted(words):
            exported = [name for name, on in self._exported.items() if on and name in self._variables]
            env = {name: _joined(self._variables[name]) for name in exported} | dict(prefix)
            matters = self._closure(used) | env.keys()
            unsure = {
                one.name: one
                for scope, one in self._unsure
                if scope not in self._scopes and (one.exported or one.name in matters)
            }
            self._found.append(Command(words, env, line, self._within, tuple(unsure.values())))

    def _closure(self, names: Iterable[str]) -> set[str]:
        """These variables, and those that their values were made of."""
        found: set[str] = set()
        rest = list(names)
        while rest:
            if (name := rest.pop()) not in found:
                found.add(name)
                rest += self._uses.get(name, ())
        return found

    def _nested(self, text: str, within: tuple[Word, ...], prefix: Mapping[str, Word] = _EMPTY) -> None:
        """The commands of a text that the script hands to another shell, or writes into a file."""
        if self._depth == _MAX_DEPTH:
            return
        saved, scopes = (self._within, self._in_doubt), len(self._scopes)
        self._within, self._in_doubt = (*self._within, *within), False
        self._depth += 1
        self._open("nested")
        for name, word in prefix.items():
            self._variables[name], self._exported[name] = [word], True
        with contextlib.suppress(ShellError):  # a here-document of other contents
            self._run(tokens(text))
        while len(self._scopes) > scopes:
            self._close()
        self._depth -= 1
        self._within, self._in_doubt = saved

    def _expand(self, parts: Sequence[Part], *, split: bool = True, used: set[str] | None = None) -> list[Word]:
        """The words that a word of the script becomes; what has no value stays as it was written."""
        fields: list[Word] = []
        open_field: Word | None = None
        for part in parts:
            values = self._values(part, used if used is not None else set())
            whole = part.quoted or part.kind == "text" or not split
            pieces = values if whole else [word for value in values for word in _split(value)]
            for number, piece in enumerate(pieces):
                if number and open_field is not None:
                    fields.append(open_field)
                    open_field = None
                open_field = piece if open_field is None else _joined([open_field, piece], "")
                _measured([open_field])
        return _measured(fields if open_field is None else [*fields, open_field])

    def _values(self, part: Part, used: set[str]) -> list[Word]:
        if part.kind == "text":
            return [Word(part.text)]
        if part.kind == "command":
            return [Word(part.text, (part.text[:40],))]
        match = _VARIABLE.fullmatch(part.text)
        written = f"${{{part.text}}}"
        if match is None:
            return [Word(written, (part.text[:40],))]
        name, whole, operator, default = match.groups()
        used.add(name)
        value = self._variables.get(name)
        empty = value is None or ((operator or "").startswith(":") and not any(word.text for word in value))
        if (operator or "").endswith("+"):
            return [] if empty else self._default(default, used)
        if empty and (operator or "").endswith(("-", "=")):
            return self._default(default, used)
        if value is None:
            return [Word(f"${name}" if part.text == name else written, (name,))]
        if whole is not None:
            return value
        return value[:1] or [Word("")]

    def _default(self, text: str, used: set[str]) -> list[Word]:
        if self._depth == _MAX_DEPTH:
            return [Word(text, (text[:40],))]
        self._depth += 1
        try:
            parts = [part for token in tokens(f'"{text}"' if '"' not in text else text) for part in token.parts]
            return self._expand(parts, used=used) or [Word("")]
        except ShellError:
            return [Word(text, (text[:40],))]
        finally:
            self._depth -= 1


def _literal(parts: Sequence[Part]) -> str | None:
    """The text of a word without quotes and variables."""
    if any(part.kind != "text" or part.quoted for part in parts):
        return None
    return "".join(part.text for part in parts)


def _array_name(parts: Sequence[Part]) -> str | None:
    match = _ASSIGNMENT.fullmatch(_literal(parts) or "")
    return None if match is None else match[1] + match[2]


def _assigned(parts: Sequence[Part]) -> tuple[str, tuple[Part, ...]] | None:
    """Name, with a plus if it appends, and value of `NAME=value`."""
    if not parts or parts[0].kind != "text" or parts[0].quoted:
        return None
    match = _ASSIGNMENT.match(parts[0].text)
    if match is None:
        return None
    first = parts[0]._replace(text=parts[0].text[match.end() :])
    return match[1] + match[2], ((first, *parts[1:]) if first.text else tuple(parts[1:]))


def _split(word: Word) -> list[Word]:
    """The words of an unquoted value."""
    return [word] if word.missing else [Word(text) for text in word.text.split()]


def _joined(words: Sequence[Word], between: str = " ") -> Word:
    names = dict.fromkeys(name for word in words for name in word.missing)
    return Word(between.join(word.text for word in words), tuple(names)[:_MAX_NAMES])


def _script_of(words: Sequence[Word]) -> int | None:
    """The index of the text that `bash -c` runs."""
    for number, word in enumerate(words[:-2]):
        option = words[number + 1].text
        if word.text.rpartition("/")[2] in _SHELLS and re.fullmatch(r"-[a-z]*c", option):
            return number + 2
    return None


def _measured(words: list[Word]) -> list[Word]:
    """The words, unless variables have made too much of them; raises `ProfileError`."""
    if len(words) > _MAX_WORDS or any(len(word.text) > _MAX_WORD for word in words):
        raise ProfileError("variables of the script grow beyond any command line: nothing is imported")
    return words
