"""Findings 4, 5 and 11: targets, mixtures, and what is forgotten."""

from __future__ import annotations

import pathlib

from research.findings.chapter import (
    Chapter,
    Gallery,
    Verdict,
    above,
    octaves,
    overlaid,
    points,
    side_by_side,
    table,
    verdict,
)
from research.findings.statistics import Curves, Estimate, estimate, rise_of, target_shift

EASY, HARD = "easy_64", "problems_64"
MIXED, HARD_ALONE = "crossed_mixture", "crossed_hard"


def target(gallery: Gallery, docs: pathlib.Path, number: int, metric: str, name: str, sweep: str) -> Chapter:
    """Findings 4 and 5: n* of a metric beside that of avg@4 on the same runs."""
    shift = target_shift(gallery.curves(sweep, metric, "avg@4"))
    others = {
        f"{other} on {where}": target_shift(gallery.curves(which, other, "avg@4"))
        for where, which in (("Easy", EASY), ("Hard", HARD))
        for other in ("worst@4", "best@4")
        if (other, where) != (metric, name)
    }
    picture = overlaid(
        {one: gallery.curves(sweep, one) for one in (metric, "avg@4")}, docs, f"{metric.split('@')[0]}_{name.lower()}",
        reward="reward",
    )  # fmt: skip
    rest = "; ".join(f"{case}: {above(one)}" for case, one in others.items())
    signs = {(case.split("@")[0], one.sign) for case, one in {**others, metric: shift}.items()}
    alike = (
        " On both sets best@4 wants a larger n and worst@4 a smaller one: a contrast of the two targets, and not of "
        "the two sets."
        if signs == {("best", 1), ("worst", -1)}
        else ""
    )
    return Chapter(
        number,
        f"{metric} wants a larger n than avg@4 on {name}",
        verdict(shift),
        octaves(shift),
        shift.seeds,
        f"On 64 {name} problems n\\* of {metric} lies {above(shift)} that of avg@4 of the same runs, a mean over equal "
        f"budgets. The other cases, for comparison: {rest}.{alike}\n\n"
        f"![Reward and n* by {metric} and by avg@4]({picture})",
        "Every step sharpens: what is solved is solved more surely, and what is not is given up. A small group takes "
        "more of them at equal compute, so it has the highest worst@4 first and loses best@4 first; a larger one keeps "
        "its rollouts different for longer.",
        "Budgets that end before reward has saturated: the mean has those in it at which n\\* is nearly a tie. More "
        "samples than four.",
        "Large n buys sharpening (worst@k) on Easy and coverage (best@k) on Hard.",
    )


def mixtures(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 11."""
    rise = rise_of(gallery.curves(MIXED))
    easy = {name: gallery.curves(sweep, eval_set="easy") for name, sweep in (("Hard", HARD_ALONE), ("mixture", MIXED))}
    base = gallery.base(HARD_ALONE, "easy")
    changes = {name: {n: _change(curves, n, base) for n in curves} for name, curves in easy.items()}
    apart = {n: _apart(easy["mixture"], easy["Hard"], n) for n in easy["mixture"]}
    rows = [
        (f"n = {n}", points(changes["Hard"][n]), points(changes["mixture"][n]), points(apart[n])) for n in apart
    ]  # fmt: skip
    heads = ("", "trained on Hard alone", "on the mixture", "mixture less Hard alone")
    panels = {f"trained on {'Hard alone' if name == 'Hard' else 'the mixture'}": each for name, each in easy.items()}
    picture = side_by_side(panels, docs, "forgetting", reward="avg@4 on Easy", base=base)
    best = {name: max(float(one.values.mean(axis=0).max()) for one in curves.values()) for name, curves in easy.items()}
    kept = [n for n, found in changes["mixture"].items() if found.low > 0]
    lost = [n for n, found in changes["mixture"].items() if found.high < 0]
    return Chapter(
        11,
        "On mixtures a larger n still wins late; Hard alone forgets Easy, a mixture does not",
        _of_mixtures(rise, changes),
        f"n\\* {octaves(rise)}; Easy at the end: "
        + ", ".join(
            f"n = {n} {100 * changes['Hard'][n].value:+.1f} after Hard, {100 * changes['mixture'][n].value:+.1f} after "
            f"the mixture"
            for n in apart
        ),
        rise.seeds,
        f"64 problems, half of them Easy. On the mixture's held-out problems n\\* rises by {octaves(rise)}. avg@4 on "
        f"Easy at the last budget, less that of the base model ({base:.2f}):\n\n{table(heads, rows)}\n\n"
        "At the end training on Hard alone has lost Easy problems at every n, and the mixture fewer at every n. It "
        f"keeps them, on average, at {_listed(kept)}; {_listed(lost)} loses them on the mixture too. Before that both "
        f"rise above the base model: to {best['Hard']:.2f} after Hard alone, to {best['mixture']:.2f} on the "
        "mixture.\n\n"
        f"![Reward on Easy while training on Hard alone and on the mixture; dotted, the base model]({picture})",
        "The same as of finding 1: at the last budget small groups know their few problems by heart and have lost what "
        "they knew of others, Easy ones first, of which there was more to lose.",
        "Runs that stop at their best evaluation; more problems, which are not known by heart at the end.",
        "Training on Hard alone loses Easy problems that were solved before; a mixture keeps them.",
    )


def _of_mixtures(rise: Estimate, changes: dict[str, dict[int, Estimate]]) -> Verdict:
    """Shown if all of it holds at every n; in part if some of it does; refuted if nothing does."""
    forgets, keeps = (
        [found.high < 0 for found in changes["Hard"].values()],
        [found.low > 0 for found in changes["mixture"].values()],
    )
    held = [rise.low > 0, all(forgets), all(keeps)]
    if all(held):
        return "shown"
    if any(held) or any(keeps):
        return "shown in part"
    return "refuted" if rise.high <= 0 and not any(forgets) else "not settled"


def _listed(sizes: list[int]) -> str:
    """`n = 4, 16`, or that there is none."""
    return f"n = {', '.join(map(str, sizes))}" if sizes else "no n"


def _change(curves: Curves, n: int, base: float) -> Estimate:
    """Reward at the end, less the base model's."""
    return estimate(lambda mean: float(mean[n][1][-1, 0]) - base, {n: curves[n]})


def _apart(of: Curves, beside: Curves, n: int) -> Estimate:
    """Reward at the end of one sweep, less that of another."""
    return estimate(
        lambda one, other: float(one[n][1][-1, 0] - other[n][1][-1, 0]), {n: of[n]}, {n: beside[n]}
    )  # fmt: skip
