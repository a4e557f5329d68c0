"""Claims about n in the literature, each as a statement that the recorded sweeps can refute, and what they say of it.

A statement holds where the whole 95% interval of what it is about lies on its side of the bar, fails where it lies on
the other, and is not settled else. Estimates are Student's over seeds. Where n is compared at its own learning rate,
rate and evaluation are chosen on other seeds than the one that is scored (`one_run.comparison`); a comparison that a
side loses with the lowest or highest rate that was tried is not settled, however sure.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np

from research.findings import statistics
from research.findings.chapter import RISE, Gallery, table
from research.findings.closing import CONSTANT
from research.findings.statistics import Estimate
from research.one_run.comparison import chosen_elsewhere, points, pooled, student
from research.record import SUFFIX, Seeds, Sweep, curves_of

Verdict = Literal["holds", "fails", "not settled"]

RATES = ("rate_half", RISE, "rate_sqrt", "rate_linear")
"""Sweeps of 64 Hard problems, 8 per batch, that differ in the learning rate alone."""
SMALL, LARGE = 4, 32
"""Two n that are compared: n* rises if the first leads early and the second late."""
EARLY, LATE = 2048, 131_072
"""Budgets, in rollouts."""
STEPS = (64, 128, 256)
"""Numbers of steps at which paths are compared."""
WITHIN = (48, 600)
"""Steps between which fluctuations are measured."""
ALIKE = 0.02
"""Rewards are alike within this."""
SHARE = 0.9
"""Of the variance of levels: what one number has to explain for n to count by it alone."""
KEPT = 0.976
"""Of the reward of n = 16, what n = 2 is said to keep."""
PRODUCTS: Mapping[int, Mapping[tuple[int, int], str]] = {
    64: {(8, 8): RISE, (32, 2): "batch_2"},
    128: {(4, 32): "steps_64", (8, 16): "steps_64", (16, 8): "steps_64", (32, 4): "steps_64", (64, 2): "steps_64"},
    256: {(8, 32): "batch_32", (32, 8): RISE, (128, 2): "batch_2"},
    512: {(16, 32): "batch_32", (64, 8): RISE},
    1024: {(32, 32): "batch_32", (128, 8): RISE},
}
"""n x B_problem -> (n, B_problem) -> the sweep that has it, all at one rate."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim."""

    source: str  # whose, in Markdown
    says: str  # what it says
    statement: str  # what is asked here
    verdict: Verdict
    measured: str  # the figure that decides, in a few words
    evidence: str  # paragraphs, with tables
    overturn: str  # what would overturn the verdict

    @property
    def row(self) -> str:
        """Its row of the table at the top."""
        return f"| {self.source} | {self.says} | **{self.verdict}** | {self.measured} |"

    @property
    def text(self) -> str:
        """Markdown."""
        return (
            f"## {self.says}: {self.verdict}\n\n{self.source}. **Asked here:** {self.statement}\n\n{self.evidence}\n\n"
            f"**What would overturn it.** {self.overturn}\n"
        )


def all_claims(gallery: Gallery) -> list[Claim]:
    """All of them, in the page's order."""
    return [rises(gallery), two_suffice(gallery), same_path(gallery), product(gallery), noise(gallery)]


def rises(gallery: Gallery) -> Claim:
    """n* rises with C, each n at the rate that suits it."""
    first, last, edges = lead(gallery, lower(gallery))
    before = lead(gallery, recorded(gallery))
    verdict = both(side(first, 0.0), side(last, 0.0))
    if verdict == "holds" and any(edges):
        verdict = "not settled"
    return Claim(
        "IsoCompute ([2603.12151](https://arxiv.org/abs/2603.12151))",
        "n\\* rises with compute",
        f"each n at the rate that other seeds choose for it, n = {SMALL} is ahead of n = {LARGE} at {EARLY:,} "
        f"rollouts, and behind it at {LATE:,}.",
        verdict,
        f"n = {LARGE} less n = {SMALL}: {points(negative(first))} at {EARLY:,}, {points(last)} at {LATE:,}"
        + (", where the smaller has the lowest rate that was tried" if edges[1] else ""),
        "Reward chosen on other seeds, and the rate that all five choose (an asterisk: the lowest or highest that was "
        "tried for this n). 64 Hard problems, 8 a batch:\n\n"
        f"{own_rates(gallery, lower(gallery))}\n\n"
        "64 other Hard problems and another base model, no rate below 1.25e-4: "
        f"{points(negative(before[0]))} at {EARLY:,}, {points(before[1])} at {LATE:,}.\n\n"
        f"{own_rates(gallery, recorded(gallery))}\n\n"
        "At one rate for all, n\\* goes from 4 to 128 ([findings](findings.md#1-n-rises-with-compute-shown)). With a "
        "rate of its own a small group keeps up to the end on one base model, and not on the other, where rates as low "
        "were not tried: most of what a large one is ahead by late is less noise, which a smaller rate buys as well.",
        "Schedules of the rate within a run, which suit a small group most.",
    )


def lead(gallery: Gallery, tried: Tried) -> tuple[Estimate, Estimate, tuple[bool, bool]]:
    """By how much the small n leads early, the large one late, and whether the other then has an outermost rate."""
    rewards, rates = tuned(tried)
    early, late = (place_of(gallery, budget) for budget in (EARLY, LATE))
    first = student(rewards[SMALL][:, early] - rewards[LARGE][:, early])
    last = student(rewards[LARGE][:, late] - rewards[SMALL][:, late])
    return first, last, (rates[LARGE][early][1], rates[SMALL][late][1])


def own_rates(gallery: Gallery, tried: Tried) -> str:
    """A table: each n's reward at its own rate, and the rate."""
    rewards, rates = tuned(tried)
    budgets = [EARLY * 4**power for power in range(4)]
    places = [place_of(gallery, budget) for budget in budgets]
    rows = [
        (f"n = {n}", *(f"{each[:, place].mean():.3f} at {_rate(rates[n][place])}" for place in places))
        for n, each in rewards.items()
    ]
    return table(("", *(f"C = {budget:,}" for budget in budgets)), rows)


def place_of(gallery: Gallery, budget: int) -> int:
    """Of the last evaluation up to a budget, and a little beyond it; all of these sweeps have the same."""
    return int(np.searchsorted(gallery.curves(RISE)[SMALL].compute, budget * 1.05) - 1)


def two_suffice(gallery: Gallery) -> Claim:
    """n = 2 keeps 97.6% of n = 16."""
    rewards, rates = tuned(lower(gallery))
    kept = student(rewards[2][:, -1] / rewards[16][:, -1].mean())
    margin = student(rewards[2][:, -1] - KEPT * rewards[16][:, -1])  # its interval has the noise of both
    early = student(rewards[2][:, 0] / rewards[16][:, 0].mean())
    verdict = side(margin, 0.0)
    if rates[2 if verdict == "fails" else 16][-1][1]:
        verdict = "not settled"
    has = f"{kept.value:.2f} ({kept.low:.2f} to {kept.high:.2f})"
    return Claim(
        "2-GRPO ([2510.00977](https://arxiv.org/abs/2510.00977))",
        "n = 2 keeps 97.6% of what n = 16 has, at an eighth of its rollouts",
        f"at equal compute n = 2 at its own rate has more than {KEPT} of the reward of n = 16 at its own.",
        verdict,
        f"{has} of it at {LATE:,}",
        f"Each at its own rate (the table above), n = 2 has {early.value:.2f} ({early.low:.2f} to {early.high:.2f}) of "
        f"the reward of n = 16 at {EARLY:,} rollouts, and {has} at {LATE:,}, at {_rate(rates[2][-1])} and "
        f"{_rate(rates[16][-1])}; {kept.seeds} seeds.",
        "Some forty seeds of n = 2 and n = 16; lower rates, or rates that fall.",
    )


def same_path(gallery: Gallery) -> Claim:
    """The mean path does not depend on n."""
    curves = gallery.curves(RISE)
    problems = gallery.sweep(RISE).facts.shared["problems_per_batch"]
    sizes = {n: at_steps(curves[n], problems * n) for n in (4, 16, 64)}
    differences = [student(large - small) for large, small in zip(sizes[64].T, sizes[4].T, strict=True)]
    decided = [side(one, ALIKE) for one in differences]
    fails = "holds" in decided or "holds" in [side(negative(one), ALIKE) for one in differences]
    inside = all(abs(end) < ALIKE for one in differences for end in (one.low, one.high))
    power = fluctuations(Gallery(gallery.path / "schedules").sweep("hard_64"))
    widest = max(differences, key=lambda one: abs(one.value))
    rows = [(f"n = {n}", *(f"{value:.3f}" for value in each.mean(axis=0))) for n, each in sizes.items()]
    return Claim(
        "Predictable GRPO ([2606.30789](https://arxiv.org/abs/2606.30789))",
        "The mean path over steps does not depend on n; fluctuations go as 1/n",
        f"at equal steps and one rate, held-out rewards of n = 64 and n = 4 are within {100 * ALIKE:.0f} points.",
        "fails" if fails else "holds" if inside else "not settled",
        f"n = 64 less n = 4 after {STEPS[differences.index(widest)]} steps: {points(widest)}",
        f"64 Hard problems, 8 a batch, 2.5e-4; mean avg@4 after so many steps:\n\n"
        f"{table(('', *map(str, STEPS)), rows)}\n\n"
        "Fluctuations within runs, on another base model with ten seeds: the change from one evaluation to the next, "
        f"{WITHIN[0]} to {WITHIN[1]} steps into a run; its variance over seeds, less that of sampled answers, goes as "
        f"n to the power {power.value:.2f} ({power.low:.2f} to {power.high:.2f}), where -1 is claimed.",
        "Steps so small that noise averages out along the way; problems on which every group has a signal.",
    )


def fluctuations(sweep: Sweep, *, draws: int = 500) -> Estimate:
    """The power of n by which reward fluctuates within runs of n = 4 to 64, with an interval from drawn seeds."""
    sizes, changes, sampled = (4, 8, 16, 32, 64), [], []
    curves = curves_of(sweep, "avg@4")
    for n in sizes:
        rows = [row for row in sweep.table.to_pylist() if row["group_size"] == n and not row.get("schedule")]
        batch = n * rows[0]["problems_per_batch"]
        inside = (curves[n].compute >= WITHIN[0] * batch) & (curves[n].compute <= WITHIN[1] * batch)
        changes.append(np.diff(curves[n].values[:, inside, 0], axis=1))
        rates = np.array([row["solve_counts"] for row in rows if row["compute"] > 0]) / rows[0]["samples"]
        # Two evaluations, each a mean over problems of a mean of `samples` answers.
        sampled.append(2 * np.mean(rates * (1 - rates)) / (rows[0]["samples"] - 1) / rates.shape[1])

    def power(seeds: np.ndarray) -> float:
        variances = [change[seeds].var(axis=0, ddof=1).mean() for change in changes]
        own = np.maximum(np.array(variances) - sampled, 1e-6)
        return float(np.polyfit(np.log(sizes), np.log(own), 1)[0])

    count, random = len(changes[0]), np.random.default_rng(0)
    drawn = [power(random.integers(0, count, count)) for _ in range(draws)]
    low, high = (float(end) for end in np.quantile(drawn, (0.025, 0.975)))
    return Estimate(power(np.arange(count)), low, high, count)


def product(gallery: Gallery) -> Claim:
    """Only n x B counts."""
    compute = gallery.curves(RISE)[SMALL].compute
    places = [int(np.searchsorted(compute, budget * 1.1) - 1) for budget in (8192, 32_768, LATE)]
    rows, found = [], []
    for rollouts, parts in PRODUCTS.items():
        rewards = {pair: best_so_far(gallery.curves(name)[pair[0]]) for pair, name in parts.items()}
        (small, first), (large, last) = (pick(rewards.items(), key=lambda item: item[0]) for pick in (min, max))
        found.append([student(last[:, place] - first[:, place]) for place in places])
        rows.append((f"{rollouts:,}", *("{} x {}".format(*pair) for pair in (small, large)), *map(points, found[-1])))
    every = [pooled(each) for each in zip(*found, strict=True)]
    rows.append(("mean", "", "", *map(points, every)))
    beyond = any("holds" in (side(one, ALIKE), side(negative(one), ALIKE)) for one in every)
    inside = all(abs(end) < ALIKE for one in every for end in (one.low, one.high))
    heads = ("n x B_problem", "smallest n", "largest n", *(f"C = {compute[place]:,.0f}" for place in places))
    return Claim(
        "Critical batch size for LLM policy optimisation (HiLD 2026)",
        "Only n x B_problem counts",
        f"at equal compute, rate and n x B_problem, a large n and a small one are within {100 * ALIKE:.0f} points, in "
        "the mean over products.",
        "fails" if beyond else "holds" if inside else "not settled",
        ", ".join(f"{points(one)} at {compute[place]:,.0f}" for one, place in zip(every, places, strict=True)),
        f"64 Hard problems at 2.5e-4: best reward so far of the largest n less that of the smallest.\n\n"
        f"{table(heads, rows)}",
        "A rate of its own for each side; more seeds, of which those of single products say little.",
    )


def noise(gallery: Gallery) -> Claim:
    """One number explains how high reward gets."""
    share = statistics.noise_explains([gallery.sweep(name) for name in CONSTANT])
    verdict: Verdict = "holds" if share.low > SHARE else "fails" if share.high < SHARE else "not settled"
    return Claim(
        "[This project](findings.md#most-of-how-high-reward-gets-is-one-number)",
        "Learning rate over rollouts per step is most of how high reward gets",
        f"a parabola in its logarithm explains {SHARE:.0%} or more of the variance of the highest reward over "
        "configurations.",
        verdict,
        f"{share.value:.0%} ({share.low:.0%} to {share.high:.0%} over seeds)",
        "Seven sweeps of the same 64 Hard problems, which differ in n, B_problem and rate. It is about the highest "
        "reward within the budget, and says nothing of how soon it is reached; rates that grow as B are left out.",
        "Other problems or models on which another number explains as much.",
    )


Tried = Mapping[int, Mapping[float, np.ndarray]]
"""n -> learning rate -> [S, E] rewards."""


def recorded(gallery: Gallery) -> Tried:
    """64 Hard problems at four rates of each n, none below 1.25e-4."""
    curves = {name: gallery.curves(name) for name in RATES}
    rate_of = {name: rates_of(gallery, name) for name in RATES}
    return {n: {rate_of[name][n]: curves[name][n].values[:, :, 0] for name in RATES} for n in curves[RISE]}


def lower(gallery: Gallery) -> Tried:
    """64 other Hard problems and another base model, in `gallery`/rates: n from 2 on, rates from 1.6e-5 on."""
    folder, found = Gallery(gallery.path / "rates"), collections.defaultdict(dict)
    for path in sorted(folder.path.glob(f"*{SUFFIX}")):
        rate = folder.sweep(path.stem).facts.shared["optimizer.base_lr"]  # the same for every n
        for n, seeds in folder.curves(path.stem).items():
            found[n][rate] = seeds.values[:, :, 0]
    return {n: found[n] for n in sorted(found)}


def tuned(tried: Tried) -> tuple[dict[int, np.ndarray], dict[int, list[tuple[float, bool]]]]:
    """n -> [S, E] rewards at the rate, and the evaluation, that the other seeds choose; n -> the rate at each budget.

    That of all seeds together, and whether it is the lowest or the highest that was tried for this n.
    """
    rewards, rates = {}, {}
    for n, of_rate in tried.items():
        ordered = sorted(of_rate)
        values = np.stack([of_rate[rate] for rate in ordered])
        rewards[n] = chosen_elsewhere(values)
        best = np.argmax(np.maximum.accumulate(values.mean(axis=1), axis=1), axis=0)
        rates[n] = [(ordered[place], place in (0, len(ordered) - 1)) for place in best]
    return rewards, rates


def rates_of(gallery: Gallery, name: str) -> dict[int, float]:
    """n -> its learning rate in a sweep."""
    return {point.group_size: float(f"{point.rate:.3g}") for point in statistics.points_of(gallery.sweep(name))}


def best_so_far(seeds: Seeds) -> np.ndarray:
    """[S, E] of each seed at the evaluation that its others choose."""
    return chosen_elsewhere(seeds.values[None, :, :, 0])


def at_steps(seeds: Seeds, rollouts: int) -> np.ndarray:
    """[S, len(STEPS)] rewards after so many steps of `rollouts`, between evaluations by log C."""
    budgets = np.log(np.array(STEPS) * rollouts)
    return np.array([np.interp(budgets, np.log(seeds.compute), row) for row in seeds.values[:, :, 0]])


def side(one: Estimate, bar: float) -> Verdict:
    """Whether a difference lies above a bar."""
    return "holds" if one.low > bar else "fails" if one.high < bar else "not settled"


def both(*parts: Verdict) -> Verdict:
    """Of a statement with several parts."""
    return "fails" if "fails" in parts else "not settled" if "not settled" in parts else "holds"


def negative(one: Estimate) -> Estimate:
    """The difference the other way round."""
    return Estimate(-one.value, -one.high, -one.low, one.seeds)


def _rate(found: tuple[float, bool]) -> str:
    rate, edge = found
    return f"{rate:.1e}".replace("e-0", "e-") + ("\\*" if edge else "")
