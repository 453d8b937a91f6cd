"""Resource limits and settings of this process and of vramp's child processes."""

from __future__ import annotations

import os
import resource

_LEAN = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "__all__"}
MAX_OPEN_FILES = 1 << 16  # more ports than a host has; programs that close every number up to the limit stay quick
_M_MMAP_THRESHOLD = -3  # in malloc.h
_LARGE_BYTES = 64 << 10
_chosen = _LEAN.keys() & os.environ.keys()  # those that the user has set


def raise_open_files() -> None:
    """Allow as many open files as the hard limit does, here and in children: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


def map_large_blocks() -> None:
    """Have the C library map each large block of memory by itself, and give it back as soon as it is free.

    Arrays of histograms are allocated and freed at every tick. In the heap they would leave holes, which accumulate in
    a run of many stages. Only glibc supports this (mallopt(3)); elsewhere nothing happens.
    """
    import ctypes  # which numpy loads anyway; `vramp --help` does without

    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def start_lean() -> None:
    """Keep numpy to one thread and pydantic without plugins, here and in children; call it before either is imported.

    OpenBLAS would start a thread for each core as it is loaded, which costs 60 ms of each start, and end the process
    where it may not; vramp multiplies no large matrices. pydantic would look through every installed package for
    plugins, which costs 30 ms, and run what it finds.
    """
    for name, value in _LEAN.items():
        os.environ.setdefault(name, value)


def own_variables() -> set[str]:
    """The environment variables that `start_lean` set because the user had not."""
    return _LEAN.keys() - _chosen


def inherited_environment() -> dict[str, str]:
    """The environment that vramp was started with, for servers: they choose their own threads and plugins."""
    ours = own_variables()
    return {name: value for name, value in os.environ.items() if name not in ours}
