"""Splits a shell script into words and operators, as far as published commands need it; nothing is ever run.

A word keeps its parts apart, quoted and not, so that variables can be replaced where a shell would replace them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_REDIRECTION = re.compile(r"[0-9]*(?:[<>]&[0-9-]|&>>?|>>|>\||>&?|<<<|<>|<)")
_HEREDOC = re.compile(r"<<-?[ \t]*(?P<quote>[\"']?)(?P<end>[\w.-]+)(?P=quote)")
_OPERATOR = re.compile(r"&&|\|\||;;&?|;&|\|&|[;&|()\n]")
_PLAIN = re.compile(r"[^\\'\"$` \t\r\n;&|()<>]+")
_IN_QUOTES = re.compile(r"[^\\\"$`]+")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]", re.ASCII)


class ShellError(ValueError):
    """A quote or a parenthesis that is not closed."""


class Part(NamedTuple):
    """A piece of a word."""

    kind: Literal["text", "variable", "command"]
    text: str  # of a variable: what is between the braces
    quoted: bool = False


class Token(NamedTuple):
    kind: Literal["word", "operator", "heredoc"]
    line: int
    parts: tuple[Part, ...] = ()
    text: str = ""  # the operator, or the lines of the here-document
    adjacent: bool = False  # nothing stands between it and the token before


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a script; raises `ShellError`."""
    return _Lexer(text).tokens()


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._line_at = 0
        self._heredocs: list[str] = []  # the ends of those whose lines begin after this one

    def tokens(self) -> Iterator[Token]:
        adjacent = False
        while self._at < len(self._text):
            if self._skip(_BLANK) or (not adjacent and self._skip(_COMMENT)):
                adjacent = False
                continue
            line = self._line_number()
            if heredoc := self._match(_HEREDOC):
                self._heredocs.append(heredoc["end"])
            elif self._skip(_REDIRECTION):
                self._skip(_BLANK)
                self._word()  # the file
            elif operator := self._match(_OPERATOR):
                yield Token("operator", line, text=operator[0], adjacent=adjacent)
                if operator[0] == "\n":
                    yield from self._read_heredocs()
                adjacent = False
                continue
            else:
                yield Token("word", line, self._word(), adjacent=adjacent)
            adjacent = True

    def _line_number(self) -> int:
        self._line += self._text.count("\n", self._line_at, self._at)
        self._line_at = self._at
        return self._line

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        return self._match(pattern) is not None

    def _read_heredocs(self) -> Iterator[Token]:
        for end in self._heredocs:
            line = self._line_number()
            close = re.compile(rf"^[ \t]*{re.escape(end)}[ \t]*\r?$", re.MULTILINE).search(self._text, self._at)
            if close is None:
                raise ShellError(f"a here-document without its end, {end}")
            body = self._text[self._at : close.start()]
            self._at = close.end()
            yield Token("heredoc", line, text=body)
        self._heredocs.clear()

    def _word(self) -> tuple[Part, ...]:
        parts: list[Part] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            if plain := self._match(_PLAIN):
                parts.append(Part("text", plain[0]))
            elif character == "\\":
                escaped = self._text[self._at + 1 : self._at + 2]
                parts += [Part("text", escaped, quoted=True)] if escaped not in ("\n", "") else []
                self._at += 2
            elif character == "'":
                parts.append(Part("text", self._until("'"), quoted=True))
            elif character == '"':
                parts += self._double_quoted()
            elif character in "$`":
                parts.append(self._expansion(quoted=False))
            else:
                break
        return tuple(parts)

    def _until(self, end: str) -> str:
        """What is between this character and the next `end`."""
        close = self._text.find(end, self._at + 1)
        if close < 0:
            raise ShellError(f"{end} is not closed")
        between = self._text[self._at + 1 : close]
        self._at = close + 1
        return between

    def _double_quoted(self) -> Iterator[Part]:
        self._at += 1
        if self._text[self._at : self._at + 1] == '"':
            yield Part("text", "", quoted=True)  # a word without letters
        while self._at < len(self._text):
            character = self._text[self._at]
            if plain := self._match(_IN_QUOTES):
                yield Part("text", plain[0], quoted=True)
            elif character == '"':
                self._at += 1
                return
            elif character == "\\":
                escaped = self._text[self._at + 1 : self._at + 2]
                kept = escaped if escaped in '\\"$`' else f"\\{escaped}"
                yield Part("text", "" if escaped == "\n" else kept, quoted=True)
                self._at += 2
            else:
                yield self._expansion(quoted=True)
        raise ShellError('" is not closed')

    def _expansion(self, *, quoted: bool) -> Part:
        """What `$` or a backquote begins."""
        if self._text[self._at] == "`":
            return Part("command", f"`{self._until('`')}`", quoted)
        following = self._text[self._at + 1 : self._at + 2]
        if following == "(":
            return Part("command", f"${self._nested('(', ')')}", quoted)
        if following == "{":
            return Part("variable", self._nested("{", "}")[1:-1], quoted)
        self._at += 1
        if following == "'" and not quoted:
            return Part("text", self._until("'"), quoted=True)
        name = self._match(_NAME)
        return Part("text", "$", quoted) if name is None else Part("variable", name[0], quoted)

    def _nested(self, opening: str, closing: str) -> str:
        """The text from the character behind this one to the one that closes it, quotes left alone."""
        self._at += 1
        start, depth = self._at, 0
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "'" and opening == "(":
                self._until("'")
                continue
            self._at += 2 if character == "\\" else 1
            depth += (character == opening) - (character == closing)
            if depth == 0:
                return self._text[start : self._at]
        raise ShellError(f"{opening} is not closed")
