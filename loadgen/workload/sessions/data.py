"""The sessions of a run: recorded ones indexed as trees on disk, or generated ones; read by number, and written.

A prompt is made of the new parts of the requests whose contexts it continues. Each part is one piece of random text
that depends on the play and the request alone, so writing a prompt of any length takes a slice for each part, and two
prompts of a play begin alike exactly as far as the recorded ones do. With `history = "server"` a prompt is a chat in
which the server's own answers take the place of the recorded ones.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np

from loadgen.workload.prompts import STAGES_A_RUN, Piece, Prompts, RequestContent
from loadgen.workload.sessions.generated import generated_tree
from loadgen.workload.sessions.play import Play
from loadgen.workload.sessions.tree import COMMON, SessionTree

SAMPLE, GENERATED = "sample", "generated"

SessionFormat = Literal["weka", "mooncake", "otel", "generated"]
_ENTRIES = np.dtype([("offset", "<i8"), ("length", "<i8")])
_SESSIONS = STAGES_A_RUN - 1  # sessions outlive stages, so their text is drawn as that of a stage of their own
_COMMON_NUMBER = 1 << 88  # beyond that of any request
_decode = msgspec.msgpack.Decoder(SessionTree).decode


class SessionData(msgspec.Struct, frozen=True, omit_defaults=True):
    """Indexed, valid sessions; travels to the workers."""

    form: SessionFormat
    sessions: int
    path: str = GENERATED  # the file or folder, or what the profile calls them
    index: str = ""  # file with the trees, then an entry for each
    seed: int = 0  # of generated ones
    scale: float = 1.0
    isl: int = 1  # mean tokens of a prompt
    osl: int = 1
    longest: int = 0  # most tokens of a prompt and its answer together
    requests: int = 0
    subagents: int = 0
    left_out: int = 0
    note: str | None = None
    bytes: int = 0
    sha256: str = ""

    @property
    def records(self) -> int:
        return self.sessions

    @property
    def is_sample(self) -> bool:
        return self.path == SAMPLE


class Sessions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sessions that a load plays, and how."""

    data: SessionData
    max_gap_s: float | None = None  # longer gaps of the recording are cut to this
    max_context: int | None = None  # a session ends before a request with more tokens than this, prompt and answer
    start: tuple[float, float] | None = None  # shares of the recording between which the first plays begin
    history: Literal["recorded", "server"] = "recorded"  # whose answers later requests repeat
    salt: Literal["play", "session"] = "play"  # what has prompts of its own
    common_prefix: int = 0  # tokens with which the prompts of all sessions begin


class SessionReader:
    """The trees of sessions by number."""

    def __init__(self, data: SessionData) -> None:
        self._data = data
        if not data.index:
            return
        self._descriptor = os.open(data.index, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        size = os.fstat(self._descriptor).st_size
        self._entries = np.memmap(
            data.index, dtype=_ENTRIES, mode="r", offset=size - data.sessions * _ENTRIES.itemsize, shape=data.sessions
        )

    def tree(self, number: int) -> SessionTree:
        if not self._data.index:
            return generated_tree(self._data.seed, number, self._data.scale)
        offset, length = self._entries[number].item()
        return _decode(os.pread(self._descriptor, length, offset))


class SessionWriter:
    """Writes the requests of sessions."""

    def __init__(self, sessions: Sessions, prompts: Prompts) -> None:
        self._sessions = sessions
        self._prompts = prompts

    def request(self, play: Play, index: int, answers: Mapping[int, str] | None = None) -> RequestContent:
        """A request of a play; `answers` are those of the server so far, if its history consists of these."""
        osl = play.tree.requests[index].osl
        if answers is not None:
            return RequestContent(self._chat(play, index, answers), osl, messages=True)
        return self._prompts.content(self._context(play, index), osl)

    def _context(self, play: Play, index: int) -> list[Piece]:
        parts = play.tree.context(index, self._sessions.common_prefix)
        return [_piece(play, part, tokens) for part, tokens in parts]

    def _chat(self, play: Play, index: int, answers: Mapping[int, str]) -> bytes:
        """The messages up to a request: those of the requests whose whole contexts it continues, each with its answer.

        Where a recorded context was cut, the chat begins again with what was kept, in one message.
        """
        tree, turns = play.tree, [index]
        while (base := tree.requests[turns[-1]].base) is not None and base in answers:
            request = tree.requests[turns[-1]]
            if request.shared < tree.requests[base].isl // tree.block_size:
                break
            turns.append(base)
        first, *later = reversed(turns)
        messages = [b'{"role":"user","content":%b}' % self._prompts.compose(self._context(play, first))]
        for before, turn in zip((first, *later), later, strict=False):
            said, request = answers[before], tree.requests[turn]
            new = request.isl - tree.requests[before].isl - tree.requests[before].osl
            question = self._prompts.compose([_piece(play, turn, max(1, new))])
            messages.append(b'{"role":"assistant","content":%b}' % msgspec.json.encode(said))
            messages.append(b'{"role":"user","content":%b}' % question)
        return b"[%b]" % b",".join(messages)


def _piece(play: Play, request: int, tokens: int) -> Piece:
    if request == COMMON:
        return Piece(_SESSIONS, _COMMON_NUMBER, tokens)
    # The low bits decide where in the random text a piece begins, so they differ between plays and between requests.
    number = ((request + 1 << 40) + play.salt << 16) + (977 * play.salt + request) % (1 << 16)
    return Piece(_SESSIONS, number, tokens)
