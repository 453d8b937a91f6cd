"""Limits of this process that the kernel sets."""

from __future__ import annotations

import resource


def raise_open_files() -> None:
    """Allow as many open files as the hard limit does: each connection is one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
