"""`python -m benchmarks.frontier_coverage`: how often the intervals of switch points, n* and rewards hold the truth.

    python -m benchmarks.frontier_coverage --replicates=1000
    python -m benchmarks.frontier_coverage --replicates=400 --methods=noise,runs,blocks --studies=crossing
    python -m benchmarks.frontier_coverage --jitter=0.1 --seeds=3,5 --correlation=0

Simulated sweeps of Hill curves with known switches go from a table through the stages of `analyze` (reading, seeds,
screening, fits, bootstrap with the 200 replicates that it draws by default) to switches, n*(C) and recommendations.
Budgets are multiples of the first switch (0.2, 0.9 and 1.1) and the data's end.

The interval of n* is a set of values of n: at a budget where two of them are nearly equal it holds the better one with
97.5%, elsewhere with more. Rewards are those of the fitted curves, whose intervals the bootstrap draws, and the
expected ones of the forecast, which the answer gives by default. Widths are medians over the width that 95% of the
estimates in fact span. Every share comes with its Monte-Carlo standard error.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from absl import flags

from benchmarks.known_switches import SWEEPS, Answer, Condition, answers, simulate
from benchmarks.shared import numbers, percent, print_head, print_row
from isocompute_jax import app
from isocompute_jax.fit.curves.forms import hill

REPLICATES = flags.DEFINE_integer("replicates", 1000, "Simulated sweeps per line of the table.", lower_bound=1)
STUDIES = flags.DEFINE_list("studies", ["crossing", "shallow"], "Which sweeps: crossing, shallow.")
METHODS = flags.DEFINE_list("methods", ["auto"], "Bootstraps, side by side on the same data: see --bootstrap.")
SEEDS = flags.DEFINE_list("seeds", ["3", "5"], "Seeds of each configuration.")
CORRELATION = flags.DEFINE_list("correlation", ["0", "0.5"], "Correlations of neighbouring evaluations, rho.")
NOISE = flags.DEFINE_float("noise", 0.015, "Standard deviation of an evaluation of one seed.")
JITTER = flags.DEFINE_float("jitter", 0.0, "Standard deviation of ln C_mid between seeds.")
POINTS = flags.DEFINE_integer("points", 30, "Evaluations per seed.", lower_bound=2)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the noise.")

HEAD = (
    *("curves", "seeds", "rho", "bootstrap", "covers the switch", "width", "has it"),
    "covers n\\* at 0.2, 0.9, 1.1 of the switch, at the end",
    *("covers the fitted reward there", "width", "covers the expected reward", "width"),
)


def line(condition: Condition, method: str, found: Sequence[Answer]) -> tuple[str, ...]:
    """The cells of `HEAD`."""
    sweep = SWEEPS[condition.sweep]
    every = Answer(*(np.stack(part) for part in zip(*found, strict=True)))
    truths = {size: hill(np.array(sweep.budgets()), *curve) for size, curve in sweep.curves.items()}
    best = np.array(list(truths))[np.argmax(list(truths.values()), axis=0)]
    switch, width = [], []
    for w, truth in enumerate(sweep.switches()):
        ends = every.switch_ends[:, w]
        known = np.isfinite(ends).all(axis=1)
        switch.append(percent((ends[known, 0] <= truth) & (truth <= ends[known, 1])))
        width.append(_width(np.log(ends[known]), np.log(every.switch[known, w])))
    cells = (
        condition.sweep,
        f"{condition.seeds}",
        f"{condition.correlation:g}",
        method,
        ", ".join(switch),
        ", ".join(width),
        ", ".join(f"{share:.1%}" for share in np.isfinite(every.switch).mean(axis=0)),
        _held(every.group_size_ends, np.tile(best, (len(found), 1))),
        *_rewards(every.fitted, truths),
        *_rewards(every.expected, truths),
    )
    return cells


def _rewards(advice: np.ndarray, truths: dict[int, np.ndarray]) -> tuple[str, str]:
    """How often intervals of the reward [R, B, 4] hold the truth [B] of the n that they are of, and their widths."""
    sizes, rewards, ends = advice[..., 0], advice[..., 1], advice[..., 2:]
    truth = np.array([[truths[int(n)][b] for b, n in enumerate(row)] for row in sizes])
    width = ", ".join(_width(ends[:, b], (rewards - truth)[:, b]) for b in range(truth.shape[1]))
    return _held(ends, truth), width


def _held(ends: np.ndarray, truth: np.ndarray) -> str:
    """Shares of the intervals [R, B, 2] that hold the truth [R, B], by budget."""
    held = (ends[..., 0] <= truth) & (truth <= ends[..., 1])
    return ", ".join(percent(column) for column in held.T)


def _width(ends: np.ndarray, estimates: np.ndarray) -> str:
    """Median width of intervals [R, 2] over what 95% of normal estimates [R] span."""
    return f"{np.nanmedian(ends[:, 1] - ends[:, 0]) / (2 * 1.96 * np.std(estimates)):.2f}"


def main() -> None:
    """Flags -> table."""
    conditions = [
        Condition(sweep, int(seeds), rho)
        for sweep, seeds, rho in itertools.product(STUDIES.value, numbers(SEEDS), numbers(CORRELATION))
    ]
    given = {"noise": NOISE.value, "jitter": JITTER.value, "points": POINTS.value}
    print_head(HEAD, left=(0, 3))
    for condition in conditions:
        found: dict[str, list[Answer]] = {method: [] for method in METHODS.value}
        for i in range(REPLICATES.value):
            rng = np.random.default_rng([SEED.value, i])
            told = answers(simulate(condition, rng, **given), SWEEPS[condition.sweep], METHODS.value, seed=i)
            for method, answer in told.items():
                found[method].append(answer)
        for method, rows in found.items():
            print_row(*line(condition, method, rows))


if __name__ == "__main__":
    app.run(main)
