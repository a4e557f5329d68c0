"""How often the base model solves the problems, and which groups that leaves with a signal."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from isocompute_jax.allocation.policies import Belief, prior
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.curate import locked_directory
from isocompute_jax.experiment.curation.measure import measure, open_sampler
from isocompute_jax.experiment.curation.record import RolloutOrder, Store, identity_of, survey
from isocompute_jax.experiment.samplers import make_sampler
from isocompute_jax.model import ModelConfig
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import Grades, Prompts

SIZES = (2, 4, 8, 16, 32, 64, 128)
"""Group sizes whose share of groups with a signal is estimated."""
OTHER_SEED = 7919
"""Added to the run's: rollouts that a set was cut by would say that its problems are as hard as the cut."""
RESAMPLED = 400
LEVELS = (0.025, 0.975)


@dataclasses.dataclass(frozen=True, eq=False)
class BaseRates:
    """Rollouts of the base model."""

    solved: Int[np.ndarray, "P"]  # of the samples of each problem
    samples: int  # k

    @property
    def rollouts(self) -> int:
        """All of them."""
        return len(self.solved) * self.samples

    @property
    def rate(self) -> float:
        """pass@1."""
        return float(self.solved.mean() / self.samples)


def mixed(solved: Int[np.ndarray, "P"], samples: int, sizes: Sequence[int]) -> Float[np.ndarray, "P N"]:
    """The chance that a group of n rollouts of each problem has some that solve it and some that do not.

    Up to n = k it is counted: the share of all subsets of n of the k rollouts that are mixed, which is unbiased,

        1 - C(k - c, n) / C(k, n) - C(c, n) / C(k, n).

    Beyond it is the mean over what c of k leaves of a Beta distribution fitted to all problems (`policies.prior`).

    Args:
      solved: c of each problem.
      samples: k.
      sizes: n, 2 or more each.
    """
    return _table(solved, samples, sizes)[solved]


def _table(solved: Int[np.ndarray, "P"], samples: int, sizes: Sequence[int]) -> Float[np.ndarray, "C N"]:
    """Those of a problem that is solved c = 0 .. k times; `solved` are what the prior is fitted to."""
    counts = np.arange(samples + 1)
    beyond = None
    if max(sizes) > samples:
        first, second = prior(np.full(len(solved), float(samples)), solved.astype(float))
        beyond = Belief(first + counts, second + samples - counts).mixed(max(sizes))
    columns = []
    for n in sizes:
        if n > samples:
            assert beyond is not None
            columns.append(beyond[:, n])
        else:
            columns.append(1 - _none(samples - counts, samples, n) - _none(counts, samples, n))
    return np.stack(columns, axis=1)


def _none(left: Int[np.ndarray, "C"], samples: int, n: int) -> Float[np.ndarray, "C"]:
    """C(left, n) / C(samples, n)."""
    steps = np.arange(n)
    return np.prod(np.maximum(left[:, None] - steps, 0) / (samples - steps), axis=1)


@dataclasses.dataclass(frozen=True)
class SignalShare:
    """Of groups of n rollouts that have a signal."""

    group_size: int
    share: float
    low: float  # 95% interval, of problems drawn anew
    high: float


def signal_shares(measured: BaseRates, sizes: Sequence[int] = SIZES, *, seed: int = 0) -> list[SignalShare]:
    """The share of groups with a signal for each n, with a 95% interval from resampled problems.

    Where n is beyond k the prior is fitted anew to each resample.
    """
    solved, samples = measured.solved, measured.samples
    draws = np.random.default_rng(seed).integers(len(solved), size=(RESAMPLED, len(solved)))
    means = np.stack([mixed(solved[drawn], samples, sizes).mean(axis=0) for drawn in draws])
    low, high = np.quantile(means, LEVELS, axis=0)
    found = mixed(solved, samples, sizes).mean(axis=0)
    return [SignalShare(*row) for row in zip(sizes, found.tolist(), low.tolist(), high.tolist(), strict=True)]


def measure_model(
    config: RunConfig,
    shape: ModelConfig,
    prompts: Prompts,
    problems: Sequence[Problem],
    directory: pathlib.Path,
    *,
    samples: int,
    grading: Grades,
) -> None:
    """Draws `samples` rollouts of each problem from the base model, recorded in `directory` as curation does.

    What they are is for `grading` to see.

    Raises:
      InputError: what was recorded there is another measurement.
      RunError: the sampler or the rewards failed.
    """
    seed = (config.seed + OTHER_SEED) % 2**32
    order = RolloutOrder(prompts, config.sampling, seed)
    identity = identity_of(config.model, order, dtype=config.dtype, reward=config.reward)
    curation = CurationConfig(samples=samples, seed=seed)
    with locked_directory(directory):
        store = Store(directory, identity=identity, survey=survey(problems, order), samples=samples)
        with store, open_sampler(config, shape, prompts.tokenizer, directory, make_sampler=make_sampler) as sampler:
            measure(problems, store, sampler, order, curation, grading=grading, rounds=not config.service.remote)
        store.check_failures()
