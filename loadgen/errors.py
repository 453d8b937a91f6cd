"""Every exception vramp raises on purpose; each says what was wrong, where, and what to do next.

A failed stream is not an exception: it is data (see `loadgen.stream.stream`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class VrampError(Exception):
    """A problem with a message that a user can act on; never shown with a traceback."""

    exit_code = 1


class ProfileError(VrampError):
    """The profile, an option or an override is invalid; names file, key and value."""

    exit_code = 2


class ServerError(VrampError):
    """The server could not be reached, started or understood."""

    exit_code = 3


class LoadError(VrampError):
    """The load could not continue: all requests failed, or the server died under it."""


class WorkerError(VrampError):
    """A worker process could not be started, died, or sent something that is not a message."""


class ClusterError(VrampError):
    """A host or a scheduler cannot take part in the load."""


class TelemetryError(VrampError):
    """A backend does not work on this box, with the exact reason; a run never fails because of it."""


class ResultError(VrampError):
    """A result or the folder of a run could not be read or written."""


@contextmanager
def reported_as(problem: str, kinds: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Raise `ResultError` with this problem and its reason in place of an error of these kinds."""
    try:
        yield
    except kinds as error:
        raise ResultError(f"{problem}: {getattr(error, 'strerror', None) or error}") from error


UNDECODABLE = (ValueError, RecursionError)
"""What msgspec, json and tomllib raise for bytes from outside: bad syntax, a wrong type, no UTF-8, nested too deeply,
an integer of too many digits."""
