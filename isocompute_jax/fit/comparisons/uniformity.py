"""Is improvement spread over the problems, or concentrated in a few; and does a larger n spread it?

The IsoCompute Playbook (arXiv 2603.12151) argues that interference between problems is what tells n and M apart, and
that a larger n improves more uniformly. With g_i the gain in solve rate of problem i over the base model,

    uniformity U = (mean_i g_i)^2 / mean_i g_i^2 = 1 / (1 + (sd of g / mean of g)^2)

is 1 where all problems gain alike and 1/P where one of P has all the gain: the effective number of problems that share
the gain (inverse Simpson index, Hill number of order 2) over their number. Unlike the Gini coefficient or an entropy it
is made of two moments, from which the noise of binomial counts can be subtracted without bias, and a problem that gets
worse needs no special treatment. Gains are bounded by 1, so U tends to rise with the mean gain: n are compared at equal
compute and at equal mean gain.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy.special

from isocompute_jax.fit.comparisons.comparison import (
    ComparisonResult,
    DrawnSeries,
    Panel,
    Picture,
    Value,
    common_verdict,
)
from isocompute_jax.fit.comparisons.problems import SolveTrajectories
from isocompute_jax.fit.report.wording import EN_DASH, spent
from isocompute_jax.fit.sweep_results import SweepResult

LEAST_CERTAINTY = 5.0
"""U is told where mean g^2 is so many of its standard errors of sampling: its ratio is then biased by 1/25 at most."""
CONFIDENCE = 0.975
VERDICTS = {
    "more": "a larger n improves more uniformly, as IsoCompute argues",
    "less": "a larger n improves less uniformly, against what IsoCompute argues",
    "open": "the interval holds 0, so the data do not show that n matters",
}


class Uniformity(NamedTuple):
    """`gain` [...] mean gain in solve rate; `value` [...] U, NaN where the gains do not stand out of sampling noise."""

    gain: np.ndarray
    value: np.ndarray


def uniformity(
    counts: np.ndarray, samples: np.ndarray | int, base_counts: np.ndarray, base_samples: np.ndarray | int
) -> Uniformity:
    """U of the gains from one evaluation to another, without sampling noise.

    rate (1 - rate) / (m - 1) is an unbiased estimate of the variance v of a rate of m samples. mean g^2 is estimated by
    the mean of (measured gain)^2 - v, and (mean g)^2 by the square of the measured mean less mean(v) / P: both
    unbiased; their ratio is biased only by the noise of its denominator.

    Args:
      counts: [..., P] right samples of each problem.
      samples: [...] samples drawn of each, at least 2.
      base_counts: [..., P] likewise for the base model.
      base_samples: [...].
    """
    rates, noise = _rates(counts, samples)
    before, noise_before = _rates(base_counts, base_samples)
    gains, noise = rates - before, noise + noise_before
    problems = gains.shape[-1]
    square = gains**2 - noise
    second = square.mean(axis=-1)
    first = gains.mean(axis=-1) ** 2 - noise.mean(axis=-1) / problems
    # of the square of a normal variable with mean g and variance v
    error = np.sqrt((2 * noise**2 + 4 * np.maximum(square, 0) * noise).sum(axis=-1)) / problems
    known = (second > 0) & (second >= LEAST_CERTAINTY * error)
    return Uniformity(gains.mean(axis=-1), np.where(known, first / np.where(known, second, 1.0), np.nan))


def _rates(counts: np.ndarray, samples: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
    """[..., P] rates and unbiased estimates of their variances."""
    drawn = np.asarray(samples)[..., None]
    rates = np.asarray(counts) / drawn
    return rates, rates * (1 - rates) / (drawn - 1)


@dataclasses.dataclass(frozen=True, eq=False)
class UniformityCurve:
    """U of one configuration over training.

    Attributes:
      run: its name.
      group_size: n.
      problems_per_batch: B_problem.
      compute: [E] evaluations after the base model's.
      gain: [S, E] mean gain in solve rate of each seed.
      value: [S, E] U; NaN where it cannot be told.
    """

    run: str
    group_size: int
    problems_per_batch: int
    compute: np.ndarray
    gain: np.ndarray
    value: np.ndarray


def uniformity_curve(found: SolveTrajectories) -> UniformityCurve | None:
    """U of each seed against the base model, of which all seeds' samples are pooled; None without its evaluation."""
    if found.compute[0] != 0 or found.samples.min() < 2:
        return None
    base = found.counts[:, 0].sum(axis=0), found.samples[:, 0].sum()
    gain, value = uniformity(found.counts[:, 1:], found.samples[:, 1:], *base)
    own = found.configuration
    return UniformityCurve(own.name, own.group_size, own.problems_per_batch, found.compute[1:], gain, value)


@dataclasses.dataclass(frozen=True, eq=False)
class UniformityTrend:
    """How U changes with n, runs (configuration x seed) being the sample.

    Attributes:
      at: what is equal, `compute` or `gain`.
      level: the compute, or mean gain, at which runs are compared.
      values: [K] of each curve U of its seeds there (those that can be told).
      slope: change of U for each doubling of n, at equal B_problem (least squares).
      interval95: of the slope, by Student's t with the runs' scatter about the line.
    """

    at: Literal["compute", "gain"]
    level: float
    values: tuple[np.ndarray, ...]
    slope: float
    interval95: tuple[float, float]

    @property
    def verdict(self) -> Literal["more", "less", "open"]:
        """Whether a larger n improves more uniformly, less so, or neither is shown."""
        low, high = self.interval95
        return "more" if low > 0 else "less" if high < 0 else "open"


def uniformity_trend(curves: Sequence[UniformityCurve], *, at: Literal["compute", "gain"]) -> UniformityTrend | None:
    """U against log2 n at the largest compute, or the largest mean gain, that all runs come to.

    At equal compute a run is read at the nearest evaluation (in log compute); at equal gain where its mean gain first
    reaches the level, linearly between evaluations.

    Returns:
      None with fewer than two n, or too few runs for a scatter.
    """
    if not curves:
        return None
    if at == "compute":
        level = float(min(curve.compute[-1] for curve in curves))
        read = [curve.value[:, np.abs(np.log(curve.compute / level)).argmin()] for curve in curves]
    else:
        level = float(min(curve.gain.max(axis=1).min() for curve in curves))
        read = [_at_gain(curve, level) for curve in curves]
    values = tuple(each[np.isfinite(each)] for each in read)
    slope, interval = _slope(curves, values)
    return UniformityTrend(at, level, values, slope, interval) if np.isfinite(slope) else None


def _at_gain(curve: UniformityCurve, level: float) -> np.ndarray:
    """[S] U of each seed where its mean gain first reaches `level`."""
    found = []
    for gain, value in zip(curve.gain, curve.value, strict=True):
        at = int(np.argmax(gain >= level))
        share = 1.0 if at == 0 else (level - gain[at - 1]) / (gain[at] - gain[at - 1])
        before = value[at - 1] if share < 1 else 0.0
        found.append(share * value[at] + (1 - share) * before)
    return np.array(found)


def _slope(curves: Sequence[UniformityCurve], values: Sequence[np.ndarray]) -> tuple[float, tuple[float, float]]:
    """Least squares of U on log2 n with a level of its own for each B_problem; NaN where that has no scatter."""
    counts = [len(each) for each in values]
    x = np.repeat(np.log2([curve.group_size or np.nan for curve in curves]), counts)
    batch = np.repeat([curve.problems_per_batch for curve in curves], counts)
    y = np.concatenate(values)
    for one in np.unique(batch):
        own = batch == one
        x[own], y[own] = x[own] - x[own].mean(), y[own] - y[own].mean()
    freedom, weight = len(y) - len(np.unique(batch)) - 1, float(x @ x)
    if freedom < 1 or not weight > 0:
        return np.nan, (np.nan, np.nan)
    slope = float(x @ y) / weight
    rest = y - slope * x
    reach = float(np.sqrt(rest @ rest / freedom / weight) * scipy.special.stdtrit(freedom, CONFIDENCE))
    return slope, (slope - reach, slope + reach)


def compare_uniformity(result: SweepResult, counts: Sequence[SolveTrajectories]) -> list[ComparisonResult]:
    """U over compute and over the mean gain, where runs have counts of each problem and of the base model.

    Args:
      result: of the analysis.
      counts: of its runs, of problems that are `alike`.
    """
    found = [curve for each in counts if (curve := uniformity_curve(each)) is not None]
    found = [curve for curve in found if np.isfinite(curve.value).any()]
    if not found:
        return []
    problems = counts[0].counts.shape[-1]
    trends = [trend for at in ("compute", "gain") if (trend := uniformity_trend(found, at=at)) is not None]
    where = [spent(result, t.level) if t.at == "compute" else f"gain {t.level:.3f}" for t in trends]
    return [
        ComparisonResult(
            question="uniformity",
            verdict=common_verdict(trend.verdict for trend in trends),
            findings=tuple(_sentence(result, trend) for trend in trends),
            numbers={f"slope_at_equal_{t.at}": Value(t.slope, *t.interval95) for t in trends}
            | {t.at: t.level for t in trends},
            columns={"run": "configuration", "largest_gain": "largest mean gain"}
            | {f"at_equal_{t.at}": f"U at {text}" for t, text in zip(trends, where, strict=True)},
            rows=tuple(_row(curve, number, trends) for number, curve in enumerate(found)),
            series=tuple(series for curve in found for series in _series(curve)),
            title="Is improvement spread over the problems?",
            about="Uniformity U = (mean gain)² / mean of gain², over the problems' gains in solve rate from the base "
            f"model: 1 where all {problems} gain alike, 1/{problems} where one has all. The noise of sampling is "
            "subtracted, without bias, from both moments. U tends to rise with the mean gain, so n are compared at "
            "equal compute and at equal mean gain.",
            picture=Picture(
                "Uniformity of gains over compute, and over the mean gain",
                "Lines are means over seeds; bars, two standard errors. Begins where gains stand out of noise.",
                stacked={
                    "compute": Panel("uniformity U"),
                    "gain": Panel("uniformity U", x="mean gain in solve rate", linear=True),
                },
            ),
        )
    ]


def _sentence(result: SweepResult, trend: UniformityTrend) -> str:
    runs, (low, high) = sum(map(len, trend.values)), trend.interval95
    where = spent(result, trend.level) if trend.at == "compute" else f"an equal mean gain of {trend.level:.3f}"
    return (
        f"At {where} U changes by {trend.slope:+.3f} for each doubling of n (95% interval over {runs} runs: {low:+.3f} "
        f"to {high:+.3f}): {VERDICTS[trend.verdict]}."
    )


def _row(curve: UniformityCurve, number: int, trends: Sequence[UniformityTrend]) -> dict[str, str | int | Value]:
    """Largest mean gain, and U where runs are compared."""
    gain = float(np.nanmax(curve.gain.mean(axis=0)))
    row: dict[str, str | int | Value] = {"run": curve.run, "group_size": curve.group_size}
    row["largest_gain"] = Value(gain, text=f"{gain:.3f}")
    return row | {f"at_equal_{trend.at}": _over_runs(trend.values[number]) for trend in trends}


def _over_runs(values: np.ndarray) -> Value:
    """Mean and standard error over seeds."""
    if not len(values):
        return Value(math.nan, text=EN_DASH)
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Value.with_error(float(values.mean()), float(error))


def _series(curve: UniformityCurve) -> list[DrawnSeries]:
    """Over compute and over gain, where U is known of every seed."""
    known, seeds = np.isfinite(curve.value).all(axis=0), len(curve.value)
    mean = curve.value[:, known].mean(axis=0)
    low = high = None
    if seeds > 1:
        error = curve.value[:, known].std(axis=0, ddof=1) / math.sqrt(seeds)
        low, high = mean - 2 * error, mean + 2 * error
    places = {"compute": curve.compute[known], "gain": curve.gain[:, known].mean(axis=0)}
    return [DrawnSeries(curve.run, x, mean, at, low, high, look="bars", tone=curve.run) for at, x in places.items()]
