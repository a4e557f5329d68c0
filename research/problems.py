"""Problem by problem: how often each is solved over training, and whether all of them gain alike.

A line of eval.jsonl, and a row of a gallery's Parquet, has `solve_counts`: for each problem, in the order of the set,
how many of `samples` completions solved it. A measured rate of m samples has the variance p (1 - p) / m, of which
rate (1 - rate) / (m - 1) is an unbiased estimate.

The IsoCompute Playbook (arXiv 2603.12151) argues that a larger n improves more uniformly. With g_i the gain in solve
rate of problem i over the base model,

    uniformity U = (mean_i g_i)^2 / mean_i g_i^2 = 1 / (1 + (sd of g / mean of g)^2)

is 1 where all problems gain alike and 1/P where one of P has all the gain: the effective number of problems that share
the gain (inverse Simpson index, Hill number of order 2) over their number. It is made of two moments, from which the
noise of binomial counts is subtracted without bias. Gains are bounded by 1, so U tends to rise with the mean gain: n
are compared at equal compute and at equal mean gain.

    runs, _ = read_curves(["gallery/problems_64.parquet"], ReadOptions())
    curves = [uniformity_curve(each) for each in solve_trajectories(runs)]
    uniformity_trend(curves, at="compute")
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import scipy.stats

from isocompute_jax.fit.configurations import Configuration, ConfigurationRuns, group_runs
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import read_lines

LEAST_CERTAINTY = 5.0
"""U is told where mean g^2 is so many of its standard errors of sampling: its ratio is then biased by 1/25 at most."""
COUNTS, SAMPLES = "solve_counts", "samples"
COLUMNS = ("run", "eval_set", "compute", SAMPLES, COUNTS)
EVALUATION_SET = "validation"


@dataclasses.dataclass(frozen=True, eq=False)
class SolveTrajectories:
    """What the seeds of one configuration solved at each evaluation that all of them have."""

    configuration: Configuration
    seeds: tuple[int, ...]  # [S]
    compute: np.ndarray  # [E] in the unit of the runs, rising
    counts: np.ndarray  # [S, E, P] right samples of each problem
    samples: np.ndarray  # [S, E] samples drawn of each problem

    @property
    def rates(self) -> np.ndarray:
        """[S, E, P] measured solve rates."""
        return self.counts / self.samples[..., None]

    @property
    def mean_rates(self) -> np.ndarray:
        """[E, P] of all samples of all seeds."""
        return self.counts.sum(axis=0) / self.samples.sum(axis=0)[:, None]


def solve_trajectories(runs: Sequence[RunCurve], *, eval_set: str = EVALUATION_SET) -> tuple[SolveTrajectories, ...]:
    """The solve counts of every configuration whose runs have them, ordered by n.

    Args:
      runs: as read (`SweepResult.runs`, `read_curves`); their files are read once more. Seeds without counts, and
        configurations whose seeds share fewer than two evaluations, are left out.
      eval_set: evaluation set; rows that name none belong to every set.

    Raises:
      InputError: the counts of a file are damaged, or the seeds of a configuration have different problems.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {source: _rows(source) for source in {run.source for run in runs}}
    read = {id(run): _of_run(run, rows[run.source], eval_set) for run in runs}
    found = [_of_configuration(group, [read[id(run)] for run in group.runs]) for group in group_runs(runs)[0]]
    return tuple(each for each in found if each is not None)


def _rows(source: str | os.PathLike[str]) -> list[Mapping[str, Any]]:
    """The rows of a file that have counts; none of a file of another kind."""
    path = pathlib.Path(source)
    if not path.is_file():  # a table in memory
        return []
    if path.suffix == ".jsonl":
        rows = read_lines(path, partial_last_line=True)
    elif path.suffix == ".parquet" and {COUNTS, SAMPLES} <= set((names := pq.read_schema(path)).names):
        rows = pq.read_table(path, columns=[c for c in COLUMNS if c in names.names], use_threads=False).to_pylist()
    else:
        return []
    return [row for row in rows if row.get(COUNTS) and row.get(SAMPLES)]


def _of_run(run: RunCurve, rows: Sequence[Mapping[str, Any]], eval_set: str) -> dict[float, tuple[np.ndarray, int]]:
    """Compute -> (counts [P], samples) of a run, at its evaluations; of what a file gives twice the later counts."""
    rollouts = run.columns.get("compute", np.full_like(run.compute, np.nan))
    place = dict(zip(rollouts.tolist(), run.compute.tolist(), strict=True))
    found = {}
    for row in rows:
        own = row.get("run", run.run) == run.run and (row.get("eval_set") or eval_set) == eval_set
        if own and row.get("compute") in place:
            found[place[row["compute"]]] = _checked(row, run)
    return found


def _checked(row: Mapping[str, Any], run: RunCurve) -> tuple[np.ndarray, int]:
    counts, samples = np.asarray(row[COUNTS]), row[SAMPLES]
    whole = counts.ndim == 1 and np.issubdtype(counts.dtype, np.integer)
    if not whole or counts.min() < 0 or counts.max() > samples:
        raise InputError(
            f"{run.source}: run {run.run} at compute {row['compute']}: {COUNTS} must be whole numbers from 0 to "
            f"{SAMPLES} = {samples}; correct the row, or delete its {COUNTS}"
        )
    return counts.astype(np.int64), int(samples)


def _of_configuration(
    group: ConfigurationRuns, read: Sequence[dict[float, tuple[np.ndarray, int]]]
) -> SolveTrajectories | None:
    """The evaluations that all seeds with counts share; None where they are fewer than two."""
    known = [(run, found) for run, found in zip(group.runs, read, strict=True) if found]
    compute = sorted(set.intersection(*(set(found) for _, found in known))) if known else []
    if len(compute) < 2:
        return None
    sizes = {len(counts) for _, found in known for counts, _ in found.values()}
    if len(sizes) > 1:
        raise InputError(
            f"{known[0][0].source}: {group.configuration.name}: {COUNTS} has {min(sizes)} problems in one evaluation "
            f"and {max(sizes)} in another; analyse runs with one evaluation set at a time"
        )
    return SolveTrajectories(
        configuration=group.configuration,
        seeds=tuple(run.facts.seed for run, _ in known),
        compute=np.array(compute),
        counts=np.array([[found[at][0] for at in compute] for _, found in known]),
        samples=np.array([[found[at][1] for at in compute] for _, found in known]),
    )


class Uniformity(NamedTuple):
    """Of the gains from one evaluation to another."""

    gain: np.ndarray  # [...] mean gain in solve rate
    value: np.ndarray  # [...] U, NaN where the gains do not stand out of sampling noise


def uniformity(
    counts: np.ndarray, samples: np.ndarray | int, base_counts: np.ndarray, base_samples: np.ndarray | int
) -> Uniformity:
    """U of the gains from one evaluation to another, without sampling noise.

    rate (1 - rate) / (m - 1) is an unbiased estimate of the variance v of a rate of m samples. mean g^2 is estimated by
    the mean of (measured gain)^2 - v, and (mean g)^2 by the square of the measured mean less mean(v) / P: both
    unbiased; their ratio is biased only by the noise of its denominator.

    Args:
      counts: [..., P] right samples of each problem.
      samples: [...] samples drawn of each, at least 2.
      base_counts: [..., P] likewise for the base model.
      base_samples: [...].
    """
    rates, noise = _rates(counts, samples)
    before, noise_before = _rates(base_counts, base_samples)
    gains, noise = rates - before, noise + noise_before
    problems = gains.shape[-1]
    square = gains**2 - noise
    second = square.mean(axis=-1)
    first = gains.mean(axis=-1) ** 2 - noise.mean(axis=-1) / problems
    # of the square of a normal variable with mean g and variance v
    error = np.sqrt((2 * noise**2 + 4 * np.maximum(square, 0) * noise).sum(axis=-1)) / problems
    known = (second > 0) & (second >= LEAST_CERTAINTY * error)
    return Uniformity(gains.mean(axis=-1), np.where(known, first / np.where(known, second, 1.0), np.nan))


def _rates(counts: np.ndarray, samples: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
    """[..., P] rates and unbiased estimates of their variances."""
    drawn = np.asarray(samples)[..., None]
    rates = np.asarray(counts) / drawn
    return rates, rates * (1 - rates) / (drawn - 1)


@dataclasses.dataclass(frozen=True, eq=False)
class UniformityCurve:
    """U of one configuration over training."""

    configuration: Configuration
    compute: np.ndarray  # [E] evaluations after the base model's
    gain: np.ndarray  # [S, E] mean gain in solve rate of each seed
    value: np.ndarray  # [S, E] U; NaN where it cannot be told


def uniformity_curve(found: SolveTrajectories) -> UniformityCurve | None:
    """U of each seed against the base model, of which all seeds' samples are pooled; None without its evaluation."""
    if found.compute[0] != 0 or found.samples.min() < 2:
        return None
    base = found.counts[:, 0].sum(axis=0), found.samples[:, 0].sum()
    gain, value = uniformity(found.counts[:, 1:], found.samples[:, 1:], *base)
    return UniformityCurve(found.configuration, found.compute[1:], gain, value)


@dataclasses.dataclass(frozen=True, eq=False)
class UniformityTrend:
    """How U changes with n, runs (configuration x seed) being the sample."""

    at: Literal["compute", "gain"]  # what is equal
    level: float  # the compute, or mean gain, at which runs are compared
    values: tuple[np.ndarray, ...]  # [K] of each curve U of its seeds there (those that can be told)
    slope: float  # change of U for each doubling of n, at equal B_problem (least squares)
    interval95: tuple[float, float]  # of the slope, by Student's t with the runs' scatter about the line

    @property
    def verdict(self) -> Literal["more", "less", "open"]:
        """Whether a larger n improves more uniformly, less so, or neither is shown."""
        low, high = self.interval95
        return "more" if low > 0 else "less" if high < 0 else "open"


def uniformity_trend(curves: Sequence[UniformityCurve], *, at: Literal["compute", "gain"]) -> UniformityTrend | None:
    """U against log2 n at the largest compute, or the largest mean gain, that all runs come to.

    At equal compute a run is read at the nearest evaluation (in log compute); at equal gain where its mean gain first
    reaches the level, linearly between evaluations.

    Returns:
      None with fewer than two n, or too few runs for a scatter.
    """
    if not curves:
        return None
    if at == "compute":
        level = float(min(curve.compute[-1] for curve in curves))
        read = [curve.value[:, np.abs(np.log(curve.compute / level)).argmin()] for curve in curves]
    else:
        level = float(min(curve.gain.max(axis=1).min() for curve in curves))
        read = [_at_gain(curve, level) for curve in curves]
    values = tuple(each[np.isfinite(each)] for each in read)
    slope, interval = _slope(curves, values)
    return UniformityTrend(at, level, values, slope, interval) if np.isfinite(slope) else None


def _at_gain(curve: UniformityCurve, level: float) -> np.ndarray:
    """[S] U of each seed where its mean gain first reaches `level`."""
    found = []
    for gain, value in zip(curve.gain, curve.value, strict=True):
        at = int(np.argmax(gain >= level))
        share = 1.0 if at == 0 else (level - gain[at - 1]) / (gain[at] - gain[at - 1])
        before = value[at - 1] if share < 1 else 0.0
        found.append(share * value[at] + (1 - share) * before)
    return np.array(found)


def _slope(curves: Sequence[UniformityCurve], values: Sequence[np.ndarray]) -> tuple[float, tuple[float, float]]:
    """Least squares of U on log2 n with a level of its own for each B_problem; NaN where that has no scatter."""
    counts = [len(each) for each in values]
    x = np.repeat(np.log2([curve.configuration.group_size or np.nan for curve in curves]), counts)
    batch = np.repeat([curve.configuration.problems_per_batch for curve in curves], counts)
    y = np.concatenate(values)
    for one in np.unique(batch):
        own = batch == one
        x[own], y[own] = x[own] - x[own].mean(), y[own] - y[own].mean()
    freedom, weight = len(y) - len(np.unique(batch)) - 1, float(x @ x)
    if freedom < 1 or not weight > 0:
        return np.nan, (np.nan, np.nan)
    slope = float(x @ y) / weight
    rest = y - slope * x
    reach = float(np.sqrt(rest @ rest / freedom / weight) * scipy.stats.t.ppf(0.975, freedom))
    return slope, (slope - reach, slope + reach)
