"""Which runs to add: those that are expected to reduce the regret at a budget most, per rollout.

Bayesian experimental design on the draws of a `Forecast`. Each draw in turn is taken for the truth; a candidate run
would then measure its curve with noise, the other draws are weighed by how well they agree with that, and the
configuration of the highest weighted mean is chosen. What that choice loses against the truth, averaged over the draws,
is the regret to expect after the run (preposterior analysis; Raiffa and Schlaifer 1961). Runs are added one by one,
each judged together with those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit.frontier.forecast import Forecast
from isocompute_jax.fit.frontier.prospect import prospect

WORTH = 0.5
"""Of the candidates that reduce the regret by at least this share of what the best one does, the cheapest reduction
per rollout is taken: by ratio alone tiny runs would always win."""

FORM_ERROR = 0.003
"""Share of the reward range that forms of curve miss the truth by: no run is taken to tell more."""

LOOKS = (1.0, 0.5, 0.25, 0.125)
"""Where a run is compared, as shares of its compute; each look averages the evaluations up to twice as far down."""

SEEDS = (1, 2)
"""How many runs of one kind are proposed at a time."""

HALVINGS = 6
"""How often a budget is halved, at most, for a run to go up to."""
NEARLY = 1.2
"""A run that reaches less than so many times as far as the data is none that goes further."""


class Candidate(NamedTuple):
    """Runs that could be added: `seeds` of the configuration with the number `index`, each from 0 up to `compute`."""

    index: int
    compute: float
    seeds: int

    @property
    def cost(self) -> float:
        """Compute of all of them."""
        return self.compute * self.seeds


class Evaluations(NamedTuple):
    """How a run is measured.

    Attributes:
      noise: standard deviation of an evaluation of one run.
      correlation: of neighbouring evaluations.
      density: evaluations over a factor of two in compute.
    """

    noise: float
    correlation: float
    density: float

    def error(self, seeds: int, width: float) -> float:
        """Standard deviation of a look at so many runs."""
        variance = self.noise**2 * (1 + self.correlation) / (1 - self.correlation) / (seeds * max(self.density, 1.0))
        return float(np.sqrt(variance + (FORM_ERROR * width) ** 2))


class Proposal(NamedTuple):
    """A run to add, and the regret to expect after it and those before it."""

    run: Candidate
    regret: float


def candidates(budget: float, among: Sequence[int], *, end: float) -> list[Candidate]:
    """What may be proposed: for a budget inside the data runs of it, else up to where they end or half the budget.

    Args:
      budget: compute that n is to be chosen for.
      among: numbers of the configurations.
      end: compute where the data end.
    """
    if budget <= end:
        computes = [budget]
    else:
        halves = budget / 2.0 ** np.arange(1, HALVINGS + 1)
        computes = [end, *halves[halves > end * NEARLY].tolist()]
    return [Candidate(k, compute, seeds) for k in among for compute in computes for seeds in SEEDS]


def propose(
    forecast: Forecast,
    budget: float,
    among: Sequence[int],
    choices: Sequence[Candidate],
    evaluations: Evaluations,
    *,
    count: int,
    seed: int = 0,
) -> tuple[float, list[Proposal]]:
    """The regret to expect at a budget today, and after each of up to `count` further runs.

    Args:
      forecast: draws of all curves.
      budget: compute that n is to be chosen for.
      among: numbers of the configurations that it may be chosen from.
      choices: runs that may be added, each any number of times.
      evaluations: how they are measured.
      count: K, how many proposals; fewer where none reduces the regret any further.
      seed: of the noise that is drawn.
    """
    rewards = forecast.rewards(budget)[:, among]
    best = rewards.max(axis=1)
    regret = now = prospect(rewards, among).regret
    rng = np.random.default_rng(seed)
    seen = [_likelihood(forecast, run, evaluations, rng) for run in choices]
    known = np.zeros((len(rewards), len(rewards)))
    np.fill_diagonal(known, -np.inf)  # a draw must not be recognised by itself
    found: list[Proposal] = []
    for _ in range(count):
        after = np.array([_regret(rewards, best, known + likelihood) for likelihood in seen])
        gain = regret - after
        if not gain.size or gain.max() <= 0:
            break
        rate = np.where(gain >= WORTH * gain.max(), gain / [run.cost for run in choices], -np.inf)
        chosen = int(rate.argmax())
        known, regret = known + seen[chosen], float(after[chosen])
        found.append(Proposal(choices[chosen], regret))
    return now, found


def _likelihood(forecast: Forecast, run: Candidate, how: Evaluations, rng: np.random.Generator) -> np.ndarray:
    """[S, S] log likelihood of each draw (columns) when each draw in turn (rows) is the truth that the run measures."""
    low, high = forecast.reward_range
    error = how.error(run.seeds, high - low)
    total = 0.0
    for share in LOOKS:
        curve = forecast.rewards(run.compute * share)[:, run.index]
        measured = curve + error * rng.normal(size=len(curve))
        total = total - 0.5 * ((measured[:, None] - curve) / error) ** 2
    return np.asarray(total)


def _regret(rewards: np.ndarray, best: np.ndarray, log_weight: np.ndarray) -> float:
    """Of choosing by the weighted draws [S, S], averaged over the truths (rows)."""
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    chosen = (weight @ rewards).argmax(axis=1)
    return float((best - rewards[np.arange(len(rewards)), chosen]).mean())
