"""What the data say, as sentences, each computed from the content of summary.json and worded as far as it goes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from isocompute_jax.fit.inputs import SOLVE_SHARES

Summary = dict[str, Any]

MOST_LISTED = 3
"""Longer lists are left to the tables."""


def rollouts(compute: float) -> str:
    """A compute in words, to three significant figures: `44,900` or `5.6 million`."""
    if compute >= 1e6:
        return f"{compute / 1e6:.3g} million"
    digits = 2 - math.floor(math.log10(compute)) if compute > 0 else 0
    return f"{round(compute, min(digits, 0)):,.0f}"


def listed(items: Iterable[Any]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def every_seed(count: int) -> str:
    """`both seeds` or `all 3 seeds`."""
    return "both seeds" if count == 2 else f"all {count} seeds"


def headline(summary: Summary) -> list[str]:
    """The answer in a few sentences, doubts included."""
    return [*_leaders(summary), *_switch_sentences(summary), *_doubt(summary), *_saturation(summary)]


def learning_curves(summary: Summary) -> list[str]:
    """What the curves show: gains, the fits' own doubts, and how much the choice of points matters."""
    metric = summary["frontier"]["metric"]
    sentences = []
    base = summary["base_model"].get(metric)
    if base is not None:
        sentences.append(f"Before training the base model scores {base:.3f} in {metric}.")
    ends = [(curve["points"]["reward"][-1], curve) for curve in summary["curves"] if curve["points"]["reward"]]
    top, leader = max(ends, key=lambda end: end[0])
    at = rollouts(leader["points"]["compute"][-1])
    sentences.append(f"The highest last evaluation is {top:.3f}, by {leader['run']} after {at} rollouts.")
    doubtful = [curve["run"] for curve in summary["curves"] if curve["status"] != "ok"]
    if doubtful:
        sentences.append(
            f"{len(doubtful)} of {len(summary['curves'])} fits carry a warning ({listed(doubtful)}); "
            "the table gives the reasons."
        )
    return sentences + _choices(summary)


def ties(summary: Summary) -> list[str]:
    """At how many budgets the best configuration can be told from the others."""
    found = summary["ties"]
    compared = [row for row in found["budgets"] if row["compared"] > 1]
    if not compared:
        return ["No budget has evaluations of two configurations, so there is nothing to compare."]
    if not found["noise_estimate"]:
        return ["Every configuration has one seed, so there is no noise estimate and ties cannot be told from leads."]
    shared = [row for row in compared if len(row["tied_runs"]) > 1]
    if not shared:
        return [f"At each of the {len(compared)} budgets one configuration leads by more than the seed noise."]
    if len(shared) == len(compared):
        return [f"At all {len(compared)} budgets at least two configurations tie within seed noise."]
    text = f"At {len(shared)} of {len(compared)} budgets the best one ties with others within seed noise"
    if len(shared) > MOST_LISTED:
        return [f"{text}."]
    where = listed(f"{rollouts(row['compute'])} rollouts ({listed(row['tied_runs'])})" for row in shared)
    return [f"{text}: {where}."]


def optimal_group_size(summary: Summary) -> list[str]:
    """The course of n*(C) and the state of its sigmoid."""
    rows = summary["frontier"]["budgets"]
    steps = [*rows[:1], *(b for a, b in itertools.pairwise(rows) if a["group_size"] != b["group_size"])]
    course = listed(f"{row['group_size']} from {rollouts(row['compute'])} rollouts" for row in steps)
    sentences = [f"Read off at the evaluated budgets, n* is {course}."]
    allocation = summary["allocation"]
    if allocation["status"] == "ok":
        law = allocation["law"]
        sentences.append(
            f"The sigmoid rises by {law['span']:.2f} octaves around {rollouts(10 ** law['midpoint'])} rollouts, "
            f"with slope {law['slope']:.2f} per decade."
        )
    return sentences + _saturation(summary) + _unanimity(summary)


def targets(summary: Summary) -> list[str]:
    """Which n each target asks for at the largest budget that compares configurations."""
    last = {
        name: rows[-1]
        for name, found in summary["targets"].items()
        if (rows := [row for row in found["budgets"] if row["compared"] > 1])
    }
    sentences = []
    for name, row in last.items():
        rivals = [n for n in row["tied_group_sizes"] if n != row["best_group_size"]]
        tie = f", tied within seed noise with n = {listed(rivals)}" if rivals else ""
        sentences.append(
            f"{name}: at {rollouts(row['compute'])} rollouts the best evaluation is that of "
            f"n = {row['best_group_size']} ({row['reward']:.3f}{tie})."
        )
    best = next((row for name, row in last.items() if name.startswith("best@")), None)
    worst = next((row for name, row in last.items() if name.startswith("worst@")), None)
    if best and worst:
        sentences.append(_coverage_or_sharpening(best, worst, noise=summary["ties"]["noise_estimate"]))
    return sentences


def switch_epochs(summary: Summary) -> list[str]:
    """After how many epochs the frontier leaves each configuration."""
    found = [s for s in summary["frontier"]["switches"] if s["cause"] == "crossing" and s["epochs"] is not None]
    if not found:
        return ["There is no switch whose number of epochs could be given."]
    each = listed(f"{s['from_run']} after {s['epochs']:.3g} epochs" for s in found)
    values = [s["epochs"] for s in found]
    if all(0.5 <= value <= 2 for value in values):
        against = "within a factor of two of one epoch"
    elif min(values) > 2:
        against = "later than two epochs"
    elif max(values) < 0.5:
        against = "earlier than half an epoch"
    else:
        against = "not all on the same side of one epoch"
    return [f"The frontier leaves {each}: {against}."]


def entropy(summary: Summary) -> list[str]:
    """How entropy moved between the first and the last evaluation after the base model's."""
    moves = []
    for row in summary["training"]:
        values = row["series"].get("entropy", {}).get("mean", [])
        if len(values) >= 2:
            moves.append((row["run"], values[0], values[-1]))
    if not moves:
        return []
    down = [run for run, first, last in moves if last < first]
    each = listed(f"{run}: {first:.2f} to {last:.2f}" for run, first, last in _ends(moves))
    return [f"Entropy ends lower than it began in {len(down)} of {len(moves)} configurations ({each} nats per token)."]


def solve_rates(summary: Summary) -> list[str]:
    """Who leaves fewest problems unsolved, and who solves most of them always."""
    last = {
        row["run"]: {name: row["series"][name]["mean"][-1] for name in SOLVE_SHARES}
        for row in summary["training"]
        if all(name in row["series"] for name in SOLVE_SHARES)
    }
    if len(last) < 2:
        return []
    reach = min(last, key=lambda run: last[run]["never_solved"])
    sure = max(last, key=lambda run: last[run]["always_solved"])
    return [
        f"At its last evaluation {reach} leaves the smallest share of evaluation problems never solved "
        f"({last[reach]['never_solved']:.1%}); {sure} has the largest share solved in every sample "
        f"({last[sure]['always_solved']:.1%})."
    ]


def _leaders(summary: Summary) -> list[str]:
    metric, rows = summary["frontier"]["metric"], summary["frontier"]["budgets"]
    sizes = sorted({curve["group_size"] for curve in summary["curves"]})
    if len(summary["curves"]) == 1:
        return [
            f"Only one configuration was run ({summary['curves'][0]['run']}), so this data cannot say which n is best."
        ]
    only = [f"Every run has n = {sizes[0]}, so this data cannot say which n is best."] if len(sizes) == 1 else []
    if not rows:
        return [*only, "No configuration has a curve at the evaluated budgets."]
    first, last = rows[0], rows[-1]
    if first["run"] == last["run"] and not _crossings(summary):
        return [
            *only,
            f"{last['run']} has the highest fitted {metric} from {rollouts(first['compute'])} to "
            f"{rollouts(last['compute'])} rollouts, where it reaches {last['reward']:.3f}.",
        ]
    again = "again " if first["run"] == last["run"] else ""
    return [
        *only,
        f"With {rollouts(first['compute'])} rollouts {first['run']} has the highest fitted {metric} "
        f"({first['reward']:.3f}); with {rollouts(last['compute'])} it is {again}{last['run']} ({last['reward']:.3f}).",
    ]


def _crossings(summary: Summary) -> list[dict[str, Any]]:
    return [switch for switch in summary["frontier"]["switches"] if switch["cause"] == "crossing"]


def _switch_sentences(summary: Summary) -> list[str]:
    if len(summary["curves"]) == 1:
        return []
    crossings = _crossings(summary)
    sentences = []
    if not crossings:
        sentences.append("No two fitted curves cross on the frontier: there is no switch.")
    for switch in crossings:
        pair = f"from {switch['from_run']} to {switch['to_run']}"
        text = f"The frontier passes {pair} at {rollouts(switch['compute'])} rollouts"
        alone = switch["by_seed"]
        seen = [compute for compute in alone.values() if compute is not None]
        if alone and len(seen) == len(alone):
            text += f", and does so in {every_seed(len(alone))} ({rollouts(min(seen))} to {rollouts(max(seen))})"
        elif alone:
            text += f", but only {len(seen)} of {len(alone)} seeds show{'s' if len(seen) == 1 else ''} it alone"
        if switch["beyond_noise"] is not None:
            text += (
                "; on both sides of it the lead exceeds two standard errors"
                if switch["beyond_noise"]
                else "; on at least one side of it the lead is within two standard errors"
            )
        if switch["established"] is False:
            text += ": not established"
        sentences.append(text + ".")
    ended = len(summary["frontier"]["switches"]) - len(crossings)
    if ended:
        sentences.append(
            f"{'One more change' if ended == 1 else f'{ended} more changes'} of the leader "
            "only marks where a configuration's data begin or end, which says nothing about n."
        )
    return sentences


def _doubt(summary: Summary) -> list[str]:
    return ties(summary) if len(summary["curves"]) > 1 else []


def _saturation(summary: Summary) -> list[str]:
    allocation = summary["allocation"]
    if allocation["status"] == "ok":
        return [f"The sigmoid of n*(C) saturates at n = {allocation['saturation']:.3g}."]
    return [f"Where n* saturates is not established: {allocation['message']}."]


def _unanimity(summary: Summary) -> list[str]:
    rows, seeds = summary["per_seed"]["budgets"], summary["per_seed"]["seeds"]
    if not rows:
        return []
    agreed = [row for row in rows if row["unanimous"]]
    if len(agreed) == len(rows):
        return [f"In {every_seed(len(seeds))} the same n has the best evaluation at every budget."]
    return [f"The {len(seeds)} seeds agree on the n with the best evaluation at {len(agreed)} of {len(rows)} budgets."]


def _choices(summary: Summary) -> list[str]:
    """Whether the frontier depends on which evaluations count."""
    courses = {rule: _course(found["switches"]) for rule, found in summary["record_choices"].items()}
    if len(courses) < 2:
        return []
    if len({tuple(pairs) for pairs, _ in courses.values()}) == 1:
        if not next(iter(courses.values()))[0]:
            return [f"Whichever evaluations are fitted ({listed(courses)}), there is no switch."]
        ratios = [max(at) / min(at) for at in zip(*(points for _, points in courses.values()), strict=True)]
        widest = max(ratios) - 1
        apart = f"at computes that differ by up to {widest:.1%}" if widest >= 1e-3 else "at the same compute"
        return [f"Whichever evaluations are fitted ({listed(courses)}), the same switches are found, {apart}."]
    told = "; ".join(
        f"{rule}: "
        + (listed(f"{a} → {b} at {rollouts(c)}" for (a, b), c in zip(pairs, at, strict=True)) or "no switch")
        for rule, (pairs, at) in courses.items()
    )
    return [f"The switches depend on which evaluations are fitted ({told})."]


def _course(switches: Sequence[dict[str, Any]]) -> tuple[list[tuple[str, str]], list[float]]:
    crossings = [s for s in switches if s["cause"] == "crossing"]
    return [(s["from_run"], s["to_run"]) for s in crossings], [s["compute"] for s in crossings]


def _coverage_or_sharpening(best: dict[str, Any], worst: dict[str, Any], *, noise: bool) -> str:
    if set(best["tied_group_sizes"]) & set(worst["tied_group_sizes"]):
        margin = "within seed noise the same n serves" if noise else "the same n leads in"
        return f"At that budget {margin} coverage (best@k) and sharpening (worst@k)."
    larger, smaller = ("coverage (best@k)", "sharpening (worst@k)")
    if best["best_group_size"] < worst["best_group_size"]:
        larger, smaller = smaller, larger
    caveat = "" if noise else "; with one seed this may be chance"
    return f"At that budget {larger} asks for a larger n than {smaller}{caveat}."


def _ends(rows: Sequence[Any]) -> list[Any]:
    """The first and the last of a list (once, when they are the same)."""
    return list(rows[:1]) + list(rows[-1:] if len(rows) > 1 else [])
