"""The port that Prometheus reads: a few callers at a time, each of them for a few seconds.

It is in the process that samples, and anybody who reaches the port may call: threads that wait for slow callers would
take the time of those that serve.
"""

from __future__ import annotations

import socket
import ssl
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry

CALLERS = 16
"""At a time; who comes then is hung up on."""
CALLER_S = 10.0
"""Longest wait for a caller's next bytes; a TLS handshake is made of such waits."""


class MetricsServer:
    """Serves a registry in a thread of its own until it is closed.

    Args:
      registry: what is exported.
      host, port: where.
      tls: how; None without TLS.

    Raises:
      OSError: the address cannot be had.
    """

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
