"""What each change costs: the curves of all variants under a common asymptote, as in ScaleRL's leave-one-out."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.ablation.variants import RECIPE, variant_of
from isocompute_jax.fit import AnalysisOptions, Configuration, CurveFit
from isocompute_jax.fit.curves.diagnostics import compare_steepness
from isocompute_jax.fit.curves.seeds import ConfigurationRuns, Curve
from isocompute_jax.fit.read import RunCurve, read_curves
from isocompute_jax.fit.stages import Stages
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
    curves: Mapping[str, tuple[Curve, CurveFit, CurveFit | None]]  # name -> mean curve, fit, fit under the common A
    warnings: tuple[str, ...]  # what was left out or looks off


def analyse(runs: Sequence[str | os.PathLike[str]], options: AnalysisOptions) -> AblationResult:
    """Fits every variant by Hill's form, alone and under the recipe's asymptote (ScaleRL, arXiv 2510.13786).

    Args:
      runs: run directories, named as `variants.planned` names them; those of the recipe among them.
      options: of the fit.

    Raises:
      InputError: nothing could be read, or the recipe's runs are missing.
    """
    found, warnings = read_curves([os.fspath(path) for path in runs], options.read)
    groups = _by_variant(found)
    if not groups or groups[0].configuration.name != RECIPE:
        raise InputError(f"no run of {RECIPE!r} has an evaluation yet: without it there is nothing to compare with")
    hill = dataclasses.replace(options, form="hill")
    main = Stages(hill, groups).metric(options.metric, intervals=True)
    data = main.data
    names = [curve.configuration.name for curve in main.curves]
    fits = dict(zip(names, main.fits, strict=True))
    ceilings = {name: _estimate(fit, "asymptote") for name, fit in fits.items()}
    alike = [i for i, name in enumerate(names) if not ceilings[name].apart(ceilings[RECIPE])]
    common = compare_steepness(
        [data["compute"][i] for i in alike],
        [data["reward"][i] for i in alike],
        [main.fits[i] for i in alike],
        use=[data["use"][i] for i in alike],
        options=hill.fit,
    )
    again = {} if common is None else dict(zip((names[i] for i in alike), common.fits, strict=True))
    curves = dict(zip(names, main.curves, strict=True))
    return AblationResult(
        metric=options.metric,
        asymptote=math.nan if common is None else common.asymptote,
        variants=tuple(_variants(curves, fits, again)),
        curves={name: (curves[name], fits[name], again.get(name)) for name in names},
        warnings=tuple(warnings),
    )


def _by_variant(runs: Sequence[RunCurve]) -> list[ConfigurationRuns]:
    """The runs of each variant, the recipe's first."""
    members: dict[str, list[RunCurve]] = {RECIPE: []}
    for run in runs:
        members.setdefault(variant_of(run.run), []).append(run)
    return [_group(name, own) for name, own in members.items() if own]


def _group(name: str, runs: Sequence[RunCurve]) -> ConfigurationRuns:
    facts = runs[0].facts
    named = Configuration(name, facts.group_size, facts.problems_per_batch, facts.problem_set_size)
    return ConfigurationRuns(named, tuple(runs))


def _variants(
    curves: Mapping[str, Curve],
    fits: Mapping[str, CurveFit],
    again: Mapping[str, CurveFit],
) -> list[VariantResult]:
    end = min(curve.compute[-1] for curve in curves.values())
    ends = {name: _per_seed(curve, end) for name, curve in curves.items()}
    estimates = {name: _estimates(fits[name], again.get(name)) for name in curves}
    rows = []
    for name, curve in curves.items():
        difference, error = _difference(ends[name], ends[RECIPE])
        asymptote, steepness, midpoint = estimates[name]
        verdict = "the recipe"
        if name != RECIPE:
            verdict = _verdict(estimates[name], estimates[RECIPE], difference, error)
        rows.append(
            VariantResult(
                name=name,
                seeds=len(curve.seeds),
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


def _per_seed(curve: Curve, compute: float) -> np.ndarray:
    """[S] reward of each seed at `compute`, between its evaluations linear in compute."""
    series = [curve.of_seed(number) for number in range(len(curve.seeds))]
    return np.array([np.interp(compute, own, reward) for own, reward in series])


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
