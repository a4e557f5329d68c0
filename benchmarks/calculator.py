"""`python -m benchmarks.calculator`: GRPO teaches a tiny model to use a calculator, in two turns.

    python -m benchmarks.calculator --out=runs/calculator

A base model of 0.1 M parameters is shown sums of two numbers: now and then the calculator is called, mostly a number is
guessed. Then it is trained on other sums by what its last word is worth. The policy learns to write the call, which
ends its turn, and to take over what the calculator puts into the context; the context itself is never trained on. The
table has a line per evaluation: rollouts so far, the reward, and the share of rollouts that the calculator answered.
"""

from __future__ import annotations

import pathlib

from absl import flags

from benchmarks.shared import print_head, print_row
from isocompute_jax import app

OUT = flags.DEFINE_string("out", "runs/calculator", "Directory of the base model, the problems and the run.")
DIGITS = flags.DEFINE_integer("digits", 1, "Of the numbers that are added.", 1, 3)
BASE_STEPS = flags.DEFINE_integer("base_steps", 800, "Steps of supervised learning.", 1)
CALLS = flags.DEFINE_float("calls", 0.2, "Share of the demonstrations that call.", 0, 1)
ROLLOUTS = flags.DEFINE_integer("rollouts", 2**13, "Rollouts to train on.", 64)
SEED = flags.DEFINE_integer("seed", 0, "Of everything.", 0)


def main() -> None:
    """Base model, run, table."""
    from benchmarks.calculator_run import prepare
    from isocompute_jax.experiment.loop import train
    from isocompute_jax.records import run_files

    out = pathlib.Path(OUT.value)
    config = prepare(out, digits=DIGITS.value, base_steps=BASE_STEPS.value, calls=CALLS.value, seed=SEED.value)
    run = config(ROLLOUTS.value)
    train(run, out / "run")
    print_head(("rollouts", "avg@4", "called", "truncated"), left=())
    for line in run_files.read_lines(out / "run" / run_files.EVAL):
        cells = (line["avg@4"], line["interruption_rate"], line["truncation_rate"])
        print_row(line["compute"], *(f"{cell:.3f}" for cell in cells))


if __name__ == "__main__":
    app.run(main)
