"""The compute-optimal frontier as in the paper (arXiv 2603.12151), stage by stage.

1. Record-breaking evaluations of each configuration's mean curve, strict or by bins of the reward.
2. One monotone sigmoid through those of each configuration (`fit_curves`).
3. The upper envelope over configurations, each curve used only where it has data, with exact switch points.
4. n*(C) read off the envelope, smoothed, and the sigmoid of log2 n* (`fit_allocation`).

It draws one section of the report and is never the source of advice: where a curve falls, records carry it on.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.optimize
import scipy.special

from isocompute_jax.fit.configurations import Configuration, ConfigurationRuns, average_seeds, clusters, rollouts_at
from isocompute_jax.fit.curves.fitting import CurveFit, fit_curves, flat_curves, record_breaking
from isocompute_jax.fit.curves.scalerl import grid_fit
from isocompute_jax.fit.plain_data import inline

if TYPE_CHECKING:
    from isocompute_jax.fit.options import AnalysisOptions

SLOPE_RANGE, MIDPOINT_MARGIN = (0.1, 100.0), 1.0
"""Bounds of the slope k, per decade, and decades that the midpoint may leave the data by (ranges of them in steps)."""
STARTS = 3
"""Cells of a coarse grid of midpoint and slope that the search starts from."""
SATURATION_MARGIN = 0.25
"""Octaves by which the saturation value may exceed the largest n* seen before it counts as an extrapolation."""
FLOOR_MARGIN = 1.0
"""Octaves by which the floor may leave the n* seen before it counts as one: group sizes are swept in octaves."""
NUM_PARAMETERS, MAX_OCTAVES = 4, 1000.0  # 2^1024 overflows
LawStatus = Literal["ok", "warning", "extrapolated", "failed"]
LawDoubt = Literal[
    "no budgets",
    "one level",  # n* is the same everywhere: the level is the floor, and there is no sigmoid
    "two levels",  # the smoothing sets the slope
    "few budgets",  # no more than parameters
    "at a bound",  # midpoint or slope
    "ends at the largest n",  # a larger one might lead
    "does not rise",
    "midpoint outside",  # of the data: floor or saturation value is an extrapolation
    "floor outside",  # of the n* seen
    "saturation outside",  # beyond the largest n* seen
]
_EXTRAPOLATED = ("midpoint outside", "floor outside", "saturation outside")

SCAN_POINTS = 512
"""Points per pair of curves that are scanned for a change of sign before the root is polished."""
CROSSING_TOLERANCE = 1e-9
"""Two curves cross at a switch when their rewards there differ by less than this share of their levels; otherwise a
range ends there."""
BUDGETS, SMOOTHING = 33, 5
"""Budgets at which n*(C) is read off, even in log C, and how many of them its running average takes: the paper prints
neither."""

_Stretch = tuple[int, float, float]
"""Number of a configuration, and the compute from which to which its curve is the best."""
Points = tuple[np.ndarray, np.ndarray]
"""Compute and reward."""


@dataclasses.dataclass(frozen=True)
class Switch:
    """The compute at which the frontier passes from one configuration to another."""

    compute: float
    before: Configuration = dataclasses.field(metadata=inline("from_"))  # the best up to there
    after: Configuration = dataclasses.field(metadata=inline("to_"))  # the best from there
    reward: float  # fitted, of the new configuration there
    epochs: float  # compute / (n D) of the configuration that is left; NaN when D is unknown
    cause: Literal["crossing", "range"]  # `range`: data begin or end there, which says nothing about n


@dataclasses.dataclass(frozen=True, eq=False)
class Frontier:
    """The upper envelope over configurations, and what it was made of."""

    configurations: tuple[Configuration, ...]  # [K]
    fits: tuple[CurveFit, ...]  # [K]
    segments: tuple[tuple[Configuration, float, float], ...]  # the best one, from a compute to another, in order
    switches: tuple[Switch, ...]
    # Of `paper_frontier` alone:
    records: tuple[Points, ...] = ()  # [K] the evaluations that each curve was fitted to
    allocation: AllocationFit | None = None  # the sigmoid of n*(C); None where an n is unknown, or nothing rises
    grid: tuple[CurveFit, ...] = ()  # [K] by ScaleRL's grid, if asked for

    def leader_at(self, compute: float) -> Configuration | None:
        """The best configuration at `compute`; at a switch the new one; None outside every window."""
        for configuration, start, end in reversed(self.segments):
            if start <= compute <= end:
                return configuration
        return None


def paper_frontier(
    groups: Sequence[ConfigurationRuns], metric: str, options: AnalysisOptions, *, smoothing: int = SMOOTHING
) -> Frontier | None:
    """The whole analysis; None unless some curve could be fitted.

    Args:
      groups: the runs of each configuration; their seeds are averaged, or pooled where they were evaluated elsewhere.
      metric: which reward.
      options: of the fits, and `bin_width`, the width of the bins as a share of the range of rewards.
      smoothing: how many neighbouring budgets the running average of n*(C) takes; odd.
    """
    curves = [curve for group in groups if (curve := average_seeds(group, metric)) is not None]
    if not curves:
        return None
    use = [_points_to_fit(c.compute, c.reward, bin_width=options.bin_width * options.width) for c in curves]
    compute, reward = [c.compute for c in curves], [c.reward for c in curves]
    fits = fit_curves(compute, reward, use=use, options=options.fit)
    known = [i for i, fit in enumerate(fits) if fit.status != "failed"]
    if not known:
        return None
    # Records rise by their making: whether a curve does is a question to all of its evaluations.
    flat = flat_curves([compute[i] for i in known], [reward[i] for i in known], options=options.fit)
    for i in (i for i, is_flat in zip(known, flat, strict=True) if is_flat):
        fits[i] = _without_rise(fits[i])
    configurations = tuple(curve.configuration for curve in curves)
    by_name = {group.configuration: group for group in groups}

    def rollouts(number: int, at: float) -> float:
        return rollouts_at(by_name[configurations[number]], at)

    unit = options.read.compute
    found = frontier(fits, configurations, rollouts=None if unit == "rollouts" else rollouts)
    grid: tuple[CurveFit, ...] = ()
    if options.grid is not None and len(known) == len(fits):
        grid = tuple(grid_fit(compute, reward, use=use, grid=options.grid, options=options.fit))
    return dataclasses.replace(
        found,
        records=tuple((c[kept], r[kept]) for c, r, kept in zip(compute, reward, use, strict=True)),
        allocation=None if flat.all() else _allocation(found, smoothing),
        grid=grid,
    )


def _without_rise(fit: CurveFit) -> CurveFit:
    """The fit with the doubt that it is flat, and nothing identified."""
    doubts = fit.doubts if "flat" in fit.doubts else ("flat", *fit.doubts)
    return dataclasses.replace(fit, status="warning", doubts=doubts, identified=dict.fromkeys(fit.params, False))


def _points_to_fit(compute: np.ndarray, reward: np.ndarray, *, bin_width: float) -> np.ndarray:
    """[E] bool: record-breaking points, or every point when fewer than two evaluations after the base model's count.

    The base model's evaluation is the first that later ones must exceed. A single record would make a flat curve at its
    luckiest evaluation.
    """
    keep = record_breaking(reward, bin_width=bin_width)
    return keep if np.count_nonzero(keep & (compute > 0)) >= 2 else np.ones_like(keep)


def _allocation(found: Frontier, smoothing: int) -> AllocationFit | None:
    """The sigmoid of n* along the frontier; None where an n is unknown or nothing leads."""
    if not found.segments or not all(each.group_size for each in found.configurations):
        return None
    budgets = np.geomspace(found.segments[0][1], found.segments[-1][2], BUDGETS)
    budgets[-1] = found.segments[-1][2]  # not beyond it by rounding
    leaders = [(at, leader.group_size) for at in budgets if (leader := found.leader_at(float(at))) is not None]
    at, sizes = np.array(leaders, float).T
    largest = float(max(each.group_size for each in found.configurations))
    return fit_allocation(at, sizes, window=smoothing, largest=largest)


def epochs(compute: float, *, group_size: int, problem_set_size: int) -> float:
    """Passes over the training problems: C / (n D) = M B_problem / D. NaN when n or D is unknown (0)."""
    return compute / (group_size * problem_set_size) if group_size and problem_set_size else float("nan")


def frontier(
    fits: Sequence[CurveFit],
    configurations: Sequence[Configuration],
    *,
    rollouts: Callable[[int, float], float] | None = None,
) -> Frontier:
    """The best configuration at each compute, every curve used only inside its window (arXiv 2603.12151).

    Windows that end within `SAME_COMPUTE` of each other are cut to the first of these ends, and likewise at the
    beginning: runs of one budget never stop at exactly the same compute, and the last to stop has not thereby won.
    Between two neighbours among all window ends and all pairwise crossings the order of the curves cannot change, so
    one comparison settles each such stretch. Of equal curves the smaller group size is taken. Failed fits are left out.

    Args:
      fits: [K] curves.
      configurations: [K] what they belong to.
      rollouts: (configuration number, compute) -> rollouts, for epochs when the unit of compute is another.
    """
    order = sorted(range(len(fits)), key=lambda i: (configurations[i].group_size, configurations[i].problems_per_batch))
    given, fits = tuple(fits), _aligned(fits)
    usable = [i for i in order if fits[i].status != "failed" and fits[i].window[0] < fits[i].window[1]]
    candidates = _contenders(usable, fits)
    cuts = sorted({end for i in candidates for end in fits[i].window} | _all_crossings([fits[i] for i in candidates]))
    stretches: list[_Stretch] = []
    for start, end in itertools.pairwise(cuts):
        best = _best_at(np.sqrt(start * end), candidates, fits)
        if best is None:
            continue
        if stretches and stretches[-1][0] == best and stretches[-1][2] == start:
            start = stretches.pop()[1]
        stretches.append((best, float(start), float(end)))
    switches = tuple(
        _switch(before, after, fits, configurations, rollouts)
        for before, after in itertools.pairwise(stretches)
        if before[0] != after[0]
    )
    segments = tuple((configurations[best], start, end) for best, start, end in stretches)
    return Frontier(tuple(configurations), given, segments, switches)


def _aligned(fits: Sequence[CurveFit]) -> list[CurveFit]:
    """The fits with windows that begin and end together where they nearly do (`configurations.SAME_COMPUTE`)."""
    known = [fit for fit in fits if fit.status != "failed"]
    starts = {value: group[-1] for group in clusters([fit.window[0] for fit in known]) for value in group}
    ends = {value: group[0] for group in clusters([fit.window[1] for fit in known]) for value in group}
    found = []
    for fit in fits:
        start, end = starts.get(fit.window[0], 0.0), ends.get(fit.window[1], 0.0)
        found.append(dataclasses.replace(fit, window=(start, end)) if start < end else fit)
    return found


def _contenders(candidates: Sequence[int], fits: Sequence[CurveFit]) -> list[int]:
    """The curves that may be on the envelope somewhere: the others need not be crossed with all the rest.

    A curve is left out when at every point of a dense grid it lies further below the best one than two curves can
    approach each other between neighbouring points.
    """
    if not candidates:
        return []
    ends = np.array([fits[i].window for i in candidates])
    grid = np.unique(np.concatenate([np.geomspace(ends[:, 0].min(), ends[:, 1].max(), 4 * SCAN_POINTS), ends.ravel()]))
    rewards = np.array([fits[i].reward(grid) for i in candidates])
    inside = (grid >= ends[:, :1]) & (grid <= ends[:, 1:])
    approach = 2.0 * np.abs(np.diff(rewards, axis=1)[inside[:, 1:] & inside[:, :-1]]).max()
    best = np.where(inside, rewards, -np.inf).max(axis=0)
    behind = np.where(inside, best - rewards, np.inf).min(axis=1)
    return [i for i, gap in zip(candidates, behind, strict=True) if gap <= approach]


def _best_at(compute: float, candidates: Sequence[int], fits: Sequence[CurveFit]) -> int | None:
    """The candidate with the highest curve at `compute`, the first of equals; None when no window holds it."""
    inside = [i for i in candidates if fits[i].window[0] <= compute <= fits[i].window[1]]
    return max(inside, key=lambda i: float(fits[i].reward(compute)), default=None)


def _all_crossings(fits: Sequence[CurveFit]) -> set[float]:
    """Computes at which any two curves meet inside both windows."""
    return {root for i, one in enumerate(fits) for other in fits[i + 1 :] for root in _crossings(one, other)}


def _crossings(one: CurveFit, other: CurveFit) -> list[float]:
    """Roots of the difference of two curves in ln C, bracketed by a scan and polished to rounding by Brent's method."""
    low, high = max(one.window[0], other.window[0]), min(one.window[1], other.window[1])
    if not low < high:
        return []

    def gap(log_compute: np.ndarray | float) -> np.ndarray:
        compute = np.exp(log_compute)
        return one.reward(compute) - other.reward(compute)

    grid = np.linspace(np.log(low), np.log(high), SCAN_POINTS)
    sign = np.sign(gap(grid))
    if not sign.any():
        return []
    roots = [float(np.exp(x)) for x in grid[sign == 0]]
    for i in np.flatnonzero(sign[:-1] * sign[1:] < 0):
        root = scipy.optimize.brentq(gap, grid[i], grid[i + 1], xtol=1e-15, rtol=4 * np.finfo(float).eps)
        roots.append(float(np.exp(typing.cast(float, root))))
    return roots


def _switch(
    before: _Stretch,
    after: _Stretch,
    fits: Sequence[CurveFit],
    configurations: Sequence[Configuration],
    rollouts: Callable[[int, float], float] | None,
) -> Switch:
    (old, _, end), (new, compute, _) = before, after
    level = max(abs(float(fits[i].reward(edge))) for i in (old, new) for edge in fits[i].window)
    reward = float(fits[new].reward(compute))
    step = abs(float(fits[old].reward(compute)) - reward)
    spent = rollouts(old, compute) if rollouts else compute
    left = configurations[old]
    return Switch(
        compute=compute,
        before=left,
        after=configurations[new],
        reward=reward,
        epochs=epochs(spent, group_size=left.group_size, problem_set_size=left.problem_set_size),
        cause="crossing" if end == compute and step < CROSSING_TOLERANCE * level else "range",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class AllocationFit:
    """The law log2 n* = span / (1 + exp(-slope (x - midpoint))) + floor, and n* as it was fitted."""

    axis: Literal["compute", "steps"]  # x = log10 C, or x = M for sweeps at a fixed number of rollouts per step
    span: float  # L, octaves that n* rises by
    slope: float  # k, per decade of compute, or per step
    midpoint: float  # log10 C0, decades; or M0, steps
    floor: float  # b, log2 of n* at small compute
    saturation: float  # 2^(span + floor), the n* of unlimited compute
    compute: np.ndarray  # [P] rollouts, or steps
    group_size: np.ndarray  # [P] n* read off the frontier
    smoothed: np.ndarray  # [P] n* after the running average (of log2 n*)
    status: LawStatus  # `warning`: the data cannot carry it; `extrapolated`: part of it lies outside of them
    doubts: tuple[LawDoubt, ...]

    def written(self) -> dict[str, Any]:
        """See `plain_data`: the law without the n* that it was fitted to."""
        law = {name: getattr(self, name) for name in ("span", "slope", "midpoint", "floor")}
        return {"law": law} | {name: getattr(self, name) for name in ("axis", "saturation", "status", "doubts")}

    def optimal_group_size(self, compute: np.ndarray | float) -> np.ndarray:
        """n* of the law at `compute` (> 0; rollouts or steps, see `axis`)."""
        x = np.log10(compute) if self.axis == "compute" else np.asarray(compute, np.float64)
        with np.errstate(over="ignore"):
            return 2.0 ** (self.span / (1.0 + np.exp(-self.slope * (x - self.midpoint))) + self.floor)


def running_average(values: np.ndarray, *, window: int) -> np.ndarray:
    """[P] centred mean over `window` (odd) neighbours; near the ends the window shrinks on both sides alike.

    A one-sided window would pull the ends towards the middle and move the saturation value.
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window = {window} must be odd and at least 1")
    values = np.asarray(values, dtype=np.float64)
    reach = [min(window // 2, i, len(values) - 1 - i) for i in range(len(values))]
    return np.array([values[i - r : i + r + 1].mean() for i, r in enumerate(reach)])


def fit_allocation(
    compute: np.ndarray,
    group_size: np.ndarray,
    *,
    window: int = 1,
    axis: Literal["compute", "steps"] = "compute",
    largest: float = math.inf,
) -> AllocationFit:
    """Fits the law by least squares in log2 n* (arXiv 2603.12151).

    Args:
      compute: [P] rollouts (or steps), > 0, increasing.
      group_size: [P] n* at those computes, before smoothing.
      window: length of the running average of log2 n* that is fitted; 1 for none. Odd.
      axis: `compute`, or `steps` for the same form in linear M, as in the study at fixed rollouts per step.
      largest: the largest n that was run: where n* reaches it, nothing larger could have led.
    """
    compute, group_size = np.asarray(compute, np.float64), np.asarray(group_size, np.float64)
    smoothed = 2.0 ** running_average(np.log2(group_size), window=window)
    if len(np.unique(group_size)) < 2:
        level = float(group_size[0]) if len(group_size) else math.nan
        values = (0.0 if len(group_size) else math.nan, math.nan, math.nan, math.log2(level), level)
        doubt: LawDoubt = "one level" if len(group_size) else "no budgets"
        status = "warning" if len(group_size) else "failed"
        return AllocationFit(axis, *values, compute, group_size, smoothed, status, (doubt,))
    x = np.log10(compute) if axis == "compute" else compute
    unit = 1.0 if axis == "compute" else float(np.ptp(x)) or 1.0
    (low, high, midpoint, log_slope), at_bound = _search(x / unit, np.log2(smoothed))
    values = (high - low, math.exp(log_slope) / unit, midpoint * unit, low, 2.0 ** min(high, MAX_OCTAVES))
    fit = AllocationFit(axis, *values, compute, group_size, smoothed, "ok", ())
    doubts = _doubts(fit, at_bound=at_bound, largest=largest)
    status = "extrapolated" if set(doubts) & set(_EXTRAPOLATED) else "warning" if doubts else "ok"
    return dataclasses.replace(fit, status=status, doubts=doubts)


def _search(x: np.ndarray, octaves: np.ndarray) -> tuple[tuple[float, ...], bool]:
    """(low, high, midpoint, ln slope) of the least-squares sigmoid, and whether midpoint or slope stands at a bound."""
    lower = np.array([x.min() - MIDPOINT_MARGIN, math.log(SLOPE_RANGE[0])])
    upper = np.array([x.max() + MIDPOINT_MARGIN, math.log(SLOPE_RANGE[1])])

    def levels(shape: np.ndarray) -> tuple[np.ndarray, float, float]:
        """The share of the rise [P], and the low and the rise that are best with it, in closed form."""
        share = scipy.special.expit(np.exp(shape[1]) * (x - shape[0]))
        around = share - share.mean()
        squares = around @ around
        rise = around @ octaves / squares if squares > 0 else 0.0
        return share, octaves.mean() - rise * share.mean(), rise

    def residual(shape: np.ndarray) -> np.ndarray:
        share, low, rise = levels(shape)
        return low + rise * share - octaves

    cells = np.stack(np.meshgrid(np.linspace(x.min(), x.max(), 20), np.linspace(0.0, math.log(30.0), 10)), axis=-1)
    starts = sorted(cells.reshape(-1, 2), key=lambda shape: float(np.square(residual(shape)).sum()))[:STARTS]
    found = [
        scipy.optimize.least_squares(
            residual, start, "3-point", (lower, upper), "dogbox", xtol=1e-12, ftol=1e-14, gtol=1e-14
        )
        for start in starts
    ]
    shape = min(found, key=lambda each: each.cost).x
    _, low, rise = levels(shape)
    return (low, low + rise, *shape.tolist()), bool(np.any((shape <= lower) | (shape >= upper)))


def _doubts(fit: AllocationFit, *, at_bound: bool, largest: float) -> tuple[LawDoubt, ...]:
    """What speaks against the law; empty when nothing does."""
    ends = fit.compute[[0, -1]] if fit.axis == "steps" else np.log10(fit.compute[[0, -1]])
    least, most = np.log2(fit.group_size.min()), np.log2(fit.group_size.max())
    beyond = fit.span > 0 and fit.midpoint <= ends[1] and fit.saturation > 2 ** (most + SATURATION_MARGIN)
    found: dict[LawDoubt, bool] = {
        "two levels": len(np.unique(fit.group_size)) == 2,
        "few budgets": len(fit.compute) <= NUM_PARAMETERS,
        "at a bound": at_bound,
        "ends at the largest n": bool(fit.group_size[-1] >= largest and fit.span > 0),
        "does not rise": fit.span <= 0,
        "midpoint outside": not ends[0] <= fit.midpoint <= ends[1],
        "floor outside": not least - FLOOR_MARGIN <= fit.floor <= most + FLOOR_MARGIN,
        "saturation outside": beyond,
    }
    return tuple(doubt for doubt, holds in found.items() if holds)
