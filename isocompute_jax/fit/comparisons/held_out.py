"""Would the cheaper part of a sweep have told the rest? The top quarter of compute (in log) is predicted and measured.

Evaluations up to the cut are fitted, the others are not looked at. What is predicted is what will be measured, the
mean reward over the same seeds: draws of all curves (`frontier.forecast`: parameters, form, collapses to come) with the
AR(1) noise of a mean, which goes on from where the last fitted evaluation lies off its curve.

Where record-breaking evaluations are fitted (IsoCompute, arXiv 2603.12151) a curve is that of the best mean so far:
what a run has to offer that keeps its best checkpoint. Then this is predicted and measured. Records are picked by their
noise, so the draws do not go through them: they go through all evaluations, and each has its own records picked.

How far to trust such intervals is asked of the sweep itself. The same is done once more inside the fitted part, whose
own top quarter is predicted from its rest; where errors there are larger than they should be, intervals are widened by
as much (`_widening`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.comparisons.comparison import Cell, ComparisonResult, DrawnSeries, Panel, Picture, Value
from isocompute_jax.fit.curves.seeds import SAME_COMPUTE, ConfigurationRuns, Curve, average_seeds, group_runs
from isocompute_jax.fit.frontier.bootstrap import PERCENTILES, holding, whole_or_none
from isocompute_jax.fit.frontier.forecast import Forecast
from isocompute_jax.fit.frontier.standings import compare
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.report.templating import answer
from isocompute_jax.fit.report.wording import reached, shortened, unit
from isocompute_jax.fit.results import Configuration
from isocompute_jax.fit.stages import Stages
from isocompute_jax.fit.sweep_results import SweepResult

SHARE = 0.75
"""Of the way from the first budget to the last, on a logarithmic scale, that is fitted."""

LEAST_FITTED = 6
"""Evaluations up to the cut that at least half of the configurations have."""

LEAST_HELD_OUT = 2
"""Budgets after the cut."""

MOST_HELD_OUT = 12
"""Of more budgets after the cut so many are predicted, spread evenly."""

NOISES = 5
"""Draws of the noise for each draw of the curves: the ends of a 95% interval of 400 draws alone are ten draws."""

LEAST_ERROR = 1e-3
"""A prediction is never taken as surer than this share of the range when it is asked whether errors are as said."""

PRIOR_CURVES = 1.0
"""So many further curves, whose errors are as said, stand beside those of the sweep when that is asked."""

ROUNDING = 1e-12
"""Of a reward: a record that stands is both ends of its interval."""


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """K configurations at H budgets after the cut. Rewards are NaN where a configuration has no data."""

    cut: float  # largest compute that was fitted
    best_so_far: bool  # whether rewards are the best mean so far, because records are fitted; else the mean
    widening: float | None  # by how much intervals are wider than the draws; None where the fitted part is too short
    configurations: tuple[Configuration, ...]  # [K]
    fitted_compute: np.ndarray  # [F] budgets up to the cut
    fitted: np.ndarray  # [K, F] mean rewards there
    compute: np.ndarray  # [H] budgets after it
    predicted: np.ndarray  # [K, H] expected reward
    interval95: np.ndarray  # [2, K, H] of what will be measured
    measured: np.ndarray  # [K, H]
    mean: np.ndarray  # [K, H] the measured mean, whatever was best before
    mean_interval95: np.ndarray  # [2, K, H] of that
    leaders: np.ndarray  # [H, D] number of the best configuration in each draw

    @property
    def known(self) -> np.ndarray:
        """[K, H] bool: predicted and measured."""
        return np.isfinite(self.predicted) & np.isfinite(self.measured)

    @property
    def inside(self) -> np.ndarray:
        """[K, H] bool: measured inside its interval."""
        return self.known & _within(self.measured, self.interval95)

    @property
    def mean_inside(self) -> np.ndarray:
        """[K, H] bool: the mean inside its own interval."""
        return self.known & _within(self.mean, self.mean_interval95)

    @property
    def rose(self) -> np.ndarray:
        """[K, H] bool: measured above everything that was fitted. Where it is not, the best so far is known already."""
        return self.known & (self.measured > np.fmax.reduce(self.fitted, axis=1)[:, None])

    @property
    def predicted_best(self) -> np.ndarray:
        """[H] number of the configuration with the highest expected reward, of those that were measured there."""
        return np.where(self.known, self.predicted, -np.inf).argmax(axis=0)

    @property
    def measured_best(self) -> np.ndarray:
        """[H] number of the configuration with the highest measured reward."""
        return np.where(self.known, self.measured, -np.inf).argmax(axis=0)

    @property
    def group_sizes(self) -> np.ndarray:
        """[K] n; 0 where unknown."""
        return np.array([each.group_size for each in self.configurations])

    @property
    def group_size95(self) -> np.ndarray:
        """[H, 2] n between which the best one lies in 95% of the draws."""
        return np.percentile(self.group_sizes[self.leaders], PERCENTILES, axis=1, method="nearest").T

    @property
    def octaves(self) -> np.ndarray:
        """[H] how far the predicted n* lies above the measured one, in factors of two; NaN where an n is unknown."""
        with np.errstate(divide="ignore", invalid="ignore"):
            sizes = np.log2(self.group_sizes)
            apart = sizes[self.predicted_best] - sizes[self.measured_best]
        return np.where(np.isfinite(apart), apart, np.nan)


def held_out_quarter(runs: Sequence[RunCurve], options: AnalysisOptions) -> HeldOut | None:
    """Predicts the top quarter of compute (in log) of a sweep from the rest, and lays it beside what was measured.

    Args:
      runs: of the sweep (`SweepResult.runs`).
      options: of its analysis; with `records` other than `off` the best mean so far is predicted.

    Returns:
      None where there are too few evaluations on either side of the cut (`LEAST_FITTED`, `LEAST_HELD_OUT`), or where
      the options leave nothing to forecast with (--forecast=form, --fix, --bounds, --r0).
    """
    groups, _ = group_runs(runs)
    if not any((run.compute > 0).any() for run in runs):
        return None
    cut = _cut(runs)
    fitted = [[run.compute[(run.compute > 0) & (run.compute <= cut)] for run in group.runs] for group in groups]
    evaluations = [max(map(len, runs)) for runs in fitted]
    if np.median(evaluations) < LEAST_FITTED:
        return None
    found = _paths(groups, cut, options)
    if found is None:
        return None
    before = _early(groups, cut)
    inner = _paths(before, _cut([run for group in before for run in group.runs]), options)
    widening = None if inner is None else _widening(inner, options)
    mean = found.wider(widening or 1.0, options.read.reward_range)
    draws, measured = mean.predicted(options), mean.measured(options)
    comparable = np.where(np.isfinite(measured), draws, -np.inf)
    return HeldOut(
        cut=cut,
        best_so_far=options.records != "off",
        widening=widening,
        configurations=found.configurations,
        fitted_compute=found.early_compute,
        fitted=found.early,
        compute=found.late_compute,
        predicted=draws.mean(axis=0),
        interval95=np.percentile(draws, PERCENTILES, axis=0),
        measured=measured,
        mean=found.late,
        mean_interval95=np.percentile(mean.draws, PERCENTILES, axis=0),
        leaders=np.nan_to_num(comparable, nan=-np.inf).argmax(axis=1).T,
    )


class _Paths(NamedTuple):
    """Mean rewards of K configurations: `early` [K, F] and `late` [K, H] as measured, and `draws` [D, K, H] of late."""

    configurations: tuple[Configuration, ...]
    early_compute: np.ndarray
    early: np.ndarray
    late_compute: np.ndarray
    late: np.ndarray
    draws: np.ndarray

    def best_so_far(self, rewards: np.ndarray) -> np.ndarray:
        """[D, K, H] the highest of `rewards` [D, K, H] and of what was fitted, up to each budget."""
        return np.maximum(np.maximum.accumulate(rewards, axis=2), np.fmax.reduce(self.early, axis=1)[:, None])

    def predicted(self, options: AnalysisOptions) -> np.ndarray:
        """[D, K, H] draws of what is predicted: the mean, or with `records` the best mean so far."""
        return self.draws if options.records == "off" else self.best_so_far(self.draws)

    def measured(self, options: AnalysisOptions) -> np.ndarray:
        """[K, H] what was measured of that."""
        return self.late if options.records == "off" else self.best_so_far(self.late[None])[0]

    def wider(self, widening: float, reward_range: tuple[float, float]) -> _Paths:
        """With draws `widening` times as far from their mean, as far as the range of rewards lets them."""
        middle = self.draws.mean(axis=0)
        return self._replace(draws=np.clip(middle + widening * (self.draws - middle), *reward_range))


def _paths(groups: Sequence[ConfigurationRuns], cut: float, options: AnalysisOptions) -> _Paths | None:
    """Fits what is up to the cut, and draws what will be measured after it; None where nothing can be drawn."""
    averaged = [average_seeds(group, options.metric) for group in groups]
    by_name = {curve.configuration.name: curve for curve in averaged if curve is not None}
    budgets = compare(list(by_name.values()))
    compute = np.array([budget.compute for budget in budgets])
    early, late = np.flatnonzero(compute <= cut), np.flatnonzero(compute > cut)
    if not len(early) or len(late) < LEAST_HELD_OUT:
        return None
    late = late[np.unique(np.linspace(0, len(late) - 1, MOST_HELD_OUT).round().astype(int))]
    stages = Stages(dataclasses.replace(options, records="off"), _early(groups, cut)).in_best_form()
    fitted = stages.metric(options.metric, intervals=True, profiles=False)
    forecast = stages.forecast(fitted, same_seeds=True)
    if forecast is None:
        return None
    names = [each.name for each in fitted.configurations]
    curves = [by_name[name] for name in names]
    mean = np.array([budget.mean for budget in budgets]).T[[list(by_name).index(name) for name in names]]
    noise = [  # of a mean over the seeds, where their evaluations were fitted one by one
        sd * math.sqrt(float(each.curve.count[each.use].mean()) / len(each.curve.seeds)) if each.use.any() else math.nan
        for sd, each in zip(forecast.noise * options.fit.width, fitted.points, strict=True)
    ]
    draws = _draws(forecast, curves, compute, mean, early, late, noise, np.random.default_rng(options.seed))
    each = tuple(curve.configuration for curve in curves)
    return _Paths(each, compute[early], mean[:, early], compute[late], mean[:, late], draws)


def _draws(
    forecast: Forecast,
    curves: Sequence[Curve],
    compute: np.ndarray,
    mean: np.ndarray,
    early: np.ndarray,
    late: np.ndarray,
    noise: Sequence[float],
    rng: np.random.Generator,
) -> np.ndarray:
    """[D, K, H] mean rewards at the `late` budgets; NaN for a configuration that has none among the `early` ones."""
    expected = {int(t): np.repeat(forecast.rewards(float(compute[t])), NOISES, axis=0) for t in late}
    found = np.full((len(expected[int(late[0])]), len(curves), len(late)), np.nan)
    for k, curve in enumerate(curves):
        fitted = early[np.isfinite(mean[k, early])]
        if not len(fitted) or not forecast.members[k]:
            continue
        at = int(fitted[-1])
        place = _places(curve, compute)
        off = mean[k, at] - np.repeat(forecast.rewards(float(compute[at]))[:, k], NOISES)
        for h, t in enumerate(late):
            rho = forecast.correlation ** (place[t] - place[at])
            off = rho * off + math.sqrt(1.0 - rho**2) * noise[k] * rng.standard_normal(len(off))
            found[:, k, h] = expected[int(t)][:, k] + off
            at = t
    return found


def _places(curve: Curve, compute: np.ndarray) -> np.ndarray:
    """[T] at which of its evaluations a seed of the curve is at each compute, between them in proportion."""
    own = curve.compute[curve.compute > 0]
    per_seed = len(own) / len(curve.seeds) if curve.pooled else len(own)
    return np.interp(np.log(compute), np.log(own), np.linspace(0.0, max(per_seed - 1.0, 1.0), len(own)))


def _widening(inner: _Paths, options: AnalysisOptions) -> float:
    """Root mean square of errors over what the draws say they are, if that is above 1.

    A curve's errors move together, so each curve counts once, whatever it has of budgets; `PRIOR_CURVES` hold the
    estimate of a sweep with few curves back.
    """
    draws, measured = inner.predicted(options), inner.measured(options)
    error = np.maximum(draws.std(axis=0), LEAST_ERROR * options.fit.width)
    ratio = ((measured - draws.mean(axis=0)) / error) ** 2
    rows = [row[np.isfinite(row)].mean() for row in ratio if np.isfinite(row).any()]
    return max(1.0, math.sqrt((PRIOR_CURVES + sum(rows)) / (PRIOR_CURVES + len(rows))))


def _cut(runs: Sequence[RunCurve]) -> float:
    """The compute at `SHARE` of the way from the first trained evaluation of all runs to the last.

    An evaluation just above it (`SAME_COMPUTE`) counts as one at it: steps round compute differently.
    """
    trained = np.concatenate([run.compute[run.compute > 0] for run in runs])
    along = trained.min() ** (1 - SHARE) * trained.max() ** SHARE
    return float(max(along, trained[trained <= along * (1 + SAME_COMPUTE)].max()))


def _early(groups: Sequence[ConfigurationRuns], cut: float) -> list[ConfigurationRuns]:
    """The configurations up to the cut, without runs that begin after it."""
    found = [dataclasses.replace(group, runs=tuple(_until(run, cut) for run in group.runs)) for group in groups]
    trained = [tuple(run for run in group.runs if (run.compute > 0).any()) for group in found]
    return [dataclasses.replace(group, runs=runs) for group, runs in zip(found, trained, strict=True) if runs]


def _until(run: RunCurve, cut: float) -> RunCurve:
    """A run's evaluations up to the cut."""
    kept = run.compute <= cut
    columns = {name: values[kept] for name, values in run.columns.items()}
    return dataclasses.replace(run, compute=run.compute[kept], columns=columns)


def _within(reward: np.ndarray, interval: np.ndarray) -> np.ndarray:
    """Whether rewards [...] lie in their interval [2, ...]."""
    return (interval[0] - ROUNDING <= reward) & (reward <= interval[1] + ROUNDING)


def compare_held_out(result: SweepResult) -> Iterator[ComparisonResult]:
    """One; none where the sweep has too few evaluations on a side of the cut."""
    found = held_out_quarter(result.runs, result.options)
    if found is not None:
        yield held_out_answer(result, found)


def held_out_answer(result: SweepResult, found: HeldOut) -> ComparisonResult:
    """What was predicted and measured of an analysed sweep, in a table, a picture and sentences."""
    columns = {}
    if result.several_sizes and not result.several_batches:
        columns = {"predicted_n": "n* predicted (95%)", "measured_n": "n* measured", "frontier_n": "n* of the frontier"}
    elif result.several:
        columns = {"predicted_run": "best, predicted", "measured_run": "best, measured"}
    predicted = f"reward{' of the one' if result.several else ','} predicted (95% interval)"
    known = found.known.any(axis=1)
    fitted_sizes = _fitted_sizes(result, found)
    numbers = {
        "cut": found.cut,
        "widening": found.widening,
        "inside": int(found.inside.sum()),
        "rose": int(found.rose.sum()),
        "rose_inside": int((found.rose & found.inside).sum()),
        "mean_inside": int(found.mean_inside.sum()),
        "of": int(found.known.sum()),
    }
    return answer(
        result,
        "held_out",
        verdict="inside" if found.inside[found.known].all() else "partly inside",
        numbers=numbers,
        columns={"compute": unit(result)} | columns | {"predicted": predicted, "measured": "measured"},
        rows=[_row(result, found, h, n) for h, n in enumerate(fitted_sizes)],
        series=[series for k in np.flatnonzero(known).tolist() for series in _series(found, k)],
        picture=Picture(
            Panel(f"{result.metric} ({result.options.read.eval_set})"), most=8, held_out_from=found.cut
        ),
        found=found,
        share=SHARE,
        num_configurations=int(known.sum()),
        outside=_outside(found, found.measured, found.interval95),
        means_outside=_outside(found, found.mean, found.mean_interval95),
        stood_inside=int((~found.rose & found.inside).sum()),
        near=int(np.count_nonzero(np.abs(found.octaves) <= 1)) if result.several_sizes else None,
        of_frontier=_near_frontier(found, fitted_sizes),
    )  # fmt: skip


def _series(found: HeldOut, k: int) -> list[DrawnSeries]:
    """Of one configuration: what was fitted, predicted and measured."""
    name, known = found.configurations[k].name, found.known[k]
    compute, measured, mean = found.compute[known], found.measured[k, known], found.mean[k, known]
    low, high = found.interval95[:, k, known]
    panel, fell = shortened(name, 22), mean < measured
    hover = tuple(reached(name, r, c) for c, r in zip(compute, measured, strict=True))
    series = [
        DrawnSeries("fitted", found.fitted_compute, found.fitted[k], panel, look="dots", tone="quiet"),
        DrawnSeries("predicted", compute, found.predicted[k, known], panel, low, high, tone=0.25),
        DrawnSeries("measured", compute, measured, panel, look="dots", hover=hover),
    ]
    return [*series, *([DrawnSeries("mean", compute[fell], mean[fell], panel, look="rings")] if fell.any() else [])]


def _row(result: SweepResult, found: HeldOut, h: int, fitted_size: int | None) -> dict[str, Cell]:
    """Of one budget: who was expected to lead, who does, and the reward of the one that was expected."""
    k, best, compute = int(found.predicted_best[h]), int(found.measured_best[h]), float(found.compute[h])
    predicted, measured = float(found.predicted[k, h]), float(found.measured[k, h])
    low, high = found.interval95[:, k, h].tolist()
    row: dict[str, Cell] = {
        "compute": Value(compute, text=f"{compute:,.0f}"),
        "predicted_run": found.configurations[k].name,
        "measured_run": found.configurations[best].name,
        "predicted": Value.within(predicted, holding(low, high, predicted)),
        "measured": Value(measured),
    }
    if not result.several_sizes:
        return row
    size, (least, most) = int(found.group_sizes[k]), found.group_size95[h].tolist()
    return row | {
        "predicted_n": Value.whole(size, whole_or_none((least, most), size)),
        "measured_n": int(found.group_sizes[best]),
        "frontier_n": fitted_size,
    }


def _outside(found: HeldOut, reward: np.ndarray, interval95: np.ndarray) -> dict[str, list[str]]:
    """`below` and `above`: the configurations with rewards out of their interval."""
    sides = {
        "below": found.known & (reward < interval95[0] - ROUNDING),
        "above": found.known & (reward > interval95[1] + ROUNDING),
    }
    return {
        side: [each.name for each, out in zip(found.configurations, rows, strict=True) if out.any()]
        for side, rows in sides.items()
        if rows.any()
    }


def _near_frontier(found: HeldOut, fitted_sizes: Sequence[int | None]) -> tuple[int, int]:
    """Budgets at which the predicted n* is within one octave of the frontier's, and of how many."""
    pairs = zip(found.group_sizes[found.predicted_best].tolist(), fitted_sizes, strict=True)
    octaves = [math.log2(size / n) for size, n in pairs if size and n]
    return sum(abs(each) <= 1 for each in octaves), len(octaves)


def _fitted_sizes(result: SweepResult, found: HeldOut) -> list[int | None]:
    """[H] n on the frontier of the curves that were fitted to everything; None where nothing is compared."""
    of = [(row.compute, row.group_size) for row in result.frontier.budgets]
    return [next((n for c, n in of if abs(c / budget - 1) <= SAME_COMPUTE), None) for budget in found.compute]
