"""The guard's side of a server's record (see `records.py`); standard library only: the guard must start fast."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadgen.server.process.tree import look_at


class RecordFile:
    """The record of the server that the calling process guards."""

    def __init__(self, order: dict[str, Any], main_pid: int) -> None:
        """`order` has the path and what vramp knows of the server; `main_pid` is a child of the caller's."""
        own, main = look_at(os.getpid()), look_at(main_pid)
        assert own is not None and main is not None, "it is our own child, so that even if dead it is there"
        self._path = Path(order["path"])
        self._facts = {**order["facts"], "guard": asdict(own.id), "server": asdict(main.id), "tree": [], "left": False}

    def note(self, **facts: Any) -> None:  # noqa: ANN401 - facts are what JSON can say
        """Replace the record, as a whole, by one that says this too; raises `OSError`."""
        self._facts |= facts
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(self._facts))
        beside.replace(self._path)

    def remove(self) -> None:
        """Nothing of the server is left."""
        with contextlib.suppress(OSError):  # a stale record is recognised, and removed by who reads it next
            self._path.unlink()
