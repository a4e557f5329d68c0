"""`python -m benchmarks.early_stopping`: what `sweep --stop_hopeless` saves, and how often it stops the wrong run.

    python -m benchmarks.early_stopping --studies=10                     # 10 of each of seven families
    python -m benchmarks.early_stopping --level=0.05
    python -m benchmarks.early_stopping --runs=DIR                       # of a recorded sweep

Simulated sweeps (`families`), whose true curves are known: all runs advance together, and at up to `--looks` of their
evaluations every run whose configuration leads in what is left with a chance below the level is stopped. Saved is the
share of all compute that is not spent. A stop is wrong where the configuration is truly the best somewhere in what is
left; what it costs is the most that the best of the others lie below it there, in reward. At the end n is chosen for
the whole compute, from all data and from what stopping leaves of them: the regrets are those of the two choices.

A recorded sweep (`--runs`) is replayed by its evaluations. Its truth is the mean of the draws from all of its data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from absl import flags

from benchmarks import families
from isocompute_jax import app
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.seeds import group_runs
from isocompute_jax.fit.frontier.forecast import Forecast
from isocompute_jax.fit.reach import chances_of_leading
from isocompute_jax.fit.read import RunCurve, memory_table, read_curves
from isocompute_jax.fit.stages import Stages

STUDIES = flags.DEFINE_integer("studies", 10, "Studies of each family.")
FIRST = flags.DEFINE_integer("first", 0, "Number of the first study of each family.")
DRAW = flags.DEFINE_enum("draw", "test", ["development", "test"], "Which studies are drawn.")
LEVEL = flags.DEFINE_float("level", 0.01, "--stop_hopeless.")
LOOKS = flags.DEFINE_integer("looks", 8, "How often the sweep is looked at, evenly over its evaluations.")
RUNS = flags.DEFINE_string("runs", None, "In place of simulated sweeps: a recorded one, run directories or a table.")

COLUMNS = ("saved", "stopped", "wrong", "lost", "regret", "regret, stopped")
METRIC = "avg@4"


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """Runs to replay: `runs` (number of the configuration, compute [E], reward [E]), and the truth, compute -> [K]."""

    sizes: tuple[int, ...]
    batches: tuple[int, ...]
    runs: tuple[tuple[int, np.ndarray, np.ndarray], ...]
    truth: Callable[[float], np.ndarray]

    @property
    def end(self) -> float:
        return max(float(compute[-1]) for _, compute, _ in self.runs)

    def table(self, reached: np.ndarray) -> dict[str, np.ndarray]:
        """The long table of all runs [R], each as far as it has come."""
        columns: dict[str, list[np.ndarray]] = {}
        for number, ((k, compute, reward), last) in enumerate(zip(self.runs, reached, strict=True)):
            kept = compute <= last
            row = {
                "run": number, "group_size": self.sizes[k], "problems_per_batch": self.batches[k], "seed": number,
                "compute": compute[kept], METRIC: reward[kept],
            }  # fmt: skip
            for name, value in row.items():
                columns.setdefault(name, []).append(np.broadcast_to(value, kept.sum()))
        found = {name: np.concatenate(parts) for name, parts in columns.items()}
        return found | {"run": np.char.add("run", found["run"].astype(str))}


def main() -> None:
    """Flags -> table."""
    if RUNS.value:
        print_table({RUNS.value: [replay(recorded(RUNS.value))]})
        return
    draw: families.Draw = DRAW.value  # pyright: ignore[reportAssignmentType]
    rows: dict[str, list[list[float]]] = {}
    for number in range(FIRST.value, FIRST.value + STUDIES.value):
        for family in families.FAMILIES:
            rows.setdefault(family, []).append(replay(simulated(families.simulate(family, draw, number))))
    print_table(rows)


def simulated(study: families.Study) -> Sweep:
    """A study as runs."""
    runs = [(k, study.compute, rewards) for k, seeds in enumerate(study.per_seed) for rewards in seeds]
    sizes = tuple(map(int, study.group_sizes))
    batches = (families.PROBLEMS_PER_BATCH,) * len(sizes)
    return Sweep(sizes, batches, tuple(runs), lambda compute: study.truth(np.array([compute]))[:, 0])


def recorded(path: str) -> Sweep:
    """A recorded sweep."""
    options = AnalysisOptions()
    groups, _ = group_runs(read_curves([path], options.read)[0])
    drawn = forecast_of(groups)

    def run(k: int, one: RunCurve) -> tuple[int, np.ndarray, np.ndarray]:
        return k, one.compute, one.columns[options.metric]

    return Sweep(
        tuple(group.configuration.group_size for group in groups),
        tuple(group.configuration.problems_per_batch for group in groups),
        tuple(run(k, one) for k, group in enumerate(groups) for one in group.runs),
        lambda compute: drawn.rewards(compute).mean(axis=0),
    )


def replay(sweep: Sweep) -> list[float]:
    """The figures of `COLUMNS` of one sweep."""
    evaluations = max(len(compute) for _, compute, _ in sweep.runs)
    looks = np.unique(np.linspace(5, evaluations - 2, LOOKS.value).round().astype(int))
    ends = np.array([compute[-1] for _, compute, _ in sweep.runs])
    stopped = np.full(len(ends), np.inf)
    for look in looks:
        reached = np.array([compute[min(look, len(compute) - 1)] for _, compute, _ in sweep.runs])
        table = memory_table(sweep.table(np.minimum(reached, stopped)))
        for chance in chances_of_leading(table, AnalysisOptions(), end=sweep.end):
            number = int(chance.run.removeprefix("run"))
            if chance.chance < LEVEL.value and np.isinf(stopped[number]) and reached[number] < ends[number]:
                stopped[number] = reached[number]
    spent = np.minimum(ends, stopped)
    cut = np.flatnonzero(np.isfinite(stopped))
    lost = [loss(sweep, sweep.runs[r][0], stopped[r]) for r in cut]
    return [
        1 - spent.sum() / ends.sum(), len(cut), sum(each > 0 for each in lost), max(lost, default=0.0),
        regret(sweep, ends), regret(sweep, spent),
    ]  # fmt: skip


def loss(sweep: Sweep, k: int, stopped: float) -> float:
    """The most by which the best of the others lies below configuration `k` in what is left; 0 where nowhere."""
    rewards = np.array([sweep.truth(compute) for compute in np.geomspace(stopped, sweep.end, 64)])
    others = np.delete(rewards, k, axis=1).max(axis=1)
    return float(max((rewards[:, k] - others).max(), 0.0))


def regret(sweep: Sweep, reached: np.ndarray) -> float:
    """What choosing n for the whole compute costs, by the data as far as the runs have come."""
    groups, _ = group_runs(read_curves(memory_table(sweep.table(reached)), AnalysisOptions().read)[0])
    chosen = forecast_of(groups).prospect(sweep.end, range(len(groups))).index
    own = groups[chosen].configuration
    place = list(zip(sweep.sizes, sweep.batches, strict=True)).index((own.group_size, own.problems_per_batch))
    truth = sweep.truth(sweep.end)
    return float(truth.max() - truth[place])


def forecast_of(groups: list) -> Forecast:
    """The tool's draws of the curves."""
    stages = Stages(AnalysisOptions(), groups)
    found = stages.forecast(stages.metric(AnalysisOptions().metric, intervals=True, profiles=False))
    assert found is not None
    return found


def print_table(rows: dict[str, list[list[float]]]) -> None:
    """By family: shares of compute and of stops, rewards."""
    print(f"level {LEVEL.value:g}, {LOOKS.value} looks\n")
    print("| sweeps | compute saved | runs stopped | wrongly | most lost | regret | regret after stops |")
    print("| :-- |" + " --: |" * 6)
    for name, found in (*rows.items(), ("all", [row for part in rows.values() for row in part])):
        saved, stopped, wrong, lost, before, after = np.array(found).T
        share = f"{wrong.sum() / stopped.sum():.1%}" if stopped.sum() else "-"
        print(
            f"| {name} | {saved.mean():.1%} | {stopped.sum():.0f} | {wrong.sum():.0f} ({share}) | {lost.max():.4f} | "
            f"{before.mean():.4f} | {after.mean():.4f} |"
        )


if __name__ == "__main__":
    app.run(main)
