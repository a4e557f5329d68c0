"""Environments over HTTP: played on another machine, or by another Python than the learner's.

    POST url/play   {"rollout": NAME, "problem": {"id", "prompt", "answer", "task", "extra"}, "seed": 7, "turns": [...]}
    200             {"observation": "higher", "reward": 0.0, "done": false, "metrics": {}}
    POST url/end    {"rollout": NAME}
    GET url/kind    {"name": "games:Maze", "deterministic": true, "takes_tokens": false, "stop": []}

`turns` are all that the policy wrote in this rollout, none to begin it; the answer is to the last. So a request may be
sent twice, and a service that lost a rollout, or is another one than before, plays it again (see `episodes`). Where the
environment failed, the answer is `{"failure": "it raised: ..."}`. What may pass is tried again (see
`tasks.json_service`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any

from isocompute_jax.environments.protocol import Step
from isocompute_jax.environments.registry import Kind
from isocompute_jax.records.errors import CONFIG, InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.records.tokens import check_url
from isocompute_jax.tasks.graders.protocol import InvalidRewardError
from isocompute_jax.tasks.json_service import JsonService, ServiceError

ASKED_S = 10.0
"""Longest time in which a service says what it serves."""


def remote_kind(url: str, options: Mapping[str, Any]) -> Kind:
    """The environments of a service.

    Raises:
      InputError: it does not answer, or options are given: they are the service's.
    """
    check_url(url, str(CONFIG.environment.name))
    if options:
        raise InputError(f"{CONFIG.environment.options}: the environment of {url} has the options of who serves it")
    url = url.rstrip("/")
    known, service = asyncio.run(_about(url)), JsonService([url])
    return Kind(
        url,
        lambda: RemoteEnvironment(service),
        "loop",
        bool(known.get("deterministic")),
        bool(known.get("takes_tokens")),
        tuple(map(str, known.get("stop", []))),
        service,
    )


async def _about(url: str) -> dict[str, Any]:
    """What is served. Raises InputError where that cannot be learned."""
    service = JsonService([url])
    try:
        answer = await asyncio.wait_for(service.once("GET", f"{url}/kind"), ASKED_S)
        why = service.last_error or "its /kind does not say what is served"
    except (ServiceError, InvalidRewardError, TimeoutError) as error:
        answer, why = None, str(error) or f"nothing came within {ASKED_S:g} s"
    finally:
        await service.aclose()
    if isinstance(answer, dict) and "name" in answer:
        return answer
    raise InputError(
        f"{CONFIG.environment.name} = {url!r}: no environment service answers there ({why}); start one with python -m "
        "isocompute_jax.environment --serve"
    )


class RemoteEnvironment:
    """One rollout that a service plays."""

    def __init__(self, service: JsonService):
        self._service = service
        self._asked: dict[str, Any] = {}

    async def reset(self, problem: Problem, seed: int) -> str | None:
        """Begins it there."""
        plain = {"id": problem.id, "prompt": problem.prompt, "answer": problem.answer, "task": problem.task}
        plain["extra"] = dict(problem.extra)
        self._asked = {"rollout": uuid.uuid4().hex, "problem": plain, "seed": seed, "turns": []}
        return (await self._play()).observation

    async def step(self, turn: Any) -> Step:
        """Plays a turn there."""
        self._asked["turns"].append(turn)
        return await self._play()

    async def close(self) -> None:
        """Says that it is over."""
        await self._service.ask({"rollout": self._asked.get("rollout", "")}, "/end")

    async def _play(self) -> Step:
        answer, url = await self._service.ask(self._asked, "/play")
        if "failure" in answer:
            raise ServiceError(f"{url}: {answer['failure']}")
        known = {field.name for field in dataclasses.fields(Step)}
        return Step(**{name: value for name, value in answer.items() if name in known})
