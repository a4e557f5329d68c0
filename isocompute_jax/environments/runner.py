"""Where environments are played: in the learner's thread, in worker processes, or on an event loop; with deadlines."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Collection

from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.environments.episodes import Episodes, LostStateError, Play, at_once
from isocompute_jax.environments.protocol import InvalidStepError, Step
from isocompute_jax.environments.registry import get_kind
from isocompute_jax.environments.workers import EpisodeWorkers
from isocompute_jax.records.errors import CONFIG, InputError, RunError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.protocol import Failure
from isocompute_jax.tasks.grading.loops import AsyncCalls, LoopThread
from isocompute_jax.tasks.grading.pool import withheld

CLOSE_S = 10.0
LOG = logging.getLogger(__name__)

Answered = concurrent.futures.Future[Step | Failure]
"""What an environment answers; raises RunError where nothing can be played."""


class Runner:
    """Plays the environments of a run; used from any thread.

    Args:
      config: which, and within which bounds.
      environment: names of the environment variables that worker processes get beside those that programs need.

    Raises:
      InputError: there is no such environment.
    """

    def __init__(self, config: EnvironmentConfig, *, environment: Collection[str] = ()):
        self._config = config
        self._variables = environment
        self.kind = get_kind(config.name, config.options)
        self._episodes = Episodes(self.kind)
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._workers: EpisodeWorkers | None = None
        self._calls: AsyncCalls | None = None

    def play(self, asked: Play) -> Answered:
        """Begins to play a turn, or to begin a rollout, and returns at once."""
        if self.kind.runs != "inline":
            return self._loop().submit(self._played(asked))
        answer: Answered = concurrent.futures.Future()
        with self._lock:
            answer.set_result(at_once(_outcome(self._episodes, asked)))
        return answer

    def end(self, rollout: str) -> None:
        """Closes the environment of a rollout whose last turn was cut off by a bound; returns at once."""
        if self.kind.runs == "inline":
            with self._lock:
                at_once(self._episodes.end(rollout))
        else:
            self._loop().submit(self._ended(rollout))

    def check(self, problem: Problem) -> None:
        """Begins a rollout of a problem and answers an empty turn, as a model may write one any time.

        Raises:
          InputError: the environment fails at it; says how.
        """
        # A name of its own, in every process: the rollouts of a run have others.
        for turns, what in (((), "began"), ((self._empty,), "was given an empty turn")):
            answer = self.play(Play("trial", problem, 0, turns)).result()
            if isinstance(answer, Failure):
                hint = withheld(answer.message, self._variables)
                raise InputError(
                    f"{CONFIG.environment.name} = {self.kind.name!r} was tried on problem {problem.id!r}: when it "
                    f"{what}, {failed(answer)}{hint}"
                )
            if answer.done:
                break
        self.end("trial")

    def close(self) -> None:
        """Ends what is played."""
        with self._lock:
            if self.kind.runs == "inline":
                at_once(self._episodes.close())
            thread, self._thread = self._thread, None
        if thread is not None:
            with contextlib.suppress(concurrent.futures.TimeoutError):
                thread.submit(self._close()).result(CLOSE_S)
            thread.close()

    @property
    def _empty(self) -> str | tuple[int, ...]:
        return () if self.kind.takes_tokens else ""

    def _loop(self) -> LoopThread:
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread("environments")
            return self._thread

    async def _played(self, asked: Play) -> Step | Failure:
        config = self._config
        if self.kind.runs == "process":
            if self._workers is None:
                self._workers = EpisodeWorkers(
                    *(config.name, config.options, config.processes, config.deadline_s), environment=self._variables
                )
            return await self._workers.play(asked)
        if self._calls is None:
            self._calls = AsyncCalls(config.concurrency, config.deadline_s, "environment")
        outcome = await self._calls.run(self.kind, lambda: _outcome(self._episodes, asked), asked.rollout)
        if isinstance(outcome, Failure):
            await self._ended(asked.rollout)
        return outcome

    async def _ended(self, rollout: str) -> None:
        if self._workers is not None:
            await self._workers.end(rollout)
        if self._calls is not None:
            await self._calls.run(self.kind, lambda: self._episodes.end(rollout), rollout)

    async def _close(self) -> None:
        if self._workers is not None:
            await self._workers.close()
        if self._calls is not None:
            await self._calls.run(self.kind, self._episodes.close, "its end")
            await self._calls.close()


def failed(failure: Failure) -> str:
    """What became of an environment, in words."""
    did = {"invalid": "gave no answer", "timed out": "hung", "died": "was lost"}.get(failure.kind, failure.kind)
    return f"the environment {did}: {failure.line}"


async def _outcome(episodes: Episodes, asked: Play) -> Step | Failure:
    """What is answered, or how the rollout failed."""
    try:
        return await episodes.play(asked)
    except asyncio.CancelledError:
        raise
    except InvalidStepError as error:
        failure = Failure("invalid", str(error))
    except LostStateError as error:
        failure = Failure("died", str(error))
    except (InputError, RunError):
        raise
    except Exception as error:
        failure = Failure.raised(error)
    with contextlib.suppress(Exception):
        await episodes.end(asked.rollout)
    return failure
