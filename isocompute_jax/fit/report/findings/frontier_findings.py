"""What the frontier says about n: leaders, switches, ties, targets, slices; each as strong as the data allow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from isocompute_jax.fit.report.wording import (
    MOST_LISTED,
    Summary,
    amount,
    between,
    every_seed,
    listed,
    shortlist,
    spent,
    unit,
)


def leaders(summary: Summary) -> list[str]:
    """Who leads at the smallest and at the largest evaluated budget, or why that says nothing about n."""
    metric, rows = summary["frontier"]["metric"], summary["frontier"]["budgets"]
    if len(summary["curves"]) == 1:
        return [
            f"Only one configuration was run ({summary['curves'][0]['run']}), so this data cannot say which n is best."
        ]
    sentences = _one_size(summary)
    if not rows:
        return [*sentences, "No configuration has a curve at the evaluated budgets."]
    first, last = rows[0], rows[-1]
    if first["run"] == last["run"] and not crossings(summary):
        return [
            *sentences,
            f"{last['run']} has the highest fitted {metric} from {amount(first['compute'])} to "
            f"{spent(summary, last['compute'])}, where it reaches {last['reward']:z.3f}.",
        ]
    again = "again " if first["run"] == last["run"] else ""
    return [
        *sentences,
        f"With {spent(summary, first['compute'])} {first['run']} has the highest fitted {metric} "
        f"({first['reward']:z.3f}); with {amount(last['compute'])} it is {again}{last['run']} ({last['reward']:z.3f}).",
    ]


def _one_size(summary: Summary) -> list[str]:
    """Why the data cannot compare group sizes, where they cannot."""
    sizes = {curve["group_size"] for curve in summary["curves"]}
    if 0 in sizes:
        return ["The group size of some runs is unknown: the data say which configuration is best, not which n."]
    if len(sizes) == 1:
        return [f"Every run has n = {sizes.pop()}, so this data cannot say which n is best."]
    return []


def crossings(summary: Summary) -> list[dict[str, Any]]:
    """The switches at which two curves cross."""
    return [switch for switch in summary["frontier"]["switches"] if switch["cause"] == "crossing"]


def switch_sentences(summary: Summary) -> list[str]:
    """Where the lead changes, and how well each change is borne out."""
    if len(summary["curves"]) == 1:
        return []
    found = crossings(summary)
    sentences = [_switch(summary, switch) for switch in found]
    if not found:
        sentences = ["No two fitted curves cross on the frontier: there is no switch."]
    elif len(found) > MOST_LISTED:
        sentences = [_many(summary, found)]
    ended = len(summary["frontier"]["switches"]) - len(found)
    if ended:
        sentences.append(
            f"{'One more change' if ended == 1 else f'{ended} more changes'} of the leader only "
            f"mark{'s' if ended == 1 else ''} where a configuration's data begin or end, which says nothing about n."
        )
    return sentences


def _many(summary: Summary, found: Sequence[dict[str, Any]]) -> str:
    """All switches in one sentence."""
    text = (
        f"The lead on the frontier changes {len(found)} times between {amount(found[0]['compute'])} and "
        f"{spent(summary, found[-1]['compute'])}"
    )
    told = [switch for switch in found if switch["established"] is not None]
    if told:
        text += f"; {sum(switch['established'] for switch in told)} of these switches are established, in every seed "
        text += "and beyond noise"
    shares = [switch["share"] for switch in found if switch["share"] is not None]
    if shares:
        ends = f"{min(shares):.0%} to {max(shares):.0%}" if max(shares) - min(shares) >= 0.01 else f"{min(shares):.0%}"
        text += f"; each is there in {ends} of the bootstrap replicates"
    return text + "."


def _switch(summary: Summary, switch: dict[str, Any]) -> str:
    text = f"The frontier passes from {switch['from_run']} to {switch['to_run']} at {spent(summary, switch['compute'])}"
    interval = between(switch["interval95"], amount)
    if interval:
        text += f" (95% interval {interval})"
    if switch["share"] is not None and switch["share"] < 0.95:
        text += f"; {switch['share']:.0%} of the bootstrap replicates have this switch"
    alone = switch["by_seed"]
    seen = [compute for compute in alone.values() if compute is not None]
    if alone and len(seen) == len(alone):
        text += f"; {every_seed(len(alone))} show it alone ({amount(min(seen))} to {amount(max(seen))})"
    elif alone:
        text += f"; only {len(seen)} of {len(alone)} seeds show{'s' if len(seen) == 1 else ''} it alone"
    if switch["beyond_noise"] is not None:
        text += (
            "; on both sides of it the lead exceeds two standard errors"
            if switch["beyond_noise"]
            else "; on at least one side of it the lead is within two standard errors"
        )
    return text + (": not established." if switch["established"] is False else ".")


def doubt(summary: Summary) -> list[str]:
    """Ties, where there is something to compare."""
    return ties(summary) if len(summary["curves"]) > 1 else []


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
    where = listed(f"{spent(summary, row['compute'])} ({listed(row['tied_runs'])})" for row in shared)
    return [f"{text}: {where}."]


def optimal_group_size(summary: Summary) -> list[str]:
    """The course of n*(C), how sure it is, and the state of its sigmoid."""
    sentences = []
    rows = summary["frontier"]["budgets"]
    if rows and all(row["group_size"] for row in rows):
        sentences.append(f"Read off at the evaluated budgets, n* is {_course(summary, rows, 'group_size')}.")
    shares = [row["leader_share"] for row in rows if row["leader_share"] is not None]
    if shares:
        sure = sum(share >= 0.95 for share in shares)
        sentences.append(
            f"At {sure} of {len(shares)} budgets the same configuration leads in at least 95% of the "
            f"{summary['bootstrap']['replicates']} bootstrap replicates."
        )
    allocation = summary["allocation"]
    if allocation["status"] == "ok":
        law = allocation["law"]
        sentences.append(
            f"The sigmoid rises by {law['span']:z.2f} octaves around {spent(summary, 10 ** law['midpoint'])}, "
            f"with slope {law['slope']:z.2f} per decade."
        )
    return sentences + saturation(summary) + _unanimity(summary)


def _course(summary: Summary, rows: Sequence[dict[str, Any]], name: str) -> str:
    """`8 from 2,050 rollouts and 4 from 3,810 rollouts`; of a long course the first steps."""
    steps = [*rows[:1], *(b for a, b in itertools.pairwise(rows) if a[name] != b[name])]
    if len(steps) == 1:
        return f"{steps[0][name]} at every budget"
    return listed(f"{row[name]} from {amount(row['compute'])}" for row in steps) + f" {unit(summary)}"


def saturation(summary: Summary) -> list[str]:
    """The n* of unlimited compute, or why it cannot be given; nothing where n is one or unknown."""
    sizes = {curve["group_size"] for curve in summary["curves"]}
    if len(sizes) == 1 or 0 in sizes:
        return []
    allocation = summary["allocation"]
    if allocation["status"] == "ok":
        interval = between(allocation["interval95"].get("saturation"))
        ends = f" (95% interval {interval})" if interval else ""
        return [f"The sigmoid of n*(C) saturates at n = {allocation['saturation']:.3g}{ends}."]
    return [f"Where n* saturates is not established: {allocation['message']}."]


def _unanimity(summary: Summary) -> list[str]:
    rows, seeds = summary["per_seed"]["budgets"], summary["per_seed"]["seeds"]
    if not rows:
        return []
    agreed = [row for row in rows if row["unanimous"]]
    if len(agreed) == len(rows):
        return [f"In {every_seed(len(seeds))} the same n has the best evaluation at every budget."]
    return [f"The {len(seeds)} seeds agree on the n with the best evaluation at {len(agreed)} of {len(rows)} budgets."]


def choices(summary: Summary) -> list[str]:
    """Whether the frontier depends on which evaluations count."""
    courses = {rule: _passes(found["switches"]) for rule, found in summary["record_choices"].items()}
    if len(courses) < 2:
        return []
    if len({tuple(pairs) for pairs, _ in courses.values()}) == 1:
        if not next(iter(courses.values()))[0]:
            return [f"Whichever evaluations are fitted ({listed(courses)}), there is no switch."]
        ratios = [max(at) / min(at) for at in zip(*(points for _, points in courses.values()), strict=True)]
        widest = max(ratios) - 1
        apart = f"at computes that differ by up to {widest:.1%}" if widest >= 1e-3 else "at the same compute"
        return [f"Whichever evaluations are fitted ({listed(courses)}), the same switches are found, {apart}."]
    if max(len(pairs) for pairs, _ in courses.values()) > MOST_LISTED:
        counts = listed(f"{len(pairs)} with {rule}" for rule, (pairs, _) in courses.items())
        return [f"The switches depend on which evaluations are fitted: there are {counts}, as the table shows."]
    told = "; ".join(
        f"{rule}: " + (listed(f"{a} → {b} at {amount(c)}" for (a, b), c in zip(pairs, at, strict=True)) or "no switch")
        for rule, (pairs, at) in courses.items()
    )
    return [f"The switches depend on which evaluations are fitted ({told})."]


def _passes(switches: Sequence[dict[str, Any]]) -> tuple[list[tuple[str, str]], list[float]]:
    found = [s for s in switches if s["cause"] == "crossing"]
    return [(s["from_run"], s["to_run"]) for s in found], [s["compute"] for s in found]


def batches(summary: Summary) -> list[str]:
    """How B_problem and the number of steps move along the frontier."""
    rows = summary["frontier"]["budgets"]
    if not rows:
        return []
    first, last = rows[0], rows[-1]
    sentences = [f"The best B_problem is {_course(summary, rows, 'problems_per_batch')}."]
    steps = [row["num_steps"] for row in rows]
    if all(steps) and steps[0] != steps[-1] and steps in (sorted(steps), sorted(steps, reverse=True)):
        growth, spread = steps[-1] / steps[0], last["compute"] / first["compute"]
        course = f"grows {growth:.3g}-fold," if growth > 1 else "falls"
        sentences.append(
            f"While compute grows {spread:.3g}-fold, the best number of steps {course} from "
            f"{amount(steps[0])} to {amount(steps[-1])}."
        )
    return sentences


def slices(summary: Summary, kind: str) -> list[str]:
    """Whether n* rises in each slice of a kind, and where the law is established."""
    rows = [part for part in summary["slices"] if part["kind"] == kind and part["budgets"]]
    symbol, against = ("B_problem", "compute") if kind == "problems_per_batch" else ("B", "steps")
    courses = {part["value"]: [row["group_size"] for row in part["budgets"]] for part in rows}
    rises = [v for v, sizes in courses.items() if sizes[-1] > sizes[0] and sizes == sorted(sizes)]
    level = [v for v, sizes in courses.items() if len(set(sizes)) == 1]
    mixed = [v for v in courses if v not in rises and v not in level]
    told = [
        f"{text} for {symbol} = {shortlist(values)}"
        for text, values in (("rises", rises), ("stays at one level", level), ("does not rise throughout", mixed))
        if values
    ]
    sentences = [f"With {symbol} held fixed, n* over {against} {'; '.join(told)}."]
    known = [part for part in rows if part["allocation"]["status"] == "ok"]
    if known:
        each = shortlist([f"n = {part['allocation']['saturation']:.3g} ({symbol} = {part['value']})" for part in known])
        sentences.append(f"Where its sigmoid is established, it saturates at {each}.")
    else:
        sentences.append("In none of these slices is the saturation of n* established.")
    return sentences


def targets(summary: Summary) -> list[str]:
    """Which n each target asks for at the largest budget that compares configurations."""
    last = {
        name: rows[-1]
        for name, found in summary["targets"].items()
        if (rows := [row for row in found["budgets"] if row["compared"] > 1])
    }
    sentences = []
    for name, row in last.items():
        rivals = [run for run in row["tied_runs"] if run != row["best_run"]]
        tie = f", tied within seed noise with {shortlist(rivals)}" if rivals else ""
        sentences.append(
            f"{name}: at {spent(summary, row['compute'])} the best evaluation is that of "
            f"{row['best_run']} ({row['reward']:z.3f}{tie})."
        )
    best = next((row for name, row in last.items() if name.startswith("best@")), None)
    worst = next((row for name, row in last.items() if name.startswith("worst@")), None)
    if best and worst and all(curve["group_size"] for curve in summary["curves"]):
        sentences.append(_coverage_or_sharpening(best, worst, noise=summary["ties"]["noise_estimate"]))
    return sentences


def _coverage_or_sharpening(best: dict[str, Any], worst: dict[str, Any], *, noise: bool) -> str:
    if set(best["tied_group_sizes"]) & set(worst["tied_group_sizes"]):
        margin = "within seed noise the same n serves" if noise else "the same n leads in"
        return f"At that budget {margin} coverage (best@k) and sharpening (worst@k)."
    larger, smaller = ("coverage (best@k)", "sharpening (worst@k)")
    if best["best_group_size"] < worst["best_group_size"]:
        larger, smaller = smaller, larger
    caveat = "" if noise else "; with one seed this may be chance"
    return f"At that budget {larger} asks for a larger n than {smaller}{caveat}."


def switches(summary: Summary) -> list[str]:
    """Where the lead changes, and after how many epochs the frontier leaves each configuration."""
    found = crossings(summary)
    return switch_sentences(summary) + (switch_epochs(summary) if found else [])


def switch_epochs(summary: Summary) -> list[str]:
    """After how many epochs the frontier leaves each configuration."""
    found = [s for s in crossings(summary) if s["epochs"] is not None]
    if not found:
        return ["There is no switch whose number of epochs could be given."]
    each = shortlist([f"{s['from_run']} after {s['epochs']:.3g} epochs" for s in found])
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
