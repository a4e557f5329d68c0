"""Findings 3, 4, 5, 10 and 11: Easy beside Hard, targets, KL and entropy terms, and mixtures."""

from __future__ import annotations

import pathlib

import numpy as np

from isocompute_jax.gallery.curves import Curves, Estimate, Means, estimate, estimates
from isocompute_jax.gallery.findings import rise_of, size_shift, target_shift
from isocompute_jax.gallery.page.chapter import Chapter, Gallery, Verdict, not_run, octaves, points, table, verdict
from isocompute_jax.gallery.page.figures import overlaid

EASY, HARD = "easy_64", "problems_64"
TERMS = {0.001: {"Easy": "terms_easy", "Hard": "terms_hard"}, 0.03: {"Easy": "strong_easy", "Hard": "strong_hard"}}
"""Coefficient of both terms -> sweeps that have them; the first is the healthy recipe's."""
MIXED, HARD_ALONE = "crossed_mixture", "crossed_hard"


def chapters(gallery: Gallery, docs: pathlib.Path) -> list[Chapter]:
    """Of this module."""
    return [
        easy_and_hard(gallery, docs),
        target(gallery, docs, 4, "worst@4", "Easy", EASY),
        target(gallery, docs, 5, "best@4", "Hard", HARD),
        terms(gallery),
        mixtures(gallery, docs),
    ]


def easy_and_hard(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 3."""
    claim = "Easy problems saturate at a larger n than Hard ones"
    if EASY not in gallery:
        return not_run(3, claim, [EASY])
    easy, hard = gallery.curves(EASY), gallery.curves(HARD)
    shift = size_shift(easy, hard)
    picture = overlaid({"64 Easy problems": easy, "64 Hard problems": hard}, docs, "easy_and_hard")
    return Chapter(
        3,
        claim,
        verdict(shift),
        octaves(shift),
        shift.seeds,
        f"64 Easy and 64 Hard problems, all else equal: n\\* of Easy lies {octaves(shift)} above that of Hard, a mean "
        f"over equal budgets.\n\n![Reward and n* on Easy and on Hard problems]({picture})",
        "What is solved more often gives a signal in nearly every group, and is learned sooner: Easy goes through the "
        "same course at a smaller compute.",
        "Larger groups and budgets: here it is seen at which compute n\\* rises, and both end at the largest n or "
        "near it.",
        "n\\* saturates at 1,024 on Easy and at 512 on Hard.",
    )


def target(gallery: Gallery, docs: pathlib.Path, number: int, metric: str, name: str, sweep: str) -> Chapter:
    """Findings 4 and 5: n* of a metric beside that of avg@4 on the same runs."""
    claim = f"{metric} wants a larger n than avg@4 on {name}"
    if sweep not in gallery:
        return not_run(number, claim, [sweep])
    shift = target_shift(gallery.curves(sweep, metric, "avg@4"))
    others = {
        f"{other} on {where}": target_shift(gallery.curves(which, other, "avg@4"))
        for where, which in (("Easy", EASY), ("Hard", HARD))
        for other in ("worst@4", "best@4")
        if which in gallery and (other, where) != (metric, name)
    }
    picture = overlaid(
        {one: gallery.curves(sweep, one) for one in (metric, "avg@4")}, docs, f"{metric.split('@')[0]}_{name.lower()}",
        reward="reward",
    )  # fmt: skip
    rest = "; ".join(f"{what}: {octaves(found)}" for what, found in others.items())
    return Chapter(
        number,
        claim,
        verdict(shift),
        octaves(shift),
        shift.seeds,
        f"On 64 {name} problems n\\* of {metric} lies {octaves(shift)} above that of avg@4 of the same runs, a mean "
        f"over equal budgets. The other cases, for comparison: {rest}.\n\n"
        f"![Reward and n* by {metric} and by avg@4]({picture})",
        "Every step sharpens: what is solved is solved more surely, and what is not is given up. A small group takes "
        "more of them at equal compute, so it has the highest worst@4 first and loses best@4 first; a larger one keeps "
        "its rollouts different for longer.",
        "A base model whose rollouts differ more: with four samples, best@4 and worst@4 of a model that is sure of its "
        "answers say little that avg@4 does not.",
        "Large n buys sharpening (worst@k) on Easy and coverage (best@k) on Hard.",
    )


def terms(gallery: Gallery) -> Chapter:
    """Finding 10."""
    claim = "KL and entropy terms help on Easy and hurt on Hard"
    plain = {"Easy": EASY, "Hard": HARD}
    needed = [name for name in (*TERMS[0.001].values(), *plain.values()) if name not in gallery]
    if needed:
        return not_run(10, claim, needed)
    gains: dict[float, dict[str, list[tuple[int, Estimate, Estimate]]]] = {}
    for coefficient, sweeps in TERMS.items():
        if all(name in gallery for name in sweeps.values()):
            gains[coefficient] = {
                where: _gains(gallery.curves(name), gallery.curves(plain[where])) for where, name in sweeps.items()
            }
    rows = [
        (f"{coefficient:g}, {where}, n = {n}", points(highest), points(last))
        for coefficient, each in gains.items()
        for where, found in each.items()
        for n, highest, last in found
    ]
    everywhere = [one for each in gains.values() for found in each.values() for one in found]
    largest = max((highest for _, highest, _ in everywhere), key=lambda one: abs(one.value))
    heads = ("coefficients", "gain of the highest avg@4", "gain at the last budget")
    return Chapter(
        10,
        claim,
        _of_terms(gains),
        f"largest change of the highest avg@4: {points(largest)}",
        min(highest.seeds for _, highest, _ in everywhere),
        "avg@4 with both terms, less that without, on 64 problems (0.001 is the healthy recipe's):\n\n"
        + table(heads, rows),
        "What ends these runs is that few problems are learned by heart, and not that entropy collapses first.",
        "Runs in which entropy collapses before problems are learned; other n.",
        "The healthy recipe: both terms on for Easy, off for Hard and mixtures.",
    )


def _gains(on: Curves, off: Curves) -> list[tuple[int, Estimate, Estimate]]:
    """(n, gain of the highest mean reward, gain at the last budget)."""

    def both(one: Means, other: Means) -> list[float]:
        pairs = [(one[n][1][:, 0], other[n][1][:, 0]) for n in on]
        return [float(gain) for a, b in pairs for gain in (a.max() - b.max(), a[-1] - b[-1])]

    found = estimates(both, on, {n: off[n] for n in on})
    return list(zip(on, found[::2], found[1::2], strict=True))


def _of_terms(gains: dict[float, dict[str, list[tuple[int, Estimate, Estimate]]]]) -> Verdict:
    """By the highest reward at every n: shown if a coefficient does both, refuted if all do the contrary of either."""
    shown, refuted = [], []
    for each in gains.values():
        easy, hard = ([highest.sign for _, highest, _ in each[where]] for where in ("Easy", "Hard"))
        shown.append(min(easy) > 0 > max(hard))
        refuted.append(max(easy) < 0 or min(hard) > 0)
    return "shown" if any(shown) else "refuted" if all(refuted) else "not settled"


def mixtures(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 11."""
    claim = "On mixtures a larger n still wins late; Hard alone forgets Easy, a mixture does not"
    if needed := [name for name in (MIXED, HARD_ALONE) if name not in gallery]:
        return not_run(11, claim, needed)
    rise = rise_of(gallery.curves(MIXED))
    changes = {
        name: {n: _change(gallery, sweep, n) for n in gallery.curves(sweep)}
        for name, sweep in (("Hard alone", HARD_ALONE), ("mixture", MIXED))
    }
    rows = [(f"{name}, n = {n}", points(found)) for name, each in changes.items() for n, found in each.items()]
    forgets = all(found.high < 0 for found in changes["Hard alone"].values())
    keeps = all(found.high > 0 for found in changes["mixture"].values())
    learns = all(found.low > 0 for found in changes["Hard alone"].values())
    sets = {
        f"{name}, on Easy": gallery.curves(sweep, eval_set="easy")
        for name, sweep in (("trained on Hard", HARD_ALONE), ("on the mixture", MIXED))
    }
    picture = overlaid(sets, docs, "forgetting")
    return Chapter(
        11,
        claim,
        "shown" if forgets and keeps and rise.low > 0 else "refuted" if learns or rise.high <= 0 else "not settled",
        f"n\\* {octaves(rise)}; Easy after Hard alone: "
        + ", ".join(f"{points(found)} at n = {n}" for n, found in changes["Hard alone"].items()),
        rise.seeds,
        f"64 problems, half of them Easy: n\\* on the mixture's held-out problems rises by {octaves(rise)}. avg@4 on "
        f"Easy at the last budget, less that of the base model:\n\n{table(('trained on', 'change on Easy'), rows)}\n\n"
        f"![Reward on Easy after training on Hard alone and on the mixture]({picture})",
        "",
        "Sets that share less: here Easy and Hard chains are made of the same 80 facts, so that what Hard teaches is "
        "of use on Easy.",
        "Training on Hard alone loses Easy problems that were solved before; a mixture keeps them.",
    )


def _change(gallery: Gallery, sweep: str, n: int) -> Estimate:
    """Reward on Easy at the end, less the base model's."""
    table_ = gallery.sweep(sweep).table
    rows = [
        row for row in table_.select(["eval_set", "compute", "avg@4"]).to_pylist()
        if row["eval_set"] == "easy" and row["compute"] == 0
    ]  # fmt: skip
    base = float(np.mean([row["avg@4"] for row in rows]))
    curves: Curves = {n: gallery.curves(sweep, eval_set="easy")[n]}
    return estimate(lambda mean: float(mean[n][1][-1, 0]) - base, curves)
