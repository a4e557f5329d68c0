r"""`python -m isocompute_jax.allocation`: what a policy deals, and which n a run should have next.

    python -m isocompute_jax.allocation --policy=knapsack --rates=0.01,0.1,0.5,0.9 --group_size=8
    python -m isocompute_jax.allocation --policy=until_signal --rates=0.01,0.1,0.9 --group_size=16 --block=4 --most=64

A step with one problem of each rate, each known from --attempts rollouts. Of each problem: how many rollouts it gets,
how often its rewards differ, and its weight in the expected gradient, where the mean over problems weighs it by 1: with
GRPO's advantages (the group's mean and deviation), and with the policy's own estimator. At the end the estimator's
noise at equal rollouts, against `uniform`. Explained in docs/allocation.md.

    python -m isocompute_jax.allocation --history=runs/a
    python -m isocompute_jax.allocation --history=dumps/train --evaluations=dumps/validation --problem=input

With --history: what `auto` decided over a run so far, of any trainer, and the n of its next batch. The run has a
metrics.jsonl and an eval.jsonl, or a file for each step with a row a rollout. Explained in docs/other_trainers.md.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from isocompute_jax import app
from isocompute_jax.options import check, define_flags, from_flags, option
from isocompute_jax.records.errors import InputError, fields_called
from isocompute_jax.records.printing import say

with app.imports():
    from isocompute_jax.allocation.estimator import advantages, expected_weight, group_advantages, weights
    from isocompute_jax.allocation.history import Asked, answer
    from isocompute_jax.allocation.policies import LOOKS, Policy, believe, check_deal, deal


def _rates(name: str, texts: list[str]) -> tuple[float, ...]:
    try:
        return tuple(float(text) for text in texts)
    except ValueError:
        raise InputError(f"{name}={','.join(texts)}: give rates between 0 and 1, separated by commas") from None


@dataclasses.dataclass(frozen=True)
class Deal:
    """A step whose deal is shown."""

    policy: Policy = option("uniform", "Who gets how many.")
    rates: tuple[float, ...] = option(
        (0.01, 0.05, 0.2, 0.5, 0.8, 0.95), "Rates of the problems.", low=1e-6, high=1 - 1e-6, parse=_rates
    )
    group_size: int = option(8, "n, the mean over the problems of the step.", low=2)
    block: int = option(2, "Rollouts that are dealt at once, and the least that a problem gets.", low=2)
    most: int = option(0, "Rollouts that a problem gets at most; 0 for no limit.", low=0)
    attempts: int = option(32, "Rollouts by which each rate is known.", low=0)
    steps: int = option(2048, "Steps to simulate.", low=1)
    seed: int = option(0, "Of the simulation.", low=0)

    def __post_init__(self) -> None:
        check(self, "--")
        with fields_called("--"):
            check_deal(self.policy, group_size=self.group_size, block=self.block, most=self.most)


@dataclasses.dataclass(frozen=True, eq=False)
class Dealt:
    """Means over simulated steps, of each problem [P]."""

    counts: np.ndarray
    mixed: np.ndarray  # share of steps in which its rewards differ
    scaled: np.ndarray  # weight with GRPO's advantages, each problem's rollouts at 1 / (P n_p)
    own: np.ndarray  # weight with the policy's estimator
    noise: float  # sum of squared factors of all rollouts: the variance where their scores have nothing in common


def simulate(shown: Deal) -> Dealt:
    """The steps' means; a step is P problems of the given rates."""
    rates, problems = np.array(shown.rates), len(shown.rates)
    tried = np.full(problems, float(shown.attempts))
    belief = believe(tried, tried * rates, np.arange(problems))
    how = {"total": shown.group_size * problems, "block": shown.block, "most": shown.most}
    if shown.policy == "uniform":
        how |= {"block": shown.group_size, "most": 0}
    rng = np.random.default_rng(shown.seed)
    sums, noise = np.zeros((4, problems)), 0.0
    # The score of a solved rollout is u / p and of another one -u / (1 - p) on average, in the gradient's direction u.
    for _ in range(shown.steps):
        rewards: list[np.ndarray] = []
        rounds: list[np.ndarray] = []
        while sum(map(len, rewards)) < how["total"]:
            rounds.append(deal(shown.policy, belief, rewards or None, **how))
            new = [(rng.random(n) < p).astype(float) for n, p in zip(rounds[-1], rates, strict=True)]
            rewards = [np.concatenate(each) for each in zip(rewards, new, strict=True)] if rewards else new
        counts = np.array([len(each) for each in rewards])
        padded = np.array([np.pad(each, (0, counts.max() - len(each))) for each in rewards])
        score = np.where(padded > 0, 1 / rates[:, None], -1 / (1 - rates[:, None]))
        factors = advantages(padded, np.array(rounds).T) * weights(shown.policy, counts.max(), np.array(rounds).T)
        scaled = [np.sum(group_advantages(r) * s[: len(r)]) / len(r) for r, s in zip(rewards, score, strict=True)]
        mixed = [np.ptp(each) > 0 for each in rewards]
        sums += np.stack([counts, mixed, scaled, problems * np.sum(factors * score, axis=1)])
        noise += float(np.sum(factors**2))
    means = sums / shown.steps
    if shown.policy not in LOOKS:  # known exactly
        sizes = zip(rates.tolist(), means[0].astype(int).tolist(), strict=True)
        means[2] = [expected_weight(p, n, advantage_scale="group_std", baseline="group_mean") for p, n in sizes]
        means[3] = 1.0
    return Dealt(*means, noise=noise / shown.steps)


def main() -> None:
    """Flags -> a table, or an answer."""
    asked = from_flags(Asked)
    if asked.history:
        say(answer(asked))
        return
    shown = from_flags(Deal)
    found = simulate(shown)
    lines = [f"{'rate':>7}{'n':>8}{'mixed':>8}{'GRPO weight':>13}{'own weight':>12}"]
    for rate, *row in zip(shown.rates, found.counts, found.mixed, found.scaled, found.own, strict=True):
        lines.append("{:7.3g}{:8.1f}{:8.2f}{:13.2f}{:12.2f}".format(rate, *row))
    say("\n".join(lines))
    even = simulate(dataclasses.replace(shown, policy="uniform")).noise
    say(f"\nmeans of {shown.steps:,} simulated steps; noise of its own estimator: {found.noise / even:.2f} x uniform's")


define_flags(Deal)
define_flags(Asked)

if __name__ == "__main__":
    app.run(main)
