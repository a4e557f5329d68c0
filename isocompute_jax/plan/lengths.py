"""How long rollouts get, as far as a plan can say: log-normal, cut off at the longest that is sampled."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from isocompute_jax.experiment.config import RunConfig


@dataclasses.dataclass(frozen=True)
class Lengths:
    """min(X, limit) tokens for log X ~ Normal(log median, sigma), after prompts of `prompt` tokens."""

    median: float
    sigma: float
    limit: int
    prompt: float

    def moment(self, order: int) -> float:
        """E[min(X, limit)^order]."""
        location, cut = math.log(self.median), math.log(self.limit)
        if not self.sigma:
            return float(min(self.median, self.limit)) ** order
        below = _normal_cdf((cut - location) / self.sigma - order * self.sigma)
        rest = 1 - _normal_cdf((cut - location) / self.sigma)
        return math.exp(order * location + (order * self.sigma) ** 2 / 2) * below + self.limit**order * rest

    @property
    def mean(self) -> float:
        """Of a completion."""
        return self.moment(1)

    @property
    def sequence(self) -> float:
        """Mean tokens of a prompt and its completion."""
        return self.prompt + self.mean

    @property
    def pairs(self) -> float:
        """Mean (query, key) pairs of a causal sequence: half of its length's square."""
        return (self.prompt**2 + 2 * self.prompt * self.mean + self.moment(2)) / 2

    def pairs_within(self, chunk: int) -> float:
        """The same of a sequence whose tokens see those of their own chunk alone."""
        whole, rest = np.divmod(self.prompt + self.sample(4096), chunk)
        return float(np.mean(whole * chunk**2 + rest**2)) / 2

    @property
    def context(self) -> float:
        """Mean tokens behind the one that is decoded, over all that are decoded: long rollouts weigh more."""
        return self.prompt + self.moment(2) / (2 * self.mean)

    def sample(self, count: int) -> np.ndarray:
        """[count] lengths at evenly spaced quantiles, long and short mixed in an order that is always the same."""
        quantiles = (np.arange(count) + 0.5) / count
        lengths = np.minimum(np.exp(math.log(self.median) + self.sigma * _normal_quantile(quantiles)), self.limit)
        return np.random.default_rng(0).permutation(np.maximum(np.ceil(lengths), 1).astype(int))


def lengths_of(config: RunConfig) -> Lengths:
    """What the config assumes."""
    sampling, plan = config.sampling, config.plan
    return Lengths(
        median=min(plan.median_tokens or max(sampling.max_tokens // 4, 1), sampling.max_tokens),
        sigma=plan.sigma,
        limit=sampling.max_tokens,
        prompt=min(plan.prompt_tokens or max(sampling.max_prompt_tokens // 2, 1), sampling.max_prompt_tokens),
    )


def _normal_cdf(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


def _normal_quantile(q: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri

    return ndtri(q)
