"""Findings 6, 7, 9 and 10: what the recipe does.

B_problem at fixed n, a rate that grows with B, n against M at fixed B, KL and entropy terms.
"""

from __future__ import annotations

import pathlib
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit import SweepResult
from isocompute_jax.fit.configurations import group_runs
from isocompute_jax.fit.engine import fit_sweep
from isocompute_jax.fit.questions.answers import DRAWS, stopped
from isocompute_jax.fit.report.figures.style import PALETTE, in_style, legend, log_axis, panels
from research.findings import shapes, statistics
from research.findings.chapter import (
    NOISE,
    Chapter,
    Gallery,
    Verdict,
    octaves,
    points,
    save,
    side_by_side,
    table,
    verdict_of_all,
)
from research.findings.rising import analysed

BATCHES = {2: "batch_2", 8: "problems_64", 32: "batch_32"}
"""Sweeps that differ in B_problem."""
LITTLE = 0.5
"""B_problem matters little where what it does is surely below this share of what n does."""
RATES = {"constant": "problems_64", "sqrt": "rate_sqrt", "linear": "rate_linear"}
"""Sweeps that differ in how the rate grows with B; they have one rate at B = 64."""
LARGE = (64, 128)
"""n whose batches are large: 512 and 1,024 rollouts per step."""
STEPS = "steps_64"
PLAIN = {"Easy": "easy_64", "Hard": "problems_64"}
TERMS = {0.001: {"Easy": "terms_easy", "Hard": "terms_hard"}, 0.03: {"Easy": "strong_easy", "Hard": "strong_hard"}}
"""Coefficient of both terms -> sweeps that have them; the first is the healthy recipe's."""
PAIRS = {f"{value:g}": {where: (on[where], PLAIN[where]) for where in PLAIN} for value, on in TERMS.items()} | {
    "0.03 everywhere": {
        "Easy": ("kept/easy_64", "schedules/easy_64"),
        "Hard": ("kept/hard_64", "schedules/hard_64"),
    }
}
"""Terms -> problems -> a sweep with them and one without; *everywhere* is on groups without signal too, on another base
model and other problems."""
DRAWN = 8
"""The n of the picture of the terms."""


def batches(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 6."""
    sweeps = {size: gallery.curves(name) for size, name in BATCHES.items()}
    by_batch, by_size, ratio = statistics.batch_effect(sweeps)
    sizes = sorted(set.intersection(*(set(curves) for curves in sweeps.values())))
    each = {f"n = {n}": {size: curves[n] for size, curves in sweeps.items()} for n in sizes}
    picture = side_by_side(each, docs, "batches", label="B_problem = {}".format)
    return Chapter(
        6,
        "B_problem matters little at fixed n",
        "shown" if ratio.high < LITTLE else "refuted" if ratio.low > LITTLE else "not settled",
        f"{ratio.value:.2f} of what n does ({ratio.low:.2f} to {ratio.high:.2f})",
        ratio.seeds,
        f"64 Hard problems with {', '.join(map(str, sweeps))} per batch, n = {sizes[0]} to {sizes[-1]}, each over "
        f"{np.log2(max(sweeps) / min(sweeps)):.0f} octaves, at a constant rate. At equal n and compute, reward "
        f"spreads over B_problem by {100 * by_batch.value:.1f} points ({100 * by_batch.low:.1f} to "
        f"{100 * by_batch.high:.1f}; a standard deviation); at equal B_problem, over n, by {100 * by_size.value:.1f} "
        f"({100 * by_size.low:.1f} to {100 * by_size.high:.1f}). The verdict asks for less than {LITTLE:g} of it.\n\n"
        f"![Reward of each B_problem, for each n]({picture})",
        "At one rate for all, n and B_problem do the same: a larger product takes fewer steps at equal compute, and "
        f"leaves less noise in the weights ({NOISE}). What n has beside it, the signal of a group, B_problem has "
        "not; with groups of four or more that shows little here.",
        "A rate tuned for each B: then fewer steps are made up for by longer ones.",
        "Small effects of B_problem over a broad range, beside those of n.",
    )


def rates(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 7."""
    sweeps = {rule: gallery.curves(name) for rule, name in RATES.items()}
    gains = {rule: statistics.level_gain(sweeps["sqrt"], sweeps[rule], LARGE) for rule in ("constant", "linear")}
    budgets = statistics.common_budgets(*sweeps.values())
    sqrt, constant = (
        statistics.records_at({n: mean for n, mean in statistics.means(sweeps[rule]).items() if n in LARGE}, budgets)
        for rule in ("sqrt", "constant")
    )
    leads = (sqrt - constant).mean(axis=0)
    early = (
        f"at equal compute by up to {100 * leads.max():.0f} points, the last time at {budgets[leads > 0][-1]:,.0f} "
        f"rollouts; from there on it is behind, by up to {-100 * leads.min():.0f}"
        if leads.max() > 0
        else "at no budget"
    )
    signs = [gain.sign for gain in gains.values()]
    rules = list(sweeps)
    picture = side_by_side(
        {f"n = {n}": {at: sweeps[rule][n] for at, rule in enumerate(rules)} for n in LARGE},
        docs,
        "rates",
        label=lambda at: f"{rules[at]} rate",
    )
    rows = [
        (f"n = {n}", *(points(statistics.level_gain(sweeps["sqrt"], sweeps[rule], [n])) for rule in gains))
        for n in LARGE
    ] + [("the better of them", *map(points, gains.values()))]
    return Chapter(
        7,
        "A rate that grows as sqrt(B) beats a constant and a linear one at large B",
        verdict_of_all(signs),
        "; ".join(f"sqrt less {rule}: {points(gain)}" for rule, gain in gains.items()),
        min(gain.seeds for gain in gains.values()),
        f"One rate at 64 rollouts per step, 2.5e-4, and three rules for larger batches. Highest avg@4 within the "
        f"budget at n = {' and '.join(map(str, LARGE))}, 512 and 1,024 rollouts per step:\n\n"
        f"{table(('', *(f'sqrt less {rule}' for rule in gains)), rows)}\n\n"
        f"Beside the constant rate it leads {early} (means over both n).\n\n"
        f"![Reward for each rule, at large batches]({picture})",
        "At equal compute a large batch takes few steps, and a rate that grows makes up for them: so it leads early. "
        "Later the larger steps keep the noise in the weights that the batch would have taken out; and a linear rate, "
        "and sqrt's 1e-3 at n = 128, are too large to learn well by.",
        "A base rate that is small enough for the largest batch, so that no rule leaves what can be learned by. More "
        "problems, which are learned by heart later.",
        "Square root beats constant and linear at the batches it uses, up to 65,536 rollouts.",
    )


def against_steps(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 9."""
    curves = gallery.curves(STEPS)
    rise = statistics.rise_of(curves)
    picture = side_by_side({"128 rollouts per step": curves}, docs, "steps")
    ahead, share = of_draws(analysed(gallery.sweep(STEPS)))
    settled = shapes.told(ahead, share)
    shape = (
        f"Against log M, the AICc of a sigmoid between the smallest and the largest n is {abs(ahead):.1f} "
        f"{'lower' if ahead > 0 else 'higher'} than that of a straight line ({share:.0%} of the draws have it lower)."
    )
    effect = statistics.size_effect(curves, gallery.curves(BATCHES[8]))
    ahead, deviation, needed = statistics.seeds_to_tell(curves)
    elsewhere = statistics.seeds_to_tell(gallery.curves(BATCHES[8]))[2]
    return Chapter(
        9,
        "At fixed B, n\\* is a sigmoid in the number of steps M",
        "shown" if settled == "better" and rise.low > 0 else "refuted" if settled == "worse" else "not settled",
        f"what n does at fixed B is {effect.value:.2f} ({effect.low:.2f} to {effect.high:.2f}) of what it does at "
        f"fixed B_problem; n\\* rises {octaves(rise)}",
        rise.seeds,
        f"128 rollouts per step, shared out as n times B_problem, n = {min(curves)} to {max(curves)}. Over n reward "
        f"spreads by {effect.value:.2f} ({effect.low:.2f} to {effect.high:.2f}) of what it does at 8 problems per "
        f"batch: n\\* of so flat an optimum moves by {octaves(rise)} from the first budget to the last, and its shape "
        f"is lost in noise. {shape}\n\n![Reward of each n at fixed B]({picture})",
        "At fixed B every split takes the same steps and leaves the same noise in the weights, and that is most of "
        f"what n does here ({NOISE}). Only batches of two problems fall behind early, when problems are new. The best "
        f"n is ahead of the better of those two octaves away by {100 * ahead:.1f} points, and one seed's difference "
        f"has a standard deviation of {100 * deviation:.1f}: some {needed:.0f} seeds would tell them apart at one "
        f"budget, where at 8 problems per batch {elsewhere:.0f} do.",
        "Problems on which n changes reward at fixed B, as it does where a small group has no signal.",
        "A sigmoid in log2 n\\* against M.",
    )


def of_draws(result: SweepResult) -> tuple[float, float]:
    """How far the sigmoid of n*(M) is ahead of a line (`shapes.sigmoid_ahead`), and in which share of the draws it is.

    n* of the mean is that of the answer; of a draw it is the n whose reward there is highest, each n stopped where its
    expected reward is.
    """
    groups, _ = group_runs(result.runs)
    model = fit_sweep(groups, result.metric, reward_range=result.options.read.reward_range)
    assert model is not None and result.optimal is not None  # several n, evaluated often
    budgets, sizes = result.optimal.budgets, np.array([group.configuration.group_size for group in groups])
    (rollouts,) = {group.configuration.rollouts_per_step for group in groups}
    best = stopped(model.curves(budgets, draws=DRAWS).mean).argmax(axis=0)
    (ahead,) = shapes.sigmoid_ahead(budgets / rollouts, result.optimal.group_size[None], sizes.tolist())
    drawn = shapes.sigmoid_ahead(budgets / rollouts, sizes[best], sizes.tolist())
    return float(ahead), float(np.mean(drawn > 0))


class Gain(NamedTuple):
    """What the terms do at one n: to the highest mean reward, and to reward and entropy at the last budget."""

    terms: str  # coefficient, and whether groups without signal have them
    where: str
    group_size: int
    highest: statistics.Estimate
    last: statistics.Estimate
    entropy: statistics.Estimate


def terms(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 10."""
    gains = [
        one
        for label, sets in PAIRS.items()
        for where, sweeps in sets.items()
        for one in _gains(gallery, label, where, *sweeps)
    ]
    rows = [
        (
            f"{one.terms}, {one.where}, n = {one.group_size}",
            points(one.highest),
            points(one.last),
            f"{one.entropy.value:+.3f}".replace("-0.000", "0.000").replace("+0.000", "0.000"),
        )
        for one in gains
    ]
    bound = max(abs(end) for one in gains for end in (one.highest.low, one.highest.high))
    heads = ("coefficients", "gain of the highest avg@4", "gain at the last budget", "change of entropy there, nats")
    return Chapter(
        10,
        "KL and entropy terms help on Easy and hurt on Hard",
        _of_terms(gains),
        f"no change seen of the highest avg@4; none above {100 * bound:.1f} points",
        min(one.highest.seeds for one in gains),
        "avg@4 with both terms, less that without, on 64 problems (0.001 is the usual start; the paper prints "
        "none):\n\n"
        f"{table(heads, rows)}\n\n"
        f"![Reward and entropy with and without the terms]({_draw_terms(gallery, docs)})",
        "The terms hardly move the policy: thirty times the usual ones leave its entropy where it was. In the first "
        "runs groups without signal leave the whole loss (`zero_variance_groups=drop`), and with them the terms on the "
        "very problems that are known by heart; but where those groups keep the terms (*everywhere*, on another base "
        "model) it is no other, but that n = 8 on Easy ends lower. On problems with a signal the reward's part is far "
        "larger, and what ends these runs is over-fitting of few problems, with an entropy that is not near zero: "
        "there is no collapse to hold up.",
        "Coefficients large enough to move entropy; runs in which entropy collapses before problems are learned.",
        "The healthy recipe: both terms on for Easy, off for Hard and mixtures.",
    )


def _gains(gallery: Gallery, terms: str, where: str, *sweeps: str) -> list[Gain]:
    """What terms do on a set, at each n that was run with them: of a sweep with them, and one without."""
    on, off = (gallery.curves(name, "avg@4", "entropy") for name in sweeps)

    def each(one: statistics.Means, other: statistics.Means) -> list[float]:
        pairs = [(one[n][1], other[n][1]) for n in on]
        return [
            float(gain)
            for a, b in pairs
            for gain in (a[:, 0].max() - b[:, 0].max(), a[-1, 0] - b[-1, 0], a[-1, 1] - b[-1, 1])
        ]

    of_all = statistics.estimates(each, on, {n: off[n] for n in on})
    triples = zip(of_all[::3], of_all[1::3], of_all[2::3], strict=True)
    return [Gain(terms, where, n, *three) for n, three in zip(on, triples, strict=True)]


def _of_terms(gains: list[Gain]) -> Verdict:
    """By the highest reward at every n: shown if some terms do both, refuted if all do the contrary of either."""
    shown, refuted = [], []
    for terms in {one.terms for one in gains}:
        easy, hard = (
            [one.highest.sign for one in gains if (one.terms, one.where) == (terms, where)] for where in PLAIN
        )
        shown.append(min(easy) > 0 > max(hard))
        refuted.append(max(easy) < 0 or min(hard) > 0)
    return "shown" if any(shown) else "refuted" if all(refuted) else "not settled"


def _draw_terms(gallery: Gallery, docs: pathlib.Path) -> str:
    """Mean reward and entropy over compute, Easy beside Hard."""
    with in_style():
        figure, axes = panels(2, 2, height=5.6, share=False)
        handles = []
        for column, where in enumerate(PLAIN):
            names = {0.0: PLAIN[where]} | {coefficient: each[where] for coefficient, each in TERMS.items()}
            for (coefficient, name), colour in zip(names.items(), PALETTE(np.linspace(0, 1, len(names))), strict=True):
                one = gallery.curves(name, "avg@4", "entropy")[DRAWN]
                mean = one.values.mean(axis=0)
                for row in (0, 1):
                    line = axes[2 * row + column].plot(
                        one.compute, mean[:, row], color=colour, label=f"{coefficient:g}"
                    )
                handles += line if column == 0 else []
            axes[column].set(title=f"{where}, n = {DRAWN}")
            axes[2 + column].set(xlabel="compute C, rollouts")
        axes[0].set(ylabel="avg@4")
        axes[2].set(ylabel="entropy, nats")
        for axis in axes:
            log_axis(axis)
        legend(figure, handles)
        return save(figure, docs, "terms")
