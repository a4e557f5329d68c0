"""`python -m benchmarks.frontier_coverage`: how often the intervals of switch points, n* and rewards hold the truth.

    python -m benchmarks.frontier_coverage --replicates=1000
    python -m benchmarks.frontier_coverage --replicates=400 --methods=noise,runs,blocks --studies=crossing
    python -m benchmarks.frontier_coverage --jitter=0.1 --seeds=3,5 --correlation=0

Simulated sweeps of Hill curves with known switches go from a table through the stages of `analyze` (reading, seeds,
screening, fits, bootstrap with the 200 replicates that it draws by default) to switches, n*(C) and recommendations.
`crossing` has n = 8, 64 and 512 with a switch in the middle of the data and one near their end; `shallow` has n = 8 and
64, which cross at a small angle. Budgets are multiples of the first switch (0.2, 0.9 and 1.1) and the data's end.

The interval of n* is a set of values of n: at a budget where two of them are nearly equal it holds the better one with
97.5%, elsewhere with more. Rewards are those of the fitted curves, whose intervals the bootstrap draws, and the
expected ones of the forecast, which the answer gives by default. Widths are medians over the width that 95% of the
estimates in fact span. Every share comes with its Monte-Carlo standard error.
"""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize
from absl import flags

from benchmarks.shares import numbers, percent
from isocompute_jax import app
from isocompute_jax.fit.advice import recommend
from isocompute_jax.fit.analysis_options import AnalysisOptions, Beyond
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.seeds import group_runs
from isocompute_jax.fit.frontier.allocation import fit_allocation
from isocompute_jax.fit.frontier.bootstrap import Bootstrap, group_size_interval
from isocompute_jax.fit.frontier.switch_evidence import switch_results
from isocompute_jax.fit.metric_analysis import MetricAnalysis
from isocompute_jax.fit.read import ReadOptions, memory_table, read_curves
from isocompute_jax.fit.results import Frontier
from isocompute_jax.fit.stages import Stages

REPLICATES = flags.DEFINE_integer("replicates", 1000, "Simulated sweeps per line of the table.", lower_bound=1)
STUDIES = flags.DEFINE_list("studies", ["crossing", "shallow"], "Which sweeps: crossing, shallow.")
METHODS = flags.DEFINE_list("methods", ["auto"], "Bootstraps, side by side on the same data: see --bootstrap.")
SEEDS = flags.DEFINE_list("seeds", ["3", "5"], "Seeds of each configuration.")
CORRELATION = flags.DEFINE_list("correlation", ["0", "0.5"], "Correlations of neighbouring evaluations, rho.")
NOISE = flags.DEFINE_float("noise", 0.015, "Standard deviation of an evaluation of one seed.")
JITTER = flags.DEFINE_float("jitter", 0.0, "Standard deviation of ln C_mid between seeds.")
POINTS = flags.DEFINE_integer("points", 30, "Evaluations per seed.", lower_bound=2)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the noise.")

FIRST = 1e3
"""Compute of the first evaluation."""
TIMES = (0.2, 0.9, 1.1)
"""Budgets in units of the first switch; the data's end comes last."""

HEADER = (
    "| curves | seeds | rho | bootstrap | covers the switch | width | has it | covers n\\* at 0.2, 0.9, 1.1 of the "
    "switch, at the end | covers the fitted reward there | width | covers the expected reward | width |\n"
    "| :-- | --: | --: | :-- | --: | --: | --: | --: | --: | --: | --: | --: |"
)


class Sweep(NamedTuple):
    """Curves by n: (floor, asymptote, midpoint, steepness), and the compute of the last evaluation."""

    curves: dict[int, tuple[float, float, float, float]]
    last: float

    def switches(self) -> list[float]:
        """Where each curve meets the next."""
        pairs = itertools.pairwise(self.curves.values())
        gaps = [lambda c, one=one, other=other: hill(c, *one) - hill(c, *other) for one, other in pairs]
        return [typing.cast(float, scipy.optimize.brentq(gap, 3 * FIRST, self.last)) for gap in gaps]

    def budgets(self) -> tuple[float, ...]:
        """Where n* and rewards are asked for."""
        return (*(share * self.switches()[0] for share in TIMES), 0.999 * self.last)


SWEEPS = {
    "crossing": Sweep(
        {8: (0.1, 0.5, 4e3, 1.0), 64: (0.1, 0.7, 3e4, 1.0), 512: (0.1, 0.9, 2.4e5, 1.0)}, 2e6
    ),
    "shallow": Sweep({8: (0.1, 0.65, 3e4, 1.0), 64: (0.1, 0.69, 4e4, 1.0)}, 1e6),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cell:
    """One line of the table."""

    sweep: str
    seeds: int
    correlation: float


class Answer(NamedTuple):
    """What one analysis says; W switches, B budgets.

    Attributes:
      switch: [W] estimate; NaN where the frontier has none.
      switch_ends: [W, 2].
      group_size_ends: [B, 2].
      fitted: [B, 4] recommended n, its reward and the ends of the reward's interval, by the fitted curves
        (`--forecast=form`: the bootstrap's).
      expected: [B, 4] the same by the forecast, which the answer gives.
    """

    switch: np.ndarray
    switch_ends: np.ndarray
    group_size_ends: np.ndarray
    fitted: np.ndarray
    expected: np.ndarray


def simulate(
    cell: Cell, rng: np.random.Generator, *, noise: float, jitter: float, points: int
) -> dict[str, np.ndarray]:
    """A table of one sweep, as `analyze` takes it."""
    sweep = SWEEPS[cell.sweep]
    compute = np.geomspace(FIRST, sweep.last, points).round()
    rows = []
    for (size, (floor, top, middle, rise)), seed in itertools.product(sweep.curves.items(), range(cell.seeds)):
        errors = noise * rng.standard_normal(points)
        for t in range(1, points):
            errors[t] = cell.correlation * errors[t - 1] + np.sqrt(1 - cell.correlation**2) * errors[t]
        reward = hill(compute, floor, top, middle * np.exp(jitter * rng.standard_normal()), rise) + errors
        rows.append((np.full(points, size), np.full(points, 32), np.full(points, seed), compute, reward.clip(0, 1)))
    names = "group_size", "problems_per_batch", "seed", "compute", "reward"
    return dict(zip(names, map(np.concatenate, zip(*rows, strict=True)), strict=True))


def answers(table: dict[str, np.ndarray], sweep: Sweep, methods: Sequence[str], *, seed: int) -> dict[str, Answer]:
    """What `analyze` would say of the sweep with each bootstrap, without the stages that change none of it."""
    budgets = sweep.budgets()
    options = AnalysisOptions(read=ReadOptions(metric="reward"), budgets=budgets, seed=seed)
    runs, _ = read_curves(memory_table(table), options.read)
    groups, _ = group_runs(runs)
    stages = Stages(options, groups)
    main = stages.metric("reward", intervals=True, profiles=False)
    configurations = [curve.configuration for curve in main.curves]
    found = {}
    for method in methods:
        stages.options = dataclasses.replace(options, bootstrap=method)
        resampled = stages.bootstrap(main)
        assert resampled is not None
        by_pair = {(s.row.from_group_size, s.row.to_group_size): s for s in switch_results(main, {}, resampled)}
        switches = [by_pair.get(pair) for pair in itertools.pairwise(sweep.curves)]
        found[method] = Answer(
            switch=np.array([s.row.compute if s else np.nan for s in switches]),
            switch_ends=np.array([s.interval95 if s and s.interval95 else (np.nan, np.nan) for s in switches]),
            group_size_ends=np.array([group_size_interval(resampled, configurations, b)[0] for b in budgets]),
            fitted=_advice(stages, main, resampled, "form"),
            expected=_advice(stages, main, resampled, "average"),
        )
    return found


def _advice(stages: Stages, main: MetricAnalysis, resampled: Bootstrap, forecast: Beyond) -> np.ndarray:
    """[B, 4] n, reward and its interval at each budget; no law of n*(C) and no other choice of evaluations."""
    stages.options = dataclasses.replace(stages.options, forecast=forecast)
    none = dataclasses.replace(main, frontier=Frontier((), ()))
    law = fit_allocation(np.empty(0), np.empty(0), window=1)
    found = recommend(stages.options.budgets, stages, main, law, resampled, {"strict": none})
    return np.array([(row.group_size, row.reward, *row.interval95) for row in found.values()])


def line(cell: Cell, method: str, found: Sequence[Answer]) -> str:
    """One line of the table."""
    sweep = SWEEPS[cell.sweep]
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
        cell.sweep,
        f"{cell.seeds}",
        f"{cell.correlation:g}",
        method,
        ", ".join(switch),
        ", ".join(width),
        ", ".join(f"{share:.1%}" for share in np.isfinite(every.switch).mean(axis=0)),
        _held(every.group_size_ends, np.tile(best, (len(found), 1))),
        *_rewards(every.fitted, truths),
        *_rewards(every.expected, truths),
    )
    return "| " + " | ".join(cells) + " |"


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
    return f"{np.median(ends[:, 1] - ends[:, 0]) / (2 * 1.96 * np.std(estimates)):.2f}"


def main() -> None:
    """Flags -> table."""
    cells = [
        Cell(sweep, int(seeds), rho)
        for sweep, seeds, rho in itertools.product(STUDIES.value, numbers(SEEDS), numbers(CORRELATION))
    ]
    given = {"noise": NOISE.value, "jitter": JITTER.value, "points": POINTS.value}
    print(HEADER)
    for cell in cells:
        found: dict[str, list[Answer]] = {method: [] for method in METHODS.value}
        for i in range(REPLICATES.value):
            rng = np.random.default_rng([SEED.value, i])
            told = answers(simulate(cell, rng, **given), SWEEPS[cell.sweep], METHODS.value, seed=i)
            for method, answer in told.items():
                found[method].append(answer)
        for method, rows in found.items():
            print(line(cell, method, rows), flush=True)


if __name__ == "__main__":
    app.run(main)
