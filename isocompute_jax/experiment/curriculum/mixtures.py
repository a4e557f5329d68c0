"""How the problems of a step are shared out among the sets of a mixture."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isocompute_jax.experiment.config import CurriculumConfig
from isocompute_jax.experiment.curriculum.history import History

RECENT = 256
"""Problems of a set, those drawn last, whose groups say what signal the set has now."""
EXPLORED = 0.1
"""Share of a step that is divided equally, so that a set without signal is looked at again."""
UNTRIED = 0.25
"""p (1 - p) of a set of which nothing was drawn yet: the most there can be."""


def weights_of(config: CurriculumConfig, members: Mapping[str, np.ndarray], history: History) -> dict[str, float]:
    """Name -> weight of each set now; what they sum to does not matter."""
    if config.weighting == "adaptive":
        return adaptive_weights(members, history)
    if config.weights:
        return {name: config.weights[name] for name in members}
    return {name: float(len(places)) for name, places in members.items()}


def adaptive_weights(members: Mapping[str, np.ndarray], history: History) -> dict[str, float]:
    """Weights in proportion to the mean of p (1 - p) over the problems of a set that were drawn last.

    p is a problem's rate of success in its last group, so p (1 - p) is the variance of its rewards: the mean square of
    unscaled group-relative advantages, and zero where a group has no signal. As a measure of what can be learned from
    a task it is that of "sampling for learnability" (arXiv 2408.15099, and 2502.12272 for language models); weighing
    whole sets by what their advantages come to is DUMP's (arXiv 2504.09710), whose bandit is replaced here by the
    mean over `RECENT` problems, and its exploration by `EXPLORED`. From groups of n rollouts p (1 - p) comes out
    (n - 1) / n of its value, in every set alike.
    """
    signal = {name: _signal(history, places) for name, places in members.items()}
    total = sum(signal.values())
    equal = 1 / len(signal)
    return {
        name: EXPLORED * equal + (1 - EXPLORED) * (value / total if total else equal) for name, value in signal.items()
    }


def _signal(history: History, places: np.ndarray) -> float:
    steps = history.last_step[places]
    tried = np.flatnonzero(steps >= 0)
    if not len(tried):
        return UNTRIED
    recent = places[tried[np.argsort(steps[tried], kind="stable")[-RECENT:]]]
    rates = history.last_rate[recent].astype(np.float64)
    return float(np.mean(rates * (1 - rates)))


def share_out(
    count: int, weights: Mapping[str, float], room: Mapping[str, int], credits: Mapping[str, float]
) -> tuple[dict[str, int], dict[str, float]]:
    """How many of `count` problems come from each set.

    One by one: every set that has problems left earns its share of one problem, and the set with most credit gives it.
    So shares hold over few steps already, and nothing is left to chance.

    Args:
      count: problems.
      weights: of each set, above 0.
      room: problems that each set has.
      credits: what each set was owed when this was last asked; problems.

    Returns:
      Numbers by set, in all `count` or all that there is, and the credits to give next time.
    """
    numbers, credits = dict.fromkeys(weights, 0), {name: credits.get(name, 0.0) for name in weights}
    for _ in range(count):
        ready = [name for name in weights if numbers[name] < room[name]]
        if not ready:
            break
        total = sum(weights[name] for name in ready)
        for name in ready:
            credits[name] += weights[name] / total
        best = max(ready, key=lambda name: credits[name])
        credits[best] -= 1
        numbers[best] += 1
    return numbers, credits
