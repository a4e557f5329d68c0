"""The server of an environment service (see `service`), by the standard library, for any Python that has one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hmac
import http.server
import json
import threading
from typing import Any

from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.environments.episodes import Play
from isocompute_jax.environments.protocol import Step
from isocompute_jax.environments.runner import Runner
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.records.tokens import reward_token
from isocompute_jax.tasks.graders.protocol import Failure

MOST_BYTES = 64 << 20


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # thousands of rollouts may ask at once


class EnvironmentServer:
    """Serves the environments of a config until it is closed.

    Args:
      config: which; deadlines and workers as in a run.
      host, port: where; port 0 takes a free one.
    """

    def __init__(self, config: EnvironmentConfig, host: str, port: int):
        self.runner = Runner(config)
        try:
            self._http = _Server((host, port), _handler(self.runner, reward_token()))
        except OSError as error:
            raise InputError(f"--host={host} --port={port}: {error.strerror or error}; take another port") from error

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._http.server_address[1]

    def serve(self) -> None:
        """Answers until `close`."""
        self._http.serve_forever(poll_interval=0.1)

    def start(self) -> None:
        """Answers in a thread of its own."""
        threading.Thread(target=self.serve, name="environment service", daemon=True).start()

    def close(self) -> None:
        """Ends the environments, and the server."""
        self._http.shutdown()
        self._http.server_close()
        self.runner.close()


def _handler(runner: Runner, token: str) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            kind = runner.kind
            known = {name: getattr(kind, name) for name in ("name", "deterministic", "takes_tokens", "stop")}
            self._answer(200, known) if self.path == "/kind" else self._answer(404, {"message": "GET /kind"})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            if length > MOST_BYTES:
                self.close_connection = True
                return self._answer(413, {"message": f"more than {MOST_BYTES} bytes"})
            body = self.rfile.read(length)
            given = self.headers.get("Authorization", "")
            if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                return self._answer(401, {"message": "the token of ISOCOMPUTE_REWARD_TOKEN is needed"})
            try:
                asked = json.loads(body)
                if self.path == "/end":
                    runner.end(str(asked["rollout"]))
                    return self._answer(200, {})
                if self.path != "/play":
                    return self._answer(404, {"message": "POST /play or /end"})
                played = runner.play(_play(asked))
            except (ValueError, KeyError, TypeError) as error:
                return self._answer(400, {"message": f"{type(error).__name__}: {error}"})
            self._answer(200, _outcome(played))

        def _answer(self, status: int, message: dict[str, Any]) -> None:
            body = json.dumps(message).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are not logged."""

    return Handler


def _play(asked: dict[str, Any]) -> Play:
    problem = asked["problem"]
    prompt = problem["prompt"]
    known = Problem(
        str(problem["id"]),
        prompt if isinstance(prompt, str) else tuple(prompt),
        str(problem.get("answer", "")),
        str(problem.get("task", "")),
        extra=dict(problem.get("extra", {})),
    )
    turns = tuple(turn if isinstance(turn, str) else tuple(turn) for turn in asked["turns"])
    return Play(str(asked["rollout"]), known, int(asked["seed"]), turns)


def _outcome(played: concurrent.futures.Future[Step | Failure]) -> dict[str, Any]:
    try:
        step = played.result()
    except RunError as error:
        return {"failure": str(error)}
    return {"failure": f"it {step.kind}: {step.line}"} if isinstance(step, Failure) else dataclasses.asdict(step)
