"""Problem by problem: how each goes, whether the seeds agree, whether all gain alike, and how problems pull.

A line of eval.jsonl, and a row of a gallery's Parquet, has `solve_counts`: for each problem, in the order of the set,
how many of `samples` completions solved it. Measured rates of m samples spread more than the solve rates behind them:
by p (1 - p) / m, of which rate (1 - rate) / (m - 1) is an unbiased estimate. Variances between problems are without it.

The IsoCompute Playbook (arXiv 2603.12151) argues that interference between problems is what tells n and M apart, and
that a larger n improves more uniformly. With g_i the gain in solve rate of problem i over the base model,

    uniformity U = (mean_i g_i)^2 / mean_i g_i^2 = 1 / (1 + (sd of g / mean of g)^2)

is 1 where all problems gain alike and 1/P where one of P has all the gain: the effective number of problems that share
the gain (inverse Simpson index, Hill number of order 2) over their number. Unlike the Gini coefficient or an entropy it
is made of two moments, from which the noise of binomial counts can be subtracted without bias, and a problem that gets
worse needs no special treatment. Gains are bounded by 1, so U tends to rise with the mean gain: n are compared at equal
compute and at equal mean gain.

`python -m isocompute_jax.interference` leaves mean cosines between problems' gradients in a run directory; see there,
and docs/runs.md, for how noise is kept out of them. Those of solved with unsolved problems say whether what is learned
from the one helps the other.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from isocompute_jax.fit.comparisons.comparison import (
    ComparisonResult,
    DrawnSeries,
    Panel,
    Picture,
    Value,
    common_verdict,
    standard_error,
    student,
)
from isocompute_jax.fit.curves.seeds import ConfigurationRuns, group_runs
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.report.templating import answer
from isocompute_jax.fit.report.wording import EN_DASH, shortened, spent
from isocompute_jax.fit.results import Configuration, OfConfiguration
from isocompute_jax.fit.sweep_results import SweepResult
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.interference_files import Cosine, Summary, read_summary
from isocompute_jax.records.run_files import EVAL, read_lines

MOST_ROWS = 60
"""Rows of a heat map; of more problems neighbours are averaged."""
ONE_PERCENT = 2.3263
"""Quantile of the normal distribution at 99%."""
LEAST_FALL = 0.01
"""Share of problems that chance alone lets fall in that test."""
LEAST_CERTAINTY = 5.0
"""U is told where mean g^2 is so many of its standard errors of sampling: its ratio is then biased by 1/25 at most."""
CLEAR = 2.0
"""A mean cosine stands out from 0 where it is so many standard errors away."""
COUNTS, SAMPLES = "solve_counts", "samples"
COLUMNS = ("run", "eval_set", "compute", SAMPLES, COUNTS)
EVALUATION_SET = "validation"


@dataclasses.dataclass(frozen=True, eq=False)
class SolveTrajectories:
    """What the seeds of one configuration solved at each evaluation that all of them have."""

    configuration: Configuration
    seeds: tuple[int, ...]  # [S]
    compute: np.ndarray  # [E] in the unit of the runs, rising
    counts: np.ndarray  # [S, E, P] right samples of each problem
    samples: np.ndarray  # [S, E] samples drawn of each problem

    @property
    def rates(self) -> np.ndarray:
        """[S, E, P] measured solve rates."""
        return self.counts / self.samples[..., None]

    @property
    def mean_rates(self) -> np.ndarray:
        """[E, P] of all samples of all seeds."""
        return self.counts.sum(axis=0) / self.samples.sum(axis=0)[:, None]


def solve_trajectories(runs: Sequence[RunCurve], *, eval_set: str = EVALUATION_SET) -> tuple[SolveTrajectories, ...]:
    """The solve counts of every configuration whose runs have them, ordered by n.

    Args:
      runs: as read (`SweepResult.runs`, `read_curves`); their files are read once more. Seeds without counts, and
        configurations whose seeds share fewer than two evaluations, are left out.
      eval_set: evaluation set; rows that name none belong to every set.

    Raises:
      InputError: the counts of a file are damaged, or the seeds of a configuration have different problems.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {source: _rows(source) for source in {run.source for run in runs}}
    read = {id(run): _of_run(run, rows[run.source], eval_set) for run in runs}
    found = [_of_configuration(group, [read[id(run)] for run in group.runs]) for group in group_runs(runs)[0]]
    return tuple(each for each in found if each is not None)


def alike(found: Iterable[SolveTrajectories]) -> tuple[SolveTrajectories, ...]:
    """Those with as many problems as most have: only problems of one set can be laid beside each other."""
    found = tuple(found)
    sizes = [each.counts.shape[-1] for each in found]
    most = max(sizes, key=sizes.count, default=0)
    return tuple(each for each, size in zip(found, sizes, strict=True) if size == most)


def _rows(source: str | os.PathLike[str]) -> list[Mapping[str, Any]]:
    """The rows of a file that have counts; none of a file of another kind."""
    path = pathlib.Path(source)
    if not path.is_file():  # a table in memory
        return []
    if path.suffix == ".jsonl":
        rows = read_lines(path, partial_last_line=True)
    elif path.suffix == ".parquet" and {COUNTS, SAMPLES} <= set((names := pq.read_schema(path)).names):
        rows = pq.read_table(path, columns=[c for c in COLUMNS if c in names.names], use_threads=False).to_pylist()
    else:
        return []
    return [row for row in rows if row.get(COUNTS) and row.get(SAMPLES)]


def _of_run(run: RunCurve, rows: Sequence[Mapping[str, Any]], eval_set: str) -> dict[float, tuple[np.ndarray, int]]:
    """Compute -> (counts [P], samples) of a run, at its evaluations; of what a file gives twice the later counts."""
    rollouts = run.columns.get("compute", np.full_like(run.compute, np.nan))
    place = dict(zip(rollouts.tolist(), run.compute.tolist(), strict=True))
    found = {}
    for row in rows:
        own = row.get("run", run.run) == run.run and (row.get("eval_set") or eval_set) == eval_set
        if own and row.get("compute") in place:
            found[place[row["compute"]]] = _checked(row, run)
    return found


def _checked(row: Mapping[str, Any], run: RunCurve) -> tuple[np.ndarray, int]:
    counts, samples = np.asarray(row[COUNTS]), row[SAMPLES]
    whole = counts.ndim == 1 and np.issubdtype(counts.dtype, np.integer)
    if not whole or counts.min() < 0 or counts.max() > samples:
        raise InputError(
            f"{run.source}: run {run.run} at compute {row['compute']}: {COUNTS} must be whole numbers from 0 to "
            f"{SAMPLES} = {samples}; correct the row, or delete its {COUNTS}"
        )
    return counts.astype(np.int64), int(samples)


def _of_configuration(
    group: ConfigurationRuns, read: Sequence[dict[float, tuple[np.ndarray, int]]]
) -> SolveTrajectories | None:
    """The evaluations that all seeds with counts share; None where they are fewer than two."""
    known = [(run, found) for run, found in zip(group.runs, read, strict=True) if found]
    compute = sorted(set.intersection(*(set(found) for _, found in known))) if known else []
    if len(compute) < 2:
        return None
    sizes = {len(counts) for _, found in known for counts, _ in found.values()}
    if len(sizes) > 1:
        raise InputError(
            f"{known[0][0].source}: {group.configuration.name}: {COUNTS} has {min(sizes)} problems in one evaluation "
            f"and {max(sizes)} in another; analyse runs with one evaluation set at a time"
        )
    return SolveTrajectories(
        configuration=group.configuration,
        seeds=tuple(run.facts.seed for run, _ in known),
        compute=np.array(compute),
        counts=np.array([[found[at][0] for at in compute] for _, found in known]),
        samples=np.array([[found[at][1] for at in compute] for _, found in known]),
    )


def problem_spread(found: SolveTrajectories) -> dict[str, float]:
    """What the trajectories of one configuration say at their last evaluation; their `samples` must be 2 or more.

    Returns:
      `first_rate` and `last_rate`, means over problems and seeds; `first_spread` and `last_spread`, standard deviations
      between problems without sampling noise; `in_common`, the share of the last variance between problems that all
      seeds have in common (1 if the problem decides, 0 if chance does; NaN with one seed, or without variance), with
      `in_common_error`, a jackknife over seeds (NaN with fewer than three); and `fallen`, the share of problems solved
      less often at the last than at the first (all seeds pooled, one-sided test of two proportions at 1%).
    """
    each_rate = [_rates(found.counts[:, at], found.samples[:, at]) for at in (0, -1)]
    first, last = (rate.var(axis=1, ddof=1) - noise.mean(axis=1) for rate, noise in each_rate)  # [S], unbiased
    rates, seeds = found.rates[:, -1], range(len(found.seeds))
    without = [_in_common(np.delete(rates, seed, axis=0), np.delete(last, seed)) for seed in seeds]
    pooled = found.counts[:, [0, -1]].sum(axis=0)  # [2, P]
    drawn = found.samples[:, [0, -1]].sum(axis=0)[:, None]
    overall = pooled.sum(axis=0) / drawn.sum()
    error = np.sqrt(np.maximum(overall * (1 - overall), 0.0) * (1 / drawn).sum())
    fall = (pooled / drawn)[0] - (pooled / drawn)[1]
    return {
        "first_rate": float(found.rates[:, 0].mean()),
        "last_rate": float(found.rates[:, -1].mean()),
        "first_spread": math.sqrt(max(first.mean(), 0.0)),
        "last_spread": math.sqrt(max(last.mean(), 0.0)),
        "in_common": _in_common(rates, last),
        "in_common_error": float(np.std(without) * math.sqrt(len(seeds) - 1)),
        "fallen": float(np.mean(fall > ONE_PERCENT * error)),
    }


def _in_common(rates: np.ndarray, variances: np.ndarray) -> float:
    """Mean covariance of two seeds over problems, as a share of the variance of one; rates [S, P], variances [S]."""
    seeds = len(rates)
    if seeds < 2 or variances.mean() <= 0:
        return math.nan
    products = np.cov(rates)
    return float((products.sum() - np.trace(products)) / (seeds * (seeds - 1)) / variances.mean())


def compare_problems(result: SweepResult, counts: Sequence[SolveTrajectories]) -> Iterator[ComparisonResult]:
    """The solve rate of each problem over compute, where the runs have counts of problems that are `alike`."""
    found = [each for each in counts if each.samples.min() > 1]
    if not found:
        return
    rows = [_spread_row(each) for each in found]
    worst = max(rows, key=lambda row: row["fallen"].value)
    some_fall = worst["fallen"].value > LEAST_FALL
    yield answer(
        result,
        "trajectories",
        verdict="some fall" if some_fall else "none fall",
        numbers={"problems": found[0].counts.shape[-1]},
        columns={
            "run": "configuration", "compute": "last compute", "first_rate": "first mean rate", "last_rate": "last",
            "first_spread": "first spread", "last_spread": "last", "in_common": "in common", "fallen": "fallen",
        },
        rows=rows,
        series=_heat_map(found),
        picture=Picture(Panel("problems"), shade="solve rate"),
        worst=worst,
        some_fall=some_fall,
    )  # fmt: skip


def _spread_row(found: SolveTrajectories) -> dict[str, Any]:
    spread, compute = problem_spread(found), float(found.compute[-1])
    share, error = spread["in_common"], spread["in_common_error"]
    shared = f"{share:.0%}" + (f" ± {error:.0%}" if math.isfinite(error) else "")
    in_common = Value(share, stderr=error, text=shared) if math.isfinite(share) else Value(share, text=EN_DASH)
    own = {"run": found.configuration.name, "compute": Value(compute, text=f"{compute:,.0f}")}
    return own | spread | {"in_common": in_common, "fallen": Value(spread["fallen"], text=f"{spread['fallen']:.1%}")}


def _heat_map(found: Sequence[SolveTrajectories]) -> list[DrawnSeries]:
    """Rates of problems, in the order of their mean rate over everything, a few neighbours together."""
    order = np.argsort(np.mean([each.mean_rates.mean(axis=0) for each in found], axis=0), kind="stable")
    bands = np.array_split(order, min(MOST_ROWS, len(order)))
    place = (np.arange(len(bands)) + 0.5) * len(order) / len(bands)
    series = []
    for each in found:
        trained, name = each.compute > 0, each.configuration.name
        rates = np.stack([each.mean_rates[trained][:, band].mean(axis=1) for band in bands])
        panel = shortened(name, 22)
        series.append(DrawnSeries(name, each.compute[trained], place, panel, shade=rates, look="cells"))
    return series


class Uniformity(NamedTuple):
    """Of the gains from one evaluation to another."""

    gain: np.ndarray  # [...] mean gain in solve rate
    value: np.ndarray  # [...] U, NaN where the gains do not stand out of sampling noise


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
class UniformityCurve(OfConfiguration):
    """U of one configuration over training."""

    configuration: Configuration
    compute: np.ndarray  # [E] evaluations after the base model's
    gain: np.ndarray  # [S, E] mean gain in solve rate of each seed
    value: np.ndarray  # [S, E] U; NaN where it cannot be told


def uniformity_curve(found: SolveTrajectories) -> UniformityCurve | None:
    """U of each seed against the base model, of which all seeds' samples are pooled; None without its evaluation."""
    if found.compute[0] != 0 or found.samples.min() < 2:
        return None
    base = found.counts[:, 0].sum(axis=0), found.samples[:, 0].sum()
    gain, value = uniformity(found.counts[:, 1:], found.samples[:, 1:], *base)
    return UniformityCurve(found.configuration, found.compute[1:], gain, value)


@dataclasses.dataclass(frozen=True, eq=False)
class UniformityTrend:
    """How U changes with n, runs (configuration x seed) being the sample."""

    at: Literal["compute", "gain"]  # what is equal
    level: float  # the compute, or mean gain, at which runs are compared
    values: tuple[np.ndarray, ...]  # [K] of each curve U of its seeds there (those that can be told)
    slope: float  # change of U for each doubling of n, at equal B_problem (least squares)
    interval95: tuple[float, float]  # of the slope, by Student's t with the runs' scatter about the line

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
    reach = float(np.sqrt(rest @ rest / freedom / weight) * student(freedom))
    return slope, (slope - reach, slope + reach)


def compare_uniformity(result: SweepResult, counts: Sequence[SolveTrajectories]) -> Iterator[ComparisonResult]:
    """U over compute and over the mean gain, where runs have counts of problems and of the base model."""
    curves = [curve for each in counts if (curve := uniformity_curve(each)) is not None]
    curves = [curve for curve in curves if np.isfinite(curve.value).any()]
    if not curves:
        return
    trends = [trend for at in ("compute", "gain") if (trend := uniformity_trend(curves, at=at)) is not None]
    gains = Panel("uniformity U", x="mean gain in solve rate", linear=True)
    where = {t.at: spent(result, t.level) if t.at == "compute" else f"gain {t.level:.3f}" for t in trends}
    yield answer(
        result,
        "uniformity",
        verdict=common_verdict(trend.verdict for trend in trends),
        numbers={f"slope_at_equal_{t.at}": Value(t.slope, *t.interval95) for t in trends}
        | {t.at: t.level for t in trends},
        columns={"run": "configuration", "largest_gain": "largest mean gain"}
        | {f"at_equal_{at}": f"U at {text}" for at, text in where.items()},
        rows=[_uniformity_row(curve, number, trends) for number, curve in enumerate(curves)],
        series=[series for curve in curves for series in _uniformity_series(curve)],
        picture=Picture(stacked={"compute": Panel("uniformity U"), "gain": gains}),
        problems=counts[0].counts.shape[-1],
        trends=[(trend, sum(map(len, trend.values))) for trend in trends],
    )


def _uniformity_row(curve: UniformityCurve, number: int, trends: Sequence[UniformityTrend]) -> dict[str, Any]:
    """Largest mean gain, and U where runs are compared."""
    gain = float(np.nanmax(curve.gain.mean(axis=0)))
    own = {"run": curve.run, "group_size": curve.group_size, "largest_gain": Value(gain)}
    return own | {f"at_equal_{trend.at}": _over_runs(trend.values[number]) for trend in trends}


def _over_runs(values: np.ndarray) -> Value:
    """Mean and standard error over seeds."""
    if not len(values):
        return Value(math.nan, text=EN_DASH)
    return Value.with_error(float(values.mean()), float(standard_error(values)))


def _uniformity_series(curve: UniformityCurve) -> list[DrawnSeries]:
    """Over compute and over gain, where U is known of every seed."""
    known, seeds = np.isfinite(curve.value).all(axis=0), len(curve.value)
    mean = curve.value[:, known].mean(axis=0)
    error = standard_error(curve.value[:, known])
    low, high = (mean - 2 * error, mean + 2 * error) if seeds > 1 else (None, None)
    places = {"compute": curve.compute[known], "gain": curve.gain[:, known].mean(axis=0)}
    return [DrawnSeries(curve.run, x, mean, at, low, high, look="bars", tone=curve.run) for at, x in places.items()]


def gradient_cosines(runs: Sequence[RunCurve]) -> list[tuple[RunCurve, Summary]]:
    """Mean cosines between problems' gradients at the end of every run directory that has them, in order of n.

    Raises:
      InputError: an interference.json is damaged.
    """
    paths = [(run, pathlib.Path(run.source)) for run in runs]
    read = [(run, read_summary(path.parent)) for run, path in paths if path.name == EVAL]
    return sorted(((run, each) for run, each in read if each is not None), key=lambda pair: pair[0].facts.group_size)


def pull(between: Cosine) -> Literal["together", "against", "open", "none"]:
    """How solved and unsolved problems pull; `none` where there are no such pairs, or no signal."""
    if not math.isfinite(between.cosine):
        return "none"
    if not abs(between.cosine) > CLEAR * between.stderr:  # nor with an error that is unknown
        return "open"
    return "together" if between.cosine > 0 else "against"


def compare_gradients(result: SweepResult) -> Iterator[ComparisonResult]:
    """One where run directories have interference.json; it has no picture."""
    rows = [_cosine_row(run, summary) for run, summary in gradient_cosines(result.runs)]
    if not rows:
        return
    verdicts = [row["pull"] for row in rows if row["pull"] != "none"]
    yield answer(
        result,
        "gradient_cosines",
        verdict=common_verdict(verdicts),
        columns={"run": "run", "solved": "among solved", "unsolved": "among unsolved", "between": "between the two"},
        rows=rows,
        clear=CLEAR,
        verdicts=verdicts,
    )


def _cosine_row(run: RunCurve, summary: Summary) -> dict[str, Any]:
    """A mean cosine without pairs, or without a signal, is unknown."""
    own = {"run": run.run, "group_size": run.facts.group_size, "pull": pull(summary.cosines["between"])}
    known = {
        name: Value.with_error(mean.cosine, mean.stderr) if math.isfinite(mean.cosine) else None
        for name, mean in summary.cosines.items()
    }
    return own | known
