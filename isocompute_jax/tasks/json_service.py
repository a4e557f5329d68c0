"""Asking a service over HTTP: JSON there and back, again and again while that may help.

What may pass is tried again until the caller cancels, with growing pauses: no connection, 408, 425, 429 and 5xx. A
token in the environment, ISOCOMPUTE_REWARD_TOKEN, goes along as `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

from isocompute_jax.records.tokens import reward_token
from isocompute_jax.tasks.graders.protocol import InvalidRewardError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class ServiceError(Exception):
    """A service refuses what it is asked, or does not answer."""


class JsonService:
    """Connections to a service, for one event loop; several addresses take turns.

    Args:
      urls: of the service.
      token: whether it may see the token of the environment.
    """

    def __init__(self, urls: Sequence[str], *, token: bool = True):
        self._urls = itertools.cycle(urls)
        known = reward_token() if token else ""
        self._headers = {"Authorization": f"Bearer {known}"} if known else {}
        self._client: Any = None
        self.last_error = ""

    async def ask(self, asked: Any) -> tuple[Any, str]:
        """What is answered to a POST, and by which address; tries until it is cancelled.

        Raises:
          ServiceError: it refuses the request.
          InvalidRewardError: its answer is not JSON.
        """
        pause = FIRST_PAUSE_S
        while True:
            url = next(self._urls)
            answer = await self.once("POST", url, asked)
            if answer is not None:
                return answer, url
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # or all calls would come back at once
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def once(self, method: str, url: str, asked: Any = None) -> Any:
        """The parsed answer, or None where the same request may be tried again. Raises as `ask` does."""
        import httpx2

        if self._client is None:
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
            # The caller has the deadline. A redirect is a failure: answers and token go where the config says alone.
            self._client = httpx2.AsyncClient(timeout=None, limits=limits, follow_redirects=False)
        try:
            response = await self._client.request(method, url, json=asked, headers=self._headers)
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
