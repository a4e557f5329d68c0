"""A reward service over HTTP: judges and reward models.

    POST url   {"problems": [{"id", "prompt", "answer", "task"}, ...], "completions": ["...", ...]}
    200        {"rewards": [0.5, ...], "metrics": [{"name": 1.0}, ...]}         (metrics may be left out)

What may pass is tried again until the call's deadline, with growing pauses: no connection, 408, 425, 429 and 5xx. Any
other answer is a failure of the reward. A token in the environment, ISOCOMPUTE_REWARD_TOKEN, goes along as
`Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

from isocompute_jax.records.errors import CONFIG
from isocompute_jax.records.rollout import Problem
from isocompute_jax.records.tokens import check_url, reward_token
from isocompute_jax.tasks.graders.protocol import Grade, Grader, InvalidRewardError, to_grade

SCHEMES = ("http://", "https://")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
BATCH = 32
"""The most completions of one request."""


class ServiceError(Exception):
    """A service refuses what it is asked."""


class Service(Grader):
    """A grader that asks a reward service; several addresses take turns.

    Args:
      urls: http(s) addresses with commas between them.

    Raises:
      InputError: an address holds a secret: those are for the environment, ISOCOMPUTE_REWARD_TOKEN.
    """

    runs = "loop"
    batch = BATCH

    def __init__(self, urls: str):
        self.name = urls
        addresses = [url.strip() for url in urls.split(",") if url.strip()]
        for address in addresses:
            check_url(address, str(CONFIG.reward.function))
        self._urls = itertools.cycle(addresses)
        token = reward_token()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client: Any = None
        self.last_error = ""  # why a request was tried again

    async def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """What the service answers; tries until it is cancelled.

        Raises:
          ServiceError: it refuses the request.
          InvalidRewardError: its answer is none.
        """
        asked = {"problems": [_plain(problem) for problem in problems], "completions": list(texts)}
        pause = FIRST_PAUSE_S
        while True:
            url = next(self._urls)
            answer = await self._post(url, asked)
            if answer is not None:
                return _grades(answer, len(texts), url)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # or all calls would come back at once
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _post(self, url: str, asked: dict[str, Any]) -> Any:
        """The parsed answer, or None where the same request may be tried again."""
        import httpx2

        if self._client is None:
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
            # The caller has the deadline. A redirect is a failure: answers and token go where the config says alone.
            self._client = httpx2.AsyncClient(timeout=None, limits=limits, follow_redirects=False)
        try:
            response = await self._client.post(url, json=asked, headers=self._headers)
        except httpx2.InvalidURL as error:
            raise ServiceError(f"{url}: {error}") from error
        except httpx2.TransportError as error:
            self.last_error = f"{url}: {str(error) or type(error).__name__}"
            return None
        if response.status_code in AGAIN:
            self.last_error = f"{url} answered {response.status_code}: {response.text[:200]}"
            return None
        if response.status_code != 200:
            raise ServiceError(f"{url} answered {response.status_code}: {response.text[:200]}")
        try:
            return response.json()
        except ValueError:
            raise InvalidRewardError(f"{url} answered what is not JSON: {response.text[:80]!r}") from None

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()


def _plain(problem: Problem) -> dict[str, Any]:
    return {"id": problem.id, "prompt": problem.prompt, "answer": problem.answer, "task": problem.task}


def _grades(answer: Any, count: int, url: str) -> list[Grade]:
    """Grades from the answer to `count` completions. Raises InvalidRewardError."""
    rewards = answer.get("rewards") if isinstance(answer, dict) else None
    metrics = answer.get("metrics") if isinstance(answer, dict) else None
    if not isinstance(rewards, list) or len(rewards) != count:
        found = f"{len(rewards)} of them" if isinstance(rewards, list) else "none"
        raise InvalidRewardError(f"{url}: its answer must have a list 'rewards' of {count} numbers; it has {found}")
    metrics = [{}] * count if metrics is None else metrics
    if not isinstance(metrics, list) or len(metrics) != count or not all(isinstance(m, dict) for m in metrics):
        raise InvalidRewardError(f"{url}: 'metrics' must be a list of {count} objects")
    numbers = [to_grade(reward, url).reward for reward in rewards]
    return [to_grade(Grade(reward, named), url) for reward, named in zip(numbers, metrics, strict=True)]
