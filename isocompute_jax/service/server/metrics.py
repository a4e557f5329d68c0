"""What a server counts, and the port that Prometheus reads it from: a few callers at a time, each for a few seconds.

The port is in the process that samples, and anybody who reaches it may call: threads that wait for slow callers would
take the time of those that serve.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

UPDATE_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

CALLERS = 16
"""At a time; who comes then is hung up on."""
CALLER_S = 10.0
"""Longest wait for a caller's next bytes; a TLS handshake is made of such waits."""


class Metrics:
    """A registry of its own, so that a process may have several servers; each metric says what it counts."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.rollouts = Counter("isocompute_rollouts", "Completions sent.", registry=self.registry)
        self.tokens = Counter("isocompute_tokens", "Tokens of the completions sent.", registry=self.registry)
        self.refused = Counter(
            "isocompute_refused", "Calls that ended with an error.", ["method", "code"], registry=self.registry
        )
        self.update_seconds = Histogram(
            "isocompute_update_seconds",
            "Seconds from the last byte of new weights until they served.",
            buckets=UPDATE_BUCKETS,
            registry=self.registry,
        )

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Exports a number that is asked for when it is scraped."""
        Gauge(f"isocompute_{name}", text, registry=self.registry).set_function(value)

    def watch_total(self, name: str, text: str, value: Callable[[], float]) -> None:
        """The same of a number that only grows, so that rates can be asked for."""
        self.registry.register(_Total(f"isocompute_{name}", text, value))


class _Total(Collector):
    """A counter that somebody else keeps."""

    def __init__(self, name: str, text: str, value: Callable[[], float]):
        self._name, self._text, self._value = name, text, value

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Its value now."""
        return [CounterMetricFamily(self._name, self._text, value=self._value())]


class MetricsServer:
    """Serves a registry in a thread of its own until it is closed. Raises OSError: the address cannot be had."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int, *, tls: ssl.SSLContext | None = None):
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        kind = type("_Server", (_Server,), {"address_family": family})
        self._server = kind((place[0], port), _Handler)
        self._server.tls = tls
        self._server.set_app(prometheus_client.make_wsgi_app(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it; it blocks for up to half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(WSGIRequestHandler):
    timeout = CALLER_S

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: whoever calls would fill the log."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128
    tls: ssl.SSLContext | None = None

    def __init__(self, *arguments: Any):
        self._places = threading.BoundedSemaphore(CALLERS)
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """Without looking the host's name up, as WSGIServer would, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, if there is a place for it."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One caller's."""
        try:
            request.settimeout(CALLER_S)
            if self.tls is not None:
                request = self.tls.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:  # no TLS, or a caller that is gone
            self.shutdown_request(request)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing is written of callers that are slow, or gone."""
