"""`python -m benchmarks.early_stopping`: what `sweep --stop_hopeless` saves, and how often it stops the wrong run.

    python -m benchmarks.early_stopping --studies=10                     # 10 of each of seven families
    python -m benchmarks.early_stopping --level=0.05
    python -m benchmarks.early_stopping --runs=gallery/easy_64.parquet   # of recorded sweeps, run directories or tables
    python -m benchmarks.early_stopping --gallery --seeds=2              # of those of gallery/, two seeds of each n

Simulated sweeps (`families`), whose true curves are known: all runs advance together, and at up to `--looks` of their
evaluations every run whose configuration leads in what is left with a chance below the level is stopped. Saved is the
share of all compute that is not spent. A stop is wrong where the configuration is truly the best somewhere in what is
left; what it costs is the most that the best of the others lie below it there, in reward. At the end n is chosen for
the whole compute, from all data and from what stopping leaves of them: the regrets are those of the two choices.

A recorded sweep (`--runs`, `--gallery`) is replayed by its evaluations, on one evaluation set. Its truth is not known,
and two stand for it, each from all seeds to their end: the mean of the fitter's draws, which is smooth, and shares its
model with what is judged (a configuration without a curve never leads); and the mean over the seeds between
evaluations, which has no model, and the noise of its evaluations. Both know only what these seeds did.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from absl import flags

from benchmarks import families
from benchmarks.harness import METRIC, Table, forecast_of, long_table, studies_of_flags, study_flags, with_all
from benchmarks.shared import print_head, print_row
from isocompute_jax import app
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.seeds import group_runs
from isocompute_jax.fit.frontier.forecast import Forecast
from isocompute_jax.fit.further_runs import chances_of_leading
from isocompute_jax.fit.read import memory_table, read_curves
from isocompute_jax.fit.stages import Stages
from isocompute_jax.records.errors import InputError

study_flags(10)
LEVEL = flags.DEFINE_float("level", 0.01, "--stop_hopeless.")
LOOKS = flags.DEFINE_integer("looks", 8, "How often the sweep is looked at, evenly over its evaluations.")
RUNS = flags.DEFINE_multi_string(
    "runs", [], "In place of simulated sweeps: a recorded one, run directories or a table; may be given again."
)
GALLERY = flags.DEFINE_bool("gallery", False, "The sweeps of gallery/ that have several n and one B_problem.")
SEEDS = flags.DEFINE_integer("seeds", 0, "Seeds of each n of a recorded sweep that are replayed, the first; 0: all.")

RECORDED = pathlib.Path(__file__).parents[1] / "gallery"

Truth = Callable[[float], np.ndarray]
"""Compute -> reward of each configuration [K]."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """Runs to replay, of K configurations."""

    sizes: tuple[int, ...]  # n of each configuration
    batches: tuple[int, ...]  # and B_problem
    runs: tuple[tuple[int, np.ndarray, np.ndarray], ...]  # number of the configuration, compute [E], reward [E]
    truths: dict[str, Truth]  # what its stops are judged by, by name

    @property
    def end(self) -> float:
        return max(float(compute[-1]) for _, compute, _ in self.runs)

    def table(self, reached: np.ndarray) -> Table:
        """The long table of all runs [R], each as far as it has come."""
        return long_table(
            {
                "run": f"run{number}", "group_size": self.sizes[k], "problems_per_batch": self.batches[k],
                "seed": number, "compute": compute[compute <= last], METRIC: reward[compute <= last],
            }
            for number, ((k, compute, reward), last) in enumerate(zip(self.runs, reached, strict=True))
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Replay:
    """What became of a sweep's runs [R]."""

    ends: np.ndarray  # compute at which each would end
    stopped: np.ndarray  # compute at which it was stopped; infinite where it was not
    # number of the configuration that the fit advises for the whole compute, from all data, and after stops
    chosen: tuple[int, int]


def main() -> None:
    """Flags -> tables, one for each kind of truth."""
    tables: dict[str, dict[str, list[list[float]]]] = {}
    for name, sweep in recorded_sweeps() if RUNS.value or GALLERY.value else simulated_sweeps():
        found = replay(sweep, level=LEVEL.value, looks=LOOKS.value)
        for kind, truth in sweep.truths.items():
            tables.setdefault(kind, {}).setdefault(name, []).append(figures(sweep, found, truth))
    print(f"level {LEVEL.value:g}, {LOOKS.value} looks")
    for kind, rows in tables.items():
        print_table(kind, rows)


def simulated_sweeps() -> Iterator[tuple[str, Sweep]]:
    """Those of every family, by its name."""
    for _, study in studies_of_flags():
        yield study.family, simulated(study)


def recorded_sweeps() -> Iterator[tuple[str, Sweep]]:
    """Those of the flags, by the names of their files; of the gallery what is one sweep over n."""
    for path in RUNS.value:
        yield pathlib.Path(path).stem, recorded(path, SEEDS.value)
    for path in sorted(RECORDED.glob("*.parquet")) if GALLERY.value else ():
        sweep = recorded(str(path), SEEDS.value)
        if len(set(sweep.sizes)) > 1 and len(set(sweep.batches)) == 1:
            yield path.stem, sweep


def simulated(study: families.Study) -> Sweep:
    """A study as runs."""
    runs = [(k, study.compute, rewards) for k, seeds in enumerate(study.per_seed) for rewards in seeds]
    sizes = tuple(map(int, study.group_sizes))
    batches = (families.PROBLEMS_PER_BATCH,) * len(sizes)
    return Sweep(sizes, batches, tuple(runs), {"known": lambda compute: study.truth(np.array([compute]))[:, 0]})


def recorded(path: str, seeds: int = 0) -> Sweep:
    """A recorded sweep.

    Args:
      path: run directories or a table.
      seeds: of each configuration that are replayed; 0: all. The truths are always those of all.

    Raises:
      InputError: no usable run, or one configuration alone.
    """
    options = AnalysisOptions()
    groups, _ = group_runs(read_curves([path], options.read)[0])
    if len(groups) < 2:
        raise InputError(f"{path}: has one configuration, {groups[0].configuration.name}; a sweep has several")
    drawn = drawn_from(groups)
    runs = [[(one.compute, one.columns[options.metric]) for one in group.runs] for group in groups]
    return Sweep(
        tuple(group.configuration.group_size for group in groups),
        tuple(group.configuration.problems_per_batch for group in groups),
        tuple((k, *one) for k, group in enumerate(runs) for one in group[: seeds or None]),
        {
            "fitted to all data": lambda compute: np.where(drawn.members, drawn.rewards(compute).mean(axis=0), -np.inf),
            "mean over all seeds": lambda compute: np.array([mean_over_seeds(group, compute) for group in runs]),
        },
    )


def mean_over_seeds(runs: Sequence[tuple[np.ndarray, np.ndarray]], compute: float) -> float:
    """Reward at a compute, between evaluations by interpolation in log C; runs end within whole steps of each other."""
    return float(np.mean([np.interp(np.log(compute), np.log(at[at > 0]), reward[at > 0]) for at, reward in runs]))


def replay(sweep: Sweep, *, level: float, looks: int) -> Replay:
    """All runs together, stopped where their configuration's chance to lead in what is left falls below `level`."""
    evaluations = max(len(compute) for _, compute, _ in sweep.runs)
    ends = np.array([compute[-1] for _, compute, _ in sweep.runs])
    stopped = np.full(len(ends), np.inf)
    for look in np.unique(np.linspace(5, evaluations - 2, looks).round().astype(int)):
        reached = np.array([compute[min(look, len(compute) - 1)] for _, compute, _ in sweep.runs])
        table = memory_table(sweep.table(np.minimum(reached, stopped)))
        for chance in chances_of_leading(table, AnalysisOptions(), end=sweep.end):
            number = int(chance.run.removeprefix("run"))
            if chance.chance < level and np.isinf(stopped[number]) and reached[number] < ends[number]:
                stopped[number] = reached[number]
    return Replay(ends, stopped, (choice(sweep, ends), choice(sweep, np.minimum(ends, stopped))))


def figures(sweep: Sweep, found: Replay, truth: Truth) -> list[float]:
    """Share of compute that was saved, stops, wrong ones, the most that one lost, regret, regret after stops."""
    cut = np.flatnonzero(np.isfinite(found.stopped))
    lost = [loss(truth, sweep.runs[run][0], start=found.stopped[run], end=sweep.end) for run in cut]
    spent, last = np.minimum(found.ends, found.stopped), truth(sweep.end)
    return [
        1 - spent.sum() / found.ends.sum(), len(cut), sum(each > 0 for each in lost), max(lost, default=0.0),
        *(float(last.max() - last[k]) for k in found.chosen),
    ]  # fmt: skip


def loss(truth: Truth, k: int, *, start: float, end: float) -> float:
    """The most by which the best of the others lies below configuration `k` in what is left; 0 where nowhere."""
    rewards = np.array([truth(compute) for compute in np.geomspace(start, end, 64)])
    others = np.delete(rewards, k, axis=1).max(axis=1)
    return float(max((rewards[:, k] - others).max(), 0.0))


def choice(sweep: Sweep, reached: np.ndarray) -> int:
    """The configuration advised for the whole compute, by the data as far as the runs have come."""
    groups, _ = group_runs(read_curves(memory_table(sweep.table(reached)), AnalysisOptions().read)[0])
    found = drawn_from(groups)
    chosen = found.prospect(sweep.end, np.flatnonzero(found.members).tolist()).index
    own = groups[chosen].configuration
    return list(zip(sweep.sizes, sweep.batches, strict=True)).index((own.group_size, own.problems_per_batch))


def drawn_from(groups: list) -> Forecast:
    """The fitter's draws of the curves."""
    stages = Stages(AnalysisOptions(), groups)
    return forecast_of(stages, stages.metric(METRIC, intervals=True, profiles=False))


def print_table(kind: str, rows: dict[str, list[list[float]]]) -> None:
    """By family: shares of compute and of stops, rewards."""
    print(f"\ntruth: {kind}\n")
    print_head(("sweeps", "compute saved", "runs stopped", "wrongly", "most lost", "regret", "regret after stops"))
    for name, found in with_all(rows):
        saved, stopped, wrong, lost, before, after = np.array(found).T
        share = f"{wrong.sum() / stopped.sum():.1%}" if stopped.sum() else "-"
        wrongly = f"{wrong.sum():.0f} ({share})"
        rewards = (f"{reward:.4f}" for reward in (lost.max(), before.mean(), after.mean()))
        print_row(name, f"{saved.mean():.1%}", f"{stopped.sum():.0f}", wrongly, *rewards)


if __name__ == "__main__":
    app.run(main)
