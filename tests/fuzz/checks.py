"""What holds for whatever a reader returns."""

from __future__ import annotations

import asyncio
import atexit
import math
import tempfile
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from loadgen.format import harmless

_MEMORY = Path("/dev/shm")
_SINGLE = frozenset({str, int, float, bool, type(None)})  # most parts of anything


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_debug(False)
    return loop


def done(work: Coroutine[Any, Any, Any]) -> Any:
    return event_loop().run_until_complete(work)


@cache
def scratch() -> Path:
    """A folder for the files that readers want, in memory where that is possible; emptied at exit."""
    made = tempfile.TemporaryDirectory(prefix="vramp-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None)
    atexit.register(made.cleanup)
    return Path(made.name)


def written(name: str, data: bytes) -> Path:
    path = _place(name)
    path.write_bytes(data)
    return path


@cache
def _place(name: str) -> Path:
    path = scratch() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def require_finite(value: object) -> None:
    """Every number in it is a number."""
    for part in _parts(value):
        assert not isinstance(part, float) or math.isfinite(part), f"{part} in {type(value).__name__}"


def require_amounts(value: object) -> None:
    """Every number in it is finite and not negative."""
    for part in _parts(value):
        if isinstance(part, float | int):
            assert math.isfinite(part), f"{part} in {type(value).__name__}"
            assert part >= 0, f"{part} in {type(value).__name__}"


def require_showable(text: str) -> None:
    """A terminal obeys nothing in it."""
    assert harmless(text) == text, ascii(text[:200])


def require_same(made: object, again: object) -> None:
    """What is written is read again."""
    assert made == again, f"{str(made)[:300]} is read as {str(again)[:300]}"


def _parts(value: object) -> Iterator[object]:
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        yield one
        if type(one) in _SINGLE:
            continue
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif isinstance(one, msgspec.Struct):
            waiting += msgspec.structs.astuple(one)
        elif is_dataclass(one) and not isinstance(one, type):
            waiting += [getattr(one, field.name) for field in fields(one)]
