"""Whether sampler and learner agree: the same tokens, scored by both.

Two engines never agree exactly, and training corrects for small differences. Large ones mean that the two do not
compute the same policy (another head dtype, temperature, stale weights or a stale prefix cache), and training would go
on for a long time on wrong gradients.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Sequence

import numpy as np

from isocompute_jax.experiment.config import AgreementConfig, RunConfig
from isocompute_jax.experiment.layouts import LayOut
from isocompute_jax.experiment.rollouts import make_requests
from isocompute_jax.learner import Batch
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.tasks import Prompts

LOG = logging.getLogger(__name__)

LANE = "agreement"


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Absolute differences of log-probabilities, in nats per token.

    Attributes:
      mean: over all tokens that were compared.
      max: the largest.
      tokens: how many were compared.
    """

    mean: float
    max: float
    tokens: int

    def columns(self) -> dict[str, float | int]:
        """The columns of agreement.jsonl."""
        return {
            "logprob_difference": self.mean,
            "logprob_difference_max": self.max,
            "compared_tokens": self.tokens,
        }


def probes(problems: Sequence[Problem], prompts: Prompts, config: RunConfig, *, step: int) -> list[SampleRequest]:
    """What is sampled: the same prompts at every check, with random numbers that nothing else uses."""
    digest = hashlib.blake2b(f"agreement/{config.seed}".encode(), digest_size=4).digest()
    return make_requests(
        problems[: config.agreement.problems],
        prompts,
        config.sampling,
        group_size=config.agreement.samples,
        seed=int.from_bytes(digest, "little"),
        step=step,
    )


def compare(groups: Sequence[RolloutGroup], score: Callable[[Batch], np.ndarray], lay_out: LayOut) -> Agreement:
    """Scores the groups' tokens and compares them with what the sampler reported.

    Args:
      groups: sampled under the weights that `score` uses.
      score: the learner's log-probabilities of the tokens of a batch.
      lay_out: makes the batch.
    """
    batch = lay_out(groups, None)
    differences = np.abs(score(batch) - np.asarray(batch.sampler_logprobs))[np.asarray(batch.mask)]
    return Agreement(float(differences.mean()), float(differences.max()), differences.size)


def judge(agreement: Agreement, config: AgreementConfig, *, step: int) -> None:
    """Warns above `config.warn`.

    Raises:
      RunError: above `config.stop`, or not a number.
    """
    found = (
        f"sampler and learner differ by {agreement.mean:.3g} nats per token on average, by {agreement.max:.3g} at most "
        f"(weights of step {step}, {agreement.tokens} tokens)"
    )
    look = (
        "Look at the dtype of the head on both sides (float32 in vLLM: hf_overrides={'head_dtype': 'float32'}), at the "
        "temperature (the sampler must report log-probabilities of the tempered distribution: vLLM's "
        "logprobs_mode='processed_logprobs'), at the prefix cache (every update must empty it), and at the weights (is "
        "it the same model, and did every tensor arrive?)"
    )
    if not agreement.mean <= config.stop:
        raise RunError(f"{found}; config.agreement.stop = {config.stop}. {look}")
    if agreement.mean > config.warn:
        LOG.warning("%s; config.agreement.warn = %s. %s", found, config.warn, look)
