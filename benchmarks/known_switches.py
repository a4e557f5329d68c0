"""Simulated sweeps whose switches are known, and what `analyze` answers about them.

`crossing` has n = 8, 64 and 512 with a switch in the middle of the data and one near their end; `shallow` has n = 8 and
64, which cross at a small angle.
"""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize

from benchmarks.families import autocorrelated
from isocompute_jax.fit.advice import recommend
from isocompute_jax.fit.analysis_options import AnalysisOptions, Beyond
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.seeds import group_runs
from isocompute_jax.fit.frontier.allocation import fit_allocation
from isocompute_jax.fit.frontier.bootstrap import Bootstrap, group_size_interval
from isocompute_jax.fit.frontier.switches import switch_results
from isocompute_jax.fit.read import ReadOptions, memory_table, read_curves
from isocompute_jax.fit.results import Frontier
from isocompute_jax.fit.stages import MetricAnalysis, Stages

FIRST = 1e3
"""Compute of the first evaluation."""
TIMES = (0.2, 0.9, 1.1)
"""Budgets in units of the first switch; the data's end comes last."""


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
class Condition:
    """One line of the table."""

    sweep: str
    seeds: int
    correlation: float


class Answer(NamedTuple):
    """What one analysis says; W switches, B budgets."""

    switch: np.ndarray  # [W] estimate; NaN where the frontier has none
    switch_ends: np.ndarray  # [W, 2]
    group_size_ends: np.ndarray  # [B, 2]
    # [B, 4] recommended n, its reward and the ends of the reward's interval, by the fitted curves
    # (`--forecast=form`: the bootstrap's)
    fitted: np.ndarray
    expected: np.ndarray  # [B, 4] the same by the forecast, which the answer gives


def simulate(
    condition: Condition, rng: np.random.Generator, *, noise: float, jitter: float, points: int
) -> dict[str, np.ndarray]:
    """A table of one sweep, as `analyze` takes it."""
    sweep = SWEEPS[condition.sweep]
    compute = np.geomspace(FIRST, sweep.last, points).round()
    rows = []
    for (size, (floor, top, middle, rise)), seed in itertools.product(sweep.curves.items(), range(condition.seeds)):
        errors = noise * autocorrelated(rng.standard_normal(points), condition.correlation)
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
    found = {}
    for method in methods:
        stages.options = dataclasses.replace(options, bootstrap=method)
        resampled = stages.bootstrap(main)
        assert resampled is not None
        by_pair = {(s.before.group_size, s.after.group_size): s for s in switch_results(main, {}, resampled)}
        switches = [by_pair.get(pair) for pair in itertools.pairwise(sweep.curves)]
        found[method] = Answer(
            switch=np.array([s.compute if s else np.nan for s in switches]),
            switch_ends=np.array([s.interval95 if s and s.interval95 else (np.nan, np.nan) for s in switches]),
            group_size_ends=np.array([group_size_interval(resampled, b)[0] for b in budgets]),
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
