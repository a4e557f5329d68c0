"""`python -m benchmarks.next_runs`: what the runs that `--next` proposes are worth, against others of equal cost.

    python -m benchmarks.next_runs --studies=30                   # 30 of each of seven families
    python -m benchmarks.next_runs --asked=4 --seeds=2

Simulated sweeps (`families`) with few seeds to C = 1M; n is asked for at a multiple of that. The regret is the true
reward of the best n there less that of the one that the tool names: today, after the K proposed runs, after runs drawn
at random from the same candidates until they cost as much, and after as much spent on the largest n. All are measured
with the same noise, added to the data, and analysed again from the start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from absl import flags

from benchmarks import families
from isocompute_jax import app
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.seeds import group_runs
from isocompute_jax.fit.frontier.next_runs import Candidate, candidates, propose
from isocompute_jax.fit.further_runs import evaluations
from isocompute_jax.fit.metric_analysis import MetricAnalysis
from isocompute_jax.fit.read import memory_table, read_curves
from isocompute_jax.fit.stages import Stages

STUDIES = flags.DEFINE_integer("studies", 30, "Studies of each family.")
DRAW = flags.DEFINE_enum("draw", "test", ["development", "test"], "Which studies are drawn.")
ASKED = flags.DEFINE_float("asked", 16.0, "The budget that n is asked for, in units of the data's compute.")
SEEDS = flags.DEFINE_integer("seeds", 1, "Seeds of each n before the proposed runs; studies with fewer have theirs.")
RUNS = flags.DEFINE_integer("runs", 3, "K, how many proposals.")
FIRST = flags.DEFINE_integer("first", 0, "Number of the first study of each family.")

Table = dict[str, np.ndarray]


def main() -> None:
    """Flags -> table."""
    draw: families.Draw = DRAW.value  # pyright: ignore[reportAssignmentType]
    rows, names = [], []
    for number in range(FIRST.value, FIRST.value + STUDIES.value):
        for family in families.FAMILIES:
            rows.append(one_study(families.simulate(family, draw, number), number))
            names.append(family)
    print_table(np.array(rows), np.array(names))


COLUMNS = ("today", "proposed", "random", "largest n", "expected today", "expected after", "cost / C")


def one_study(study: families.Study, number: int) -> list[float]:
    """The figures of `COLUMNS`."""
    budget = ASKED.value * families.LAST
    study = study.with_seeds(SEEDS.value)
    stages, found = analysed(study.table("avg@4"))
    forecast = stages.forecast(found)
    assert forecast is not None
    among = allowed(found, budget)
    choices = candidates(budget, among, end=families.LAST)
    today, proposals = propose(forecast, budget, among, choices, evaluations(found, forecast), count=RUNS.value)
    proposed = [proposal.run for proposal in proposals]
    cost = sum(run.cost for run in proposed)
    truth = study.truth(np.array([budget]))[:, 0]

    def regret_after(runs: Sequence[Candidate], stream: int) -> float:
        after = analysed(with_runs(study, runs, np.random.default_rng([number, stream]))) if runs else (stages, found)
        drawn = after[0].forecast(after[1])
        assert drawn is not None
        chosen = drawn.prospect(budget, allowed(after[1], budget)).index
        return float(truth.max() - truth[chosen])

    random = equal_cost(choices, cost, np.random.default_rng([number, 7]))
    largest = equal_cost([run for run in choices if run.index == max(among)], cost, np.random.default_rng([number, 8]))
    after = [regret_after(runs, stream) for stream, runs in enumerate(([], proposed, random, largest))]
    return [*after, today, proposals[-1].regret if proposals else today, cost / families.LAST]


def analysed(table: Table) -> tuple[Stages, MetricAnalysis]:
    """The tool's curves of a table."""
    options = AnalysisOptions()
    runs, _ = read_curves(memory_table(table), options.read)
    stages = Stages(options, group_runs(runs)[0])
    return stages, stages.metric(options.metric, intervals=True)


def allowed(found: MetricAnalysis, budget: float) -> list[int]:
    """The configurations that have not collapsed; all of them where every one has."""
    alive = [i for i, fit in enumerate(found.fits) if fit.reaches(budget)]
    return alive or list(range(len(found.fits)))


def equal_cost(choices: Sequence[Candidate], cost: float, rng: np.random.Generator) -> list[Candidate]:
    """Runs drawn one by one from those that the rest still pays for."""
    found: list[Candidate] = []
    while affordable := [run for run in choices if run.cost <= cost * (1 + 1e-9)]:
        found.append(affordable[rng.integers(len(affordable))])
        cost -= found[-1].cost
    return found


def with_runs(study: families.Study, runs: Sequence[Candidate], rng: np.random.Generator) -> Table:
    """The study's table with further runs, evaluated as densely in log C as the others."""
    table = study.table("avg@4")
    columns = {name: [values] for name, values in table.items()}
    first, last = study.compute[1], study.compute[-1]
    density = (len(study.compute) - 2) / np.log(last / first)
    seed = 1000
    for run in runs:
        count = 1 + round(density * np.log(run.compute / first))
        compute = np.concatenate([[0.0], np.geomspace(first, run.compute, max(count, 2))])
        for _ in range(run.seeds):
            seed += 1
            values = {
                "group_size": study.group_sizes[run.index], "problems_per_batch": families.PROBLEMS_PER_BATCH,
                "seed": seed, "compute": compute, "avg@4": study.measure(run.index, compute, rng),
            }  # fmt: skip
            for name, value in values.items():
                columns[name].append(np.broadcast_to(value, compute.shape))
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def print_table(rows: np.ndarray, family: np.ndarray) -> None:
    """Means by family and over all, and the ratio of the two regrets with its bootstrap interval."""
    print(f"{len(rows)} studies, n asked for at {ASKED.value:g} C, {SEEDS.value} seed(s), K = {RUNS.value}\n")
    print("| family | " + " | ".join(COLUMNS) + " |")
    print("| :-- |" + " --: |" * len(COLUMNS))
    for name in (*families.FAMILIES, "all"):
        part = rows if name == "all" else rows[family == name]
        print(f"| {name} | " + " | ".join(f"{value:.4f}" for value in part.mean(axis=0)) + " |")
    rng = np.random.default_rng(0)
    drawn = rows[rng.integers(len(rows), size=(4000, len(rows)))].mean(axis=1)
    for rival in ("random", "largest n", "today"):
        column = COLUMNS.index(rival)
        ratio, (low, high) = (
            rows[:, 1].mean() / rows[:, column].mean(),
            np.percentile(drawn[:, 1] / drawn[:, column], (2.5, 97.5)),
        )
        print(f"\nRegret after the proposed runs / {rival}: {ratio:.2f} (95% interval {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    app.run(main)
