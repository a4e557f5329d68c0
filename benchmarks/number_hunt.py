"""`python -m benchmarks.number_hunt`: GRPO teaches a tiny model a game with hidden state.

    python -m benchmarks.number_hunt --out=runs/hunt

A base model of 0.1 M parameters is shown how the game is written, by games that are played blindly. Then it plays: the
environment thinks of a number and says of each guess whether the number is larger or smaller (docs/environments.md).
The table has a line per evaluation: rollouts so far, the share of numbers that were found, and guesses of a game.
"""

from __future__ import annotations

import pathlib

from absl import flags

from benchmarks.shared import print_head, print_row
from isocompute_jax import app

OUT = flags.DEFINE_string("out", "runs/hunt", "Directory of the base model, the games and the run.")
LARGEST = flags.DEFINE_integer("largest", 14, "Of the numbers that are hidden.", 1, 99)
GUESSES = flags.DEFINE_integer("guesses", 4, "Of a game, at most.", 1)
BASE_STEPS = flags.DEFINE_integer("base_steps", 600, "Steps of supervised learning.", 1)
ROLLOUTS = flags.DEFINE_integer("rollouts", 2**15, "Rollouts to train on.", 256)
CREDIT = flags.DEFINE_enum("turn_credit", "rollout", ["rollout", "turn"], "config.environment.turn_credit.")
SEED = flags.DEFINE_integer("seed", 0, "Of everything.", 0)


def main() -> None:
    """Base model, run, table."""
    import dataclasses

    from benchmarks.number_hunt_run import prepare
    from isocompute_jax.experiment.loop import train
    from isocompute_jax.records import run_files

    out = pathlib.Path(OUT.value)
    config = prepare(out, largest=LARGEST.value, guesses=GUESSES.value, base_steps=BASE_STEPS.value, seed=SEED.value)(
        ROLLOUTS.value
    )
    environment = dataclasses.replace(config.environment, turn_credit=CREDIT.value)
    train(dataclasses.replace(config, environment=environment), out / f"run-{CREDIT.value}")
    print_head(("rollouts", "avg@4", "guesses", "no number"), left=())
    for line in run_files.read_lines(out / f"run-{CREDIT.value}" / run_files.EVAL):
        cells = (line["avg@4"], line["metric/turns"], line["metric/guesses_no_number"])
        print_row(line["compute"], *(f"{cell:.3f}" for cell in cells))


if __name__ == "__main__":
    app.run(main)
