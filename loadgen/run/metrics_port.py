"""The run's live figures for Prometheus, on a dedicated port that closes with the run.

Invariants: the port is bound before anything is started, so that a port in use costs nothing; the answering thread
reads one immutable `ExportedState`, replaced four times a second, and never the run itself: slow or many scrapers delay
each other, not the load. A client that connects and sends nothing is disconnected, and the oldest of too many.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from socketserver import ThreadingMixIn
from typing import Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from loadgen.errors import ProfileError
from loadgen.record.record import Record
from loadgen.report.prometheus import ExportedState, metric_families, moment_of
from loadgen.schema.snapshot import Snapshot

MAX_CONNECTIONS = 64
_CLOSES_WITHIN_S = 0.1


class _Handler(WSGIRequestHandler):
    timeout = 10.0  # of a read or a write

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: stderr belongs to the screen, or the progress lines."""

    def get_stderr(self) -> TextIO:
        """Discard the traceback when prometheus_client cannot answer, for example to a malformed `Accept`."""
        return StringIO()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: dict[socket.socket, None] = {}  # the oldest first; a dict because threads remove from it

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the base class's
        """Answer in a thread; of too many connections, the oldest is disconnected."""
        self._open[request] = None
        if len(self._open) > MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            self._open.pop(oldest, None)
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:  # noqa: ANN401
        self._open.pop(request, None)
        super().close_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore it: a client that hung up during an answer does not want the rest."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class MetricsPort(Collector):
    """Answers `GET /metrics` from its construction until `close`."""

    def __init__(self, host: str, port: int) -> None:
        """Raises `ProfileError` if it cannot listen there."""
        self._moment: ExportedState | None = None
        registry = CollectorRegistry()
        registry.register(self)
        server = _Server6 if ":" in host else _Server
        try:
            self._server = server((host, port), _Handler)
        except (OSError, TypeError, UnicodeError) as error:  # the latter two for a name that no host can have
            why = f"cannot be listened on: {getattr(error, 'strerror', None) or error}"
            remedy = "nothing was started; name another, or 0 for a free one"
            raise ProfileError(f"--metrics-port {port}: {host}:{port} {why}; {remedy}") from error
        self._server.set_app(make_wsgi_app(registry))
        threading.Thread(target=self._server.serve_forever, args=(_CLOSES_WITHIN_S,), daemon=True).start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{f'[{host!s}]' if ':' in str(host) else host!s}:{port}/metrics"

    def publish(self, snapshot: Snapshot, record: Record) -> None:
        self._moment = moment_of(snapshot, record)

    def collect(self) -> Iterator[Metric]:
        """The metrics of the latest moment, called in the answering thread."""
        return metric_families(self._moment) if self._moment is not None else iter(())

    def close(self) -> None:
        """Stop listening; takes a tenth of a second."""
        self._server.shutdown()
        self._server.server_close()
