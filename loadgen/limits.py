"""Limits of this process and of vramp's own children."""

from __future__ import annotations

import os
import resource

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_chosen = _BLAS_THREADS in os.environ  # by the user


def raise_open_files() -> None:
    """Allow as many open files as the hard limit does: each connection is one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def start_no_blas_threads() -> None:
    """Keep numpy to one thread, here and in children; call it before numpy is imported.

    OpenBLAS would start a thread for each core as it is loaded, which costs 60 ms of each start, and end the process
    where it may not. vramp multiplies no large matrices.
    """
    os.environ.setdefault(_BLAS_THREADS, "1")


def inherited_environment() -> dict[str, str]:
    """What vramp was started with: for servers, whose threads are their own affair."""
    return {name: value for name, value in os.environ.items() if _chosen or name != _BLAS_THREADS}
