"""What the fitted curves show, and how far they can be trusted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.report.wording import Summary, amount, between, capital, figures, shortlist, spent

LARGE_RESIDUAL = 3.0
"""Residuals of more than so many standard deviations of the noise are pointed out."""


def learning_curves(summary: Summary) -> list[str]:
    """What the curves show: where they start, how far they come, and how many fits carry a warning."""
    metric = summary["frontier"]["metric"]
    sentences = []
    base = summary["base_model"].get(metric)
    if base is not None:
        sentences.append(f"Before training the base model scores {base:z.3f} in {metric}.")
    ends = [(curve["points"]["reward"][-1], curve) for curve in summary["curves"] if curve["points"]["reward"]]
    top, leader = max(ends, key=lambda end: end[0])
    at = spent(summary, leader["points"]["compute"][-1])
    sentences.append(f"The highest last evaluation is {top:z.3f}, by {leader['run']} after {at}.")
    doubtful = [curve["run"] for curve in summary["curves"] if curve["status"] != "ok"]
    if doubtful:
        sentences.append(
            f"{len(doubtful)} of {len(summary['curves'])} fits carry a warning ({shortlist(doubtful)}); "
            "the table gives the reasons."
        )
    return sentences


def identification(summary: Summary) -> list[str]:
    """Of which configurations the data say where the curve levels off, and why not of the others."""
    fitted = [curve for curve in summary["curves"] if curve["status"] != "failed"]
    held = [curve["params"]["asymptote"] for curve in fitted if "asymptote" in curve.get("held", [])]
    if held:  # in all of them, for --fix holds a parameter of every curve
        return [f"A is held at {held[0]:z.4g}: where the curves level off was given, and is not a finding."]
    known = [curve for curve in fitted if curve["identified"].get("asymptote")]
    unknown = [curve for curve in fitted if not curve["identified"].get("asymptote")]
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
        names = [curve["run"] for curve in known]
        first = f"{capital(what)} is identified for {len(known)} of {len(fitted)} curves ({shortlist(names)})."
    reaches = [f"{curve['run']} ({_reach(curve)})" for curve in unknown]
    return [first, f"It is not identified for {shortlist(reaches)}; in brackets its 95% interval."]


def _reach(curve: dict[str, Any]) -> str:
    return between(curve["interval95"].get("asymptote")) or "none could be given"


def residuals(summary: Summary) -> list[str]:
    """Noise, its memory, and the evaluations that stand out."""
    rows = [curve for curve in summary["curves"] if curve["status"] != "failed" and curve["noise"]]
    if not rows:
        return ["No curve has more points than parameters, so there is no estimate of the noise."]
    noise = [curve["noise"] for curve in rows]
    sentences = [
        f"An evaluation scatters about its curve by {_typical(noise, '.2g')} in {summary['frontier']['metric']}."
    ]
    memory = [curve["correlation"] for curve in rows if curve["correlation"] is not None]
    if memory:
        sentences.append(
            f"Neighbouring evaluations of a curve are correlated by {_typical(memory, 'z.2f')}; intervals allow for it."
        )
    outside = [f"{c['run']} at {spent(summary, compute)} ({t:+.1f})" for c in rows for compute, t in _large(c)]
    if outside:
        sentences.append(
            f"{len(outside)} fitted evaluation{'s lie' if len(outside) > 1 else ' lies'} more than "
            f"{LARGE_RESIDUAL:g} standard deviations away: {shortlist(outside)}."
        )
    left = sum(int(not used) for c in rows for used in c["points"]["used"])
    if left:
        window = ", or lie outside of --window" if summary["flags"].get("window") else ""
        sentences.append(
            f"{left} evaluation{'s were' if left > 1 else ' was'} not fitted: they do not exceed the earlier "
            f"ones{window}."
        )
    return sentences


def _typical(values: Sequence[float], form: str) -> str:
    """The median, and the range where there are several."""
    ends = f", between {min(values):{form}} and {max(values):{form}}" if len(values) > 1 else ""
    return f"{statistics.median(values):{form}}{ends}"


def _large(curve: dict[str, Any]) -> list[tuple[float, float]]:
    points = {name: np.array(values) for name, values in curve["points"].items()}
    some = points["used"] & (points["compute"] > 0)
    compute, reward = points["compute"][some], points["reward"][some]
    t = (reward - FORMS[curve["form"]].curve(compute, **curve["params"])) / curve["noise"]
    return [(c, v) for c, v in zip(compute.tolist(), t.tolist(), strict=True) if abs(v) > LARGE_RESIDUAL]


def forms(summary: Summary) -> list[str]:
    """Which form fits best, which predicts best, and whether these agree."""
    scored = {name: row for name, row in summary["forms"].items() if row["aicc"] is not None}
    if len(scored) < 2:
        return ["The curves have too few points to compare forms."]
    best, second = sorted(scored, key=lambda name: scored[name]["aicc"])[:2]
    ahead = scored[second]["aicc"] - scored[best]["aicc"]
    strength = "clearly the lowest" if ahead > 10 else "the lowest" if ahead > 2 else "the lowest, but hardly so"
    sentences = [f"By AICc {best} is {strength} ({amount(ahead)} below {second}, summed over the curves)."]
    held = {n: row["holdout_mean_abs_error"] for n, row in scored.items() if row["holdout_mean_abs_error"] is not None}
    if held:
        sure = min(held, key=lambda name: held[name])
        agree = "the same form" if sure == best else f"another one than {best}"
        sentences.append(f"{capital(sure)} predicts best what was held out, {agree}: it misses by {held[sure]:.2g}.")
    used = summary["curves"][0]["form"]
    if used != best:
        sentences.append(f"The curves of this report are {used}; --form={best} would fit them better.")
    return sentences


def holdout(summary: Summary) -> list[str]:
    """How well the first part of the curves predicts the rest."""
    found = [curve["holdout"] for curve in summary["curves"] if curve["holdout"]]
    if not found:
        return []
    count = sum(row["num_points"] for row in found)
    inside = sum(row["coverage"] * row["num_points"] for row in found)
    error = sum(row["mean_abs_error"] * row["num_points"] for row in found) / count
    bias = sum(row["bias"] * row["num_points"] for row in found) / count
    tilt = "too high" if bias > 0 else "too low"
    share = "all" if inside > count - 0.5 else f"{inside:.0f}"
    return [
        f"Predictions miss by {error:.2g} in {summary['frontier']['metric']} on average, and are {abs(bias):.2g} "
        f"{tilt}; {share} of the {count} evaluations held out lie in their 95% intervals."
    ]


def comparison(summary: Summary) -> list[str]:
    """Whether configurations differ in steepness when all have the same asymptote."""
    found = summary["comparison"]
    if found is None:
        return []
    rows = [row for row in found["curves"] if row["identified"] and None not in row["interval95"]]
    known = any(curve["identified"].get("asymptote") for curve in summary["curves"])
    origin = "the mean over the curves whose A is identified" if known else "an assumption, since no A is identified"
    if any("asymptote" in curve.get("held", []) for curve in summary["curves"]):
        origin = "as in every fit"
    held = f"A is held at {found['asymptote']:z.3f}, {origin}."
    if len(rows) < 2:
        return [held, "The steepness B is identified for fewer than two curves, so there is nothing to compare."]
    outside = [row["run"] for row in found["curves"] if not row["asymptote_within"]]
    if outside:
        held += f" It lies outside the interval of A of {shortlist(outside)}, whose B therefore says nothing."
        rows = [row for row in rows if row["asymptote_within"]]
        if len(rows) < 2:
            return [held]
    low, high = min(rows, key=lambda row: row["steepness"]), max(rows, key=lambda row: row["steepness"])
    ends = f"from {_steepness(low)} to {_steepness(high)}"
    apart = low["interval95"][1] < high["interval95"][0]
    verdict = "these two differ" if apart else "these intervals overlap, so no difference is established"
    return [held, f"B goes {ends}: {verdict}."]


def _steepness(row: dict[str, Any]) -> str:
    return f"{figures(row['steepness'])} ({row['run']}, {between(row['interval95'])})"
