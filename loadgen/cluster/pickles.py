"""What hosts may make of vramp's process: data, and never code.

A pickle can name any function to be called, and Dask reads pickles in whatever a worker or a scheduler sends: results,
exceptions, types, warnings. Its own setting (`deserializers`) spares most of them. So in the process of the operator
its reader is replaced by one that knows the few names that a run needs. Hosts, which trust the operator, keep Dask's.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterable
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


def _exception(kind: object, words: tuple[Any, ...], *_: object) -> Exception:
    return _require_exception(kind)(*words)


def _exception_with_attributes(kind: object, attributes: dict[str, Any], *_: object) -> Exception:
    return _require_exception(kind)(*attributes.get("args", ()))


def _require_exception(kind: object) -> type[Exception]:
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind
    raise ForbiddenName(f"{kind!r} is no exception")


def _no_traceback(*_: object) -> None:
    return None


def _is_exception(module: str, name: str) -> bool:
    """Whether it is an exception of Python or of Dask; nothing is imported to find out."""
    if module != "builtins" and not module.startswith("distributed."):
        return False
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return isinstance(found, type) and issubclass(found, Exception)


_REPLACED = {
    # As distributed's tblib pickles exceptions, whose tracebacks nobody here looks at.
    ("tblib", "Code"): SimpleNamespace,
    ("tblib", "Frame"): SimpleNamespace,
    ("tblib", "Traceback"): SimpleNamespace,
    ("tblib.pickling_support", "unpickle_exception"): _exception,
    ("tblib.pickling_support", "unpickle_exception_with_attrs"): _exception_with_attributes,
    ("tblib.pickling_support", "unpickle_traceback"): _no_traceback,
}


class ForbiddenName(pickle.UnpicklingError, AttributeError):
    """A pickle names what a host may not; an `AttributeError`, which Dask takes for a traceback that it cannot read."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as in the base class
        if (module, name) in _REPLACED:
            return _REPLACED[module, name]
        if (module, name) in _NAMES or _is_exception(module, name):
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
