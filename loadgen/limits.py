"""Limits of this process and of vramp's own children."""

from __future__ import annotations

import os
import resource

_LEAN = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "__all__"}
_chosen = _LEAN.keys() & os.environ.keys()  # by the user


def raise_open_files() -> None:
    """Allow as many open files as the hard limit does: each connection is one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def start_lean() -> None:
    """Keep numpy to one thread and pydantic without plugins, here and in children; call it before either is imported.

    OpenBLAS would start a thread for each core as it is loaded, which costs 60 ms of each start, and end the process
    where it may not; vramp multiplies no large matrices. pydantic would look through every installed package for
    plugins, which costs 30 ms, and run what it finds.
    """
    for name, value in _LEAN.items():
        os.environ.setdefault(name, value)


def own_variables() -> set[str]:
    """The environment variables that `start_lean` has set, and not the user."""
    return _LEAN.keys() - _chosen


def inherited_environment() -> dict[str, str]:
    """What vramp was started with: for servers, whose threads and plugins are their own affair."""
    return {name: value for name, value in os.environ.items() if name not in own_variables()}
