"""One learning curve of a configuration: the mean of its seeds, or every evaluation of each of them.

Seeds that were evaluated at the same computes are averaged there. Seeds on different grids are pooled: every evaluation
of every seed is a point of the curve, because a mean that interpolates between evaluations makes its points more alike
than they are. They are fitted seed by seed (`Curve.seed_by_seed`): the noise of neighbouring evaluations of one seed is
alike, that of two seeds is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.configurations import MOST_NAMED, Configuration, ConfigurationRuns
from isocompute_jax.fit.read.run_curve import RunCurve

SAME_COMPUTE = 0.02
"""Evaluations whose compute differs by less than this share count as one budget (steps round compute differently)."""
EARLY = 0.9
"""A run that ends before this share of what it stands beside ended early (`ended_early`)."""
REACH_ALIKE = 1.1
"""Runs that begin, and end, within this factor of each other are averaged over what all of them cover."""


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """A configuration's learning curve in one metric."""

    configuration: Configuration
    seeds: tuple[int, ...]  # its S seeds
    compute: np.ndarray  # [E] rollouts, never falling; 0 is the base model
    # [S, E] reward; of seeds that were pooled each point belongs to one seed and is NaN in the others
    per_seed: np.ndarray

    @property
    def reward(self) -> np.ndarray:
        """[E] mean over the seeds that have the point."""
        return np.nanmean(self.per_seed, axis=0) if self.pooled else self.per_seed.mean(axis=0)

    @property
    def pooled(self) -> bool:
        """Whether each point is an evaluation of one seed."""
        return bool(np.isnan(self.per_seed).any())

    @property
    def count(self) -> np.ndarray:
        """[E] seeds that have the point."""
        return np.isfinite(self.per_seed).sum(axis=0)

    @property
    def seed_by_seed(self) -> np.ndarray:
        """[E] numbers of the points, those of each pooled seed together; in order of compute of a mean."""
        return np.argsort(np.isfinite(self.per_seed).argmax(axis=0), kind="stable")

    @property
    def series(self) -> list[np.ndarray]:
        """[E] bool each: the points of each pooled seed, or all points of a mean; each in order of compute."""
        known = np.isfinite(self.per_seed)
        return list(known) if self.pooled else [np.ones(len(self.compute), bool)]

    def of_seed(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Compute and reward of the evaluations of one seed, by its number among `seeds`."""
        own = np.isfinite(self.per_seed[number])
        return self.compute[own], self.per_seed[number, own]

    def only(self, kept: np.ndarray) -> Curve:
        """The curve at some of its evaluations, `kept` [E] bool or their numbers."""
        return dataclasses.replace(self, compute=self.compute[kept], per_seed=self.per_seed[:, kept])


def average_seeds(group: ConfigurationRuns, metric: str, *, seed: int | None = None) -> Curve | None:
    """The curve of a configuration: the mean of seeds on one grid, or all evaluations of seeds that differ.

    Averaging a changing set of seeds would put steps into the curve, so the mean ends where its shortest seed ends, and
    seeds that do not reach equally far (`REACH_ALIKE`) are pooled, as are those on different grids: nothing is lost.
    The grid of a mean is that of the seed with the most evaluations; others whose computes differ by rounding are read
    off by linear interpolation in log C. Runs without the metric are left out; None when no run has it. A `seed` is
    taken alone.
    """
    series = []
    for run in group.runs:
        values = run.columns.get(metric, np.full_like(run.compute, np.nan))
        known = ~np.isnan(values)
        if known.any() and seed in (None, run.facts.seed):
            series.append((run.facts.seed, run.compute[known], values[known]))
    if not series:
        return None
    trained = [compute[compute > 0] for _, compute, _ in series]
    if not (_on_one_grid(trained) and _reach_alike(trained)):
        return _pooled(group.configuration, series)
    grid = _shared_grid([compute[compute > 0] for _, compute, _ in series])
    values = np.array([read_off(compute, reward, grid) for _, compute, reward in series])
    if all(compute[0] == 0 for _, compute, _ in series):
        base = np.array([[reward[0]] for _, _, reward in series])
        grid, values = np.concatenate([[0.0], grid]), np.concatenate([base, values], axis=1)
    return Curve(group.configuration, tuple(seed for seed, _, _ in series), grid, values)


def _on_one_grid(computes: Sequence[np.ndarray]) -> bool:
    """Whether the series have the same computes, up to `SAME_COMPUTE`, over the range that all of them cover."""
    if not all(len(compute) for compute in computes):
        return True
    low, high = max(c[0] for c in computes), min(c[-1] for c in computes)
    if low > high * (1 + SAME_COMPUTE):
        return False
    for slack in (SAME_COMPUTE, 0.0):  # the ends of the range, too, may differ by rounding
        inside = [c[(c >= low * (1 - slack)) & (c <= high * (1 + slack))] for c in computes]
        first = inside[0]
        if all(len(c) == len(first) and np.all(np.abs(c / first - 1) <= SAME_COMPUTE) for c in inside):
            return True
    return False


def _reach_alike(computes: Sequence[np.ndarray]) -> bool:
    """Whether the series begin and end together, so that next to nothing of them lies outside of what all cover."""
    ends = np.array([(compute[0], compute[-1]) for compute in computes if len(compute)])
    return not len(ends) or bool(np.all(ends.max(axis=0) <= ends.min(axis=0) * REACH_ALIKE))


def _pooled(configuration: Configuration, series: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> Curve:
    """Makes each evaluation of each seed a point; `series` are (seed, compute [E_s], reward [E_s])."""
    owner = np.repeat(np.arange(len(series)), [len(compute) for _, compute, _ in series])
    compute, reward = (np.concatenate([one[i] for one in series]) for i in (1, 2))
    order = np.argsort(compute, kind="stable")
    per_seed = np.full((len(series), len(compute)), np.nan)
    per_seed[owner[order], np.arange(len(compute))] = reward[order]
    return Curve(configuration, tuple(seed for seed, _, _ in series), compute[order], per_seed)


def rollouts_at(group: ConfigurationRuns, compute: float) -> float:
    """Mean rollouts of a configuration's runs at `compute` in another unit, beyond the data in proportion, or NaN."""
    found = []
    for run in group.runs:
        spent = run.columns.get("compute")
        if spent is None or not np.isfinite(spent[-1]) or run.compute[-1] <= 0:
            continue
        known = np.isfinite(spent)
        inside = np.interp(compute, run.compute[known], spent[known])
        found.append(max(inside, spent[-1] * compute / run.compute[-1]) if compute > run.compute[-1] else inside)
    return float(np.mean(found)) if found else float("nan")


def _shared_grid(computes: Sequence[np.ndarray]) -> np.ndarray:
    """The computes of the series with the most points, within the range that every series covers."""
    if not all(len(compute) for compute in computes):
        return np.array([])
    low, high = max(c[0] for c in computes), min(c[-1] for c in computes)
    densest = max(computes, key=len)
    return densest[(densest >= low) & (densest <= high)]


def ended_early(groups: Sequence[ConfigurationRuns]) -> list[str]:
    """One sentence on the runs of tables (which do not say what is finished) that ended before what they stand beside.

    That is the furthest run of their configuration, by compute. Of a configuration with one run, whose length may have
    been meant, it is every other run of the sweep: in compute, and in steps where they are known.
    """
    runs = [run for group in groups for run in group.runs]
    found = []
    for group in groups:
        furthest = max(run.compute[-1] for run in group.runs)
        for run in (run for run in group.runs if run.finished is None):
            end, others = run.compute[-1], [other for other in runs if other is not run]
            if end < EARLY * furthest:
                reach, beside = furthest, f"another run of {group.configuration.name} reaches"
            elif len(group.runs) == 1 and others and _before_all(run, others):
                reach, beside = min(other.compute[-1] for other in others), "every other run reaches at least"
            else:
                continue
            found.append(f"{run.run} at compute {end:g}, {end / reach:.0%} of the {reach:g} that {beside}")
    if not found:
        return []
    more = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return [
        f"{len(found)} of {len(runs)} runs ended early and may have crashed (a table does not say which runs are "
        f"finished): {'; '.join(found[:MOST_NAMED])}{more}."
    ]


def _before_all(run: RunCurve, others: Sequence[RunCurve]) -> bool:
    """Whether a run ended before every other one by compute, and by steps where all have them."""
    steps = [found.columns.get("step", np.array([np.nan]))[-1] for found in (run, *others)]
    measures = [[found.compute[-1] for found in (run, *others)], *([steps] if np.isfinite(steps).all() else [])]
    return all(own < EARLY * min(rest) for own, *rest in measures)


def read_off(compute: np.ndarray, reward: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Reward at computes `at` > 0 by linear interpolation in log C between evaluations with compute > 0."""
    trained = compute > 0
    return np.interp(np.log(at), np.log(compute[trained]), reward[trained]) if trained.any() else np.empty(0)


def clusters(compute: Sequence[float] | np.ndarray) -> list[list[float]]:
    """Sorted distinct computes, those within `SAME_COMPUTE` of the first of them together."""
    found: list[list[float]] = []
    for value in np.unique(compute):
        if found and value <= found[-1][0] * (1 + SAME_COMPUTE):
            found[-1].append(float(value))
        else:
            found.append([float(value)])
    return found
