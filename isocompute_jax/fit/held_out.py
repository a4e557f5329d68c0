"""Would the cheaper part of a sweep have told the rest? Its top quarter of compute (in log) is predicted and measured.

The engine's model is fitted to the evaluations up to the cut. For each budget beyond, each configuration is stopped
where the model expects most, and what it expects there is held against the mean of the same seeds, to which seeds and
evaluations add noise of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isocompute_jax.fit.configurations import Configuration, ConfigurationRuns, group_runs
from isocompute_jax.fit.engine import fit_sweep
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.read import RunCurve

SHARE = 0.75
"""Of the way from the first compute to the last, on a logarithmic scale, that is fitted."""
LEAST_FITTED, LEAST_HELD_OUT = 6, 2
"""Evaluations up to the cut that half of the configurations have at least, and budgets after it."""
BUDGETS = 12
"""Budgets after the cut, and places up to it at which a run may stop, both even in log C."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """K configurations for H budgets after the cut; what was measured is NaN where a configuration has no data."""

    cut: float  # largest compute that was fitted
    configurations: tuple[Configuration, ...]
    budgets: np.ndarray  # [H]
    stop: np.ndarray  # [K, H] compute at which the model expects most, up to each budget
    predicted: np.ndarray  # [K, H] expected reward there
    interval95: np.ndarray  # [2, K, H] of what will be measured there
    measured: np.ndarray  # [K, H] mean over the seeds there
    best: np.ndarray  # [K, H] highest mean over the seeds up to each budget

    @property
    def known(self) -> np.ndarray:
        """[K, H] bool: measured, and beyond the data that were fitted."""
        return np.isfinite(self.measured) & (self.stop > self.cut)

    @property
    def inside(self) -> np.ndarray:
        """[K, H] bool: measured beyond the fitted data inside its interval."""
        return self.known & (self.interval95[0] <= self.measured) & (self.measured <= self.interval95[1])

    @property
    def octaves(self) -> np.ndarray:
        """[H] how far the predicted n* lies above the measured one, in factors of two; NaN where an n is unknown."""
        sizes = np.log2([each.group_size or np.nan for each in self.configurations])
        predicted, measured = (np.where(np.isfinite(self.best), x, -np.inf) for x in (self.predicted, self.best))
        return sizes[predicted.argmax(axis=0)] - sizes[measured.argmax(axis=0)]


def held_out_quarter(runs: Sequence[RunCurve], options: AnalysisOptions) -> HeldOut | None:
    """Predicts the top quarter of a sweep's compute, beside what was measured; None with too few evaluations."""
    trained = np.concatenate([np.empty(0), *(run.compute[run.compute > 0] for run in runs)])
    if not len(trained):
        return None
    first, last = trained.min(), trained.max()
    cut = float(first ** (1 - SHARE) * last**SHARE * (1 + 1e-9))
    early = [_until(group, cut) for group in group_runs(runs)[0]]
    counts = [max((int((run.compute > 0).sum()) for run in group.runs), default=0) for group in early]
    later = np.unique(trained[trained > cut])
    if not counts or np.median(counts) < LEAST_FITTED or len(later) < LEAST_HELD_OUT:
        return None
    model = fit_sweep(early, options.metric, reward_range=options.read.reward_range)
    if model is None:
        return None
    compute = np.concatenate([np.geomspace(first, cut, BUDGETS), np.geomspace(later[0], last, BUDGETS)])
    drawn = model.curves(compute)
    expected = drawn.mean.mean(axis=1)
    at = np.array([[row[:end].argmax() for end in range(BUDGETS + 1, len(row) + 1)] for row in expected])  # [K, H]
    noise = np.random.default_rng(0).normal(size=drawn.run.shape) * drawn.noise[:, None]
    seeds = np.array([len(group.runs) for group in early])[:, None, None]
    rewards = drawn.mean + (drawn.run - drawn.mean + noise) / np.sqrt(seeds)
    ends = np.percentile(rewards, (2.5, 97.5), axis=1)  # [2, K, P]
    means = np.array([_measured(group, options.metric, compute) for group in group_runs(runs)[0]])
    rows, best = np.arange(len(early))[:, None], np.fmax.accumulate(means, axis=1)[:, BUDGETS:]
    return HeldOut(
        cut=cut,
        configurations=model.configurations,
        budgets=compute[BUDGETS:],
        stop=compute[at],
        predicted=expected[rows, at],
        interval95=ends[:, rows, at],
        measured=means[rows, at],
        best=np.where(np.isfinite(means[:, BUDGETS:]), best, np.nan),
    )


def _until(group: ConfigurationRuns, cut: float) -> ConfigurationRuns:
    """A configuration's evaluations up to a compute."""
    kept = [(run, run.compute <= cut, run.columns.items()) for run in group.runs]
    runs = [replace(run, compute=run.compute[at], columns={k: v[at] for k, v in columns}) for run, at, columns in kept]
    return replace(group, runs=tuple(runs))


def _measured(group: ConfigurationRuns, metric: str, compute: np.ndarray) -> np.ndarray:
    """[P] mean over the seeds at some computes, linear in log C between evaluations; NaN outside of any seed's."""
    rows = []
    for run in group.runs:
        known = (run.compute > 0) & np.isfinite(run.columns[metric])
        own, reward = np.log(run.compute[known]), run.columns[metric][known]
        rows.append(np.interp(np.log(compute), own, reward, left=np.nan, right=np.nan))
    return np.mean(rows, axis=0)
