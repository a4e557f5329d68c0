"""The compute-optimal frontier: the upper envelope over configurations, with exact switch points."""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Callable, Sequence

import numpy as np
import scipy.optimize

from isocompute_jax.fit.curves.seeds import SAME_COMPUTE, clusters
from isocompute_jax.fit.results import Configuration, CurveFit, Frontier, Segment, Switch

SCAN_POINTS = 512
"""Points per pair of curves that are scanned for a change of sign before the root is polished."""

REACH = 2.0
"""A fitted curve is carried on to so many times its own data."""

CROSSING_TOLERANCE = 1e-9
"""Two curves cross at a switch when their rewards there differ by less than this share of their levels; otherwise a
range ends there."""


_Stretch = tuple[int, float, float]
"""Number of a configuration, and the compute from which to which its curve is the best."""


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
    fits = aligned(fits)
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
    segments = tuple(Segment(configurations[best], start, end) for best, start, end in stretches)
    switches = tuple(
        _switch(before, after, fits, configurations, rollouts)
        for before, after in itertools.pairwise(stretches)
        if before[0] != after[0]
    )
    return Frontier(segments, switches)


def aligned(fits: Sequence[CurveFit]) -> list[CurveFit]:
    """The fits with windows that begin and end together where they nearly do (see `SAME_COMPUTE`)."""
    known = [fit for fit in fits if fit.status != "failed"]
    starts = _together([fit.window[0] for fit in known], latest=True)
    ends = _together([fit.window[1] for fit in known], latest=False)
    cut = {id(fit): (start, end) for fit, start, end in zip(known, starts, ends, strict=True)}
    windows = [cut.get(id(fit), fit.window) for fit in fits]
    return [
        fit if not start < end else dataclasses.replace(fit, window=(start, end))
        for fit, (start, end) in zip(fits, windows, strict=True)
    ]


def _together(values: Sequence[float], *, latest: bool) -> list[float]:
    """Each value replaced by the latest or the earliest of its cluster of values within `SAME_COMPUTE`."""
    stands = {value: cluster[-1 if latest else 0] for cluster in clusters(values) for value in cluster}
    return [stands[value] for value in values]


def carried(fits: Sequence[CurveFit], compute: float) -> dict[int, float]:
    """number -> where each fitted curve is read for a budget of `compute`: there, or where it is held.

    A curve is carried on to at most `REACH` times its own data, and never past a peak. Beyond that it is held, for
    stopping early is always open: whoever was run for less stays a candidate, and nobody leads by having been run
    longer.
    """
    known = [(i, fit) for i, fit in enumerate(fits) if fit.status != "failed"]
    return {i: min(compute, fit.window[1] * (1.0 if fit.fall else REACH)) for i, fit in known}


def leader(
    fits: Sequence[CurveFit], configurations: Sequence[Configuration], compute: float, *, reached: Sequence[float]
) -> int | None:
    """Number of the highest curve for a budget of `compute` (see `carried`), of equals that of the smaller n.

    Whoever was run to the budget, and whose curve ends before it, has shown that it does not lead there: where it would
    best have been stopped is known afterwards alone. Such curves lead only among themselves. None without a curve.

    Args:
      fits: [K] curves.
      configurations: [K] what they belong to.
      compute: the budget.
      reached: [K] compute that each was run to.
    """
    at = carried(fits, compute)
    ended = {i for i in at if fits[i].window[1] * (1 + SAME_COMPUTE) < min(compute, reached[i])}
    alive = [i for i in at if i not in ended and fits[i].reaches(compute)] or list(at)
    return max(alive, key=lambda i: (float(fits[i].reward(at[i])), -configurations[i].group_size), default=None)


def data_end(fits: Sequence[CurveFit]) -> float:
    """The largest compute that a curve was fitted to."""
    return max(fit.window[1] for fit in fits if fit.status != "failed")


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
    (old, first, end), (new, compute, last) = before, after
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
        span=(first, last),
        cause="crossing" if end == compute and step < CROSSING_TOLERANCE * level else "range",
    )
