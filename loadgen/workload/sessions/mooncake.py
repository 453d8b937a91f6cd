"""Mooncake's trace rows with a `session_id`: the rows with the same one are the turns of a session.

A row with `delay` starts so many milliseconds after the answer before it. Without, only the times between the starts
of turns are known, which then stand for the gaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import msgspec

from loadgen.distributions import MAX_TOKENS
from loadgen.workload.sessions.tree import RecordedRequest, SessionTree, session_tree
from loadgen.workload.traces import EMPTY_ANSWER, EMPTY_PROMPT, MAX_SECONDS, require_blocks, require_lengths

_SHAPE = '{"session_id": "...", "timestamp": milliseconds, "input_length": tokens, "output_length": tokens}'


class MooncakeRow(msgspec.Struct):
    """A row as it is published."""

    session_id: str | int
    input_length: int
    output_length: int
    timestamp: float | None = None
    delay: float | None = None
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0)]] | None = None


_decode = msgspec.json.Decoder(MooncakeRow).decode


def mooncake_row(content: bytes, block_size: int) -> MooncakeRow:
    """Parse a row; raises ValueError."""
    try:
        row = _decode(content)
    except msgspec.DecodeError as error:
        raise ValueError(f"expected {_SHAPE}; {error}") from None
    require_lengths(row.input_length, row.output_length, MAX_TOKENS)
    for name, time_ms in (("timestamp", row.timestamp), ("delay", row.delay)):
        if time_ms is not None and not 0 <= time_ms / 1000 <= MAX_SECONDS:
            raise ValueError(f"{name}: expected milliseconds from 0, not {time_ms:g}")
    require_blocks(row.hash_ids or (), row.input_length, block_size, "load.sessions.block_size")
    row.session_id = str(row.session_id)
    return row


def mooncake_session(rows: Sequence[MooncakeRow], block_size: int, left_out: Counter[str]) -> SessionTree | None:
    """The tree of the rows of one session, in their order; raises ValueError."""
    recorded: list[RecordedRequest] = []
    for row in rows:
        last_s = recorded[-1].start_s if recorded else 0.0
        if row.delay is not None:
            start_s = last_s + row.delay / 1000
        else:
            start_s = last_s if row.timestamp is None else row.timestamp / 1000
        if start_s < last_s:
            early_s = last_s - start_s
            raise ValueError(f"session {row.session_id!r}: a turn is {early_s:g} s before the one above; sort by time")
        if not row.input_length or not row.output_length:
            left_out[EMPTY_ANSWER if row.input_length else EMPTY_PROMPT] += 1
            continue
        recorded.append(RecordedRequest(start_s, start_s, row.input_length, row.output_length, 0, row.hash_ids))
    return session_tree(str(rows[0].session_id), block_size, recorded) if recorded else None
