"""What hosts may make of vramp's process: data, and never code.

A pickle can name any function to be called, and Dask reads pickles in whatever a worker or a scheduler sends: results,
exceptions, types, warnings. Its own setting (`deserializers`) spares most of them. So in the process of the operator
its reader is replaced by one that knows the few names that a run needs. Hosts, which trust the operator, keep Dask's.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import distributed.client
import distributed.protocol.pickle
import distributed.scheduler

_NAMES = {
    ("builtins", "bytes"),
    ("distributed.actor", "Actor"),
    ("loadgen.cluster.actor", "HostActor"),
    # The graph that starts an actor, which the operator's own scheduler reads. They call nothing but these names.
    ("dask._expr", "Expr._reconstruct"),
    ("dask._expr", "LLGExpr"),
    ("dask._task_spec", "Task"),
}


def _require_exception(kind: object) -> type[Exception]:
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind
    raise ForbiddenName(f"{kind!r} is no exception")


_REPLACED: dict[tuple[str, str], Callable[..., Any]] = {
    # As distributed's tblib pickles exceptions, whose tracebacks nobody here looks at.
    ("tblib", "Code"): SimpleNamespace,
    ("tblib", "Frame"): SimpleNamespace,
    ("tblib", "Traceback"): SimpleNamespace,
    ("tblib.pickling_support", "unpickle_exception"): lambda kind, words, *_: _require_exception(kind)(*words),
    ("tblib.pickling_support", "unpickle_exception_with_attrs"): lambda kind, attributes, *_: _require_exception(kind)(
        *attributes.get("args", ())
    ),
    ("tblib.pickling_support", "unpickle_traceback"): lambda *_: None,
}


class ForbiddenName(pickle.UnpicklingError, AttributeError):
    """A pickle names what a host may not; an `AttributeError`, which Dask takes for a traceback that it cannot read."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as in the base class
        if (module, name) in _REPLACED:
            return _REPLACED[module, name]
        # An exception of Python or of Dask, too; nothing is imported to find out whether it is one.
        has_exceptions = module in sys.modules and (module == "builtins" or module.startswith("distributed."))
        found = vars(sys.modules[module]).get(name) if has_exceptions else None
        if (module, name) in _NAMES or (isinstance(found, type) and issubclass(found, Exception)):
            return super().find_class(module, name)
        raise ForbiddenName(f"a host may not name {module}.{name}")


def restricted_loads(data: bytes, *, buffers: Iterable[Any] = ()) -> Any:  # noqa: ANN401 - any of the few
    """The object in a pickle; raises `pickle.UnpicklingError` if it names anything that no run needs."""
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


def restrict_pickles() -> None:
    """Have Dask read pickles by `restricted_loads` in this process; for the operator's, before it connects."""
    distributed.protocol.pickle.loads = restricted_loads
    # Those that have the functions under names of their own.
    distributed.scheduler.loads = restricted_loads  # type: ignore[attr-defined]
    distributed.client.loads = restricted_loads  # type: ignore[attr-defined]
    distributed.client.pickle = SimpleNamespace(loads=restricted_loads)  # type: ignore[attr-defined,assignment]
