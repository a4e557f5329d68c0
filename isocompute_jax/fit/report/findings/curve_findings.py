"""What the fitted curves show, and how far they can be trusted."""

from __future__ import annotations

from isocompute_jax.fit.curve_results import CurveResult, Spread, SteepnessRow
from isocompute_jax.fit.report.wording import amount, between, capital, figures, shortlist, spent
from isocompute_jax.fit.sweep_results import LARGE_RESIDUAL, SweepResult

STRENGTHS = {"clear": "clearly the lowest", "some": "the lowest", "hardly": "the lowest, but hardly so"}


def learning_curves(result: SweepResult) -> list[str]:
    """What the curves show: where they start, how far they come, and how many fits carry a warning."""
    sentences = []
    base = result.base_model.get(result.metric)
    if base is not None:
        sentences.append(f"Before training the base model scores {base:z.3f} in {result.metric}.")
    leader, top, compute = result.last_leader
    sentences.append(f"The highest last evaluation is {top:z.3f}, by {leader.run} after {spent(result, compute)}.")
    doubtful = [curve.run for curve in result.curves if curve.fit.status != "ok"]
    if doubtful:
        sentences.append(
            f"{len(doubtful)} of {len(result.curves)} fits carry a warning ({shortlist(doubtful)}); "
            "the table gives the reasons."
        )
    return sentences


def identification(result: SweepResult) -> list[str]:
    """Of which configurations the data say where the curve levels off, and why not of the others."""
    if result.held_asymptote is not None:
        return [
            f"A is held at {result.held_asymptote:z.4g}: where the curves level off was given, and is not a finding."
        ]
    fitted = result.fitted
    known = [curve for curve in fitted if curve.identified()]
    unknown = [curve for curve in fitted if not curve.identified()]
    what = "the asymptote A, the reward of unlimited compute,"
    if not fitted:
        return []
    if not unknown:
        each = "the one curve" if len(fitted) == 1 else f"all {len(fitted)} curves"
        return [f"{capital(what)} is identified for {each}."]
    if not known:
        each = "for the one curve" if len(fitted) == 1 else f"for any of the {len(fitted)} curves"
        first = f"{capital(what)} is not identified {each}: the data do not say where they level off."
    else:
        names = [curve.run for curve in known]
        first = f"{capital(what)} is identified for {len(known)} of {len(fitted)} curves ({shortlist(names)})."
    reaches = [f"{curve.run} ({_reach(curve)})" for curve in unknown]
    return [first, f"It is not identified for {shortlist(reaches)}; in brackets its 95% interval."]


def _reach(curve: CurveResult) -> str:
    return between(curve.fit.interval95.get("asymptote")) or "none could be given"


def residuals(result: SweepResult) -> list[str]:
    """Noise, its memory, and the evaluations that stand out."""
    if result.noise is None:
        return ["No curve has more points than parameters, so there is no estimate of the noise."]
    sentences = [f"An evaluation scatters about its curve by {_typical(result.noise, '.2g')} in {result.metric}."]
    if result.correlation is not None:
        memory = _typical(result.correlation, "z.2f")
        sentences.append(f"Neighbouring evaluations of a curve are correlated by {memory}; intervals allow for it.")
    outside = [f"{curve.run} at {spent(result, compute)} ({t:+.1f})" for curve, compute, t in result.outliers]
    if outside:
        sentences.append(
            f"{len(outside)} fitted evaluation{'s lie' if len(outside) > 1 else ' lies'} more than "
            f"{LARGE_RESIDUAL:g} standard deviations away: {shortlist(outside)}."
        )
    left = result.num_not_fitted
    if left:
        why = not_fitted(result)
        sentences.append(f"{left} evaluation{'s were' if left > 1 else ' was'} not fitted: they {why}.")
    return sentences


def not_fitted(result: SweepResult) -> str:
    """Why evaluations may have been left out, under the options of the analysis."""
    why = ["stand alone far from their curve", "come after the peak of a curve that falls"]
    why += ["do not exceed the earlier ones"] if result.options.records != "off" else []
    why += ["lie outside of --window"] if result.options.fit.window else []
    return f"{', '.join(why[:-1])} or {why[-1]}"


def _typical(values: Spread, form: str) -> str:
    """The median, and the range where there are several."""
    ends = f", between {values.least:{form}} and {values.most:{form}}" if values.count > 1 else ""
    return f"{values.median:{form}}{ends}"


def forms(result: SweepResult) -> list[str]:
    """Which form fits best, which predicts best, and whether these agree."""
    found = result.form_choice
    if found is None:
        return ["The curves have too few points to compare forms."]
    sentences = [
        f"By AICc {found.best} is {STRENGTHS[found.strength]} ({amount(found.ahead)} below {found.second}, summed over "
        "the curves)."
    ]
    if found.predicts_best:
        agree = "the same form" if found.predicts_best == found.best else f"another one than {found.best}"
        sentences.append(
            f"{capital(found.predicts_best)} predicts best what was held out, {agree}: it misses by "
            f"{found.prediction_error:.2g}."
        )
    used = result.curves[0].fit.form
    if used != found.best:
        sentences.append(f"The curves of this report are {used}; --form={found.best} would fit them better.")
    return sentences


def holdout(result: SweepResult) -> list[str]:
    """How well the first part of the curves predicts the rest."""
    found = result.holdout_totals
    if found is None:
        return []
    tilt = "too high" if found.bias > 0 else "too low"
    share = "all" if found.inside > found.num_points - 0.5 else f"{found.inside:.0f}"
    return [
        f"Predictions miss by {found.mean_abs_error:.2g} in {result.metric} on average, and are {abs(found.bias):.2g} "
        f"{tilt}; {share} of the {found.num_points} evaluations held out lie in their 95% intervals."
    ]


def comparison(result: SweepResult) -> list[str]:
    """Whether configurations differ in steepness when all have the same asymptote."""
    found = result.comparison
    if found is None:
        return []
    origin = "an assumption, since no A is identified"
    if result.held_asymptote is not None:
        origin = "as in every fit"
    elif result.asymptote_known:
        origin = "the mean over the curves whose A is identified"
    held = f"A is held at {found.asymptote:z.3f}, {origin}."
    if len(found.known) < 2:
        return [held, "The steepness B is identified for fewer than two curves, so there is nothing to compare."]
    if found.outside:
        held += f" It lies outside the interval of A of {shortlist(found.outside)}, whose B therefore says nothing."
        if len(found.comparable) < 2:
            return [held]
    ends = f"from {_steepness(found.comparable[0])} to {_steepness(found.comparable[-1])}"
    verdict = "these two differ" if found.differ else "these intervals overlap, so no difference is established"
    return [held, f"B goes {ends}: {verdict}."]


def _steepness(row: SteepnessRow) -> str:
    return f"{figures(row.steepness)} ({row.run}, {between(row.interval95)})"
