"""Laws of n* along the frontier: where its sigmoid saturates, and what shape n*(M) has at fixed rollouts per step.

The sigmoid of `fit_allocation` asks where n* saturates, so both of its levels are fitted; `fit_steps_law` asks which
shape n* has, and a sigmoid with free levels would beat a line by its two further parameters alone: there every shape
lies between the smallest and the largest n that was run, and has two.

The IsoCompute Playbook (arXiv 2603.12151) draws a sigmoid of n*(M). n* is read off a grid that ends at a smallest and a
largest n, and whatever rises is flat beyond them, so a straight line that is cut off there looks like a sigmoid too.
Three shapes with two free parameters each are therefore laid over log2 n* [P] against x = log2 M:

    line       log2 n* = a + b x
    cut line   log2 n* = clip(lo + (hi - lo) (1/2 + k (x - m) / 4), lo, hi)
    sigmoid    log2 n* = lo + (hi - lo) / (1 + exp(-k (x - m))),

with lo and hi the smallest and the largest n that was run, so that the last two have one slope at the midpoint m. Their
AICc is that of Gaussian residuals whose variance is at least 1/12 of a squared grid step: no n between two that were
run can lead, and closer than that nothing is told. Neighbouring budgets are no independent evidence, so AICc alone
settles nothing: the bootstrap's replicates of n*(M) are fitted too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from isocompute_jax.fit.curves.fit_options import padded_points
from isocompute_jax.fit.curves.forms import Share
from isocompute_jax.fit.curves.solver import CurveBatch, RisingFit, fit_rising
from isocompute_jax.fit.frontier.bootstrap import percentile_interval
from isocompute_jax.fit.results import SOME_AICC, SURE, AllocationFit

SLOPE_RANGE = (0.1, 100.0)
"""Bounds of the slope k, per decade of compute (per range of the data in steps)."""

MIDPOINT_MARGIN = 1.0
"""The midpoint is searched from one decade (one range of the data) before the data to one after."""

SATURATION_MARGIN = 0.25
"""Octaves by which the saturation value may exceed the largest n* seen before it counts as an extrapolation."""

FLOOR_MARGIN = 1.0
"""Octaves by which the floor may leave the n* seen before it counts as one: group sizes are swept in octaves."""

NUM_PARAMETERS = 4
MAX_OCTAVES = 1000.0  # 2^1024 overflows
LEAST_SHARE = 0.5
"""Intervals are given when at least this share of the replicates has a rising n*."""

Shape = Literal["line", "cut line", "sigmoid"]
STEPS_SLOPES = (0.05, 50.0)
"""Bounds of k, per octave of M."""
_GRID = (241, 61)
_POLISH = 4


def running_average(values: np.ndarray, *, window: int) -> np.ndarray:
    """[..., P] centred mean over `window` (odd) neighbours; near the ends the window shrinks on both sides alike.

    A one-sided window would pull the ends towards the middle and move the saturation value.
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window = {window} must be odd and at least 1")
    values = np.asarray(values, dtype=np.float64)
    count = values.shape[-1]
    reach = [min(window // 2, i, count - 1 - i) for i in range(count)]
    means = [values[..., i - r : i + r + 1].mean(axis=-1) for i, r in enumerate(reach)]
    return np.stack(means, axis=-1) if means else values


def fit_allocation(
    compute: np.ndarray,
    group_size: np.ndarray,
    *,
    window: int = 1,
    axis: Literal["compute", "steps"] = "compute",
    replicates: np.ndarray | None = None,
    largest: float = math.inf,
) -> AllocationFit:
    """Fits log2 n* = L / (1 + exp(-k (log10 C - log10 C0))) + b (arXiv 2603.12151).

    Args:
      compute: [P] rollouts (or steps), > 0, increasing.
      group_size: [P] n* at those computes, before smoothing.
      window: length of the running average of log2 n* that is fitted; 1 for none. Odd.
      axis: `compute`, or `steps` for the same form in linear M, as in the study at fixed rollouts per step.
      replicates: [R, P] n* of bootstrap replicates at the same computes, NaN where one has none; for the intervals.
      largest: the largest n that was run: where n* reaches it, nothing larger could have led.

    Returns:
      The law with n* saturating at 2^(L + b). Its status is `extrapolated`, with the reason, when its midpoint lies
      outside of the data, its floor more than `FLOOR_MARGIN` outside of the n* seen, or its saturation value more than
      `SATURATION_MARGIN` above them. It is `warning` when the data cannot carry four parameters: one level, a single
      step between two levels, few points, a bound hit, or an n* that ends at the largest n that was run.
    """
    compute = np.asarray(compute, dtype=np.float64)
    group_size = np.asarray(group_size, dtype=np.float64)
    smoothed = 2.0 ** running_average(np.log2(group_size), window=window)
    if len(np.unique(group_size)) < 2:
        return _constant(compute, group_size, smoothed, axis)
    unit, found, (lower, upper) = _fit_laws(compute, smoothed[None], axis)
    values = _laws(unit, found)[0]
    fit = AllocationFit(
        axis=axis,
        **dict(zip(PARAMETERS, map(float, values), strict=True)),
        compute=compute,
        group_size=group_size,
        smoothed=smoothed,
        status="ok",
        message="",
        interval95={} if replicates is None else _intervals(values, compute, replicates, window=window, axis=axis),
    )
    doubts = _doubts(fit, at_bound=((found.theta <= lower) | (found.theta >= upper))[0], largest=largest)
    unseen = _unseen(fit)
    if not (doubts or unseen):
        return fit
    status = "extrapolated" if unseen else "warning"
    return dataclasses.replace(fit, status=status, message="; ".join(doubts + unseen))


PARAMETERS = ("span", "slope", "midpoint", "floor", "saturation")


def _fit_laws(
    compute: np.ndarray, group_size: np.ndarray, axis: str
) -> tuple[float, RisingFit, tuple[np.ndarray, np.ndarray]]:
    """One law for each row of `group_size` [R, P]: the unit of x, the fits in that unit, and the bounds of theta."""
    x = np.log10(compute) if axis == "compute" else compute
    unit = 1.0 if axis == "compute" else float(np.ptp(x)) or 1.0
    x = np.tile(x / unit, (len(group_size), 1))
    pad = ((0, 0), (0, padded_points(x.shape[1]) - x.shape[1]))
    rows = np.ones((len(x), 1))
    lower = rows * [x.min() - MIDPOINT_MARGIN, math.log(SLOPE_RANGE[0])]
    upper = rows * [x.max() + MIDPOINT_MARGIN, math.log(SLOPE_RANGE[1])]
    problem = CurveBatch(
        x=np.pad(x, pad),
        y=np.pad(np.log2(group_size), pad),
        root_weight=np.pad(np.ones_like(x), pad),
        rho=np.zeros(len(x)),
        levels=rows * [-np.inf, np.inf, -np.inf, np.inf],
        lower=lower,
        upper=upper,
    )
    first, last = rows * [x.min(), 0.0], rows * [x.max(), math.log(30.0)]
    return unit, fit_rising(problem, share=Share(), first=first, last=last, ordered=False), (lower, upper)


def _laws(unit: float, found: RisingFit) -> np.ndarray:
    """[R, 5]: `PARAMETERS` of each law."""
    midpoint, slope = found.theta[:, 0] * unit, np.exp(found.theta[:, 1]) / unit
    saturation = 2.0 ** np.minimum(found.high, MAX_OCTAVES)
    return np.stack([found.high - found.low, slope, midpoint, found.low, saturation], axis=1)


def _intervals(
    values: np.ndarray, compute: np.ndarray, replicates: np.ndarray, *, window: int, axis: str
) -> dict[str, tuple[float, float]]:
    """95% percentile intervals over the replicates that have at least two levels; none when too few have.

    A parameter has none where it would not hold its value, or would end where no replicate shows anything: at a bound
    of the search, or at an n beyond those seen.
    """
    whole = replicates[np.isfinite(replicates).all(axis=1)]
    rising = whole[np.ptp(whole, axis=1) > 0] if len(whole) else whole
    if not _enough(len(rising), len(replicates)):
        return {}
    octaves = np.log2(rising)
    unit, found, bounds = _fit_laws(compute, 2.0 ** running_average(octaves, window=window), axis)
    ends = {
        name: percentile_interval(draws, value)
        for name, draws, value in zip(PARAMETERS, _laws(unit, found).T, values, strict=True)
    }
    least, most = octaves.min() - FLOOR_MARGIN, octaves.max() + SATURATION_MARGIN
    limits = {
        "midpoint": tuple(unit * end[0, 0] for end in bounds),
        "slope": tuple(math.exp(end[0, 1]) / unit for end in bounds),
        "floor": (least, math.inf),
        "saturation": (0.0, 2.0**most),
        "span": (-math.inf, most - least),
    }
    return {name: (low, high) for name, (low, high) in ends.items() if limits[name][0] < low and high < limits[name][1]}


def _enough(rising: int, replicates: int) -> bool:
    """Whether so many of the replicates have a rising n* that an interval can be made of them."""
    return rising >= max(2, LEAST_SHARE * replicates)


def _constant(
    compute: np.ndarray, group_size: np.ndarray, smoothed: np.ndarray, axis: Literal["compute", "steps"]
) -> AllocationFit:
    nan = math.nan
    if len(group_size) == 0:
        message = "no compute at which a configuration is on the frontier"
        return AllocationFit(axis, nan, nan, nan, nan, nan, compute, group_size, smoothed, "failed", message)
    level = float(group_size[0])
    message = f"n* is {level:g} at every budget: one level, to which no sigmoid can be fitted"
    floor = math.log2(level)
    return AllocationFit(axis, 0.0, nan, nan, floor, level, compute, group_size, smoothed, "warning", message)


def _doubts(fit: AllocationFit, *, at_bound: np.ndarray, largest: float) -> list[str]:
    """Why the law should not be believed; empty when nothing speaks against it. `at_bound`: [2] midpoint, slope."""
    levels = np.unique(fit.group_size)
    changes = int(np.count_nonzero(np.diff(fit.group_size)))
    reasons = []
    if len(levels) == 2:
        shape = "a single step" if changes == 1 else f"{changes} changes"
        reasons.append(
            f"n* takes two levels only ({levels[0]:g} and {levels[1]:g}, {shape}): "
            "the slope is set by the smoothing, and the saturation value by the larger level"
        )
    if len(fit.compute) <= NUM_PARAMETERS:
        reasons.append(f"{len(fit.compute)} budgets for {NUM_PARAMETERS} parameters")
    reasons += [f"the {name} is at its bound" for name, hit in zip(("midpoint", "slope"), at_bound, strict=True) if hit]
    if fit.group_size[-1] >= largest and fit.span > 0:
        reasons.append(f"n* ends at {largest:g}, the largest n that was run, so a larger one might lead")
    if fit.span <= 0:
        reasons.append(f"n* does not rise with {fit.axis}")
    return reasons


def _unseen(fit: AllocationFit) -> list[str]:
    """What the law says of budgets and n that the data do not show; a law of which that is much describes no data."""
    ends = fit.compute[[0, -1]] if fit.axis == "steps" else np.log10(fit.compute[[0, -1]])
    least, most = np.log2(fit.group_size.min()), np.log2(fit.group_size.max())
    reasons = []
    if fit.midpoint > ends[1]:
        reasons.append("the data end before the midpoint of the rise: the saturation value is an extrapolation")
    elif fit.midpoint < ends[0]:
        reasons.append("the data begin after the midpoint of the rise: the floor is an extrapolation")
    if not least - FLOOR_MARGIN <= fit.floor <= most + FLOOR_MARGIN:
        seen, floor = f"{2**least:g} to {2**most:g}", 2.0 ** min(fit.floor, MAX_OCTAVES)
        reasons.append(f"the floor, n = {floor:.3g}, lies far outside of the n* seen ({seen}): an extrapolation")
    if fit.span > 0 and fit.midpoint <= ends[1] and fit.saturation > 2 ** (most + SATURATION_MARGIN):
        reasons.append(
            f"the fitted value, n = {fit.saturation:.3g}, lies beyond the largest n* seen ({2**most:g}): "
            "an extrapolation"
        )
    return reasons


@dataclasses.dataclass(frozen=True, eq=False)
class StepsLaw:
    """The shape of n*(M) at one number of rollouts per step."""

    steps: np.ndarray  # [P] M, increasing
    group_size: np.ndarray  # [P] n*
    sizes: tuple[int, ...]  # the n that were run
    aicc: Mapping[str, float]  # of each shape
    line: tuple[float, float]  # a and b of the straight line
    bounded: Mapping[str, tuple[float, float]]  # sigmoid, or cut line -> its m, log2 of steps, and k, per octave of M
    # of the sigmoid, steps, over the replicates whose n* rises; None without a bootstrap, or where few do
    midpoint95: tuple[float, float] | None
    # line, or cut line -> share of replicates in which the sigmoid's AICc is lower; empty without a bootstrap
    shares: Mapping[str, float]

    def ahead(self, of: Shape) -> float:
        """AICc of another shape less that of the sigmoid: above 0 where the sigmoid is better."""
        return self.aicc[of] - self.aicc["sigmoid"]

    def against(self, other: Shape) -> Literal["better", "worse", "open"]:
        """What the sigmoid is: `open` unless AICc differs by more than 2 and 95% of replicates have the same order."""
        ahead, share = self.ahead(other), self.shares.get(other, math.nan)
        if ahead > SOME_AICC and share >= SURE:
            return "better"
        return "worse" if ahead < -SOME_AICC and 1.0 - share >= SURE else "open"

    @property
    def at_ends(self) -> int:
        """Budgets at which n* is the smallest or the largest n that was run."""
        return int(np.isin(self.group_size, (self.sizes[0], self.sizes[-1])).sum())

    def octaves(self, shape: Shape, steps: np.ndarray) -> np.ndarray:
        """log2 n* of a shape at `steps`."""
        x = np.log2(steps)
        if shape == "line":
            return self.line[0] + self.line[1] * x
        place, slope = np.array(self.bounded[shape]).reshape(2, 1)
        return _curves(shape, place, slope, x, np.log2(self.sizes))[0]

    @property
    def midpoint(self) -> float:
        """M at the sigmoid's half."""
        return 2.0 ** self.bounded["sigmoid"][0]


def fit_steps_law(
    steps: np.ndarray, group_size: np.ndarray, *, sizes: Sequence[int], replicates: np.ndarray | None = None
) -> StepsLaw:
    """Fits the three shapes.

    Args:
      steps: [P] M, increasing, P of 5 or more.
      group_size: [P] n* at those steps.
      sizes: the n that were run, two or more.
      replicates: [R, P] n* of bootstrap replicates at the same steps.

    Raises:
      ValueError: fewer points than an AICc of three parameters needs, or one n alone.
    """
    sizes = tuple(sorted(set(sizes)))
    if len(steps) < 5 or len(sizes) < 2:
        raise ValueError(f"{len(steps)} budgets and {len(sizes)} group sizes: 5 and 2 are the least")
    x = np.log2(np.asarray(steps, float))
    y = np.log2(np.vstack([group_size, *([] if replicates is None else replicates)]))
    least = float(np.diff(np.log2(sizes)).min()) ** 2 / 12.0
    line, squares = _straight(x, y)
    bounded: tuple[Shape, ...] = ("cut line", "sigmoid")
    found = {shape: _bounded(shape, x, y, np.log2(sizes)) for shape in bounded}
    sums = {"line": squares, **{shape: each[2] for shape, each in found.items()}}
    aicc = {shape: _aicc(each, len(x), least) for shape, each in sums.items()}
    place, rising = found["sigmoid"][0], line[1:, 1] > 0
    interval = None
    if _enough(int(rising.sum()), len(rising)):
        low, high = percentile_interval(place[1:][rising], float(place[0]))
        interval = None if np.isnan(low) else (2.0**low, 2.0**high)
    others = {other: aicc["sigmoid"][1:] < aicc[other][1:] for other in ("line", "cut line")}
    return StepsLaw(
        steps=np.asarray(steps, float),
        group_size=np.asarray(group_size),
        sizes=sizes,
        aicc={shape: float(aicc[shape][0]) for shape in aicc},
        line=(float(line[0, 0]), float(line[0, 1])),
        bounded={shape: (float(each[0][0]), float(each[1][0])) for shape, each in found.items()},
        midpoint95=interval,
        shares={} if replicates is None else {other: float(better.mean()) for other, better in others.items()},
    )


def _aicc(squares: np.ndarray, points: int, least: float) -> np.ndarray:
    """[R] of two parameters and a variance that is at least `least`."""
    variance = np.maximum(squares / points, least)
    return points * np.log(2 * np.pi * variance) + squares / variance + 2 * 3 + 2 * 3 * 4 / (points - 4)


def _straight(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[R, 2] a and b of the least-squares line through y [R, P], and [R] its sums of squares."""
    design = np.stack([np.ones_like(x), x], axis=1)
    found = np.linalg.lstsq(design, y.T, rcond=None)[0].T
    return found, ((y - found @ design.T) ** 2).sum(axis=1)


def _curves(shape: Shape, place: np.ndarray, slope: np.ndarray, x: np.ndarray, octaves: np.ndarray) -> np.ndarray:
    """[G, P] a bounded shape at x [P], for G places and slopes."""
    z = slope[:, None] * (x - place[:, None])
    share = np.clip(0.5 + z / 4, 0.0, 1.0) if shape == "cut line" else 0.5 * (1.0 + np.tanh(z / 2))
    return octaves[0] + (octaves[-1] - octaves[0]) * share


def _bounded(
    shape: Shape, x: np.ndarray, y: np.ndarray, octaves: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[R] places, slopes and sums of squares of a bounded shape through y [R, P]: a grid, made finer about its least.

    The midpoint is sought up to one range of the data beyond them.
    """
    span = float(np.ptp(x))
    places, slopes = np.linspace(x[0] - span, x[-1] + span, _GRID[0]), np.geomspace(*STEPS_SLOPES, _GRID[1])
    place, slope = (each.ravel() for each in np.meshgrid(places, slopes, indexing="ij"))
    curves = _curves(shape, place, slope, x, octaves)
    squares = (curves**2).sum(axis=1) - 2 * y @ curves.T + (y**2).sum(axis=1, keepdims=True)
    at = squares.argmin(axis=1)
    found = place[at], slope[at]
    steps = places[1] - places[0], math.log(slopes[1] / slopes[0])
    around = np.stack(np.meshgrid(np.linspace(-1, 1, 9), np.linspace(-1, 1, 9), indexing="ij"), axis=-1).reshape(-1, 2)
    least = np.empty(len(y))
    for r, row in enumerate(y):
        centre, width = np.array([found[0][r], math.log(found[1][r])]), np.array(steps)
        for _ in range(_POLISH):
            tried = centre + around * width
            tried[:, 1] = np.clip(tried[:, 1], *np.log(STEPS_SLOPES))
            errors = ((_curves(shape, tried[:, 0], np.exp(tried[:, 1]), x, octaves) - row) ** 2).sum(axis=1)
            centre, width = tried[errors.argmin()], width / 4
            least[r] = errors.min()
        found[0][r], found[1][r] = centre[0], math.exp(centre[1])
    return *found, least
