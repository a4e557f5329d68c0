"""How much a step is expected to compute, from its compiled shape and the assumed lengths of rollouts."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jax.sharding import Mesh

from isocompute_jax.experiment.config import RunConfig, override
from isocompute_jax.experiment.layouts import shape_of
from isocompute_jax.learner import BatchShape, PackShape, TreeShape
from isocompute_jax.model import ModelConfig
from isocompute_jax.model.flops import Flops, Work, step_flops

FILLED = 0.97
"""Share of packed rows that holds tokens (BENCHMARKS.md, "Packed rows")."""
WORTH_SAYING = 0.9
"""Of a step's FLOPs, those of the other layout that are worth a line."""
LONGEST_PADDED = 2048
"""Padded completions hold [T, prompt + T] scores: beyond so many tokens they are no choice, whatever they save."""


def work_of(
    config: RunConfig, shape: BatchShape | PackShape | TreeShape, lengths: Lengths, model_config: ModelConfig
) -> Work:
    """Of one update in which every group takes part; rollouts are taken to share their prompts and nothing more."""
    rollouts = config.problems_per_update * config.group_size
    seen = _seen(model_config, lengths)
    if isinstance(shape, PackShape):
        tokens, pairs = rollouts * lengths.sequence, rollouts * lengths.pairs * seen
        microbatches = math.ceil(tokens / FILLED / (shape.rows * shape.row_tokens))
        microbatches = min(max(microbatches, 1), shape.microbatches)
        positions = float(microbatches * shape.rows * shape.row_tokens)
        return Work(rollouts, tokens, positions, pairs, pairs, microbatches)
    if isinstance(shape, TreeShape):
        prompts = config.problems_per_update
        nodes = prompts * lengths.prompt + rollouts * (lengths.mean - 1)
        microbatches = min(max(math.ceil(nodes / (shape.rows * shape.nodes)), 1), shape.microbatches)
        positions = float(microbatches * shape.rows * shape.nodes)
        pairs = rollouts * (lengths.prompt * lengths.mean + lengths.moment(2) / 2) * seen
        return Work(rollouts, nodes, positions, pairs, positions * shape.nodes, microbatches)
    rows, prompts = shape.microbatches * shape.rows, rollouts // shape.rollouts
    own = rollouts * (lengths.prompt * lengths.mean + lengths.moment(2) / 2)
    return Work(
        rollouts=rollouts,
        tokens=prompts * lengths.prompt + rollouts * lengths.mean,
        positions=float(rows * (shape.prompt + shape.rollouts * shape.tokens)),
        pairs=(own + prompts * lengths.prompt**2 / 2) * seen,
        computed_pairs=float(rows * (shape.prompt**2 + shape.rollouts * shape.tokens * (shape.prompt + shape.tokens))),
        microbatches=shape.microbatches,
    )


def _seen(config: ModelConfig, lengths: Lengths) -> float:
    """Share of causal pairs that the layers see, in their mean: local ones see those within chunks."""
    if config.local_layers is None:
        return 1.0
    local = sum(config.local_layers) / config.num_layers
    return 1 - local + local * lengths.pairs_within(config.attention_chunk) / lengths.pairs


def better_layout(
    config: RunConfig, model_config: ModelConfig, mesh: Mesh, lengths: Lengths, flops: Flops
) -> tuple[int, float] | None:
    """Whether the other layout computes clearly less: packed rows where prompts are shared, or the other way round.

    Rows repeat a prompt for each of its rollouts, padding fills completions up to the longest. So rows win where
    max_tokens exceeds the mean completion by more than prompts have tokens.

    Args:
      config: the run's, resolved.
      model_config: its model.
      mesh: of the learner.
      lengths: assumed of rollouts.
      flops: of a step as it is configured.

    Returns:
      `config.packing.row_tokens` of the other layout, and its share of these FLOPs; None where it saves little.
    """
    if isinstance(shape_of(config, model_config, config.problems_per_update, config.group_size, mesh), TreeShape):
        return None  # which repeat nothing
    longest = config.sampling.max_prompt_tokens + config.sampling.max_tokens
    other = 0 if config.packing.row_tokens else -(-longest // 128) * 128
    if not other and (longest > LONGEST_PADDED or config.mesh.context > 1):
        return None
    changed = override(config, "packing.row_tokens", other)
    shape = shape_of(changed, model_config, changed.problems_per_update, changed.group_size, mesh)
    work = work_of(changed, shape, lengths, model_config)
    found = step_flops(model_config, work, adapters=config.adapters is not None)
    share = (found.computed + found.computed_float32) / (flops.computed + flops.computed_float32)
    return (other, share) if share < WORTH_SAYING else None


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
