"""What the frontier says about n: leaders, switches, ties, targets, slices; each as strong as the data allow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from isocompute_jax.fit.curves.seeds import SAME_COMPUTE
from isocompute_jax.fit.frontier_results import BestN, FrontierBudget, SwitchResult, wants_larger_n
from isocompute_jax.fit.report.wording import (
    MOST_LISTED,
    amount,
    between,
    every_seed,
    listed,
    shortlist,
    spent,
    unit,
)
from isocompute_jax.fit.sweep_results import SweepResult

AGAINST_ONE_EPOCH = {
    "near one": "within a factor of two of one epoch",
    "later": "later than two epochs",
    "earlier": "earlier than half an epoch",
    "mixed": "not all on the same side of one epoch",
}
COURSES = {"rises": "rises", "level": "stays at one level", "mixed": "does not rise throughout"}


def leaders(result: SweepResult) -> list[str]:
    """Who leads at the smallest and at the largest evaluated budget, or why that says nothing about n."""
    metric, rows = result.metric, result.frontier.budgets
    sentences = cannot_compare(result)
    if not result.several:
        return sentences
    if not rows:
        return [*sentences, "No configuration has a curve at the evaluated budgets."]
    first, last = rows[0].point, rows[-1].point
    if first.run == last.run and not result.frontier.crossings:
        return [
            *sentences,
            f"{last.run} has the highest fitted {metric} from {amount(first.compute)} to "
            f"{spent(result, last.compute)}, where it reaches {last.reward:z.3f}.",
        ]
    again = "again " if first.run == last.run else ""
    return [
        *sentences,
        f"With {spent(result, first.compute)} {first.run} has the highest fitted {metric} "
        f"({first.reward:z.3f}); with {amount(last.compute)} it is {again}{last.run} ({last.reward:z.3f}).",
    ]


def cannot_compare(result: SweepResult) -> list[str]:
    """Why the data cannot compare group sizes, where they cannot."""
    if not result.several:
        return [f"Only one configuration was run ({result.curves[0].run}), so this data cannot say which n is best."]
    if not result.known_sizes:
        return ["The group size of some runs is unknown: the data say which configuration is best, not which n."]
    if not result.several_sizes:
        return [f"Every run has n = {result.group_sizes[0]}, so this data cannot say which n is best."]
    return []


def switch_sentences(result: SweepResult) -> list[str]:
    """Where the lead changes, and how well each change is borne out."""
    if not result.several:
        return []
    found = result.frontier.crossings
    sentences = [_switch(result, switch) for switch in found]
    if not found:
        sentences = ["No two fitted curves cross on the frontier: there is no switch."]
    elif len(found) > MOST_LISTED:
        sentences = [_many(result)]
    ends = [switch for switch in result.frontier.switches if switch.row.cause == "range"]
    fallen = [switch.row for switch in ends if _falls(result, switch)]
    for row in fallen[:MOST_LISTED]:
        sentences.append(
            f"At {spent(result, row.compute)} {row.from_run} falls after its peak, and the lead passes to {row.to_run}."
        )
    ended = len(ends) - len(fallen)
    if ended:
        sentences.append(
            f"{'One more change' if ended == 1 else f'{ended} more changes'} of the leader only "
            f"mark{'s' if ended == 1 else ''} where a configuration's data begin or end, which says nothing about n."
        )
    return sentences


def _falls(result: SweepResult, switch: SwitchResult) -> bool:
    """Whether the configuration that loses the lead does so because it collapses there."""
    curve = next(curve for curve in result.curves if curve.run == switch.row.from_run)
    return curve.fit.fall is not None and math.isclose(curve.fit.window[1], switch.row.compute, rel_tol=SAME_COMPUTE)


def _many(result: SweepResult) -> str:
    """All switches in one sentence."""
    found = result.frontier.crossings
    text = (
        f"The lead on the frontier changes {len(found)} times between {amount(found[0].row.compute)} and "
        f"{spent(result, found[-1].row.compute)}"
    )
    if result.frontier.num_established is not None:
        text += f"; {result.frontier.num_established} of these switches are established"
    if result.frontier.shares is not None:
        low, high = result.frontier.shares
        ends = f"{low:.0%} to {high:.0%}" if high - low >= 0.01 else f"{low:.0%}"
        text += f"; each is there in {ends} of the bootstrap replicates"
    return text + "."


def _switch(result: SweepResult, switch: SwitchResult) -> str:
    row = switch.row
    text = f"The frontier passes from {row.from_run} to {row.to_run} at {spent(result, row.compute)}"
    interval = between(switch.interval95, amount)
    if interval:
        text += f" (95% interval {interval})"
    if switch.share is not None and switch.share < 0.95:
        text += f"; {switch.share:.0%} of the bootstrap replicates have this switch"
    seen, seeds = switch.seen, len(switch.by_seed)
    if switch.in_every_seed:
        text += f"; {every_seed(seeds)} show it alone ({amount(min(seen))} to {amount(max(seen))})"
    elif seeds:
        text += f"; only {len(seen)} of {seeds} seeds show{'s' if len(seen) == 1 else ''} it alone"
    if switch.beyond_noise is not None:
        text += (
            "; on both sides of it the lead exceeds two standard errors"
            if switch.beyond_noise
            else "; on at least one side of it the lead is within two standard errors"
        )
    return text + (". It is not established." if switch.established is False else ".")


def doubt(result: SweepResult) -> list[str]:
    """Ties, where there is something to compare."""
    return ties(result) if result.several else []


def ties(result: SweepResult) -> list[str]:
    """At how many budgets the best configuration can be told from the others."""
    compared = result.ties.compared
    if not compared:
        return ["No budget has evaluations of two configurations, so there is nothing to compare."]
    if not result.ties.noise_estimate:
        return ["Every configuration has one seed, so there is no noise estimate and ties cannot be told from leads."]
    shared = [row for row in compared if len(row.tied_runs) > 1]
    if not shared:
        return [f"At each of the {len(compared)} budgets one configuration leads by more than the seed noise."]
    if len(shared) == len(compared):
        return [f"At all {len(compared)} budgets at least two configurations tie within seed noise."]
    text = f"At {len(shared)} of {len(compared)} budgets the best one ties with others within seed noise"
    if len(shared) > MOST_LISTED:
        return [f"{text}."]
    where = listed(f"{spent(result, row.compute)} ({listed(row.tied_runs)})" for row in shared)
    return [f"{text}: {where}."]


def optimal_group_size(result: SweepResult) -> list[str]:
    """The course of n*(C), how sure it is, and the state of its sigmoid."""
    sentences = []
    rows, shares = result.frontier.budgets, result.frontier.leader_shares
    if rows and all(row.group_size for row in rows):
        course = _course(result, rows, lambda row: row.group_size)
        sentences.append(f"Read off at the evaluated budgets, n* is {course}.")
    if shares and result.bootstrap:
        sentences.append(
            f"At {result.frontier.num_sure} of {len(shares)} budgets the same configuration leads in at least 95% of "
            f"the {result.bootstrap.replicates} bootstrap replicates."
        )
    if result.allocation.law.status == "ok":
        law = result.allocation.law.law
        sentences.append(
            f"The sigmoid rises by {law.span:z.2f} octaves around {spent(result, 10**law.midpoint)}, "
            f"with slope {law.slope:z.2f} per decade."
        )
    return sentences + saturation(result) + _unanimity(result)


def _course(result: SweepResult, rows: Sequence[FrontierBudget], value: Callable[[FrontierBudget], int]) -> str:
    """`8 from 2,050 rollouts and 4 from 3,810 rollouts`; of a long course the first steps."""
    steps = [*rows[:1], *(b for a, b in itertools.pairwise(rows) if value(a) != value(b))]
    if len(steps) == 1:
        return f"{value(steps[0])} at every budget"
    return listed(f"{value(row)} from {amount(row.compute)}" for row in steps) + f" {unit(result)}"


def saturation(result: SweepResult) -> list[str]:
    """The n* of unlimited compute, or why it cannot be given; nothing where n is one or unknown."""
    if not result.several_sizes:
        return []
    law = result.allocation.law
    if law.status == "ok":
        interval = between(law.interval95.get("saturation"))
        ends = f" (95% interval {interval})" if interval else ""
        return [f"The sigmoid of n*(C) saturates at n = {law.saturation:.3g}{ends}."]
    return [f"Where n* saturates is not established: {law.message}."]


def _unanimity(result: SweepResult) -> list[str]:
    found = result.per_seed
    if not found.budgets:
        return []
    if found.num_unanimous == len(found.budgets):
        return [f"In {every_seed(len(found.seeds))} the same n has the best evaluation at every budget."]
    return [
        f"The {len(found.seeds)} seeds agree on the n with the best evaluation at {found.num_unanimous} of "
        f"{len(found.budgets)} budgets."
    ]


def choices(result: SweepResult) -> list[str]:
    """Whether the frontier depends on which evaluations count."""
    found = result.choices_compared
    rules = found.crossings
    if len(rules) < 2:
        return []
    if found.alike:
        if not any(rules.values()):
            return [f"Whichever evaluations are fitted ({listed(rules)}), there is no switch."]
        apart = (
            f"at computes that differ by up to {found.widest:.1%}" if found.widest >= 1e-3 else "at the same compute"
        )
        return [f"Whichever evaluations are fitted ({listed(rules)}), the same switches are found, {apart}."]
    if max(map(len, rules.values())) > MOST_LISTED:
        counts = listed(f"{len(switches)} with {rule}" for rule, switches in rules.items())
        return [f"The switches depend on which evaluations are fitted: there are {counts}, as the table shows."]
    told = "; ".join(
        f"{rule}: " + (listed(f"{s.from_run} → {s.to_run} at {amount(s.compute)}" for s in switches) or "no switch")
        for rule, switches in rules.items()
    )
    return [f"The switches depend on which evaluations are fitted ({told})."]


def batches(result: SweepResult) -> list[str]:
    """How B_problem and the number of steps move along the frontier."""
    rows = result.frontier.budgets
    if not rows:
        return []
    course = _course(result, rows, lambda row: row.problems_per_batch)
    sentences = [f"The best B_problem is {course}."]
    steps = result.frontier.steps
    if steps:
        moves = f"grows {steps.growth:.3g}-fold," if steps.growth > 1 else "falls"
        sentences.append(
            f"While compute grows {steps.compute_growth:.3g}-fold, the best number of steps {moves} from "
            f"{amount(steps.first)} to {amount(steps.last)}."
        )
    return sentences


def slices(result: SweepResult, kind: str) -> list[str]:
    """Whether n* rises in each slice of a kind, and where the law is established."""
    rows = result.slices_of(kind)
    symbol, against = ("B_problem", "compute") if kind == "problems_per_batch" else ("B", "steps")
    by_course = {course: [part.value for part in rows if part.course == course] for course in COURSES}
    told = [f"{COURSES[c]} for {symbol} = {shortlist(values)}" for c, values in by_course.items() if values]
    sentences = [f"With {symbol} held fixed, n* over {against} {'; '.join(told)}."]
    known = [part for part in rows if part.allocation.status == "ok"]
    if known:
        each = shortlist([f"n = {part.allocation.saturation:.3g} ({symbol} = {part.value})" for part in known])
        sentences.append(f"Where its sigmoid is established, it saturates at {each}.")
    else:
        sentences.append("In none of these slices is the saturation of n* established.")
    return sentences


def targets(result: SweepResult) -> list[str]:
    """Which n each target asks for at the largest budget that compares configurations."""
    last = result.largest_budgets
    sentences = []
    for name, row in last.items():
        tie = f", tied within seed noise with {shortlist(row.rivals)}" if row.rivals else ""
        sentences.append(
            f"{name}: at {spent(result, row.compute)} the best evaluation is that of "
            f"{row.best_run} ({row.reward:z.3f}{tie})."
        )
    best = next((row for name, row in last.items() if name.startswith("best@")), None)
    worst = next((row for name, row in last.items() if name.startswith("worst@")), None)
    if best and worst and result.known_sizes:
        sentences.append(_coverage_or_sharpening(best, worst, noise=result.ties.noise_estimate))
    return sentences


def _coverage_or_sharpening(best: BestN, worst: BestN, *, noise: bool) -> str:
    coverage_larger = wants_larger_n(best, worst)
    if coverage_larger is None:
        margin = "within seed noise the same n serves" if noise else "the same n leads in"
        return f"At that budget {margin} coverage (best@k) and sharpening (worst@k)."
    larger, smaller = ("coverage (best@k)", "sharpening (worst@k)")
    if not coverage_larger:
        larger, smaller = smaller, larger
    caveat = "" if noise else "; with one seed this may be chance"
    return f"At that budget {larger} asks for a larger n than {smaller}{caveat}."


def switches(result: SweepResult) -> list[str]:
    """Where the lead changes, and after how many epochs the frontier leaves each configuration."""
    return switch_sentences(result) + (switch_epochs(result) if result.frontier.crossings else [])


def switch_epochs(result: SweepResult) -> list[str]:
    """After how many epochs the frontier leaves each configuration."""
    found = result.frontier.with_epochs
    if not found:
        return ["There is no switch whose number of epochs could be given."]
    each = shortlist([f"{s.row.from_run} after {s.row.epochs:.3g} epochs" for s in found])
    return [f"The frontier leaves {each}: {AGAINST_ONE_EPOCH[result.frontier.epochs]}."]
