"""The words and tables of docs/one_run.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from research.findings.chapter import table
from research.one_run.comparison import KEEPS_UP, LOW_END, SETTINGS, Setting, keeps_up, points, pooled

AUTO, THEORY = "auto", "theory"
FALLING, FIXED = "n = 64, rate falls at the end", 64
"""A run of one n, to be held to the same n at a constant rate."""
ALL, JUDGED = 0, 1
"""Parts of the held-out problems: all, and those at odd places, on which `auto` does not decide."""

PAGE = r"""# One run in place of a sweep

A sweep over n says afterwards which n would have been right, and at one budget. A run that sets n itself
([auto](allocation.md#auto), or as [theory](theory.md#nc-before-any-run) says) has to be right at every budget at once.
Here such runs lie beside the best of {how_many} of fixed n, on {count}. Every number and picture is computed from the
learning curves in `gallery/schedules/` by `make gallery`, without training.

**{answer}**

| | schedule | from the best fixed n, on what `auto` does not decide on | on all held-out problems | seeds | compute |
| :-- | :-- | --: | --: | --: | --: |
{rows}

Points of avg@8, means over log C from {first:,.0f} to {last:,.0f} rollouts, with 95% intervals over seeds. The fixed n
are {sizes}; at each budget the n, and the evaluation up to it, are chosen on the other seeds than the one that is
scored, and a schedule's evaluation likewise: the best of several means lies too high, on either side. *Keeps up* means
{keeps_up} points or more, in an interval that ends no lower than {low_end}. *Compute* is what the best fixed n took to
the reward that both sides have in the end, over what the schedule took: above 1, the schedule is there earlier (highest
means so far, of several n on the one side and of one run on the other; where both are nearly level it says little).

![Best reward so far of fixed n, thin, and of schedules](schedules/reward.png)

## What auto did

![n of auto over compute](schedules/sizes.png)

Reward on the problems that it does not decide on, chosen as above:

{budgets}

It begins where the [pilot](pilot.md) has a run begin, with theory's n at the first evaluation: 8 on 64 Easy problems
and on the mixture, 4 on Hard ones. On sets of 64 it grows about as fast as its rule allows: training gains what
held-out problems do not share. With 256 or all Hard problems nothing is learned by heart, and n grows once reward is
past its steepest. On the base model twice as wide it has the very n that lead among fixed ones, 16 from 5,000 rollouts
on and 64 from 30,000, and yet ends 4 points below.

## What was tried beside it

Points from the best fixed n on all held-out problems, as above:

{tried}

- **Where it begins.** `auto` was begun at n = 4 everywhere at first. On Easy problems and the mixture theory's n is
  better, and the pilot began there before these runs were made. On 64 Hard problems 8 costs a point. On the model twice
  as wide theory says 4, and 8 or 16 would have been better: what n = 4 did in the first 5,000 rollouts stays, and no
  later n mends it.
- **The rate.** *As sqrt(B)*, 2.5e-4 at n = 32 and 8.8e-5 at n = 4, costs more early than it gains late. *Falls at the
  end*, linearly over the last fifth to a tenth, changes nothing here; nor does it for n = 64: {decay} points at the
  last budget.

So: take `theory` where its constants are of your kind of model and problems, as here, `auto` else, and do not begin
with the smallest n that trains where the model is another: 4 points are the most that either lost, both times on the
model twice as wide, of which neither knew anything. More problems are worth far more than the right n (64, 256 and all
Hard problems, at the same compute, in the table).

## n for each problem

Runs that [deal](allocation.md#n-for-each-problem) a step's rollouts to its problems beside runs that give every one of
them the same n. Points of avg@8 on all held-out problems, means over log C, evaluations chosen on other seeds; five
seeds, four of `until_signal` on the mixture.

{policies}

**Of {compared} comparisons {ahead} beyond the interval, and {behind}.** With all Hard problems, which are too many to
be learned by heart, `knapsack` gains 0.3 points, and n = 4 for every problem gains more. Where problems are few a
better gradient of what is known already buys nothing. The simple rule is `uniform`.

*Normalised* is the recipe of all other runs here, GRPO's division by a group's deviation; *exact* is
`advantage_scale=none`, `baseline=leave_one_out` and `aggregation=constant`, which `hit` and `until_signal` demand.

## The schedules

- `auto` follows [its rule](allocation.md#auto). The rule was changed three times, each time after rewards had been
  looked at: on 64 Hard problems (it held gains to the last n alone, and switched late), on 64 Easy ones (it doubled
  once where it now may twice) and on 256 Hard ones (n grew only where held-out reward gained nothing at all under it,
  so it stayed 4: -1.0 (-1.2 to -0.8), -0.4 on all problems). Those three rows are no test of it; the others are, but
  for where it begins.
- `theory` is n\*(C) from the problems' pass rates alone, before any run: 16 samples of each, which curation takes, and
  which C does not count. Its constants were fitted to two sweeps of another base model of this size
  ([theory](theory.md)), long before these runs, and were not touched since.
- `by hand` is `4@0,8@2048,16@5120,32@10240,64@22528,128@49152`, guessed for 64 Hard problems; `frontier` is n\*(C) of a
  fit to the six fixed n, of other seeds.

All train 8 problems a batch at a constant rate of 2.5e-4, and are evaluated at the same fifteen budgets.
"""


def page(found: Sequence[Setting], exact: Sequence[Setting] = (), tried: Sequence[Setting] = ()) -> str:
    """Markdown; `exact` are runs of the same settings with an exact estimator, `tried` has what the rule was not."""
    compute = found[0].compute
    return PAGE.format(
        how_many={3: "three", 6: "six"}.get(len(found[0].fixed), len(found[0].fixed)),
        count=f"{len(found)} settings" if len(found) > 1 else SETTINGS[found[0].name],
        answer=_answer(found),
        rows="\n".join(row for setting in found for row in _rows(setting)),
        first=compute[0],
        last=compute[-1],
        sizes=_sizes(found),
        keeps_up=f"{100 * KEEPS_UP:+.1f}",
        low_end=f"{100 * LOW_END:+.1f}",
        budgets=_budgets(found),
        policies=_policies({"normalised": found, "exact": exact}),
        tried=_tried(found, tried),
        decay=_decay(tried),
        **_counts([*found, *exact]),
    )


def _sizes(found: Sequence[Setting]) -> str:
    """The fixed n, and where they are others."""
    usual = tuple(found[0].fixed)
    others = [
        f" ({', '.join(map(str, setting.fixed))} for {SETTINGS[setting.name]})"
        for setting in found
        if tuple(setting.fixed) != usual
    ]
    return ", ".join(map(str, usual)) + "".join(others)


def _answer(found: Sequence[Setting]) -> str:
    """How the schedules that need no sweep do over all settings."""
    return " ".join(
        _over_all(name, [setting for setting in found if name in setting.scheduled])
        for name in (AUTO, THEORY)
        if any(name in setting.scheduled for setting in found)
    )


def _over_all(name: str, found: Sequence[Setting]) -> str:
    differences = [setting.difference(name, JUDGED) for setting in found]
    near = sum(one.value >= KEEPS_UP for one in differences)
    sure = sum(keeps_up(one) for one in differences)
    words = (
        f"`{name}`, with no sweep before it, is {points(pooled(differences))} points from the best fixed n on average"
    )
    words += f" ({points(pooled([setting.difference(name, ALL) for setting in found]))} on all held-out problems)"
    if len(found) > 1:
        words += f", and {100 * KEEPS_UP:+.1f} or more on {near} of {len(found)} settings"
        words += f"; on {sure} of them the seeds are enough to be sure that it keeps up"
    return words + "."


def _rows(setting: Setting) -> list[str]:
    rows = []
    for place, name in enumerate(setting.scheduled):
        judged, whole = (setting.difference(name, part) for part in (JUDGED, ALL))
        cells = [
            SETTINGS[setting.name] if place == 0 else "",
            name,
            points(judged) + (" keeps up" if keeps_up(judged) else ""),
            points(whole),
            whole.seeds,
            f"{setting.saved(name, ALL):.2f}",
        ]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return rows


def _budgets(found: Sequence[Setting]) -> str:
    """Rewards of both sides at every other evaluation."""
    shown = slice(None, None, 2)
    heads = ["", *(f"{budget:,.0f}" for budget in found[0].compute[shown])]
    rows = []
    for setting in found:
        from_fixed = np.mean(list(setting.frontier(JUDGED).values()), axis=0)
        lead = np.array([interval.value for interval in setting.differences(AUTO, JUDGED)])
        rows.append([f"{SETTINGS[setting.name]}: fixed n", *(f"{value:.3f}" for value in from_fixed[shown])])
        rows.append(["auto above it", *(f"{value:+.3f}" for value in lead[shown])])
    return table(heads, rows)


def _tried(found: Sequence[Setting], tried: Sequence[Setting]) -> str:
    """A row for each setting, a column for auto and each variant: from the best fixed n, on all held-out problems."""
    rule = {setting.name: setting.difference(AUTO, ALL) for setting in found}
    variants = list(dict.fromkeys(name for setting in tried for name in setting.scheduled if name != FALLING))
    rows = [
        [
            SETTINGS[setting.name],
            points(rule[setting.name]),
            *(points(setting.difference(name, ALL)) if name in setting.scheduled else "" for name in variants),
        ]
        for setting in tried
        if setting.scheduled
    ]
    return table(["", AUTO, *variants], rows)


def _decay(tried: Sequence[Setting]) -> str:
    """What a falling rate changes of a fixed n, at the last budget."""
    changes = [setting.change(FALLING, FIXED, ALL) for setting in tried if FALLING in setting.scheduled]
    return "; ".join(map(points, changes))


def _counts(found: Sequence[Setting]) -> dict[str, str]:
    """How many policies were compared, and how many of them are surely ahead or behind."""
    every = [setting.dealing(policy, size, ALL) for setting in found for policy, size in setting.dealt]
    ahead, behind = sum(one.low > 0 for one in every), sum(one.high < 0 for one in every)
    return {
        "compared": str(len(every)),
        "ahead": f"{ahead or 'none'} {'is' if ahead <= 1 else 'are'} ahead",
        "behind": f"{behind or 'none'} {'is' if behind <= 1 else 'are'} behind",
    }


def _policies(recipes: Mapping[str, Sequence[Setting]]) -> str:
    """A row for each policy and recipe, a column for each setting that has any."""
    settings = [
        name for name in SETTINGS if any(one.name == name and one.dealt for ones in recipes.values() for one in ones)
    ]
    rows = []
    for recipe, found in recipes.items():
        by_name = {setting.name: setting for setting in found if setting.dealt}
        for policy, size in dict.fromkeys(key for setting in found for key in setting.dealt):
            cells = [
                points(by_name[name].dealing(policy, size, ALL))
                if name in by_name and (policy, size) in by_name[name].dealt
                else ""
                for name in settings
            ]
            rows.append([f"`{policy}`", size, recipe, *cells])
    return table(["policy", "n", "recipe", *(SETTINGS[name] for name in settings)], rows)
