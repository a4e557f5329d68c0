"""Sweeps that are known in full, whose runs are told one by one: simulated, by the theory's worlds, and a recorded one.

Each has a budget C, the group sizes of a grid, and of each group size some runs up to C with 15 evaluations.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize

from benchmarks import families
from benchmarks.harness import METRIC, Table, long_table
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.further_runs import Candidate
from isocompute_jax.sweeps.record import Sweep, read_sweep
from isocompute_jax.theory import Question
from isocompute_jax.theory.pass_rates import smoothed
from isocompute_jax.theory.runs import Constants, make_world, simulate

SEEDS = 8
"""Of a simulated sweep."""
POINTS = 15
SPAN = 64.0
"""Evaluations are even in log C, from C over this up to C, as those of configs/playbook.py."""
RECORDED = pathlib.Path(__file__).parents[1] / "gallery" / "problems_64.parquet"
SAME_COMPUTE = 1.02
"""Runs of one budget end within whole steps of it."""

WORLDS: dict[str, Question] = {
    "world, 64 problems": Question(problem_set_size=64, budget=2**15),
    "world, 16 problems": Question(problem_set_size=16, budget=2**14),
    "world, sqrt rate": Question(problem_set_size=64, budget=2**15, rate_rule="sqrt"),
}
BUDGETS = (2**17, 2**16)
"""That n is asked for in the recorded sweep; below these too few evaluations lie in the first eighth."""
SOURCES = (*families.FAMILIES, "like the recorded", *WORLDS, *(f"recorded, C = {budget:,}" for budget in BUDGETS))

FURTHER = 1.2
"""A run is carried on to no less than so many times where it is."""

Reached = Mapping[tuple[int, int], float]
"""(Number of the group size, seed) -> compute that the run was told up to."""

_WORLD_RUNS = 24
_EVALUATION_SAMPLES = 2400


class Run(NamedTuple):
    """Evaluations of one run: compute [E], reward [E]."""

    compute: np.ndarray
    reward: np.ndarray

    def up_to(self, compute: float) -> Run:
        """Its evaluations as far as `compute`."""
        told = self.compute <= compute * SAME_COMPUTE
        return Run(self.compute[told], self.reward[told])


@dataclasses.dataclass(frozen=True, eq=False)
class HiddenSweep:
    """A sweep that is asked about."""

    source: str  # of `SOURCES`
    group_sizes: tuple[int, ...]  # [K]
    problems_per_batch: int
    runs: tuple[tuple[Run, ...], ...]  # [K][S] in the order in which they are told
    budget: float  # C
    truth: np.ndarray  # [K] reward at C; of the recorded sweep the mean over its seeds

    @property
    def best(self) -> int:
        """n* at the budget."""
        return self.group_sizes[int(self.truth.argmax())]

    def table(self, told: Reached) -> Table:
        """The long table of the runs that were told, each up to where it was."""
        runs = ((k, seed, self.runs[k][seed].up_to(compute)) for (k, seed), compute in sorted(told.items()))
        return long_table(
            {
                "group_size": self.group_sizes[k], "problems_per_batch": self.problems_per_batch,
                "seed": seed, "compute": run.compute, METRIC: run.reward,
            }
            for k, seed, run in runs
        )  # fmt: skip

    def told_next(self, told: Reached, run: Candidate) -> Reached | None:
        """Further runs of a group size: seeds that were not told yet, else those that came least far.

        None where fewer than `run.seeds` would be told anything new.
        """
        k = run.index
        reached = {seed: told.get((k, seed), 0.0) for seed in range(len(self.runs[k]))}
        shorter = [seed for seed in sorted(reached, key=lambda seed: reached[seed])
                   if reached[seed] * FURTHER < run.compute]  # fmt: skip
        if len(shorter) < run.seeds:
            return None
        return {**told, **{(k, seed): run.compute for seed in shorter[: run.seeds]}}


def hidden_sweep(source: str, number: int) -> HiddenSweep:
    """Sweep `number` of a source; of the recorded one the seeds in another order."""
    rng = np.random.default_rng([SOURCES.index(source), number])
    if source in families.FAMILIES:
        return _of_a_family(source, number, rng)
    if source in WORLDS:
        return _of_a_world(source, rng)
    if source.startswith("recorded"):
        return _recorded(source, BUDGETS[SOURCES.index(source) - len(SOURCES)], rng)
    return _like_the_recorded(source, rng)


def _grid(budget: float) -> np.ndarray:
    return np.concatenate([[0.0], np.geomspace(budget / SPAN, budget, POINTS)])


def _of_a_family(source: str, number: int, rng: np.random.Generator) -> HiddenSweep:
    study = families.simulate(source, "test", number)
    compute = _grid(families.LAST)
    runs = [[Run(compute, study.measure(k, compute, rng)) for _ in range(SEEDS)] for k in range(len(study.group_sizes))]
    truth = study.truth(np.array([families.LAST]))[:, 0]
    return _hidden(source, study.group_sizes, families.PROBLEMS_PER_BATCH, runs, families.LAST, truth)


def _hidden(
    source: str, sizes: Iterable[int], batch: int, runs: Sequence[Sequence[Run]], budget: float, truth: np.ndarray
) -> HiddenSweep:
    return HiddenSweep(source, tuple(map(int, sizes)), batch, tuple(map(tuple, runs)), budget, truth)


@functools.cache
def _simulated_runs(source: str) -> tuple[np.ndarray, np.ndarray]:
    """Compute [E] and held-out solve rates [K, R, E] of a world, 0 first."""
    question = WORLDS[source]
    counts = [(float(rate), times) for rate, times in next(iter(_recording().facts.pass_rates.values())).items()]
    solved = np.repeat([round(16 * rate) for rate, _ in counts], [times for _, times in counts])
    world = make_world(smoothed(solved, 16), problems=question.problem_set_size, held_out=300,
                       constants=Constants(), seed=question.seed)  # fmt: skip
    base = float(np.mean(np.exp(world.held_out.logits[:, 0]) / np.exp(world.held_out.logits).sum(axis=1)))
    compute, rows = _grid(question.budget), []
    for n in question.group_sizes:
        found = simulate(
            world, compute[1:], group_size=n, problems_per_batch=question.problems_per_batch, rule=question.rule,
            constants=Constants(), runs=_WORLD_RUNS, warmup_steps=question.warmup_steps, most=max(question.group_sizes),
        )  # fmt: skip
        at = np.log(compute[1:])
        rows.append([[base, *np.interp(at, np.log(found.compute), run)] for run in found.held_out.T])
    return compute, np.array(rows)


def _of_a_world(source: str, rng: np.random.Generator) -> HiddenSweep:
    compute, rates = _simulated_runs(source)
    drawn = rates[:, rng.permutation(_WORLD_RUNS)[:SEEDS]]
    measured = np.clip(drawn + np.sqrt(drawn * (1 - drawn) / _EVALUATION_SAMPLES) * rng.normal(size=drawn.shape), 0, 1)
    runs = [[Run(compute, reward) for reward in rows] for rows in measured]
    question = WORLDS[source]
    sizes, batch = question.group_sizes, question.problems_per_batch
    return _hidden(source, sizes, batch, runs, float(question.budget), rates[:, :, -1].mean(axis=1))


@functools.cache
def _recording() -> Sweep:
    return read_sweep(RECORDED)


@functools.cache
def _recorded_runs() -> dict[int, list[Run]]:
    """Group size -> its runs, by seed."""
    sweep = _recording()
    size, seed, compute, reward = (sweep.column(name) for name in ("group_size", "seed", "compute", METRIC))
    found: dict[int, list[Run]] = {}
    for n in np.unique(size):
        for s in np.unique(seed[size == n]):
            rows = np.flatnonzero((size == n) & (seed == s))
            rows = rows[np.argsort(compute[rows])]
            found.setdefault(int(n), []).append(Run(compute[rows].astype(float), reward[rows].astype(float)))
    return found


def _at(run: Run, compute: float) -> float:
    """Reward between two evaluations, by interpolation in log C."""
    return float(np.interp(np.log(compute), np.log(run.compute[1:]), run.reward[1:]))


def _recorded(source: str, budget: int, rng: np.random.Generator) -> HiddenSweep:
    recorded = _recorded_runs()
    runs = [[Run(*rows[i]).up_to(budget) for i in rng.permutation(len(rows))] for rows in recorded.values()]
    truth = np.array([np.mean([_at(run, budget) for run in rows]) for rows in recorded.values()])
    return _hidden(source, list(recorded), 8, runs, float(budget), truth)


class Rise(NamedTuple):
    """Parameters of a curve that rises and falls: of `_rise_and_fall`."""

    high: float
    midpoint: float
    steepness: float
    drop: float
    peak: float


def _rise_and_fall(compute: np.ndarray, floor: float, curve: Rise) -> np.ndarray:
    """Hill from `floor` to `high`, of whose gain the share `drop` is lost again beyond `peak`."""
    gain = hill(compute, 0.0, 1.0, curve.midpoint, curve.steepness)
    with np.errstate(divide="ignore"):
        kept = 1 - curve.drop / (1 + (curve.peak / compute) ** 2)
    return floor + (curve.high - floor) * gain * kept


@functools.cache
def _recorded_rises() -> tuple[float, tuple[Rise, ...]]:
    """The floor, and the curve of the mean of each group size's seeds, by least squares in the parameters' logs."""
    recorded = _recorded_runs()
    floor = float(np.mean([run.reward[0] for rows in recorded.values() for run in rows]))
    found = []
    for rows in recorded.values():
        compute, mean = rows[0].compute, np.mean([run.reward for run in rows], axis=0)

        def misses(logs: np.ndarray, compute: np.ndarray = compute, mean: np.ndarray = mean) -> np.ndarray:
            return _rise_and_fall(compute, floor, Rise(*np.exp(logs))) - mean

        low, high = np.log([0.2, 500, 0.5, 1e-3, 5e3]), np.log([0.8, 1e5, 3.0, 1.0, 1e6])
        starts = [np.log([0.45, middle, 1.2, 0.5, peak]) for middle in (2e3, 1e4) for peak in (3e4, 1e5, 4e5)]
        fits = [scipy.optimize.least_squares(misses, start, bounds=(low, high)) for start in starts]
        found.append(Rise(*np.exp(min(fits, key=lambda fit: fit.cost).x)))
    return floor, tuple(found)


def _like_the_recorded(source: str, rng: np.random.Generator) -> HiddenSweep:
    """Curves of the recorded sweep's form, moved: all earlier or later, and more or less so with n; each n a little.

    Seeds miss their curve as a recorded seed misses its mean, so that their noise is that of real runs.
    """
    floor, rises = _recorded_rises()
    recorded, budget = _recorded_runs(), float(BUDGETS[0])
    shift, tilt = rng.uniform(-1.0, 1.0), rng.uniform(-0.3, 0.3)
    runs, truth = [], []
    for k, (rows, rise) in enumerate(zip(recorded.values(), rises, strict=True)):
        times = np.exp(shift + tilt * (k - 2.5) + rng.normal(0, 0.1))
        moved = rise._replace(
            midpoint=rise.midpoint * times, peak=rise.peak * times, high=rise.high + rng.normal(0, 0.01)
        )
        compute, rewards = rows[0].compute, np.array([run.reward for run in rows])
        misses = (rewards - rewards.mean(axis=0)) * np.sqrt(len(rows) / (len(rows) - 1))
        curve = _rise_and_fall(compute, floor, moved)
        runs.append([Run(compute, np.clip(curve + misses[i], 0, 1)) for i in rng.permutation(len(rows))])
        truth.append(float(_rise_and_fall(np.array([budget]), floor, moved)[0]))
    return _hidden(source, list(recorded), 8, runs, budget, np.array(truth))
