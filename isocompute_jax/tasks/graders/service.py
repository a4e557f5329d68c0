"""A reward service over HTTP: judges and reward models.

    POST url   {"problems": [{"id", "prompt", "answer", "task"}, ...], "completions": ["...", ...]}
    200        {"rewards": [0.5, ...], "metrics": [{"name": 1.0}, ...]}         (metrics may be left out)

What may pass is tried again until the call's deadline (see `json_service`); any other answer is a failure of the
reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isocompute_jax.records.errors import CONFIG
from isocompute_jax.records.rollout import Problem
from isocompute_jax.records.tokens import check_url
from isocompute_jax.tasks.graders.protocol import Grade, Grader, InvalidRewardError, to_grade
from isocompute_jax.tasks.json_service import JsonService

SCHEMES = ("http://", "https://")
BATCH = 32
"""The most completions of one request."""


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
        self._service = JsonService(addresses)

    @property
    def last_error(self) -> str:
        """Why the last request was tried again."""
        return self._service.last_error

    async def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """What the service answers; tries until it is cancelled.

        Raises:
          ServiceError: it refuses the request.
          InvalidRewardError: its answer is none.
        """
        asked = {"problems": [_plain(problem) for problem in problems], "completions": list(texts)}
        answer, url = await self._service.ask(asked)
        return _grades(answer, len(texts), url)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._service.aclose()


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
