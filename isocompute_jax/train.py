"""`python -m isocompute_jax.train`: one training run.

    python -m isocompute_jax.train --config=configs/arithmetic_hard.py --workdir=runs/hard
    python -m isocompute_jax.train --config=configs/arithmetic_hard.py --config.group_size=32 --workdir=runs/hard32

The same command resumes a run that was interrupted.
"""

from __future__ import annotations

import json

from absl import flags

from isocompute_jax import app
from isocompute_jax.records.errors import InputError

with app.imports():
    from ml_collections import config_flags

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "Config file, a configs/*.py; override its fields with --config.FIELD=VALUE."
)
RESOLVED = flags.DEFINE_string(
    "resolved_config", None, "In place of --config: the config.json of another run, to repeat exactly that config."
)
WORKDIR = flags.DEFINE_string("workdir", None, "Run directory; made if absent, continued if it holds this very run.")


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.experiment.config import from_dict
    from isocompute_jax.experiment.loop import train

    if not WORKDIR.value:
        raise InputError("--workdir is missing: say where the run's files go")
    if bool(CONFIG.value) == bool(RESOLVED.value):
        raise InputError("give either --config=configs/NAME.py or --resolved_config=FILE.json")
    if RESOLVED.value:
        try:
            with open(RESOLVED.value, encoding="utf-8") as file:
                values = json.load(file)["config"]
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"--resolved_config={RESOLVED.value}: not a run's config.json ({error!r})") from error
    else:
        values = CONFIG.value.to_dict()
    train(from_dict(values), WORKDIR.value)


if __name__ == "__main__":
    app.run(main)
