"""What a pilot advises, beside a small grid in n and rate: `python -m benchmarks.pilot --workdir=runs/pilots`.

For each of eight set-ups (base model, problem set, budget) a pilot, runs of its advice, and runs of a grid, n at rates
of its own; then one row: the rate that was advised and that of the grid's best, and what both are worth. All runs are
on the study's recipe. Runs that are done are not done again, and `--recorded` takes directories of sweeps of the same
bases and sets as parts of the grid, named after base and set: DIR/standard-hard_64/*/eval.jsonl.

A run's reward at C is avg@8 at the best of its evaluations up to C: each half of the held-out problems chooses the
evaluation at which the other is scored. The grid's best is a best of several, which lies too high: so besides the
highest mean the table has what is fair, the mean over the other seeds of the cell that seed 0 chooses.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from benchmarks.shared import print_head, print_row
from isocompute_jax import app
from isocompute_jax.command_line import load_config
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.pilot.advice import screen
from isocompute_jax.pilot.run import CONFIG_FILE, SCREEN_FILE, PilotConfig, run_pilot
from isocompute_jax.records import run_files
from isocompute_jax.records.metrics import halves
from isocompute_jax.study import presets, stages
from isocompute_jax.sweeps.executor import run_sweep
from isocompute_jax.sweeps.grid import grid

WORKDIR = flags.DEFINE_string("workdir", "runs/pilots", "Directory of bases, pilots and runs; what is there is kept.")
RECORDED = flags.DEFINE_string("recorded", "", "Directory of further runs, BASE-SET/RUN/eval.jsonl at any depth.")
SETUPS = flags.DEFINE_list("setups", [], "Names of those that are run; left out, all.")
PARTS = flags.DEFINE_list("parts", ["pilot", "advised", "grid"], "What is run before the table is printed.")
CELLS = flags.DEFINE_list("cells", [], "RATExN of the grid, such as 1.25e-4x16; left out, those of GRID.")
SEEDS = flags.DEFINE_list("seeds", ["0", "1"], "Seeds of the grid's runs.")
ADVISED_SEEDS = flags.DEFINE_list("advised_seeds", ["1", "2"], "Seeds of the runs of the advice.")
WORKERS = flags.DEFINE_integer("workers", 2, "Runs at once.")

BASES = {"standard": presets.FULL, "half": presets.OTHER_BASE, "wide": presets.OTHER_SIZE}
"""Base models: the study's, one taught for half as long, one twice as wide."""
SETS: Mapping[str, presets.Slice] = {
    "hard_64": presets.scarce(64),
    "easy_64": presets.scarce(64, problem_set="easy"),
    "mixture_64": presets.scarce(64, problem_set="mixture"),
    "hard_all": presets.scarce(0),
}
GRID = ((6.25e-5, 16), (1.25e-4, 16), (2.5e-4, 64), (5e-4, 64))
"""Rates and n: a larger group bears a larger rate (docs/referee.md), so corners are left out."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a pilot is asked."""

    base: str
    problems: str
    budget: int

    @property
    def place(self) -> str:
        """Where runs are that do not depend on the budget."""
        return f"{self.base}-{self.problems}"

    @property
    def name(self) -> str:
        """Of the row."""
        return f"{self.place}-{self.budget}"


ALL = (
    Setup("standard", "hard_64", 2**17),
    Setup("standard", "easy_64", 2**16),
    Setup("standard", "easy_64", 2**15),
    Setup("standard", "mixture_64", 2**16),
    Setup("standard", "hard_all", 2**16),
    Setup("half", "hard_64", 2**16),
    Setup("half", "hard_64", 2**15),
    Setup("wide", "hard_64", 2**16),
)


def base_config(setup: Setup, root: pathlib.Path) -> RunConfig:
    """The run on the study's recipe; makes base model and problem sets where they are missing."""
    preset, study = BASES[setup.base], root / setup.base
    if not (study / "curated" / stages.CURATION_SUMMARY).exists():
        stages.prepare(preset, study)
        stages.make_problem_sets(preset, study)
    part = dataclasses.replace(SETS[setup.problems], axes={"seed": (0,)})
    return stages.planned_runs(preset, part, study)[0].config


def pilot(setup: Setup, root: pathlib.Path) -> None:
    """Runs it, with what it prints kept beside its advice."""
    directory = root / "pilots" / setup.name
    if (directory / SCREEN_FILE).exists():
        return
    found = run_pilot(base_config(setup, root), PilotConfig(budget=setup.budget), directory)
    run_files.write_atomic(directory / SCREEN_FILE, screen(found, str(directory / CONFIG_FILE)) + "\n")


def train_advised(setup: Setup, root: pathlib.Path) -> None:
    """Runs of the config that the pilot wrote."""
    config = load_config(str(root / "pilots" / setup.name / CONFIG_FILE))
    run_sweep(
        grid(config, {"seed": [int(seed) for seed in ADVISED_SEEDS.value]}),
        root / "advised" / setup.name,
        num_workers=WORKERS.value,
    )


def train_grid(setup: Setup, root: pathlib.Path, cells: Sequence[tuple[float, int]], seeds: Sequence[int]) -> None:
    """Runs of the grid that are not done, here or among the recorded; as long as the longest of the same set."""
    longest = max(other.budget for other in ALL if other.place == setup.place)
    config = dataclasses.replace(base_config(setup, root), max_compute=longest)
    done = rewards(setup, root, setup.budget)
    runs = []
    for rate, n in cells:
        wanted = tuple(seed for seed in seeds if seed not in done.get((rate, n), {}))
        runs += grid(config, {"optimizer.base_lr": (rate,), "group_size": (n,), "seed": wanted}) if wanted else []
    if runs:
        run_sweep(runs, root / "grid" / setup.place, num_workers=WORKERS.value)


# --- what runs are worth


def rewards(setup: Setup, root: pathlib.Path, budget: int) -> dict[tuple[float, int], dict[int, float]]:
    """(rate, n) -> seed -> reward at a budget, of the grid's runs and of recorded ones."""
    found: dict[tuple[float, int], dict[int, float]] = {}
    places = [root / "grid" / setup.place]
    if RECORDED.value:
        places.append(pathlib.Path(RECORDED.value) / setup.place)
    for path in (path for place in places for path in sorted(place.rglob(run_files.DONE))):
        config = json.loads((path.parent / "config.json").read_text(encoding="utf-8"))["config"]
        if config["schedule"]["group_size"] or config["max_compute"] < budget:
            continue
        cell = (config["optimizer"]["base_lr"], config["group_size"])
        found.setdefault(cell, {})[config["seed"]] = reward(path.parent, budget)
    return found


def reward(run: pathlib.Path, budget: int) -> float:
    """At the evaluation up to the budget that is best: either half of the problems chooses it for the other.

    Between evaluations, which a longer run has at other places, by log C.
    """
    lines = [line for line in run_files.read_lines(run / run_files.EVAL) if line["eval_set"] == "validation"]
    lines = [line for line in lines if line["compute"] > 0]
    both = [halves(np.array(line["solve_counts"]), line["samples"]) for line in lines]
    best = [(max(both[:end])[1] + max(pair[::-1] for pair in both[:end])[1]) / 2 for end in range(1, len(both) + 1)]
    return float(np.interp(math.log(budget), np.log([line["compute"] for line in lines]), best))


@dataclasses.dataclass(frozen=True)
class Row:
    """A pilot beside its grid."""

    setup: Setup
    spent: str
    advised_rate: float
    advised: Sequence[float]  # reward of each seed
    best: tuple[float, int]  # cell of the highest mean
    cells: Mapping[tuple[float, int], Mapping[int, float]]

    @property
    def fair(self) -> float:
        """What the cell that seed 0 chooses has with the others."""
        first = {cell: seeds[0] for cell, seeds in self.cells.items() if 0 in seeds and len(seeds) > 1}
        chosen = self.cells[max(first, key=lambda cell: first[cell])]
        return statistics.fmean(value for seed, value in chosen.items() if seed)

    @property
    def noise(self) -> float:
        """Standard deviation between seeds of one cell, pooled."""
        spread = [statistics.variance(seeds.values()) for seeds in self.cells.values() if len(seeds) > 1]
        return math.sqrt(statistics.fmean(spread))

    def rate_of_best(self) -> Iterator[float]:
        """Rates that have a cell within a standard error of the difference to the highest mean."""
        top = self.cells[self.best]
        for rate in sorted({rate for rate, _ in self.cells}):
            near = max((cell for cell in self.cells if cell[0] == rate), key=lambda cell: mean(self.cells[cell]))
            error = self.noise * math.sqrt(1 / len(top) + 1 / len(self.cells[near]))
            if mean(self.cells[near]) >= mean(top) - error:
                yield rate


def mean(seeds: Mapping[int, float]) -> float:
    """Over seeds."""
    return statistics.fmean(seeds.values())


def row_of(setup: Setup, root: pathlib.Path) -> Row | None:
    """None where something is missing."""
    directory = root / "pilots" / setup.name
    runs = sorted((root / "advised" / setup.name).glob(f"*/{run_files.DONE}"))
    cells = rewards(setup, root, setup.budget)
    if not ((directory / SCREEN_FILE).exists() and runs and cells):
        return None
    config: Any = load_config(str(directory / CONFIG_FILE))
    spent = (directory / SCREEN_FILE).read_text(encoding="utf-8").split(",", 2)
    best = max(cells, key=lambda cell: mean(cells[cell]))
    values = [reward(run.parent, setup.budget) for run in runs]
    share = next(word for part in spent for word in part.split() if word.endswith("%"))
    return Row(setup, share, config.optimizer.base_lr, values, best, cells)


def print_table(rows: Sequence[Row]) -> None:
    """One row for each set-up."""
    head = [
        "set-up",
        "spent",
        "rate",
        "grid's best",
        "rates as good",
        "advice",
        "highest",
        "fair",
        "noise",
        "rate?",
        "reward?",
    ]
    print_head(head, left=(0,))
    for row in rows:
        rate, n = row.best
        ratio = max(rate / row.advised_rate, row.advised_rate / rate)
        own = statistics.fmean(row.advised)
        print_row(
            row.setup.name,
            row.spent,
            f"{row.advised_rate:.3g}",
            f"{rate:.3g}, n = {n}",
            " ".join(f"{good:.3g}" for good in row.rate_of_best()),
            f"{own:.3f}",
            f"{mean(row.cells[row.best]):.3f}",
            f"{row.fair:.3f}",
            f"{row.noise:.3f}",
            "yes" if ratio <= 2.01 else f"x{ratio:.2g}",
            "yes" if own >= row.fair - 0.02 else f"{own - row.fair:+.3f}",
        )


def main() -> None:
    """Flags -> table."""
    logging.getLogger().setLevel(logging.WARNING)
    root = pathlib.Path(WORKDIR.value)
    chosen = [setup for setup in ALL if not SETUPS.value or setup.name in SETUPS.value]
    cells = [(float(cell.split("x")[0]), int(cell.split("x")[1])) for cell in CELLS.value] or GRID
    for setup in chosen:
        if "pilot" in PARTS.value:
            pilot(setup, root)
        if "advised" in PARTS.value:
            train_advised(setup, root)
        if "grid" in PARTS.value:
            train_grid(setup, root, cells, [int(seed) for seed in SEEDS.value])
    print_table([row for setup in chosen if (row := row_of(setup, root))])


if __name__ == "__main__":
    app.run(main)
