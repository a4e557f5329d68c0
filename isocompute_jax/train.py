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

import os
import sys
from typing import Any, cast

from absl import flags

from isocompute_jax import app
from isocompute_jax.compiling import HELP, use_training_cache
from isocompute_jax.drivers import check_driver_for_jax
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say

CONFIG = flags.DEFINE_string(
    "config", None, "Config file, a configs/*.py; override its fields (--config_fields) with --config.FIELD=VALUE."
)
RESOLVED = flags.DEFINE_string(
    "resolved_config", None, "In place of --config: the config.json of another run, to repeat exactly that config."
)
TRUST_CONFIG = flags.DEFINE_bool(
    "trust_config",
    False,
    "Follow --resolved_config also where it names functions, addresses, and files or variables that hold secrets: only "
    "one that you know (docs/trust.md).",
)
CONFIG_FIELDS = flags.DEFINE_bool(
    "config_fields", False, "In place of training, list the fields of a config: types, defaults and what they mean."
)
WORKDIR = flags.DEFINE_string("workdir", None, "Run directory; made if absent, continued if it holds this very run.")
ENDPOINTS = flags.DEFINE_string(
    "endpoints", None, "In place of config.service.endpoints: where launchers say which servers they have started."
)
TOKEN_FILE = flags.DEFINE_string("token_file", None, "In place of config.service.token_file, likewise.")
CA_FILE = flags.DEFINE_string("ca_file", None, "In place of config.service.ca_file, likewise.")
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
COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    "Of several learner processes: host:port of process 0, which listens there; the port above it is used too. Goes "
    "with --process_count and --process_index.",
)
PROCESS_COUNT = flags.DEFINE_integer("process_count", None, "Learner processes of this run.", lower_bound=1)
PROCESS_INDEX = flags.DEFINE_integer("process_index", None, "Which of them this is, from 0.", lower_bound=0)
CLUSTER = flags.DEFINE_enum(
    "cluster",
    "auto",
    ["auto", "none", "slurm", "jobset", "tpu"],
    "Where this process learns which of how many it is: auto takes the three flags, else an srun step of several "
    "tasks, else what JobSet or a TPU pod puts into the environment, else it is alone.",
)
STALL_S = flags.DEFINE_float(
    "stall_s",
    60.0,
    "A learner process that is not heard of, or that the others wait for, for so many seconds ends all of them.",
    lower_bound=2.0,
)
START_S = flags.DEFINE_float(
    "start_s", 300.0, "How many seconds learner processes wait for each other at the start.", lower_bound=1.0
)
PROFILE_STEPS = flags.DEFINE_string(
    "profile_steps", "", "FIRST:LAST, steps to trace into the run's folder profile/, for xprof or Perfetto; 10:12, say."
)
COMPILE_CACHE = flags.DEFINE_string(
    "compile_cache", "", f"{HELP} Of several learner processes none keeps any, unless that is set."
)
SHOW_PROMPTS = flags.DEFINE_integer(
    "show_prompts",
    0,
    "In place of training, print the first so many prompts of the training set as the model will read them.",
    lower_bound=0,
)


def main() -> None:
    """Flags -> one call."""
    values = given()  # before what takes seconds to import

    from isocompute_jax.devices import keep_freed_memory
    from isocompute_jax.distributed.environment import Cluster, find_place
    from isocompute_jax.distributed.start import joined
    from isocompute_jax.experiment.config import (
        RunConfig,
        check_trusted,
        config_page,
        from_dict,
        override,
        read_resolved,
    )
    from isocompute_jax.experiment.loop import train
    from isocompute_jax.experiment.progress import NO_STEPS, parse_steps
    from isocompute_jax.experiment.workdir import RECORDS, facts

    if CONFIG_FIELDS.value:
        say(config_page(RunConfig), end="")
        return
    resolved = RESOLVED.value
    config = read_resolved(resolved, "--resolved_config") if resolved else from_dict(values)
    given_flags = [flag for flag in (ENDPOINTS, TOKEN_FILE, CA_FILE) if flag.value is not None]
    for flag in given_flags:
        config = override(config, f"service.{flag.name}", flag.value)
    if resolved and not TRUST_CONFIG.value:
        check_trusted(config, resolved, given=[f"service.{flag.name}" for flag in given_flags])
    if SHOW_PROMPTS.value:
        from isocompute_jax.experiment.inputs import show_prompts_of_run

        say(show_prompts_of_run(config, SHOW_PROMPTS.value))
        return
    if DRY_RUN.value:
        from isocompute_jax.plan import dry_run

        sys.exit(dry_run.run(config, TOPOLOGY.value, arguments=sys.argv[1:], out=PLAN_OUT.value))
    for flag in ("topology", "plan_out"):
        if flags.FLAGS[flag].present:
            raise InputError(f"--{flag} goes with --dry_run")
    check_driver_for_jax()
    keep_freed_memory()
    place = find_place(
        cluster=cast(Cluster, CLUSTER.value),
        coordinator=COORDINATOR.value,
        process_count=PROCESS_COUNT.value,
        process_index=PROCESS_INDEX.value,
        environ=os.environ,
    )
    if place.count == 1:  # where some processes of a program load it and others compile it, these may wait for those
        use_training_cache(COMPILE_CACHE.value)
    profile = parse_steps(PROFILE_STEPS.value) if PROFILE_STEPS.value else NO_STEPS
    workdir = WORKDIR.value or ""
    shared = facts(config, workdir)
    with joined(place, shared, records=RECORDS, stall_s=STALL_S.value, start_s=START_S.value) as team:
        train(config, workdir, team=team, profile=profile)


def given() -> dict[str, Any]:
    """The fields of the config that --config spells, empty where another run is repeated; checks what is missing."""
    if CONFIG_FIELDS.value:
        return {}
    if CONFIG.value and RESOLVED.value:
        raise InputError("--config and --resolved_config are both given: leave one of them out")
    values = {} if RESOLVED.value else app.config_values()
    if not WORKDIR.value and not DRY_RUN.value and not SHOW_PROMPTS.value:
        raise InputError("--workdir is missing: say where the run's files go, such as --workdir=runs/first")
    return values


if __name__ == "__main__":
    app.run(main)
