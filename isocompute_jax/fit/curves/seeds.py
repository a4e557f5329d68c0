"""Seeds: the runs of one configuration become one curve before anything is fitted, and give the noise.

Seeds that were evaluated at the same computes are averaged there. Seeds on different grids are pooled: every evaluation
of every seed is a point of the curve, because a mean that interpolates between evaluations makes its points more alike
than they are. They are fitted seed by seed (`Curve.seed_by_seed`): the noise of neighbouring evaluations of one seed is
alike, that of two seeds is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.results import Configuration

SAME_COMPUTE = 0.02
"""Evaluations whose compute differs by less than this share count as one budget (steps round compute differently)."""

ENDED_EARLY = "ended early, at"
EARLY = 0.9
"""A run that ends before this share of what it stands beside ended early (`ended_early`)."""

REACH_ALIKE = 1.1
"""Runs that begin, and end, within this factor of each other are averaged over what all of them cover."""


@dataclasses.dataclass(frozen=True, eq=False)
class ConfigurationRuns:
    """The runs (one per seed) of one configuration."""

    configuration: Configuration
    runs: tuple[RunCurve, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """A configuration's learning curve in one metric."""

    configuration: Configuration  # which one
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


def group_runs(runs: Sequence[RunCurve]) -> tuple[list[ConfigurationRuns], list[str]]:
    """Groups runs into configurations, ordered by n: those alike in n, B_problem and identity (`records.identity`).

    Scheduled runs have no n of their own and are left out: `group_schedules` has them.
    """

    def key(run: RunCurve) -> tuple:
        unknown = () if run.facts.group_size else (run.run,)  # of a run whose n is unknown only the name tells
        return run.facts.group_size, run.facts.problems_per_batch, *unknown, _identity(run)

    ordered, warnings = _by_key([run for run in runs if not run.schedule], key)
    names = _names([members[0] for members in ordered])
    groups = [
        ConfigurationRuns(
            Configuration(
                name,
                members[0].facts.group_size,
                members[0].facts.problems_per_batch,
                members[0].facts.problem_set_size,
            ),
            members,
        )
        for name, members in zip(names, ordered, strict=True)
    ]
    counts = {len(group.runs) for group in groups}
    if len(counts) > 1:
        listed = ", ".join(f"{group.configuration.name}: {len(group.runs)}" for group in groups)
        warnings.append(f"configurations have different numbers of seeds ({listed})")
    return groups, warnings


def group_schedules(runs: Sequence[RunCurve]) -> tuple[list[ConfigurationRuns], list[str]]:
    """Groups the scheduled runs: those of one schedule that are alike else; no n, and the schedule's text as name."""
    ordered, warnings = _by_key([run for run in runs if run.schedule], lambda run: (run.schedule, "", _identity(run)))
    first = [members[0] for members in ordered]
    names = _told_apart([run.schedule for run in first], first)
    groups = [
        ConfigurationRuns(Configuration(name, 0, 0, members[0].facts.problem_set_size), members)
        for name, members in zip(names, ordered, strict=True)
    ]
    return groups, warnings


def _identity(run: RunCurve) -> tuple:
    return tuple(sorted(run.identity.items(), key=lambda kv: kv[0]))


def _by_key(runs: Sequence[RunCurve], key: Callable[[RunCurve], tuple]) -> tuple[list[tuple[RunCurve, ...]], list[str]]:
    """The runs of each key in order of their seeds, one for each; names those that are there twice."""
    warnings = []
    cells: dict[tuple, dict[int, RunCurve]] = {}
    for run in runs:
        seeds = cells.setdefault(key(run), {})
        if run.facts.seed in seeds:
            same = seeds[run.facts.seed]
            warnings.append(f"{run.source}: run {run.run} left out: same configuration and seed as {same.source}")
            continue
        seeds[run.facts.seed] = run
    ordered = sorted(cells, key=lambda k: (k[:2], str(k)))
    return [tuple(cells[k][seed] for seed in sorted(cells[k])) for k in ordered], warnings


def _names(members: Sequence[RunCurve]) -> list[str]:
    """Short names that tell configurations apart: n, then B_problem, then the other fields that still differ."""
    sizes = [f"n = {run.facts.group_size}" if run.facts.group_size else run.run for run in members]
    if len(set(sizes)) == len(sizes):
        return sizes
    several = len({run.facts.problems_per_batch for run in members}) > 1
    pairs = [
        f"{size}, B = {run.facts.problems_per_batch}" if several else size
        for size, run in zip(sizes, members, strict=True)
    ]
    return _told_apart(pairs, members)


def _told_apart(names: Sequence[str], members: Sequence[RunCurve]) -> list[str]:
    """The names, those that several have with the fields in which these differ, or else with a number."""
    found = []
    for name, run in zip(names, members, strict=True):
        rivals = [other for also, other in zip(names, members, strict=True) if also == name and other is not run]
        fields = sorted(
            key for key in run.identity if any(other.identity.get(key) != run.identity[key] for other in rivals)
        )
        found.append(", ".join([name, *(f"{key.rsplit('.', 1)[-1]} = {run.identity[key]}" for key in fields[:3])]))
    return found if len(set(found)) == len(found) else [f"{name} ({i})" for i, name in enumerate(found, 1)]


def average_seeds(group: ConfigurationRuns, metric: str, *, seed: int | None = None) -> Curve | None:
    """The curve of a configuration: the mean of seeds on one grid, or all evaluations of seeds that differ.

    Averaging a changing set of seeds would put steps into the curve, so the mean ends where its shortest seed ends, and
    seeds that do not reach equally far (`REACH_ALIKE`) are pooled, as are those on different grids: nothing is lost.
    The grid of a mean is that of the seed with the most evaluations; others whose computes differ by rounding are read
    off by linear interpolation in log C.

    Args:
      group: the configuration's runs.
      metric: column to average; runs without it are left out.
      seed: take this seed alone; None for all of them.

    Returns:
      The curve, or None when no run has the metric.
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
    """Every evaluation of every seed as a point of its own; `series`: (seed, compute [E_s], reward [E_s])."""
    owner = np.repeat(np.arange(len(series)), [len(compute) for _, compute, _ in series])
    compute, reward = (np.concatenate([one[i] for one in series]) for i in (1, 2))
    order = np.argsort(compute, kind="stable")
    per_seed = np.full((len(series), len(compute)), np.nan)
    per_seed[owner[order], np.arange(len(compute))] = reward[order]
    return Curve(configuration, tuple(seed for seed, _, _ in series), compute[order], per_seed)


def rollouts_at(group: ConfigurationRuns, compute: float) -> float:
    """Rollouts that a configuration has sampled at `compute` in another unit; beyond its data in proportion.

    The mean over its runs; NaN when none of them knows its rollouts.
    """
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


def uncovered(group: ConfigurationRuns, curve: Curve) -> str | None:
    """What the mean of a configuration leaves unused because its seeds do not reach equally far; None if nothing."""
    reach = max(run.compute[-1] for run in group.runs)
    if curve.pooled or not len(curve.compute) or curve.compute[-1] >= reach * (1 - SAME_COMPUTE):
        return None
    name, end = group.configuration.name, curve.compute[-1]
    return f"{name}: the mean of its seeds ends at compute {end:g}, although a seed reaches {reach:g}"


def ended_early(groups: Sequence[ConfigurationRuns]) -> list[str]:
    """Names the runs of tables, which do not say whether a run is finished, that ended before what they stand beside.

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
            found.append(
                f"run {run.run} {ENDED_EARLY} {end:g}: {beside} {reach:g}, so it stopped at {end / reach:.0%} "
                "of that; it may have crashed, for a table does not say which runs are finished"
            )
    return found


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


def merge_close(compute: np.ndarray) -> np.ndarray:
    """Sorted computes with those closer than `SAME_COMPUTE` merged: the innermost of the first cluster, else the least.

    The innermost, so that the first budget lies inside every curve that begins there up to rounding.
    """
    return np.array([cluster[-1] if i == 0 else cluster[0] for i, cluster in enumerate(clusters(compute))])


def covered(curve: Curve) -> tuple[float, float] | None:
    """First and last compute after the base model's that all seeds reach; None where there is none."""
    trained = [compute[compute > 0] for compute, _ in map(curve.of_seed, range(len(curve.seeds)))]
    if not all(map(len, trained)):
        return None
    low, high = max(float(c[0]) for c in trained), min(float(c[-1]) for c in trained)
    return (low, high) if low <= high else None


def aligned(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Each seed at the same computes: compute [E] and reward [S, E], the base model's (compute 0) if all seeds have it.

    Pooled seeds are read off at every compute that all of them cover, linear in log C between their evaluations.
    """
    if not curve.pooled:
        return curve.compute, curve.per_seed
    ends = covered(curve)
    if ends is None:
        return np.empty(0), np.empty((len(curve.seeds), 0))
    seeds = [curve.of_seed(i) for i in range(len(curve.seeds))]
    grid = merge_close(curve.compute[(curve.compute >= ends[0]) & (curve.compute <= ends[1])])
    values = np.array([read_off(compute, reward, grid) for compute, reward in seeds])
    if all(compute[0] == 0 for compute, _ in seeds):
        base = np.array([[reward[0]] for _, reward in seeds])
        grid, values = np.append(0.0, grid), np.concatenate([base, values], axis=1)
    return grid, values
