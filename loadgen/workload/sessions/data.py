"""The sessions of a run: recorded ones indexed as trees on disk, or generated ones; read one at a time, by number."""

from __future__ import annotations

import os
import weakref
from typing import Literal

import msgspec
import numpy as np

from loadgen.workload.sessions.generated import generated_tree
from loadgen.workload.sessions.play import PlayRules
from loadgen.workload.sessions.tree import SessionTree

SAMPLE, GENERATED = "sample", "generated"

SessionFormat = Literal["weka", "mooncake", "otel", "generated"]
_ENTRIES = np.dtype([("offset", "<i8"), ("length", "<i8")])
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
    rules: PlayRules = PlayRules()
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
