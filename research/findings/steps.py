"""Findings 6, 7 and 9: what B_problem does at fixed n, how the rate should grow with B, and n against M at fixed B."""

from __future__ import annotations

import pathlib

import numpy as np

from isocompute_jax.fit.comparisons.steps_law import steps_laws
from research.findings.chapter import NOISE, Chapter, Gallery, octaves, points, side_by_side, table, verdict_of_all
from research.findings.rising import analysed
from research.findings.statistics import (
    batch_effect,
    common_budgets,
    level_gain,
    means,
    records_at,
    rise_of,
    size_effect,
)

BATCHES = {2: "batch_2", 8: "problems_64", 32: "batch_32"}
"""Sweeps that differ in B_problem."""
LITTLE = 0.5
"""B_problem matters little where what it does is surely below this share of what n does."""
RATES = {"constant": "problems_64", "sqrt": "rate_sqrt", "linear": "rate_linear"}
"""Sweeps that differ in how the rate grows with B; they have one rate at B = 64."""
LARGE = (64, 128)
"""n whose batches are large: 512 and 1,024 rollouts per step."""
STEPS = "steps_64"


def batches(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 6."""
    sweeps = {size: gallery.curves(name) for size, name in BATCHES.items()}
    by_batch, by_size, ratio = batch_effect(sweeps)
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
    gains = {rule: level_gain(sweeps["sqrt"], sweeps[rule], LARGE) for rule in ("constant", "linear")}
    budgets = common_budgets(*sweeps.values())
    sqrt, constant = (
        records_at({n: mean for n, mean in means(sweeps[rule]).items() if n in LARGE}, budgets)
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
    rows = [(f"n = {n}", *(points(level_gain(sweeps["sqrt"], sweeps[rule], [n])) for rule in gains)) for n in LARGE] + [
        ("the better of them", *map(points, gains.values()))
    ]
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
    rise = rise_of(curves)
    picture = side_by_side({"128 rollouts per step": curves}, docs, "steps")
    laws = steps_laws(analysed(gallery.sweep(STEPS), bootstrap=True))
    shape, settled = "n\\* moves at too few budgets to tell a shape.", "open"
    if laws:
        law = laws[0].law
        settled = law.against("line")
        share = f" ({law.shares['line']:.0%} of replicates have it lower)" if "line" in law.shares else ""
        ahead = law.ahead("line")
        shape = (
            f"Against log M, the AICc of a sigmoid between the smallest and the largest n is {abs(ahead):.1f} "
            f"{'lower' if ahead > 0 else 'higher'} than that of a straight line{share}."
        )
    effect = size_effect(curves, gallery.curves(BATCHES[8]))
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
        f"what n does here ({NOISE}). Only batches of two problems fall behind early, when problems are new.",
        "Problems on which n changes reward at fixed B, as it does where a small group has no signal.",
        "A sigmoid in log2 n\\* against M.",
    )
