"""Finds the commands of a shell script with the variables that they have, without running anything.

Assignments count where a shell would certainly have made them: before the command, and not in a branch, a loop, a
subshell or a function that the command is not in itself. What might have been set is reported. A word stays as it is
written, with its quotes, until its variables are replaced.
"""

from __future__ import annotations

import contextlib
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from loadgen.errors import ProfileError
from loadgen.server.recipes.flags import Word


def _nested(opening: str, closing: str) -> str:
    """A pattern of brackets with three levels of others inside."""
    pattern = ""
    for _ in range(4):
        pattern = rf"\{opening}(?:[^\{opening}\{closing}]{pattern and '|' + pattern})*+\{closing}"
    return pattern


_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_EXPANSION = rf"\$(?:{_nested('(', ')')}|{_nested('{', '}')}|{_NAME}|[0-9@*\#?$!-])|`[^`]*+`"
_ESCAPED = r"\\(?:\r?\n|.)"
_QUOTED = rf"{_ESCAPED}|{_EXPANSION}|[^\\$`]++|."  # a piece between double quotes
_PIECE = (
    rf"""\$?'[^']*+'|"(?:\\.|{_EXPANSION}|[^"\\`])*+"|{_ESCAPED}|{_EXPANSION}|\$(?![({{])|[^\\'"$` \t\r\n;&|()<>]+"""
)
_TOKEN = re.compile(
    rf"""(?P<blank>(?:[ \t\r]|\\\r?\n)+|\#[^\n]*)
    |<<-?[ \t]*(?P<quote>["']?)(?P<heredoc>[\w.-]+)(?P=quote)
    |(?P<redirection>[0-9]*(?:[<>]&[0-9-]|(?:&>>?|>>|>\||>&?|<<<|<>|<)[ \t]*(?:{_PIECE})*+))
    |(?P<operator>&&|\|\||;;&?|;&|\|&|\([ \t]*\)|[;&|()\n])
    |(?P<array>{_NAME}\+?)=\(
    |(?P<word>(?:{_PIECE})++)""",
    re.DOTALL | re.VERBOSE,
)
_PIECES = {True: re.compile(_QUOTED, re.DOTALL), False: re.compile(_PIECE, re.DOTALL)}
_ASSIGNMENT = re.compile(rf"({_NAME}\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(rf"({_NAME}|[0-9@*#?$!-])(\[[@*]\])?(?:(:?[-=?+])(.*))?", re.DOTALL)
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


class _ShellError(ValueError):
    """A quote or a parenthesis that is not closed."""


class ShellCommand(NamedTuple):
    """A command with the environment that the script gives it."""

    words: list[Word]
    env: dict[str, Word]
    line: int
    within: tuple[Word, ...]  # the words before the text that this is a command of: `docker run image bash -c`
    unsure: dict[str, int]  # the lines that set, under a condition, what may be different for this command


class _Variable(NamedTuple):
    value: list[Word] | None  # None once it is unset
    line: int = 0
    exported: bool = False
    used: frozenset[str] = frozenset()  # the variables in its value


def commands(text: str, defines: Mapping[str, str], wanted: Callable[[Sequence[Word]], bool]) -> list[ShellCommand]:
    """The wanted commands of a script, of the code blocks of a Markdown page, or of the lines of other text.

    Raises `ProfileError` for a text that grows beyond all measure.
    """
    fenced = [_Shell(defines, wanted).commands(block[1]) for block in _FENCE.finditer(text)]
    if found := [command for block in fenced for command in block]:
        return found
    bare = _PROMPT.sub("", text)
    with contextlib.suppress(_ShellError):  # prose has apostrophes
        if found := _Shell(defines, wanted).commands(bare, strict=True):
            return found
    by_lines = _Shell(defines, wanted)
    return [command for line in _LINE.finditer(bare) for command in by_lines.commands(line[0])]


def why_no_script(text: str) -> str:
    """What is wrong with a text as a shell script; empty if nothing is."""
    try:
        for _ in _tokens(text):
            pass
    except _ShellError as error:
        return str(error)
    return ""


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Kind, text and line of each token: a word, an operator, the name before `=(`, or a here-document's lines."""
    at, line, ends = 0, 1, []
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _ShellError(f"line {line}: a quote or a parenthesis that is not closed")
        kind, found = str(match.lastgroup), match[str(match.lastgroup)]
        if kind == "heredoc":
            ends.append(found)
        elif kind in ("word", "operator", "array"):
            yield kind, found, line
        line += match[0].count("\n")
        at = match.end()
        while found == "\n" and ends:
            end = ends.pop(0)
            close = re.compile(rf"^[ \t]*{re.escape(end)}[ \t]*\r?$", re.MULTILINE).search(text, at)
            if close is None:
                raise _ShellError(f"a here-document without its end, {end}")
            yield "heredoc", text[at : close.start()], line
            line += text.count("\n", at, close.end())
            at = close.end()


class _Shell:
    def __init__(self, defines: Mapping[str, str], wanted: Callable[[Sequence[Word]], bool]) -> None:
        self._wanted = wanted
        self._variables = ChainMap({name: _Variable([Word(text)]) for name, text in defines.items()})
        self._scopes: list[str] = []  # the words that opened them
        self._unsure: dict[str, _Variable] = {}
        self._found: list[ShellCommand] = []
        self._within: tuple[Word, ...] = ()
        self._depth = 0
        self._in_doubt = False  # behind a test and `&&`, or behind `||`
        self._defines_function = False  # its body comes next

    def commands(self, text: str, *, strict: bool = False) -> list[ShellCommand]:
        """The commands of this text; `strict` raises `_ShellError` where it is no script."""
        self._found = []
        try:
            self._run(text)
        except _ShellError:
            if strict:
                raise
        return self._found

    def _run(self, text: str) -> None:
        words: list[str] = []
        array: list[str] | None = None  # NAME=( ... ) until its end
        name, line = "", 0
        for kind, found, at in _tokens(text):
            if array is not None:
                if kind == "word":
                    array.append(found)
                elif found == ")":
                    self._assign(name, array, line, array=True)
                    array = None
            elif kind == "array":
                name, array, line = found, [], at
            elif kind == "word":
                line = line if words else at
                words.append(found)
            elif kind == "heredoc":
                self._run_nested(found, (), {})
            else:
                self._end_command(words, line)
                self._operate(found)
                words = []
        self._end_command(words, line)

    def _operate(self, operator: str) -> None:
        scope = self._scopes[-1] if self._scopes else ""
        if operator == "(":
            self._open("(")
        elif operator == ")" and scope == "(":
            self._close()
        elif operator.startswith(";;") and scope == "case":
            self._close()
            self._open("case")
        elif operator == "||":
            self._in_doubt = True
        elif operator in ("\n", ";", "&"):
            self._in_doubt = False
        elif operator[0] == "(":  # with its end
            self._defines_function = True

    def _open(self, kind: str) -> None:
        if len(self._scopes) > _MAX_SCOPES:
            raise _ShellError(f"more than {_MAX_SCOPES} blocks within each other")
        self._scopes.append(kind)
        self._variables = self._variables.new_child()

    def _close(self) -> None:
        if self._scopes:
            kind = self._scopes.pop()
            assigned = self._variables.maps[0]
            self._variables = self._variables.parents
            (self._variables if kind == _CERTAIN else self._unsure).update(assigned)

    def _end_command(self, words: Sequence[str], line: int) -> None:
        """Do what a simple command does: reserved words, assignments, declarations, or a command to be found."""
        while words and (reserved := self._reserved(words)):
            words = words[reserved:]
        assignments = []
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            assignments.append((match[1], match[2]))
            words = words[1:]
        if not words:
            for name, text in assignments:
                self._assign(name, [text], line)
        elif words[0] in _DECLARATIONS:
            self._declare(words[0], words[1:], line)
        elif words[0] == "unset":
            self._variables.update((name, _Variable(None)) for name in words[1:])
        else:
            self._in_doubt |= words[0] in _TESTS
            prefix = {name.removesuffix("+"): _joined(self._expand(text, set())) for name, text in assignments}
            self._add(words, prefix, line)

    def _reserved(self, words: Sequence[str]) -> int:
        """How many of the words are the shell's grammar; 0 if the first is none of its words."""
        word = words[0]
        if word in ("for", "select", "case"):
            self._open(word)
            if word != "case":
                self._variables.update((name, _Variable([Word(f"${name}", (name,))])) for name in words[1:2])
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
        elif word == "}" and self._scopes and self._scopes[-1] in ("{", _CERTAIN):
            self._close()
        elif word not in _TRANSPARENT:
            return 0
        return 1

    def _declare(self, head: str, words: Sequence[str], line: int) -> None:
        options = [word for word in words if word.startswith("-")]
        exports = (head == "export" and "-n" not in options) or any("x" in option for option in options)
        for word in words:
            if match := _ASSIGNMENT.fullmatch(word):
                self._assign(match[1], [match[2]], line, exported=exports)
            elif exports and not self._in_doubt:
                self._variables[word] = self._variables.get(word, _Variable(None))._replace(exported=True)

    def _assign(
        self, name: str, texts: Sequence[str], line: int, *, array: bool = False, exported: bool = False
    ) -> None:
        appends, name = name.endswith("+"), name.removesuffix("+")
        old = self._variables.get(name, _Variable(None))
        used: set[str] = set(old.used if appends else ())
        value = [word for text in texts for word in self._expand(text, used, split=array)]
        value = value if array else [_joined(value)]
        if appends and old.value:
            value = [*old.value, *value] if array else [*old.value[:-1], _joined([old.value[-1], *value], "")]
        variable = _Variable(_measured(value), line, exported or old.exported, frozenset(used))
        (self._unsure if self._in_doubt else self._variables)[name] = variable

    def _add(self, texts: Sequence[str], prefix: Mapping[str, Word], line: int) -> None:
        used: set[str] = set()
        words = _measured([word for text in texts for word in self._expand(text, used, split=True)])
        if (script := _script_of(words)) is not None:
            self._run_nested(words[script].text, tuple(words[:script]), prefix)
        elif self._wanted(words):
            exported = {name: one.value for name, one in self._variables.items() if one.exported}
            env = {name: _joined(value) for name, value in exported.items() if value is not None} | dict(prefix)
            matters = self._closure(used) | env.keys()
            unsure = {
                name: one.line for name, one in self._unsure.items() if one.line and (one.exported or name in matters)
            }
            self._found.append(ShellCommand(words, env, line, self._within, unsure))

    def _closure(self, names: Iterable[str]) -> set[str]:
        """These variables, and those that their values were made of."""
        found: set[str] = set()
        rest = list(names)
        while rest:
            if (name := rest.pop()) not in found:
                found.add(name)
                for variables in (self._variables, self._unsure):
                    rest += variables.get(name, _Variable(None)).used
        return found

    def _run_nested(self, text: str, within: tuple[Word, ...], prefix: Mapping[str, Word]) -> None:
        """The commands of a text that the script hands to another shell, or writes into a file."""
        if self._depth == _MAX_DEPTH:
            return
        before, scopes = (self._within, self._in_doubt), len(self._scopes)
        self._within, self._in_doubt = (*self._within, *within), False
        self._depth += 1
        self._open("nested")
        self._variables.update((name, _Variable([word], exported=True)) for name, word in prefix.items())
        with contextlib.suppress(_ShellError):  # a here-document of other contents
            self._run(text)
        while len(self._scopes) > scopes:
            self._close()
        self._depth -= 1
        self._within, self._in_doubt = before

    def _expand(self, text: str, used: set[str], *, split: bool = False, quoted: bool = False) -> list[Word]:
        """The words that a word of the script becomes; what has no value stays as it was written."""
        fields: list[Word] = []
        for values in self._pieces(text, used, split=split, quoted=quoted):
            if values:
                fields[-1:] = [_joined([*fields[-1:], values[0]], ""), *values[1:]]
                _measured(fields[-1:])
        return _measured(fields)

    def _pieces(self, text: str, used: set[str], *, split: bool, quoted: bool) -> Iterator[list[Word]]:
        """What each piece becomes: the first word of it belongs to the field before it."""
        for match in _PIECES[quoted].finditer(text):
            piece = match[0]
            if piece[0] in "$`" and len(piece) > 1 and piece[1] != "'":
                values = self._values(piece, used)
                if split and not quoted:
                    parts = ([value] if value.missing else map(Word, value.text.split()) for value in values)
                    values = list(chain.from_iterable(parts))
                yield values
            elif piece[0] == "\\":
                kept = piece[1:].strip("\r\n")
                yield [Word(kept if not quoted or kept in '\\"$`' else piece)]
            elif piece[0] == '"' and not quoted:
                yield self._expand(piece[1:-1], used, quoted=True) if len(piece) > 2 else [Word("")]
            elif piece.endswith("'") and not quoted:
                yield [Word(piece.removeprefix("$")[1:-1])]
            else:
                yield [Word(piece)]

    def _values(self, written: str, used: set[str]) -> list[Word]:
        match = _VARIABLE.fullmatch(written[2:-1] if written.startswith("${") else written[1:])
        if match is None:
            return [Word(written, (written[:40],))]
        name, whole, operator, default = match.groups(default="")
        used.add(name)
        value = self._variables.get(name, _Variable(None)).value
        empty = value is None or (operator[:1] == ":" and not any(word.text for word in value))
        if operator.endswith("+") and empty:
            return []
        if operator.endswith("+") or (empty and operator.endswith(("-", "="))):
            return self._expand(default, used, quoted='"' not in default) or [Word("")]
        if value is None:
            return [Word(written, (name,))]
        return value if whole else value[:1] or [Word("")]


def _joined(words: Sequence[Word], between: str = " ") -> Word:
    names = dict.fromkeys(name for word in words for name in word.missing)
    return Word(between.join(word.text for word in words), tuple(names)[:_MAX_NAMES])


def _script_of(words: Sequence[Word]) -> int | None:
    """The index of the text that `bash -c` runs."""
    for number, word in enumerate(words[:-2]):
        if word.text.rpartition("/")[2] in _SHELLS and re.fullmatch(r"-[a-z]*c", words[number + 1].text):
            return number + 2
    return None


def _measured(words: list[Word]) -> list[Word]:
    """The words, unless variables have made too much of them; raises `ProfileError`."""
    if len(words) > _MAX_WORDS or any(len(word.text) > _MAX_WORD for word in words):
        raise ProfileError("variables of the script grow beyond any command line: nothing is imported")
    return words
