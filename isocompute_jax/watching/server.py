"""Serves the page to browsers of this machine, and to nobody else.

It listens on the loopback address only and answers only requests that name it so: a page of another site whose name was
made to point here (DNS rebinding) is refused. Nothing of a request is ever used as a path: runs are asked for by the
names that the list of runs has.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import importlib.resources
import json
import logging
import pathlib
import signal
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say
from isocompute_jax.watching.frontier import FrontierSoFar
from isocompute_jax.watching.watched_runs import UnknownRun, WatchedRuns

LOG = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
NAMES = frozenset({"127.0.0.1", "localhost"})
"""What a browser of this machine calls it."""

Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""

Ask = Mapping[str, str]
"""The fields of a query."""


class WatchServer(http.server.ThreadingHTTPServer):
    """The page and what it asks for, as JSON.

    Args:
      runs: that are watched.
      port: 0 takes a free one.
      frontier: the fit of the runs; None for none.

    Raises:
      InputError: the port is taken, or not allowed.
    """

    daemon_threads = True

    def __init__(self, runs: WatchedRuns, *, port: int, frontier: FrontierSoFar | None):
        self._frontier = frontier
        self._page, self._page_policy = load_page()
        self._routes: dict[str, Callable[[Ask], Any]] = {
            "/api/runs": lambda ask: runs.overview(),
            "/api/curves": lambda ask: runs.curves(ask["metric"]),
            "/api/run": lambda ask: runs.detail(ask["name"]),
            "/api/rollouts": lambda ask: runs.rollouts(ask["name"], int(ask["index"])),
            "/api/frontier": lambda ask: {"state": "off"} if frontier is None else frontier.now(),
        }
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise InputError(f"--port={port}: {error}; choose another, or 0 for any that is free") from error

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def answer(self, target: str) -> Answer:
        """The answer to a request for `target`, the path and query of a URL."""
        parts = urllib.parse.urlsplit(target)
        if parts.path == "/":
            return HTTPStatus.OK, "text/html; charset=utf-8", self._page
        if parts.path == "/frontier/report.html":
            report = self._frontier.report() if self._frontier else None
            if report is None:
                return _missing("no fit was made yet")
            return HTTPStatus.OK, "text/html; charset=utf-8", report
        if parts.path not in self._routes:
            return _missing("there is nothing here")
        ask = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        try:
            return _json(HTTPStatus.OK, self._routes[parts.path](ask))
        except UnknownRun as error:
            return _missing(f"there is no run {str(error)!r}")
        except (KeyError, ValueError) as error:
            return _json(HTTPStatus.BAD_REQUEST, {"error": f"cannot be asked so: {error}"})

    def policy(self, target: str) -> str:
        """The Content-Security-Policy of an answer; the report has scripts of its own, and loads nothing either."""
        if target.startswith("/frontier/"):
            return "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
        return self._page_policy


class _Handler(http.server.BaseHTTPRequestHandler):
    server: WatchServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if name.lower() not in NAMES:
            self._send(_json(HTTPStatus.FORBIDDEN, {"error": f"this page is for {self.server.url} alone"}))
            return
        try:
            answer = self.server.answer(self.path)
        except Exception as error:  # a fault of ours is to be seen, and ends nothing
            LOG.exception("%s", self.path)
            answer = _json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": repr(error)})
        self._send(answer)

    do_HEAD = do_GET  # `_send` leaves the body out

    def _send(self, answer: Answer) -> None:
        status, kind, body = answer
        with contextlib.suppress(ConnectionError):  # a browser that was closed
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("Content-Security-Policy", self.server.policy(self.path))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a page that refreshes itself would fill the terminal."""

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def watch(root: pathlib.Path, *, port: int, fit: bool) -> None:
    """Shows the runs at or below `root` until the user, or the system, ends it.

    Raises:
      InputError: there is no such directory, or the port cannot be had.
    """
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with serving(WatchedRuns(root), port=port, fit=fit) as server:
        say(f"{server.url} shows {root}; Ctrl-C ends it", flush=True)
        ended.wait()


@contextlib.contextmanager
def serving(runs: WatchedRuns, *, port: int, fit: bool) -> Iterator[WatchServer]:
    """A server at work in threads of its own, as long as the context lasts."""
    frontier = FrontierSoFar(runs) if fit else None
    try:
        with WatchServer(runs, port=port, frontier=frontier) as server:
            thread = threading.Thread(target=server.serve_forever, name="watch", daemon=True)
            thread.start()
            yield server
            server.shutdown()
            thread.join()
    finally:
        if frontier is not None:
            frontier.close()


def _json(status: HTTPStatus, content: Any) -> Answer:
    return status, "application/json", json.dumps(content, allow_nan=False, default=str).encode()


def _missing(why: str) -> Answer:
    return _json(HTTPStatus.NOT_FOUND, {"error": why})


# --- the page: one HTML text with its style and scripts inside


DRAWING = "drawing.js"
"""What the page shares with the fit's report."""
SCRIPTS = ("elements.js", "chart.js", "runs.js", "details.js", "rollouts.js", "main.js")
"""In the order of the page; together they are one script."""


def load_page() -> tuple[bytes, str]:
    """The page as HTML, put together from its files, and its Content-Security-Policy.

    The policy lets this one script and this one style run, and nothing be loaded from elsewhere.
    """
    folder = importlib.resources.files("isocompute_jax.watching") / "page_files"

    def text(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    drawing = (importlib.resources.files("isocompute_jax.records") / DRAWING).read_text(encoding="utf-8")
    style = text("style.css")
    script = '"use strict";\n(() => {\n' + "\n".join([drawing, *map(text, SCRIPTS)]) + "\n})();\n"
    html = text("page.html").replace("/* style */", style).replace("/* script */", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.encode(), policy


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
