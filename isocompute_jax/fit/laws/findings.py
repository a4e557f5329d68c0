"""What the laws say, as sentences computed from summary.json; what is not identified is never quoted as a number."""

from __future__ import annotations

from typing import Any

from isocompute_jax.fit.report.wording import MOST_LISTED, capital, figures, reach, scale, stated

Summary = dict[str, Any]

METHODS = {"squares": "least squares", "huber": "Huber on ln L"}


def law_headline(summary: Summary) -> list[str]:
    """The answer in a few sentences, doubts included."""
    if summary["analysis"] == "model_size":
        return [*slopes(summary), *crossings(summary)[:1], *transfer(summary)]
    return [*exponents(summary), *allocation(summary)]


def slopes(summary: Summary) -> list[str]:
    """k_max and N0, or why they cannot be given."""
    law = summary["law"]
    if law["k_max"]["identified"] and law["n0"]["identified"]:
        sentences = [
            f"The slope saturates: k_max is {stated(law['k_max'])}, half of it is reached at N0 "
            f"parameters, N0 = {stated(law['n0'], scale)}."
        ]
    else:
        sentences = [
            f"k_max is {stated(law['k_max'])}; N0 is {stated(law['n0'], scale)}: "
            f"{law['n0']['note'] or law['k_max']['note']}."
        ]
    if law["k_max"]["value"] is not None and law["k_max"]["value"] <= 0:
        sentences.append("The reward does not rise with X in these runs.")
    if "depart from k(N)" in law["message"]:
        sentences.append(
            f"The models' own slopes depart from this law by more than their noise (p = {law['misfit']:.1g}), so the "
            "intervals are too narrow."
        )
    return sentences


def crossings(summary: Summary) -> list[str]:
    """Which pairs of models change places inside their data."""
    rows, unit = summary["crossovers"], summary["resource"]["unit"]
    if not rows:
        return ["One model size has nothing to cross with."]
    inside = [row for row in rows if row["inside"]]
    if not inside:
        return ["No two lines cross where both models have data."]
    sentences = []
    for row in inside[:MOST_LISTED]:
        interval = f", 95% interval {reach(row)}" if row["status"] == "ok" else f" ({row['message']})"
        sentences.append(
            f"The lines of {scale(row['smaller'])} and {scale(row['larger'])} cross at {figures(row['x'])} {unit}"
            f"{interval}; beyond it {scale(row['better_after'])} has the lower loss."
        )
    if len(inside) > MOST_LISTED:
        sentences.append(f"{len(inside) - MOST_LISTED} more crossings lie inside the data; the table has them.")
    return sentences


def transfer(summary: Summary) -> list[str]:
    """How well later evaluations and larger models are predicted."""
    sentences = []
    if summary["intra_model"]:
        rows, share = summary["intra_model"], 1.0 - summary["flags"]["holdout"]
        sentences.append(
            f"Fitted to the first {share:.0%} of each run, the law predicts the rest with a mean absolute error of "
            f"{_mean(rows, 'reward_error'):.2g} in reward; {_yardstick(rows)}."
        )
    for row in summary["inter_model"]:
        k = row["predicted_k"]
        interval = f", 95% interval {reach(k)}" if k["low"] is not None else ""
        sentences.append(
            f"From the smaller models the slope of {scale(row['model_params'])} is predicted as {figures(k['value'])}"
            f"{interval}; its own evaluations give {figures(row['measured_k'])}. With its level from its first "
            f"{row['num_fitted']} evaluations, the others are predicted within {row['reward_error']:.2g} in reward on "
            f"average; {_yardstick([row])}."
        )
    return sentences


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return sum(row[name] * row["num_scored"] for row in rows) / sum(row["num_scored"] for row in rows)


def _yardstick(rows: list[dict[str, Any]]) -> str:
    ours, unchanged = _mean(rows, "reward_error"), _mean(rows, "unchanged_error")
    verdict = "better" if ours < unchanged else "no better"
    return f"that is {verdict} than to expect no change ({unchanged:.2g})"


def data_reuse(summary: Summary) -> list[str]:
    """Whether much reuse goes with a higher loss."""
    found = summary["reuse"]
    if found["status"] == "failed":
        return [f"On data reuse: {found['message']}."]
    means = (
        f"About the models' own lines, ln L is {found['mean_below']:+.2g} on average up to tau = "
        f"{found['threshold']:g} and {found['mean_above']:+.2g} above it (standard errors "
        f"{figures(found['error_below'])} and {figures(found['error_above'])})."
    )
    if found["degraded"] is None:
        return [means, f"{capital(found['message'])}."]
    shift = f"The shift above tau = {found['threshold']:g} is {found['shift']:+.2g} ± {figures(found['shift_error'])}"
    sentences = [means, f"{shift} in ln L: {found['message']}."]
    if not summary["equal_data"]:
        sentences.append(
            "Within one run reuse and X rise together, so a curve that levels off for any other reason looks the same."
        )
    return sentences + _equal_data(summary)


def _equal_data(summary: Summary) -> list[str]:
    sentences = []
    for size in dict.fromkeys(row["model_params"] for row in summary["equal_data"]):
        rows = sorted((r for r in summary["equal_data"] if r["model_params"] == size), key=lambda row: row["tau"])
        least, most = rows[0], rows[-1]
        ends = f"loss {most['loss']:.3g} with {most['tau']:.3g} epochs, {least['loss']:.3g} with {least['tau']:.3g}"
        sentences.append(f"{scale(size)} at equal X: {ends}.")
    return sentences[:MOST_LISTED]


def exponents(summary: Summary) -> list[str]:
    """The exponents by both methods."""
    sentences = []
    for fit in summary["fits"]:
        if fit["status"] == "failed":
            sentences.append(f"By {METHODS[fit['method']]} nothing was fitted: {fit['message']}.")
            continue
        sentences.append(
            f"By {METHODS[fit['method']]}: alpha {stated(fit['alpha'])}, beta {stated(fit['beta'])}, E "
            f"{stated(fit['e'])}."
        )
        if fit["message"]:
            sentences.append(f"{capital(fit['message'])}.")
    return list(dict.fromkeys(sentences))


def allocation(summary: Summary) -> list[str]:
    """How the compute-optimal model grows, where that is known."""
    sentences = []
    for fit in summary["fits"]:
        rows = [row for row in summary["optimal"] if row["method"] == fit["method"]]
        if not fit["exponent"]["identified"] or not rows:
            continue
        last = rows[-1]
        sentences.append(
            f"By {METHODS[fit['method']]} the compute-optimal N grows as C to the power {stated(fit['exponent'])}. "
            f"With {last['flops']:.3g} FLOPs it is {scale(last['model_params'])}, on {scale(last['tokens'])} tokens."
        )
    return sentences or ["The compute-optimal allocation is not identified."]
