"""How many devices a server uses, by its flags for parallelism."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from loadgen.errors import ProfileError

_PARALLEL = (
    ("tensor-parallel-size", "tensor-parallel", "tp"),
    ("pipeline-parallel-size", "pipeline-parallel", "pp"),
    ("data-parallel-size", "dp"),
    ("prefill-context-parallel-size", "pcp"),
)


def devices_each(args: Mapping[str, Any]) -> int:
    """How many devices a server with these flags uses; raises `ProfileError` for sizes that are not numbers."""
    given = {name.lstrip("-").replace("_", "-"): value for name, value in args.items()}
    return math.prod(_size(name, given[name]) for names in _PARALLEL for name in names if name in given)


def _size(name: str, value: Any) -> int:  # noqa: ANN401 - any of TOML's types
    if not str(value).isdecimal() or int(value) < 1:
        raise ProfileError(f"server.args.{name} = {value!r}: expected a whole number of at least 1")
    return int(value)
