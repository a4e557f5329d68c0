r"""`python -m isocompute_jax.pilot`: which n, rate and batch a model wants, for 2% of a run's rollouts, before it.

    python -m isocompute_jax.pilot --model=runs/study-quick/base --problems=runs/study-quick/curated/hard/train.jsonl \
        --budget=262144 --workdir=runs/pilot
    python -m isocompute_jax.pilot --config=configs/start.py --model=models/mine --problems=problems.jsonl \
        --budget=524288 --config.reward=math --workdir=runs/pilot

Measures how often the model solves the problems and which groups would have a signal, runs a learning-rate range test
on short forks, asks theory for n*(C), and prints one screen of what that comes to and what stays unsure. Its advice is
also WORKDIR/advised.py, which `python -m isocompute_jax.train --config=WORKDIR/advised.py` takes. docs/pilot.md.
"""

from __future__ import annotations

import pathlib

from absl import flags

from isocompute_jax import app
from isocompute_jax.compiling import use_training_cache
from isocompute_jax.drivers import check_driver_for_jax
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.printing import say

with app.imports():
    from isocompute_jax.pilot import run_flags
    from isocompute_jax.pilot.run import CONFIG_FILE, SCREEN_FILE, PilotConfig

WORKDIR = flags.DEFINE_string("workdir", "runs/pilot", "Directory for what it finds; made.")
define_flags(PilotConfig)
flags.adopt_module_key_flags(run_flags)


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.pilot.advice import screen
    from isocompute_jax.pilot.run import run_pilot
    from isocompute_jax.records.run_files import write_atomic

    pilot = from_flags(PilotConfig)
    config = run_flags.config_of_flags()
    check_driver_for_jax()
    use_training_cache()
    directory = pathlib.Path(WORKDIR.value)
    text = screen(run_pilot(config, pilot, directory), str(directory / CONFIG_FILE))
    write_atomic(directory / SCREEN_FILE, text + "\n")
    say(text)


if __name__ == "__main__":
    app.run(main)
