"""The work of a profile's stage, with its nominal ISL and OSL: what is wrong with the profile is found here.

Workers do not import this module: pydantic would be half of their start-up.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from loadgen.distributions import FROM_DATA, REPLAY, parse_lengths
from loadgen.errors import ProfileError
from loadgen.profile.load import Load, SessionSettings
from loadgen.workload.data import Dataset, index_dataset
from loadgen.workload.sessions.data import Sessions
from loadgen.workload.sessions.index import index_sessions
from loadgen.workload.traces import TraceOptions
from loadgen.workload.work import Work


class Shape(NamedTuple):
    """Nominal ISL and OSL, and the other properties of the work."""

    isl: int
    osl: int
    work: Work


def shape_of(load: Load, isl: int | str, osl: int | str, *, replay: bool = False) -> Shape:
    """The shape of a profile's stage; raises `ProfileError` where keys contradict each other or the dataset."""
    if load.sessions is not None:
        return _shape_of_sessions(load, load.sessions)
    data = None
    if load.data is not None:
        options = TraceOptions() if load.trace is None else TraceOptions(**load.trace.model_dump())
        data = index_dataset(load.data, load.data_format, options)
    _check(load, data, isl, osl, replay=replay)
    known = data is not None and data.osl is not None and (osl == FROM_DATA or data.form == "trace")
    work = Work(
        isl=isl if isinstance(isl, str) and data is None else "",
        osl=osl if isinstance(osl, str) and not known else "",
        data=data if data is None or known else msgspec.structs.replace(data, osl=None),
        replay=replay,
        prefix_share=load.prefix.share if load.prefix is not None else 0.0,
        prefixes=load.prefix.count if load.prefix is not None else 1,
        turns=load.turns.count if load.turns is not None else 1,
        chat=load.endpoint != "completions",
        think_s=(load.turns.think or 0.0) if load.turns is not None else 0.0,
    )
    nominal_isl = data.isl if data is not None else parse_lengths(isl).nominal
    nominal_osl = data.osl if data is not None and data.osl is not None and known else parse_lengths(osl).nominal
    return Shape(nominal_isl, nominal_osl, work)


def _shape_of_sessions(load: Load, wanted: SessionSettings) -> Shape:
    data = index_sessions(
        wanted.data,
        seed=load.seed or 0,
        scale=wanted.scale,
        block_size=wanted.block_size,
        max_context=wanted.max_context,
    )
    for key in ("data", "trace", "prefix", "turns", "cancel", "shapes"):
        if getattr(load, key):
            raise ProfileError(f"load.{key} and load.sessions exclude each other: sessions say what is sent, and when")
    if load.passes > 1:
        raise ProfileError("load.passes and load.sessions exclude each other: a session has its own repetitions")
    if wanted.history == "server" and load.endpoint == "completions":
        raise ProfileError('load.sessions.history = "server": needs load.endpoint = "chat" or "responses"')
    sessions = Sessions(
        data=data,
        max_gap_s=wanted.max_gap,
        max_context=wanted.max_context,
        start=wanted.start_between if wanted.start == "inside" else None,
        history=wanted.history,
        salt=wanted.salt,
        common_prefix=wanted.common_prefix,
    )
    return Shape(data.isl, data.osl, Work(sessions=sessions, chat=load.endpoint != "completions"))


def _check(load: Load, data: Dataset | None, isl: int | str, osl: int | str, *, replay: bool) -> None:
    if data is None:
        for key, value in (("isl", isl), ("osl", osl)):
            if value == FROM_DATA:
                raise ProfileError(f'load.{key} = "data": there is no dataset; set load.data = "FILE"')
    elif osl == FROM_DATA and data.osl is None:
        raise ProfileError(f'load.osl = "data": {data.path}: some records do not say how long their answer is')
    elif data.has_messages and load.endpoint == "completions":
        raise ProfileError(f'load.data: {data.path}: has messages; they need load.endpoint = "chat" or "responses"')
    if data is not None and (load.prefix is not None or load.turns is not None):
        raise ProfileError("load.prefix and load.turns need synthetic prompts; remove them, or load.data")
    if load.trace is not None and (data is None or data.form != "trace"):
        raise ProfileError("load.trace: needs a trace in load.data: a file of timestamps and lengths")
    if load.turns is not None and load.cancel is not None:
        raise ProfileError("load.turns and load.cancel exclude each other: a conversation needs complete answers")
    if replay and (data is None or data.form != "trace"):
        raise ProfileError(f'load.arrival = "{REPLAY}": needs a trace in load.data: a file of timestamps and lengths')
