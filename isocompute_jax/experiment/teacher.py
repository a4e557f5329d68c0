"""A teacher: another model, near which the KL term keeps the policy (on-policy distillation, arXiv 2306.13649).

Rollouts are the policy's; of each of their tokens the teacher says its log-probability, before the update. With
`loss.kl_estimator=k2` the gradient of the KL term is that of the reverse KL to the teacher, token by token; with
`loss.policy_loss=none` it is all that is learned from, else rewards are learned from beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isocompute_jax import learner, model
from isocompute_jax.distributed import Team
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.inputs import Inputs, model_config_of
from isocompute_jax.experiment.layouts import LayOut
from isocompute_jax.learner.batches import Batch
from isocompute_jax.records.errors import CONFIG, Interrupted, RunError
from isocompute_jax.records.rollout import ROUNDING, Completion, RolloutGroup
from isocompute_jax.tasks.json_service import JsonService, ServiceError

LOG = logging.getLogger(__name__)

TeacherLogprobs = Callable[[Sequence[Batch], Sequence[RolloutGroup], Sequence[Any], LayOut], list[Any]]
"""(batches, the groups and the part of them that each was laid out from, the layout) -> log-probabilities of each."""
ASKED_S, AT_ONCE = 600.0, 64
RETRY_S, MAX_BAD_REPLIES = 1.0, 5
WRONG = (ValueError, KeyError, TypeError, IndexError, OverflowError)
"""By which an answer is found to be none."""
IMPOSSIBLE = -9999.0
"""What vLLM writes for minus infinity."""


def teacher_of(config: RunConfig, inputs: Inputs, team: Team) -> TeacherLogprobs | None:
    """The teacher that the config names; None where it names none.

    Raises:
      InputError: it cannot be loaded.
      RunError: a server does not answer as it should.
    """
    if not config.teacher:
        return None
    if config.asks_teacher:
        served = ServedTeacher(config.teacher.rstrip("/"), team, wait_s=config.service.wait_s)
        tokens = np.zeros(1, np.int32)
        drawn = Completion.drawn(tokens, tokens.astype(np.float32), tokens, "stop")
        served.taught([RolloutGroup("", 0, tokens, (drawn,))])  # whether it answers
        return served
    mesh, shape = inputs.mesh, model_config_of(dataclasses.replace(config, model=config.teacher))
    placed = None if mesh is None else model.param_shardings(shape, mesh)
    params = model.cast_params(model.load_params(config.teacher, shape, shardings=placed), config.dtype)
    chunk_tokens = config.loss.chunk_tokens
    score = learner.make_score(shape, temperature=config.temperature, chunk_tokens=chunk_tokens, mesh=mesh)
    scorer = learner.make_scorer(score, mesh=mesh)
    return lambda batches, *_: [scorer(params, learner.place_batch(tokens, mesh)) for tokens in batches]


class ServedTeacher:
    """A teacher that a plain `vllm serve` has: it is sent whole rollouts, and says the log-probability of each token.

    vLLM says those of a prompt at temperature 1, which the run's must be. Process 0 of `team` asks for all, and where
    nobody answers again and again for `wait_s`.
    """

    def __init__(self, url: str, team: Team, *, wait_s: float):
        self._url = url
        self._team = team
        self._wait_s = wait_s
        self._silent_since: float | None = None  # when a request was lost, unless one was answered since

    def __call__(
        self, batches: Sequence[Batch], groups: Sequence[RolloutGroup], parts: Sequence[Any], lay_out: LayOut
    ) -> list[Any]:
        """As `TeacherLogprobs`."""
        found = self.taught(groups)
        return [np.asarray(lay_out(found, part).sampler_logprobs) for part in parts]

    def taught(self, groups: Sequence[RolloutGroup]) -> Sequence[RolloutGroup]:
        """As `scored`, asked by one process for all. Raises Interrupted: the user ended the run while it was gone."""

        def asked() -> list[RolloutGroup]:
            try:
                return asyncio.run(self.scored(groups))
            except RunError as error:
                if self._team.flagged:
                    raise Interrupted from error
                raise

        return self._team.broadcast(asked)

    async def scored(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """The groups, with the teacher's log-probabilities in place of the sampler's.

        Raises:
          RunError: it is gone for too long, refuses what it is asked, or answers wrongly again and again.
        """
        places, url = asyncio.Semaphore(AT_ONCE), f"{self._url}/v1/completions"
        async with contextlib.aclosing(JsonService([self._url], token=False)) as service:

            async def scored(group: RolloutGroup, completion: Completion) -> Completion:
                prompt, bad = len(group.prompt_tokens), 0
                read = np.concatenate([group.prompt_tokens, completion.tokens]).tolist()
                body = {"prompt": read, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
                async with places:
                    while True:
                        try:
                            answer = await asyncio.wait_for(service.once("POST", url, body), ASKED_S)
                            if answer is not None:
                                found = logprobs_of(answer, read)
                                self._silent_since = None
                                return dataclasses.replace(completion, logprobs=found[prompt - 1 :])
                            self._check_absence(self._failed(group, service.last_error))
                            await asyncio.sleep(RETRY_S)
                        except TimeoutError:
                            self._check_absence(self._failed(group, f"no answer in {ASKED_S:g} s"))
                        except ServiceError as error:
                            raise self._failed(group, error) from error
                        except WRONG as error:
                            bad, failure = bad + 1, self._failed(group, error)
                            if bad == MAX_BAD_REPLIES:
                                raise failure from error
                            LOG.warning("it is asked again: %s", failure)

            async def of_group(group: RolloutGroup) -> RolloutGroup:
                done = await asyncio.gather(*(scored(group, each) for each in group.completions))
                return dataclasses.replace(group, completions=tuple(done))

            return await asyncio.gather(*map(of_group, groups))

    def _check_absence(self, failure: RunError) -> None:
        """Raises what ends the run, where it has been away for too long, or the user does not wait."""
        now = time.monotonic()
        if now - (self._silent_since or now) > self._wait_s or self._team.flagged:
            raise failure
        if self._silent_since is None:
            self._silent_since = now
            LOG.warning("it is asked again for %g s (%s): %s", self._wait_s, CONFIG.service.wait_s, failure)

    def _failed(self, group: RolloutGroup, why: object) -> RunError:
        return RunError(
            f"{CONFIG.teacher} = {self._url!r} does not say the log-probabilities of a rollout of problem "
            f"{group.problem_id!r} ({why!s}): start a vLLM there; the same command then goes on from the checkpoint"
        )


def logprobs_of(answer: Any, read: Sequence[int]) -> np.ndarray:
    """The log-probabilities of the tokens that a server has read, but of the first, in its answer.

    Raises:
      WRONG: it does not say them, or they cannot be.
    """
    said = answer["choices"][0]["prompt_logprobs"]
    found = np.array(
        [float(of_token[str(token)]["logprob"]) for of_token, token in zip(said[1:], read[1:], strict=True)]
    )
    odd = np.flatnonzero(~((found > IMPOSSIBLE) & (found <= ROUNDING)))
    if len(odd):
        raise ValueError(f"token {odd[0] + 1} of {len(read)} has the log-probability {found[odd[0]]}")
    return found.astype(np.float32)
