"""What each change costs: the curves of all variants under a common asymptote, as in ScaleRL's leave-one-out."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.ablation.variants import RECIPE, variant_of
from isocompute_jax.fit import AnalysisOptions, CurveFit, fit_curves
from isocompute_jax.fit.curves.scalerl import compare_steepness
from isocompute_jax.fit.read import RunCurve, read_curves
from isocompute_jax.records.errors import InputError

Interval = tuple[float, float]
UNKNOWN: Interval = (math.nan, math.nan)


@dataclasses.dataclass(frozen=True)
class ParameterEstimate:
    """A number, its 95% interval (NaN when unknown), and whether the data pin it down."""

    value: float
    interval95: Interval = UNKNOWN
    identified: bool = False

    def apart(self, other: ParameterEstimate) -> bool:
        """Whether both are known, and their intervals have nothing in common."""
        (low, high), (least, most) = self.interval95, other.interval95
        return self.identified and other.identified and (high < least or most < low)


@dataclasses.dataclass(frozen=True, eq=False)
class VariantCurve:
    """Every evaluation of the runs of one variant, run by run, each in order of compute."""

    compute: np.ndarray  # [E] rollouts; 0 is the base model
    reward: np.ndarray  # [E]
    seed: np.ndarray  # [E] of the run

    def at(self, compute: float) -> np.ndarray:
        """[S] reward of each run, between its evaluations linear in compute."""
        own = [self.seed == seed for seed in dict.fromkeys(self.seed.tolist())]
        return np.array([np.interp(compute, self.compute[run], self.reward[run]) for run in own])


@dataclasses.dataclass(frozen=True)
class VariantResult:
    """One variant beside the recipe."""

    name: str
    seeds: int  # how many runs
    compute: float  # rollouts at which the rewards of all variants are compared, the largest that all runs reached
    reward: float  # mean reward of the seeds there
    difference: float  # from the recipe's
    difference_stderr: float  # over seeds; NaN with one seed
    asymptote: ParameterEstimate  # A of its own curve
    steepness: ParameterEstimate  # B under the common asymptote
    midpoint: ParameterEstimate  # C_mid, rollouts, under the common asymptote
    verdict: str  # in words


@dataclasses.dataclass(frozen=True, eq=False)
class AblationResult:
    """All variants, the recipe first."""

    metric: str  # what was fitted
    # the common A: the mean over the curves whose own A is not clearly another than the recipe's (of those whose A is
    # identified, when there are any); NaN where no two curves could be fitted. The others are not fitted under it:
    # their B would say nothing
    asymptote: float
    variants: tuple[VariantResult, ...]
    curves: Mapping[str, tuple[VariantCurve, CurveFit]]  # name -> evaluations, fit
    warnings: tuple[str, ...]  # what was left out or looks off


def analyse(runs: Sequence[str | os.PathLike[str]], options: AnalysisOptions) -> AblationResult:
    """Fits every variant by Hill's form, alone and under the recipe's asymptote (ScaleRL, arXiv 2510.13786).

    Args:
      runs: run directories, named as `variants.planned` names them; those of the recipe among them.
      options: of the fit.

    Raises:
      InputError: nothing could be read, or the recipe's runs are missing.
    """
    found, notes = read_curves([os.fspath(path) for path in runs], options.read)
    curves = _by_variant(found, options.metric)
    if RECIPE not in curves:
        raise InputError(f"no run of {RECIPE!r} has an evaluation yet: without it there is nothing to compare with")
    hill = dataclasses.replace(options.fit, form="hill")
    every = list(curves.values())
    own = fit_curves(*_arrays(every), seeds=[each.seed for each in every], options=hill)
    fits = dict(zip(curves, own, strict=True))
    ceilings = {name: _estimate(fit, "asymptote") for name, fit in fits.items()}
    alike = [name for name in curves if not ceilings[name].apart(ceilings[RECIPE])]
    members = [curves[name] for name in alike]
    common = compare_steepness(
        *_arrays(members),
        [fits[name] for name in alike],
        seeds=[each.seed for each in members],
        options=hill,
    )
    again = {} if common is None else dict(zip(alike, common, strict=True))
    return AblationResult(
        metric=options.metric,
        asymptote=math.nan if common is None else common[0].asymptote,
        variants=tuple(_variants(curves, fits, again)),
        curves={name: (curve, fits[name]) for name, curve in curves.items()},
        warnings=notes.texts,
    )


def _by_variant(runs: Sequence[RunCurve], metric: str) -> dict[str, VariantCurve]:
    """The evaluations of each variant, the recipe's first; without those that have no run with one."""
    members: dict[str, list[RunCurve]] = {RECIPE: []}
    for run in runs:
        members.setdefault(variant_of(run.run), []).append(run)
    found = {name: _curve(own, metric) for name, own in members.items() if own}
    return {name: curve for name, curve in found.items() if len(curve.compute)}


def _curve(runs: Sequence[RunCurve], metric: str) -> VariantCurve:
    parts = []
    for run in runs:
        reward = run.columns.get(metric, np.full(len(run.compute), np.nan))
        known = np.isfinite(reward)
        parts.append((run.compute[known], reward[known], np.full(known.sum(), run.facts.seed)))
    return VariantCurve(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _arrays(curves: Sequence[VariantCurve]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [each.compute for each in curves], [each.reward for each in curves]


def _variants(
    curves: Mapping[str, VariantCurve],
    fits: Mapping[str, CurveFit],
    again: Mapping[str, CurveFit],
) -> list[VariantResult]:
    end = min(curve.compute[curve.seed == seed][-1] for curve in curves.values() for seed in set(curve.seed.tolist()))
    ends = {name: curve.at(end) for name, curve in curves.items()}
    estimates = {name: _estimates(fits[name], again.get(name)) for name in curves}
    rows = []
    for name in curves:
        difference, error = _difference(ends[name], ends[RECIPE])
        asymptote, steepness, midpoint = estimates[name]
        verdict = "the recipe"
        if name != RECIPE:
            verdict = _verdict(estimates[name], estimates[RECIPE], difference, error)
        rows.append(
            VariantResult(
                name=name,
                seeds=len(ends[name]),
                compute=float(end),
                reward=float(np.mean(ends[name])),
                difference=difference,
                difference_stderr=error,
                asymptote=asymptote,
                steepness=steepness,
                midpoint=midpoint,
                verdict=verdict,
            )
        )
    return rows


def _difference(ours: np.ndarray, recipe: np.ndarray) -> tuple[float, float]:
    """Mean difference and its standard error (Welch), NaN unless both have two seeds."""
    if min(len(ours), len(recipe)) < 2:
        return float(ours.mean() - recipe.mean()), math.nan
    error = math.sqrt(ours.var(ddof=1) / len(ours) + recipe.var(ddof=1) / len(recipe))
    return float(ours.mean() - recipe.mean()), error


def _estimates(
    own: CurveFit, common: CurveFit | None
) -> tuple[ParameterEstimate, ParameterEstimate, ParameterEstimate]:
    """A of the curve alone, B and C_mid under the common asymptote."""
    return _estimate(own, "asymptote"), _estimate(common, "steepness"), _estimate(common, "midpoint")


def _estimate(fit: CurveFit | None, name: str) -> ParameterEstimate:
    if fit is None or fit.status == "failed":
        return ParameterEstimate(math.nan)
    return ParameterEstimate(fit.params[name], fit.interval95.get(name, UNKNOWN), fit.identified.get(name, False))


def _verdict(
    ours: Sequence[ParameterEstimate], recipe: Sequence[ParameterEstimate], difference: float, error: float
) -> str:
    """What the intervals say; a lower asymptote weighs more than a slower rise (ScaleRL, section 3)."""
    verdicts = []
    for mine, theirs, higher, lower in zip(
        ours, recipe, ("higher ceiling", "steeper", "later"), ("lower ceiling", "less steep", "earlier"), strict=True
    ):
        if mine.apart(theirs):
            verdicts.append(higher if mine.value > theirs.value else lower)
    if math.isfinite(error) and abs(difference) > 2 * error:
        verdicts.append(f"{'above' if difference > 0 else 'below'} it at the end")
    return ", ".join(verdicts) or "not told apart"
