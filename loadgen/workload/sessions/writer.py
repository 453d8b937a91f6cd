"""Writes the requests of sessions.

A prompt is made of the new parts of the requests whose contexts it continues. Each part is one piece of random text
that depends on the play and the request alone, so writing a prompt of any length takes a slice for each part, and two
prompts of a play begin alike exactly as far as the recorded ones do. With `history = "server"` a prompt is a chat in
which the server's own answers take the place of the recorded ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loadgen.workload.prompts import STAGES_A_RUN, Piece, Prompts, RequestContent
from loadgen.workload.sessions.data import Sessions
from loadgen.workload.sessions.play import Play
from loadgen.workload.sessions.tree import COMMON

_SESSIONS = STAGES_A_RUN - 1  # sessions outlive stages, so their text is drawn as that of a stage of their own
_COMMON_NUMBER = 1 << 88  # beyond that of any request


class SessionWriter:
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

        Where a recorded context was cut, the chat begins anew with what was kept, in one message.
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
