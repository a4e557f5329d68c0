"""A teacher: another model, near which the KL term keeps the policy (on-policy distillation, arXiv 2306.13649).

Rollouts are the policy's; of each of their tokens the teacher says its log-probability, before the update. With
`loss.kl_estimator=k2` the gradient of the KL term is that of the reverse KL to the teacher, token by token; with
`loss.policy_loss=none` it is all that is learned from, else rewards are learned from beside it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isocompute_jax import learner, model
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.inputs import Inputs, model_config_of
from isocompute_jax.experiment.layouts import LayOut
from isocompute_jax.learner.batches import Batch
from isocompute_jax.records.errors import CONFIG, RunError
from isocompute_jax.records.rollout import Completion, RolloutGroup

TeacherLogprobs = Callable[[Batch, Sequence[RolloutGroup], Any, LayOut], Any]
"""(a batch, the groups and the part of them that it was laid out from, the layout) -> its log-probabilities."""
ASKED_S, AT_ONCE = 600.0, 64


def teacher_of(config: RunConfig, inputs: Inputs) -> TeacherLogprobs | None:
    """The teacher that the config names; None where it names none.

    Raises:
      InputError: it cannot be loaded.
      RunError: a server does not answer as it should.
    """
    if not config.teacher:
        return None
    if config.asks_teacher:
        served, tokens = ServedTeacher(config.teacher.rstrip("/")), np.zeros(1, np.int32)
        drawn = Completion.drawn(tokens, tokens.astype(np.float32), tokens, "stop")
        asyncio.run(served.scored([RolloutGroup("", 0, tokens, (drawn,))]))  # whether it answers
        return served
    mesh, shape = inputs.mesh, model_config_of(dataclasses.replace(config, model=config.teacher))
    placed = None if mesh is None else model.param_shardings(shape, mesh)
    params = model.cast_params(model.load_params(config.teacher, shape, shardings=placed), config.dtype)
    chunk_tokens = config.loss.chunk_tokens
    score = learner.make_score(shape, temperature=config.temperature, chunk_tokens=chunk_tokens, mesh=mesh)
    scorer = learner.make_scorer(score, mesh=mesh)
    return lambda tokens, groups, part, lay_out: scorer(params, learner.place_batch(tokens, mesh))


class ServedTeacher:
    """A teacher that a plain `vllm serve` has: it is sent whole rollouts, and says the log-probability of each token.

    vLLM says those of a prompt at temperature 1, which the run's must be.
    """

    def __init__(self, url: str):
        self._url = url

    def __call__(self, tokens: Batch, groups: Sequence[RolloutGroup], part: Any, lay_out: LayOut) -> Any:
        """As `TeacherLogprobs`."""
        return np.asarray(lay_out(asyncio.run(self.scored(groups)), part).sampler_logprobs)

    async def scored(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """The groups, with the teacher's log-probabilities in place of the sampler's."""
        import httpx2

        places = asyncio.Semaphore(AT_ONCE)
        async with httpx2.AsyncClient(timeout=ASKED_S) as http:

            async def scored(prompt: np.ndarray, completion: Completion) -> Completion:
                read = np.concatenate([prompt, completion.tokens]).tolist()
                body = {"prompt": read, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
                async with places:
                    try:
                        response = await http.post(f"{self._url}/v1/completions", json=body)
                        response.raise_for_status()
                        said = response.json()["choices"][0]["prompt_logprobs"]
                        found = [
                            of_token[str(token)]["logprob"] for of_token, token in zip(said[1:], read[1:], strict=True)
                        ]
                    except (httpx2.HTTPError, ValueError, KeyError, TypeError, IndexError) as error:
                        why = str(error) or type(error).__name__
                        raise RunError(
                            f"{CONFIG.teacher} = {self._url!r} does not say the log-probabilities of a rollout "
                            f"({why}): start a vLLM there; the same command then goes on from the checkpoint"
                        ) from error
                return dataclasses.replace(completion, logprobs=np.array(found[len(prompt) - 1 :], np.float32))

            async def of_group(group: RolloutGroup) -> RolloutGroup:
                done = await asyncio.gather(*(scored(group.prompt_tokens, each) for each in group.completions))
                return dataclasses.replace(group, completions=tuple(done))

            return await asyncio.gather(*map(of_group, groups))
