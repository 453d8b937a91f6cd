"""The content of a stage's requests, which the profile decides and the workers write.

`Work` is all that a worker needs beyond a stage's load; `RequestWriter` makes requests from it by number. Invariant: a
request is a pure function of the seed, the stage and its number, so it is the same on any worker and if written again.

In a conversation each request repeats the earlier turns. The server's real answers are not kept; synthetic text of the
same length takes their place. So a prefix cache hits the conversation up to the first answer that the server generated,
and no further.
"""

from __future__ import annotations

import math
from functools import lru_cache
from hashlib import blake2b

import msgspec

from loadgen.distributions import parse_lengths
from loadgen.workload.data import Dataset, DatasetReader
from loadgen.workload.prompts import STAGES_A_RUN, Piece, Prompts, RequestContent
from loadgen.workload.sessions.data import SessionData, Sessions
from loadgen.workload.traces import TraceRow

_PREFIXES = STAGES_A_RUN - 1  # shared prefixes are drawn as this stage's, so that all stages share them
_PASSES = STAGES_A_RUN // 2  # prompts of passes are drawn as stages from this number on


class Work(msgspec.Struct, frozen=True, omit_defaults=True):
    """The requests of a stage, beyond its nominal ISL and OSL."""

    isl: str = ""  # distribution of lengths; empty: always the nominal one
    osl: str = ""
    data: Dataset | None = None
    sessions: Sessions | None = None  # in place of prompts; concurrency is then the number of live sessions
    replay: bool = False  # records in their own order, at their own times
    prefix_share: float = 0.0
    prefixes: int = 1
    turns: int = 1
    think_s: float = 0.0
    chat: bool = False  # the endpoint takes messages
    key: int | None = None  # seeds prompts in place of the stage's number, so that passes have the same ones

    def by_hand(self, *, in_conversations: bool) -> Work:
        """This work for a load that the operator sets: with new prompts, and without the times of a trace."""
        return msgspec.structs.replace(self, key=None, replay=False, turns=self.turns if in_conversations else 1)

    def pass_of(self, number: int) -> Work:
        """This work with the prompts of the plan's stage `number`, shared by all its passes."""
        return msgspec.structs.replace(self, key=_PASSES + number % (_PASSES - 1))

    @property
    def source(self) -> Dataset | SessionData | None:
        """What its requests are read from."""
        return self.data if self.sessions is None else self.sessions.data

    @property
    def repeats(self) -> bool:
        """Whether prompts, or prefixes of them, may have been sent before."""
        from_data = self.sessions is not None or (self.data is not None and self.data.repeats)
        return from_data or self.prefix_share > 0 or self.turns > 1 or self.key is not None

    @property
    def random_prompts(self) -> bool:
        """Whether prompts are synthetic: without data, or with a trace, which gives only lengths and times."""
        return self.data is None or self.data.form == "trace"

    @property
    def meant_hits(self) -> float:
        """The largest share of prompt tokens that is meant to hit the prefix cache."""
        shares_blocks = self.data is not None and self.data.block_size > 0
        return 1.0 if shares_blocks or self.turns > 1 or self.sessions is not None else self.prefix_share

    def longest_prompt(self, isl: int, osl: int) -> int:
        """The most tokens of a prompt, which in a conversation includes earlier turns; an estimate for texts."""
        if self.source is not None:
            return self.source.longest or self.source.isl
        return self.longest(isl, osl) - self._most_osl(osl)

    def longest(self, isl: int, osl: int) -> int:
        """The most tokens of prompt and answer together; for a dataset of texts, only the most of an answer."""
        most_osl = self._most_osl(osl)
        if self.source is not None:
            return self.source.longest or most_osl
        most_isl = parse_lengths(self.isl).longest if self.isl else isl
        return self.turns * (most_isl + most_osl)

    def _most_osl(self, osl: int) -> int:
        return parse_lengths(self.osl).longest if self.osl else osl


class RequestWriter:
    """Writes the requests of a stage on one worker; `key` seeds them, usually the stage's number."""

    def __init__(self, work: Work, prompts: Prompts, *, seed: int, key: int, isl: int, osl: int) -> None:
        self._work = work
        self._prompts = prompts
        self._seed = seed
        self._key = key
        self._isl = isl
        self._osl = osl
        self._isls = parse_lengths(work.isl).at if work.isl else None
        self._osls = parse_lengths(work.osl).at if work.osl else None
        self.reader = DatasetReader(work.data) if work.data is not None else None

    def request(self, index: int, turn: int = 0) -> RequestContent:
        """The request with this number; with turns, that turn of the conversation with this number."""
        if self.reader is not None:
            return self._from_data(self.reader, index)
        osl = self._drawn_osl(index, turn)
        if self._work.chat and turn:
            return RequestContent(self._conversation(index, turn), osl, messages=True)
        said = [
            piece for number in range(turn) for piece in (*self._question(index, number), self._answer(index, number))
        ]
        return self._prompts.content([*said, *self._question(index, turn)], osl)

    def _drawn_osl(self, index: int, turn: int) -> int | None:
        if self._osls is None:
            return None
        return self._osls(draw(self._seed, self._key, index * self._work.turns + turn, "osl"))

    def _question(self, index: int, turn: int) -> list[Piece]:
        """The pieces of a new prompt: the shared prefix, then its own text."""
        number = index * self._work.turns + turn
        isl = self._isl if self._isls is None else self._isls(draw(self._seed, self._key, number, "isl"))
        shared = round(isl * self._work.prefix_share) if turn == 0 else 0
        own = Piece(self._key, number if self._work.turns == 1 else 2 * number, isl - shared)
        if not shared:
            return [own]
        return [Piece(_PREFIXES, int(draw(self._seed, self._key, index, "prefix") * self._work.prefixes), shared), own]

    def _answer(self, index: int, turn: int) -> Piece:
        """The text that stands for the server's answer in a conversation."""
        number = index * self._work.turns + turn
        return Piece(self._key, 2 * number + 1, self._drawn_osl(index, turn) or self._osl)

    def _conversation(self, index: int, turn: int) -> bytes:
        said: list[bytes] = []
        for number in range(turn + 1):
            if number:
                answer = self._prompts.compose([self._answer(index, number - 1)])
                said.append(b'{"role":"assistant","content":%b}' % answer)
            question = self._prompts.compose(self._question(index, number))
            said.append(b'{"role":"user","content":%b}' % question)
        return b"[%b]" % b",".join(said)

    def _from_data(self, reader: DatasetReader, index: int) -> RequestContent:
        work, data = self._work, self._work.data
        assert data is not None
        # A shared prefix hits the cache only while it is fresh, so a trace with blocks keeps its order at any load.
        in_order = work.replay or data.block_size > 0
        number = index % data.records if in_order else record_for(self._seed, self._key, index, data.records)
        if data.form == "trace":
            row = reader.row(number)
            pieces = trace_pieces(row, self._key, index, block_size=data.block_size, times=index // data.records)
            return self._prompts.content(pieces, row.osl)
        text = reader.text(number)
        osl = text.osl if data.osl is not None else self._drawn_osl(index, 0)
        if text.messages and (work.chat or not text.prompt):
            return RequestContent(msgspec.json.encode(text.messages), osl, messages=True)
        return RequestContent(msgspec.json.encode(text.prompt), osl)


def trace_pieces(row: TraceRow, key: int, index: int, *, block_size: int, times: int = 0) -> list[Piece]:
    """The prompt of a row: a piece per entry of `hash_ids`, and a unique one for the tokens that they do not cover.

    Pieces differ between stages and between repetitions of the trace (`times`), so that neither hits what an earlier
    one left in the cache. Blocks have even numbers, a request's own pieces odd ones.
    """
    numbers = [2 * (block + (times << 64)) for block in row.hash_ids]
    covered = min(row.isl, len(numbers) * block_size)
    blocks = [Piece(key, number, min(block_size, row.isl - place * block_size)) for place, number in enumerate(numbers)]
    return blocks if covered == row.isl else [*blocks, Piece(key, 2 * index + 1, row.isl - covered)]


def draw(seed: int, stage: int, index: int, purpose: str) -> float:
    """A uniform number in [0, 1), independent between requests and purposes."""
    digest = blake2b(f"{seed}/{stage}/{index}/{purpose}".encode(), digest_size=8).digest()
    # Only 53 bits, so that the largest value does not round up to 1.
    return (int.from_bytes(digest) >> 11 << 11) * 2.0**-64


def record_for(seed: int, stage: int, index: int, records: int) -> int:
    """The record for a request: a permutation per stage, so that every record comes once before any repeats."""
    stride = _coprime(records)
    return (index * stride + int(draw(seed, stage, 0, "record") * records)) % records


@lru_cache(maxsize=64)
def _coprime(records: int) -> int:
    stride = max(1, int(records * 0.618))
    while math.gcd(stride, records) != 1:
        stride += 1
    return stride
