"""`python -m benchmarks.next_runs`: what the runs that `--next` proposes are worth, against others of equal cost.

    python -m benchmarks.next_runs --studies=30                   # 30 of each of seven families
    python -m benchmarks.next_runs --asked=4 --seeds=2

Simulated sweeps (`families`) with few seeds to C = 1M; n is asked for at a multiple of that. The regret is the true
reward of the best n there less that of the one that the tool names: today, after the K proposed runs, after runs drawn
at random from the same candidates until they cost as much, and after as much spent on the largest n. All are measured
with the same noise, added to the data, and analysed again from the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from benchmarks import families
from benchmarks.harness import (
    METRIC,
    Table,
    alive,
    analysed,
    forecast_of,
    long_table,
    studies_of_flags,
    study_flags,
    with_all,
)
from benchmarks.shared import print_head, print_row
from isocompute_jax import app
from isocompute_jax.fit.further_runs import Candidate, candidates, evaluations, propose

study_flags(30)
ASKED = flags.DEFINE_float("asked", 16.0, "The budget that n is asked for, in units of the data's compute.")
SEEDS = flags.DEFINE_integer("seeds", 1, "Seeds of each n before the proposed runs; studies with fewer have theirs.")
RUNS = flags.DEFINE_integer("runs", 3, "K, how many proposals.")


def main() -> None:
    """Flags -> table."""
    rows: dict[str, list[list[float]]] = {}
    for number, study in studies_of_flags():
        rows.setdefault(study.family, []).append(one_study(study, number))
    print_table(rows)


COLUMNS = ("today", "proposed", "random", "largest n", "expected today", "expected after", "cost / C")


def one_study(study: families.Study, number: int) -> list[float]:
    """The figures of `COLUMNS`."""
    budget = ASKED.value * families.LAST
    study = study.with_seeds(SEEDS.value)
    stages, found = analysed(study.table(METRIC))
    forecast, among = forecast_of(stages, found), alive(found, budget)
    choices = candidates(budget, among, end=families.LAST)
    today, proposals = propose(
        forecast.by_form(), budget, among, choices, evaluations(found, forecast), count=RUNS.value
    )
    proposed = [run for run, _ in proposals]
    cost = sum(run.cost for run in proposed)
    truth = study.truth(np.array([budget]))[:, 0]

    def regret_after(runs: Sequence[Candidate], stream: int) -> float:
        after = analysed(with_runs(study, runs, np.random.default_rng([number, stream]))) if runs else (stages, found)
        chosen = forecast_of(*after).prospect(budget, alive(after[1], budget)).index
        return float(truth.max() - truth[chosen])

    random = equal_cost(choices, cost, np.random.default_rng([number, 7]))
    largest = equal_cost([run for run in choices if run.index == max(among)], cost, np.random.default_rng([number, 8]))
    after = [regret_after(runs, stream) for stream, runs in enumerate(([], proposed, random, largest))]
    return [*after, today, proposals[-1][1] if proposals else today, cost / families.LAST]


def equal_cost(choices: Sequence[Candidate], cost: float, rng: np.random.Generator) -> list[Candidate]:
    """Runs drawn one by one from those that the rest still pays for."""
    found: list[Candidate] = []
    while affordable := [run for run in choices if run.cost <= cost * (1 + 1e-9)]:
        found.append(affordable[rng.integers(len(affordable))])
        cost -= found[-1].cost
    return found


def with_runs(study: families.Study, runs: Sequence[Candidate], rng: np.random.Generator) -> Table:
    """The study's table with further runs, evaluated as densely in log C as the others."""
    rows: list[dict[str, Any]] = [study.table(METRIC)]
    first, last = study.compute[1], study.compute[-1]
    density = (len(study.compute) - 2) / np.log(last / first)
    seed = 1000
    for run in runs:
        count = 1 + round(density * np.log(run.compute / first))
        compute = np.concatenate([[0.0], np.geomspace(first, run.compute, max(count, 2))])
        for _ in range(run.seeds):
            seed += 1
            rows.append({
                "group_size": study.group_sizes[run.index], "problems_per_batch": families.PROBLEMS_PER_BATCH,
                "seed": seed, "compute": compute, METRIC: study.measure(run.index, compute, rng),
            })  # fmt: skip
    return long_table(rows)


def print_table(rows: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Means by family and over all, and the ratio of the two regrets with its bootstrap interval."""
    every = np.array([row for part in rows.values() for row in part])
    print(f"{len(every)} studies, n asked for at {ASKED.value:g} C, {SEEDS.value} seed(s), K = {RUNS.value}\n")
    print_head(("family", *COLUMNS))
    for name, part in with_all(rows):
        print_row(name, *(f"{value:.4f}" for value in np.mean(part, axis=0)))
    rng = np.random.default_rng(0)
    drawn = every[rng.integers(len(every), size=(4000, len(every)))].mean(axis=1)
    for rival in ("random", "largest n", "today"):
        column = COLUMNS.index(rival)
        ratio = every[:, 1].mean() / every[:, column].mean()
        low, high = np.percentile(drawn[:, 1] / drawn[:, column], (2.5, 97.5))
        print(f"\nRegret after the proposed runs / {rival}: {ratio:.2f} (95% interval {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    app.run(main)
