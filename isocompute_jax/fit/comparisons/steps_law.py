"""n*(M) at a fixed number of rollouts per step: is log n* against log M a sigmoid?

The IsoCompute Playbook (arXiv 2603.12151) draws one. n* is read off a grid that ends at a smallest and a largest n, and
whatever rises is flat beyond them, so a straight line that is cut off there looks like a sigmoid too. Three shapes with
two free parameters each are therefore laid over log2 n* [P] against x = log2 M:

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

from isocompute_jax.fit.comparisons.alike import fits_of, parts
from isocompute_jax.fit.comparisons.comparison import (
    Cell,
    ComparisonResult,
    DrawnSeries,
    Panel,
    Picture,
    Value,
    common_verdict,
)
from isocompute_jax.fit.comparisons.courses import replicate_leaders
from isocompute_jax.fit.intervals import percentile_interval
from isocompute_jax.fit.report.templating import answer
from isocompute_jax.fit.report.wording import amount, listed
from isocompute_jax.fit.results import SOME_AICC, SURE, SliceResult
from isocompute_jax.fit.sweep_results import SweepResult

Shape = Literal["line", "cut line", "sigmoid"]
SLOPES = (0.05, 50.0)
"""Bounds of k, per octave of M."""
MOST_PANELS = 6
_GRID = (241, 61)
_POLISH = 4
_LEAST_SIZES = 3


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
    if rising.sum() >= max(2, 0.5 * len(rising)):
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
    places, slopes = np.linspace(x[0] - span, x[-1] + span, _GRID[0]), np.geomspace(*SLOPES, _GRID[1])
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
            tried[:, 1] = np.clip(tried[:, 1], *np.log(SLOPES))
            errors = ((_curves(shape, tried[:, 0], np.exp(tried[:, 1]), x, octaves) - row) ** 2).sum(axis=1)
            centre, width = tried[errors.argmin()], width / 4
            least[r] = errors.min()
        found[0][r], found[1][r] = centre[0], math.exp(centre[1])
    return *found, least


def steps_laws(result: SweepResult) -> dict[str, StepsLaw]:
    """B = n B_problem, with a label of the part of the sweep -> n*(M) in that slice (`SweepResult.slices`).

    A slice can where its configurations differ in n and B_problem alone, have three n or more, and five budgets at
    which n* is told and moves.

    Args:
      result: of the analysis; curves are fitted, and resampled, as its options say.
    """
    slices = [each for each in result.slices_of("rollouts_per_step") if _shows(each)]
    laws = {}
    for part in parts(result.runs, "group_size", "problems_per_batch") if slices else []:
        names = {configuration.name for configuration in part.configurations}
        own = [each for each in slices if set(each.runs) <= names]
        if not own:
            continue
        ((main, resampled),) = fits_of(result, part, [result.metric])
        number = {curve.configuration.name: i for i, curve in enumerate(main.curves)}
        sizes = np.array([curve.configuration.group_size for curve in main.curves])
        for each in own:
            members = [number[run] for run in each.runs]
            if len(set(sizes[members])) < _LEAST_SIZES:
                continue
            compute = np.array([row.compute for row in each.budgets])
            drawn = replicate_leaders(main, resampled, members, compute)
            laws[f"{each.value}{part.label}"] = fit_steps_law(
                np.array([row.num_steps for row in each.budgets], float),
                np.array([row.group_size for row in each.budgets]),
                sizes=sizes[members].tolist(),
                replicates=None if drawn is None else sizes[drawn],
            )
    return laws


def _shows(part: SliceResult) -> bool:
    """Whether a slice has enough budgets."""
    known = all(row.num_steps is not None for row in part.budgets)
    return known and len({row.group_size for row in part.budgets}) > 1 and len(part.budgets) >= 5


def compare_shapes(result: SweepResult) -> list[ComparisonResult]:
    """One where a slice of fixed B has three n or more."""
    laws = steps_laws(result)
    if not laws:
        return []
    return [
        answer(
            result,
            "steps_law",
            verdict=common_verdict(law.against("line") for law in laws.values()),
            columns={
                "rollouts_per_step": "B", "sizes": "n run", "line_less_sigmoid": "AICc: line less sigmoid",
                "share_line": "replicates", "cut_line_less_sigmoid": "cut line less sigmoid",
                "share_cut_line": "replicates", "midpoint": "midpoint (steps), 95%",
                "at_ends": "budgets at an end of the n run",
            },
            rows=[_row(name, law) for name, law in laws.items()],
            series=[series for name, law in laws.items() for series in _series(name, law)],
            picture=Picture(
                Panel("n*", sorted({n for law in laws.values() for n in law.sizes}), x="steps M"), most=MOST_PANELS
            ),
            laws=laws,
            most=MOST_PANELS,
        )
    ]  # fmt: skip


def _row(name: str, law: StepsLaw) -> dict[str, Cell]:
    ends = f" ({amount(law.midpoint95[0])} to {amount(law.midpoint95[1])})" if law.midpoint95 else ""
    shares = {key: law.shares.get(other) for key, other in (("share_line", "line"), ("share_cut_line", "cut line"))}
    return {
        "rollouts_per_step": name,
        "sizes": listed(law.sizes),
        "line_less_sigmoid": law.ahead("line"),
        "cut_line_less_sigmoid": law.ahead("cut line"),
        **{key: None if share is None else Value(share, text=f"{share:.0%}") for key, share in shares.items()},
        "midpoint": Value.within(law.midpoint, law.midpoint95, f"{amount(law.midpoint)}{ends}"),
        "at_ends": f"{law.at_ends} of {len(law.steps)}",
        "against_line": law.against("line"),
        "against_cut_line": law.against("cut line"),
    }


def _series(name: str, law: StepsLaw) -> list[DrawnSeries]:
    panel, grid = f"B = {name}", np.geomspace(law.steps[0], law.steps[-1], 60)
    return [
        DrawnSeries("n* read off", law.steps, law.group_size, panel, look="dots", tone=0.3),
        DrawnSeries("sigmoid", grid, 2.0 ** law.octaves("sigmoid", grid), panel),
        DrawnSeries("line", grid, 2.0 ** law.octaves("line", grid), panel, look="dashed", tone="quiet"),
        DrawnSeries("cut line", grid, 2.0 ** law.octaves("cut line", grid), panel, look="dotted", tone="quiet"),
    ]
