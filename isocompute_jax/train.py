"""`python -m isocompute_jax.train`: one training run.

    python -m isocompute_jax.train --config=configs/arithmetic_hard.py --workdir=runs/hard
    python -m isocompute_jax.train --config=configs/arithmetic_hard.py --config.group_size=32 --workdir=runs/hard32

The same command resumes a run that was interrupted. Before a run on accelerators, see on any machine whether it fits
and what it costs (no weights are read, nothing is run):

    python -m isocompute_jax.train --config=configs/layouts/h200_1x8_dense8b_16k.py --dry_run --topology=h200:1x8

With `--config_fields` it lists every field of a config, with type, default and meaning, and ends (docs/config.md).
With `--show_prompts=3` it prints the first prompts as the model will read them, chat template and all, and ends.
"""

from __future__ import annotations

import json
import sys

from absl import flags

from isocompute_jax import app
from isocompute_jax.records.errors import InputError

with app.imports():
    from ml_collections import config_flags

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "Config file, a configs/*.py; override its fields (--config_fields) with --config.FIELD=VALUE."
)
RESOLVED = flags.DEFINE_string(
    "resolved_config", None, "In place of --config: the config.json of another run, to repeat exactly that config."
)
CONFIG_FIELDS = flags.DEFINE_bool(
    "config_fields", False, "In place of training, list the fields of a config: types, defaults and what they mean."
)
WORKDIR = flags.DEFINE_string("workdir", None, "Run directory; made if absent, continued if it holds this very run.")
DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "In place of training, compile the step and say what it holds, whether it fits and what it costs."
)
TOPOLOGY = flags.DEFINE_string(
    "topology",
    None,
    "Accelerators that --dry_run compiles for: h200:1x8, h200:2x8, tpu:v5p:4x4x4, tpu:v6e:16x16, fake:8, or here; left "
    "out, those of config.plan.topology, or this machine's.",
)
PLAN_OUT = flags.DEFINE_string("plan_out", None, "File for the figures of --dry_run, as JSON.")
SHOW_PROMPTS = flags.DEFINE_integer(
    "show_prompts",
    0,
    "In place of training, print the first so many prompts of the training set as the model will read them.",
    lower_bound=0,
)


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.experiment.config import RunConfig, config_page, from_dict
    from isocompute_jax.experiment.loop import train

    if CONFIG_FIELDS.value:
        print(config_page(RunConfig), end="")
        return
    if not WORKDIR.value and not DRY_RUN.value and not SHOW_PROMPTS.value:
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
    config = from_dict(values)
    if SHOW_PROMPTS.value:
        from isocompute_jax.experiment.show_prompts import show_prompts_of_run

        print(show_prompts_of_run(config, SHOW_PROMPTS.value))
        return
    if DRY_RUN.value:
        from isocompute_jax.plan import command

        sys.exit(command.run(config, TOPOLOGY.value, arguments=sys.argv[1:], out=PLAN_OUT.value))
    for flag in ("topology", "plan_out"):
        if flags.FLAGS[flag].present:
            raise InputError(f"--{flag} goes with --dry_run")
    train(config, WORKDIR.value or "")


if __name__ == "__main__":
    app.run(main)
