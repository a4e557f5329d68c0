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

import dataclasses
import os
import pathlib

from absl import flags

from isocompute_jax import app
from isocompute_jax.compiling import use_training_cache
from isocompute_jax.drivers import check_driver_for_jax
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say

with app.imports():
    from isocompute_jax.pilot.run import CONFIG_FILE, SCREEN_FILE, PilotConfig

MODEL = flags.DEFINE_string("model", None, "Hugging Face directory of the base model.")
PROBLEMS = flags.DEFINE_string("problems", None, "Problems to train on, .jsonl or .parquet.")
VALIDATION = flags.DEFINE_string("validation", None, "Held-out problems; left out, a fifth of --problems, at most 300.")
CONFIG = flags.DEFINE_string(
    "config", None, "Config file with all else of the run (lengths, reward, recipe); override by --config.FIELD=VALUE."
)
WORKDIR = flags.DEFINE_string("workdir", "runs/pilot", "Directory for what it finds; made.")
MAX_PROMPT_TOKENS = flags.DEFINE_integer("max_prompt_tokens", None, "Longest prompt; left out, the config's.")
MAX_TOKENS = flags.DEFINE_integer("max_tokens", None, "Longest completion; left out, the config's.")
define_flags(PilotConfig)


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.experiment.config import RunConfig, from_dict
    from isocompute_jax.pilot.advice import screen
    from isocompute_jax.pilot.run import run_pilot
    from isocompute_jax.records.run_files import write_atomic

    pilot = from_flags(PilotConfig)
    config = from_dict(app.config_values()) if CONFIG.value else RunConfig()
    config = dataclasses.replace(
        config,
        model=there(MODEL.value or config.model, "model", "directory"),
        train_set=there(PROBLEMS.value or config.train_set, "problems", "file"),
        sampling=dataclasses.replace(
            config.sampling,
            max_prompt_tokens=MAX_PROMPT_TOKENS.value or config.sampling.max_prompt_tokens,
            max_tokens=MAX_TOKENS.value or config.sampling.max_tokens,
        ),
    )
    if VALIDATION.value:
        sets = {"validation": there(VALIDATION.value, "validation", "file")}
        config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, sets=sets))
    check_driver_for_jax()
    use_training_cache()
    directory = pathlib.Path(WORKDIR.value)
    text = screen(run_pilot(config, pilot, directory), str(directory / CONFIG_FILE))
    write_atomic(directory / SCREEN_FILE, text + "\n")
    say(text)


def there(path: str, flag: str, what: str) -> str:
    """A path that exists.

    Raises:
      InputError: there is none, or nothing is there.
    """
    if not path:
        raise InputError(f"--{flag} is missing: give a {what}")
    if not os.path.exists(path):
        raise InputError(f"--{flag}={path}: there is no such {what}")
    return path


if __name__ == "__main__":
    app.run(main)
