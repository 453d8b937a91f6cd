"""A limit on the size of files behaves as a full disk does."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def no_room(file: Path, *, left: int = 10) -> Iterator[None]:
    """No file of this process may grow beyond what this one has, and so many bytes more."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + left, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
