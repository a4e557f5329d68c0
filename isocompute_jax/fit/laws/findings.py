"""What the laws say, as sentences about their results; what is not identified is never quoted as a number."""

from __future__ import annotations

import math

from isocompute_jax.fit.laws.analysis import LawAnalysis
from isocompute_jax.fit.laws.chinchilla_results import ChinchillaResult
from isocompute_jax.fit.laws.model_size_results import Holdout, HoldoutScore, ModelSizeResult
from isocompute_jax.fit.laws.quotes import reach, stated
from isocompute_jax.fit.report.wording import MOST_LISTED, capital, scale
from isocompute_jax.fit.report.wording import figures as number

METHODS = {"squares": "least squares", "huber": "Huber on ln L"}


def law_headline(analysis: LawAnalysis) -> list[str]:
    """The answer in a few sentences, doubts included."""
    result = analysis.result
    if isinstance(result, ModelSizeResult):
        return [*slopes(result), *crossings(result)[:1], *transfer(result)]
    return [*exponents(result), *allocation(result)]


def slopes(result: ModelSizeResult) -> list[str]:
    """k_max and N0, or why they cannot be given."""
    law = result.law
    if law.identified:
        sentences = [
            f"The slope saturates: k_max is {stated(law.k_max)}, half of it is reached at N0 parameters, N0 = "
            f"{stated(law.n0, scale)}."
        ]
    else:
        why = law.n0.note or law.k_max.note
        sentences = [f"k_max is {stated(law.k_max)}; N0 is {stated(law.n0, scale)}: {why}."]
    if law.k_max.value <= 0:
        sentences.append("The reward does not rise with X in these runs.")
    if law.departs:
        sentences.append(
            f"The models' own slopes depart from this law by more than their noise (p = {law.misfit:.1g}), so the "
            "intervals are too narrow."
        )
    return sentences


def crossings(result: ModelSizeResult) -> list[str]:
    """Which pairs of models change places inside their data."""
    if not result.crossovers:
        return ["One model size has nothing to cross with."]
    inside = result.crossings_inside
    if not inside:
        return ["No two lines cross where both models have data."]
    sentences = []
    for row in inside[:MOST_LISTED]:
        interval = f", 95% interval {reach(row)}" if row.status == "ok" else f" ({row.message})"
        sentences.append(
            f"The lines of {scale(row.smaller)} and {scale(row.larger)} cross at {number(row.x)} "
            f"{result.resource.unit}{interval}; beyond it {scale(row.better_after)} has the lower loss."
        )
    if len(inside) > MOST_LISTED:
        sentences.append(f"{len(inside) - MOST_LISTED} more crossings lie inside the data; the table has them.")
    return sentences


def transfer(result: ModelSizeResult) -> list[str]:
    """How well later evaluations and larger models are predicted."""
    sentences = []
    if result.later is not None:
        sentences.append(
            f"Fitted to the first {result.fitted_share:.0%} of each run, the law predicts the rest with a mean "
            f"absolute error of {result.later.reward_error:.2g} in reward; {_yardstick(result.later)}."
        )
    for row in result.inter_model:
        k = row.predicted_k
        interval = f", 95% interval {reach(k)}" if math.isfinite(k.low) else ""
        sentences.append(
            f"From the smaller models the slope of {scale(row.model_params)} is predicted as {number(k.value)}"
            f"{interval}; its own evaluations give {number(row.measured_k)}. With its level from its first "
            f"{row.num_fitted} evaluations, the others are predicted within {row.reward_error:.2g} in reward on "
            f"average; {_yardstick(row)}."
        )
    return sentences


def _yardstick(score: HoldoutScore | Holdout) -> str:
    verdict = "better" if score.better else "no better"
    return f"that is {verdict} than to expect no change ({score.unchanged_error:.2g})"


def data_reuse(result: ModelSizeResult) -> list[str]:
    """Whether much reuse goes with a higher loss."""
    found = result.reuse
    if found.status == "failed":
        return [f"On data reuse: {found.message}."]
    means = (
        f"About the models' own lines, ln L is {found.mean_below:+.2g} on average up to tau = "
        f"{found.threshold:g} and {found.mean_above:+.2g} above it (standard errors "
        f"{number(found.error_below)} and {number(found.error_above)})."
    )
    if found.degraded is None:
        return [means, f"{capital(found.message)}."]
    shift = f"The shift above tau = {found.threshold:g} is {found.shift:+.2g} ± {number(found.shift_error)}"
    sentences = [means, f"{shift} in ln L: {found.message}."]
    if not result.equal_data:
        sentences.append(
            "Within one run reuse and X rise together, so a curve that levels off for any other reason looks the same."
        )
    return sentences + _equal_data(result)


def _equal_data(result: ModelSizeResult) -> list[str]:
    return [
        f"{scale(least.model_params)} at equal X: loss {most.loss:.3g} with {most.tau:.3g} epochs, {least.loss:.3g} "
        f"with {least.tau:.3g}."
        for least, most in result.reuse_ends[:MOST_LISTED]
    ]


def exponents(result: ChinchillaResult) -> list[str]:
    """The exponents by both methods."""
    sentences = []
    for fit in result.fits:
        if fit.status == "failed":
            sentences.append(f"By {METHODS[fit.method]} nothing was fitted: {fit.message}.")
            continue
        sentences.append(
            f"By {METHODS[fit.method]}: alpha {stated(fit.alpha)}, beta {stated(fit.beta)}, E {stated(fit.e)}."
        )
        if fit.message:
            sentences.append(f"{capital(fit.message)}.")
    return list(dict.fromkeys(sentences))


def allocation(result: ChinchillaResult) -> list[str]:
    """How the compute-optimal model grows, where that is known."""
    sentences = []
    for fit in result.fits:
        path = result.path(fit.method)
        if not path:
            continue
        last = path[-1]
        sentences.append(
            f"By {METHODS[fit.method]} the compute-optimal N grows as C to the power {stated(fit.exponent)}. "
            f"With {last.flops:.3g} FLOPs it is {scale(last.model_params)}, on {scale(last.tokens)} tokens."
        )
    return sentences or ["The compute-optimal allocation is not identified."]
