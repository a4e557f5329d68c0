"""Finding 10: KL and entropy terms on Easy and on Hard problems."""

from __future__ import annotations

import pathlib

import numpy as np

from isocompute_jax.fit.report.figures.style import PALETTE, in_style, legend, log_axis, panels
from research.findings.chapter import Chapter, Gallery, Verdict, points, save, table
from research.findings.statistics import Curves, Estimate, Means, estimates

PLAIN = {"Easy": "easy_64", "Hard": "problems_64"}
TERMS = {0.001: {"Easy": "terms_easy", "Hard": "terms_hard"}, 0.03: {"Easy": "strong_easy", "Hard": "strong_hard"}}
"""Coefficient of both terms -> sweeps that have them; the first is the healthy recipe's."""
DRAWN = 8
"""The n of the picture."""

Gains = dict[float, dict[str, list[tuple[int, Estimate, Estimate, Estimate]]]]
"""Coefficient -> set -> (n, gain of the highest mean reward, gain at the last budget, change of entropy there)."""


def terms(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 10."""
    gains: Gains = {
        coefficient: {
            where: _gains(_curves(gallery, name), _curves(gallery, PLAIN[where])) for where, name in each.items()
        }
        for coefficient, each in TERMS.items()
    }
    rows = [
        (
            f"{coefficient:g}, {where}, n = {n}",
            points(highest),
            points(last),
            f"{entropy.value:+.3f}".replace("-0.000", "0.000").replace("+0.000", "0.000"),
        )
        for coefficient, each in gains.items()
        for where, found in each.items()
        for n, highest, last, entropy in found
    ]
    everywhere = [one for each in gains.values() for found in each.values() for one in found]
    bound = max(abs(end) for _, highest, _, _ in everywhere for end in (highest.low, highest.high))
    heads = ("coefficients", "gain of the highest avg@4", "gain at the last budget", "change of entropy there, nats")
    return Chapter(
        10,
        "KL and entropy terms help on Easy and hurt on Hard",
        _of_terms(gains),
        f"no change seen of the highest avg@4; none above {100 * bound:.1f} points",
        min(highest.seeds for _, highest, _, _ in everywhere),
        "avg@4 with both terms, less that without, on 64 problems (0.001 is the usual start; the paper prints "
        "none):\n\n"
        f"{table(heads, rows)}\n\n"
        f"![Reward and entropy with and without the terms]({_draw(gallery, docs)})",
        "The terms hardly move the policy: thirty times the usual ones leave its entropy where it was. Groups "
        "without signal leave the whole loss (`zero_variance_groups=drop`), and with them the terms on the very "
        "problems that are known by heart; on the others the reward's part is far larger. And what ends these runs is "
        "over-fitting of few problems, with an entropy that is not near zero.",
        "Terms kept on groups without signal; coefficients large enough to move entropy; runs in which entropy "
        "collapses before problems are learned.",
        "The healthy recipe: both terms on for Easy, off for Hard and mixtures.",
    )


def _curves(gallery: Gallery, name: str) -> Curves:
    return gallery.curves(name, "avg@4", "entropy")


def _gains(on: Curves, off: Curves) -> list[tuple[int, Estimate, Estimate, Estimate]]:
    """See `Gains`."""

    def each(one: Means, other: Means) -> list[float]:
        pairs = [(one[n][1], other[n][1]) for n in on]
        return [
            float(gain)
            for a, b in pairs
            for gain in (a[:, 0].max() - b[:, 0].max(), a[-1, 0] - b[-1, 0], a[-1, 1] - b[-1, 1])
        ]

    found = estimates(each, on, {n: off[n] for n in on})
    return list(zip(on, found[::3], found[1::3], found[2::3], strict=True))


def _of_terms(gains: Gains) -> Verdict:
    """By the highest reward at every n: shown if a coefficient does both, refuted if all do the contrary of either."""
    shown, refuted = [], []
    for each in gains.values():
        easy, hard = ([highest.sign for _, highest, *_ in each[where]] for where in PLAIN)
        shown.append(min(easy) > 0 > max(hard))
        refuted.append(max(easy) < 0 or min(hard) > 0)
    return "shown" if any(shown) else "refuted" if all(refuted) else "not settled"


def _draw(gallery: Gallery, docs: pathlib.Path) -> str:
    """Mean reward and entropy over compute, Easy beside Hard."""
    with in_style():
        figure, axes = panels(2, 2, height=5.6, share=False)
        handles = []
        for column, where in enumerate(PLAIN):
            names = {0.0: PLAIN[where]} | {coefficient: each[where] for coefficient, each in TERMS.items()}
            for (coefficient, name), colour in zip(names.items(), PALETTE(np.linspace(0, 1, len(names))), strict=True):
                one = _curves(gallery, name)[DRAWN]
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
