"""What recorded sweeps say in numbers: how far n* moves, how much reward is gained, how high it gets.

No form is fitted to a curve, so that sweeps can be laid beside each other whatever their curves look like: what counts
at C is the highest mean reward up to it, the record. n*(C) is the n of the highest record (`best_sizes`), or, with less
noise, the vertex of a parabola through the records over log n (`profile_sizes`; approach 2 of Hoffmann et al. 2022,
arXiv 2203.15556, over group sizes). The level of a configuration is the highest mean reward over seeds within its
budget: what is left to a run that keeps its best checkpoint. Intervals are of a bootstrap over seeds: the seeds of
every configuration are drawn anew with replacement, and the statistic computed again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from research.record import Seeds, Sweep, curves_of

REPLICATES = 1000
LEVEL = 95.0
LITTLE = 0.25
"""Reward has saturated at an n where larger groups gain less than this share of what was gained up to it."""

Curves = Mapping[int, Seeds]
"""n -> its seeds."""
Means = Mapping[int, tuple[np.ndarray, np.ndarray]]
"""n -> compute [T] and means over seeds there [T, M]."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A statistic, its 95% interval over seeds, and how many seeds a configuration has at least."""

    value: float
    low: float
    high: float
    seeds: int

    @property
    def sign(self) -> int:
        """1 or -1 where the whole interval is on one side of 0, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def with_seeds(curves: Curves, more: Curves) -> Curves:
    """The seeds of two sweeps that differ in them alone; n that one of them has keep its own."""
    joined = dict(curves)
    for n, one in more.items():
        values = [each[n].values for each in (curves, more) if n in each]
        joined[n] = Seeds(one.compute, np.concatenate(values))
    return dict(sorted(joined.items()))


def means(curves: Curves) -> Means:
    """Over seeds."""
    return {n: (seeds.compute, seeds.values.mean(axis=0)) for n, seeds in curves.items()}


def records_at(mean: Means, budgets: np.ndarray, column: int = 0) -> np.ndarray:
    """[N, C] highest mean value of each n up to each budget, between evaluations by log C; NaN before the first."""
    rows = []
    for compute, value in mean.values():
        record = np.interp(np.log(budgets), np.log(compute), np.maximum.accumulate(value[:, column]))
        rows.append(np.where(budgets < compute[0] * (1 - 1e-9), np.nan, record))
    return np.stack(rows)


def best_sizes(mean: Means, budgets: np.ndarray, column: int = 0) -> np.ndarray:
    """[C] log2 n*(C), the n of the highest record."""
    return np.log2(list(mean))[np.nanargmax(records_at(mean, budgets, column), axis=0)]


def profile_sizes(mean: Means, budgets: np.ndarray, column: int = 0) -> np.ndarray:
    """[C] log2 n*(C), the vertex of a parabola in log2 n through the records at C, within the n that were run.

    Where the parabola has no maximum it is the better end. Fewer than three n have no parabola: then `best_sizes`.
    """
    records, sizes = records_at(mean, budgets, column), np.log2(list(mean))
    best = best_sizes(mean, budgets, column)
    for at, record in enumerate(records.T):
        known = np.isfinite(record)
        if known.sum() < 3:
            continue
        x = sizes[known]
        parabola = np.polyfit(x, record[known], 2)
        ends = np.polyval(parabola, x[[0, -1]])
        vertex = -parabola[1] / (2 * parabola[0]) if parabola[0] < 0 else x[-1 if ends[1] > ends[0] else 0]
        best[at] = np.clip(vertex, x[0], x[-1])
    return best


def common_budgets(*sweeps: Curves, points: int = 13) -> np.ndarray:
    """[points] log-spaced budgets that every configuration of every sweep was evaluated up to."""
    every = [seeds.compute for curves in sweeps for seeds in curves.values()]
    return np.geomspace(max(one[0] for one in every), min(one[-1] for one in every), points)


def seeds_to_tell(curves: Curves, distance: int = 2) -> tuple[float, float, float]:
    """How sharp the optimum in n is: the best n beside the better of those `distance` places away among the n.

    Returns:
      By how much it is ahead, a mean over log-spaced budgets; the standard deviation of one seed's difference, too; and
      the paired seeds of which the 95% interval of such a mean would leave zero out, the median over budgets.
    """
    budgets, sizes = common_budgets(curves), sorted(curves)
    seeds = ({seed: (one.compute, run) for seed, run in enumerate(one.values)} for one in (curves[n] for n in sizes))
    runs = np.stack([records_at(each, budgets) for each in seeds])  # [N, S, C]
    found = []
    for each in np.moveaxis(runs, -1, 0):
        best = int(np.argmax(each.mean(axis=1)))
        away = [place for place in (best - distance, best + distance) if 0 <= place < len(sizes)]
        difference = each[best] - each[max(away, key=lambda place: each[place].mean())]
        found.append((difference.mean(), difference.std(ddof=1)))
    ahead, deviation = np.transpose(found)
    with np.errstate(divide="ignore"):
        needed = (1.96 * deviation / ahead) ** 2
    return float(ahead.mean()), float(deviation.mean()), float(np.median(needed))


def estimates(statistics: Callable[..., Sequence[float]], *sweeps: Curves) -> list[Estimate]:
    """`statistics(*means)`, of one `Means` for each sweep, and the interval over seeds of each of its numbers."""
    rng = np.random.default_rng(0)
    values = statistics(*(means(curves) for curves in sweeps))
    drawn = np.array([statistics(*(_drawn(curves, rng) for curves in sweeps)) for _ in range(REPLICATES)])
    lows, highs = np.percentile(drawn, [(100 - LEVEL) / 2, (100 + LEVEL) / 2], axis=0)
    count = min(len(one.values) for curves in sweeps for one in curves.values())
    return [
        Estimate(float(v), float(low), float(high), count) for v, low, high in zip(values, lows, highs, strict=True)
    ]


def estimate(statistic: Callable[..., float], *sweeps: Curves) -> Estimate:
    """The same of one number."""
    return estimates(lambda *means: [statistic(*means)], *sweeps)[0]


def _drawn(curves: Curves, rng: np.random.Generator) -> Means:
    """Means over as many seeds of each n, drawn with replacement."""
    return {
        n: (one.compute, one.values[rng.integers(len(one.values), size=len(one.values))].mean(axis=0))
        for n, one in curves.items()
    }


def rise_of(curves: Curves) -> Estimate:
    """Octaves of n* from the smallest budget that all n were evaluated at to the largest."""
    budgets = common_budgets(curves)
    return estimate(lambda mean: float(np.diff(profile_sizes(mean, budgets[[0, -1]]))[0]), curves)


def size_shift(of: Curves, beside: Curves) -> Estimate:
    """Octaves by which n* of one sweep lies above that of another at equal compute, a mean over log-spaced budgets.

    n that both have are compared.
    """
    of, beside = ({n: curves[n] for n in curves if n in other} for curves, other in ((of, beside), (beside, of)))
    budgets = common_budgets(of, beside)

    def shift(one: Means, other: Means) -> float:
        return float(np.mean(profile_sizes(one, budgets) - profile_sizes(other, budgets)))

    return estimate(shift, of, beside)


def target_shift(curves: Curves) -> Estimate:
    """Octaves by which n* of the first column lies above that of the second, a mean over log-spaced budgets."""
    budgets = common_budgets(curves)

    def shift(mean: Means) -> float:
        return float(np.mean(profile_sizes(mean, budgets, 0) - profile_sizes(mean, budgets, 1)))

    return estimate(shift, curves)


def level_gain(of: Curves, beside: Curves, sizes: Sequence[int] = ()) -> Estimate:
    """Highest mean reward of one sweep within the budget, over its n (those of `sizes`, if any), less another's."""
    return estimate(lambda one, other: level(one, sizes) - level(other, sizes), of, beside)


def levels(mean: Means) -> dict[int, float]:
    """n -> its level."""
    return {n: float(value[:, 0].max()) for n, (_, value) in mean.items()}


def level(mean: Means, sizes: Sequence[int] = ()) -> float:
    """The highest level over n, of those that may be chosen."""
    return max(value for n, value in levels(mean).items() if not sizes or n in sizes)


def batch_effect(sweeps: Mapping[int, Curves]) -> list[Estimate]:
    """Spread of reward over B_problem at equal n, over n at equal B_problem, both at equal compute, and their ratio.

    A spread is the standard deviation of records, a mean over log-spaced budgets and over what is held equal. Sweeps
    are by B_problem; n that all of them have are compared.
    """
    sizes = sorted(set.intersection(*(set(curves) for curves in sweeps.values())))
    shared = [{n: curves[n] for n in sizes} for curves in sweeps.values()]
    budgets = common_budgets(*shared)

    def spreads(*drawn: Means) -> list[float]:
        records = np.stack([records_at(mean, budgets) for mean in drawn])  # [B_problem, n, C]
        by_batch, by_size = (float(records.std(axis=axis, ddof=1).mean()) for axis in (0, 1))
        return [by_batch, by_size, by_batch / by_size]

    return estimates(spreads, *shared)


def size_effect(of: Curves, beside: Curves) -> Estimate:
    """Spread of reward over n in one sweep, in that of another, over the n that both have, at equal compute.

    A spread is the standard deviation of records, a mean over log-spaced budgets.
    """
    sizes = sorted(set(of) & set(beside))
    shared = [{n: curves[n] for n in sizes} for curves in (of, beside)]
    budgets = common_budgets(*shared)

    def ratio(*drawn: Means) -> float:
        one, other = (records_at(mean, budgets).std(axis=0, ddof=1).mean() for mean in drawn)
        return float(one / other)

    return estimate(ratio, *shared)


def saturation_size(level: Mapping[int, float]) -> float:
    """log2 of the n at which levels saturate; of the largest n where they do not."""
    return next((float(np.log2(n)) for n in sorted(level)[:-1] if excess(level, n) <= 0), float(np.log2(max(level))))


def excess(level: Mapping[int, float], n: int) -> float:
    """What larger groups have beyond n, a mean over them, less `LITTLE` of what n has beyond the smallest."""
    return float(np.mean([value for m, value in level.items() if m > n])) - level[n] - LITTLE * _gained(level, n)


@dataclasses.dataclass(frozen=True)
class Saturation:
    """Of one sweep."""

    levels: dict[int, Estimate]  # n -> its level
    log2_size: Estimate  # log2 of the n at which they saturate
    largest: int  # largest n that was run
    gained: Estimate  # reward from the smallest n to the one at which the mean curves saturate
    left: Estimate  # reward that larger groups have beyond that one, a mean over them; 0 where there are none

    @property
    def size(self) -> int:
        """n at which the mean curves saturate."""
        return round(2**self.log2_size.value)

    @property
    def sure(self) -> bool:
        """Whether the whole interval of that n is below the largest, and something was gained up to it."""
        return self.log2_size.high < np.log2(self.largest) and self.gained.low > 0

    @property
    def rising(self) -> bool:
        """Whether the whole interval is the largest n: levels still rise there."""
        return self.log2_size.low == np.log2(self.largest)


def saturation(curves: Curves) -> Saturation:
    """Where the levels of a sweep saturate, with intervals over seeds."""
    at = round(2 ** saturation_size(levels(means(curves))))

    def parts(mean: Means) -> list[float]:
        level = levels(mean)
        beyond = [value for n, value in level.items() if n > at] or [level[at]]
        return [*level.values(), saturation_size(level), _gained(level, at), float(np.mean(beyond)) - level[at]]

    *each, size, gained, left = estimates(parts, curves)
    return Saturation(dict(zip(curves, each, strict=True)), size, max(curves), gained, left)


def saturation_shift(of: Curves, beside: Curves) -> Estimate:
    """Octaves by which the n at which one sweep saturates lies above that of another, over the n that both have."""
    sizes = set(of) & set(beside)

    def shift(one: Means, other: Means) -> float:
        first, second = ({n: value for n, value in levels(mean).items() if n in sizes} for mean in (one, other))
        return saturation_size(first) - saturation_size(second)

    return estimate(shift, of, beside)


def _gained(level: Mapping[int, float], n: int) -> float:
    return level[n] - level[min(level)]


@dataclasses.dataclass(frozen=True)
class Point:
    """A configuration: n, B_problem, rollouts per step, the learning rate there, and its level."""

    group_size: int
    problems_per_batch: int
    rollouts_per_step: int
    rate: float
    level: float

    @property
    def noise(self) -> float:
        """Learning rate over rollouts per step: how much of a step's noise stays in the weights."""
        return self.rate / self.rollouts_per_step


def points_of(sweep: Sweep, *, mean: Means | None = None) -> list[Point]:
    """The configurations of a sweep; `mean` in place of its own curves, where seeds were drawn."""
    shared = sweep.facts.shared
    batch = dict(zip(sweep.column("group_size").tolist(), sweep.column("problems_per_batch").tolist(), strict=True))
    points = []
    for n, level in levels(mean or means(curves_of(sweep, "avg@4"))).items():
        rollouts = n * batch[n]
        growth = (rollouts / shared["optimizer.base_batch"]) ** shared["optimizer.lr_scaling_exponent"]
        points.append(Point(n, batch[n], rollouts, shared["optimizer.base_lr"] * growth, level))
    return points


def noise_explains(sweeps: Sequence[Sweep]) -> Estimate:
    """Share of the variance of levels that a parabola in the log of `Point.noise` explains, with its interval."""

    def share(*drawn: Means) -> float:
        points = [point for sweep, mean in zip(sweeps, drawn, strict=True) for point in points_of(sweep, mean=mean)]
        x = np.log([point.noise for point in points])
        y = np.array([point.level for point in points])
        left = y - np.polyval(np.polyfit(x, y, 2), x)
        return float(1 - left.var() / y.var())

    return estimate(share, *(curves_of(sweep, "avg@4") for sweep in sweeps))
