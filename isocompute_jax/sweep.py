r"""`python -m isocompute_jax.sweep`: a grid of training runs, on this machine or on a cluster's scheduler.

    python -m isocompute_jax.sweep --config=configs/arithmetic_hard.py --workdir=runs/sweep \
        --grid='group_size=2,4,8,16;seed=0,1,2'
    python -m isocompute_jax.sweep ... --grid='group_size+problems_per_batch=2+32,4+16,8+8;seed=0,1,2' --dry_run
    python -m isocompute_jax.sweep ... --grid='optimizer.base_lr=1e-4,2.5e-4' --config.max_compute=65536
    python -m isocompute_jax.sweep plan ... --topology=h200:1x8
    python -m isocompute_jax.sweep ... --executor=slurm \
        --slurm_partition=h200 --slurm_nodes=2 --slurm_gpus_per_node=8 \
        --slurm_run='--server_nodes=1 --servers_per_node=8 --server_gpus=1'
    python -m isocompute_jax.sweep status --workdir=runs/sweep
    python -m isocompute_jax.sweep cancel --workdir=runs/sweep --executor=slurm --only=group_size=8,seed=0

`--grid` lists config fields and their values, `;` between fields; fields joined with `+` change together. Every run
gets a directory in --workdir, named after its values, and a log in --workdir/logs. The same command skips finished
runs and resumes broken ones. A run that fails stops no other; the exit code is then 1.

`plan` prints the runs and what they take, `status` how far they are, from the sweep's directory alone. `cancel` and
`requeue` end runs that a scheduler has, or send them back into its queue, each with its servers and a checkpoint.

On this machine each run has one CPU core, as many at a time as there are cores (`taskset` limits them), or with
--workers=1 all of them; with accelerators runs come one after the other unless --workers says otherwise. With
--executor=slurm or kubernetes each is a job, and this process only watches: it may be interrupted, and started again.
See docs/sweeps.md.
"""

from __future__ import annotations

import logging
import pathlib
from typing import TYPE_CHECKING

from absl import flags

from isocompute_jax import app
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.printing import say
from isocompute_jax.sweeps.jobs import SlurmOptions
from isocompute_jax.sweeps.watch import Limits

if TYPE_CHECKING:
    from isocompute_jax.sweeps.grid import PlannedRun
    from isocompute_jax.sweeps.jobs import Scheduler

CONFIG = flags.DEFINE_string(
    "config",
    None,
    "Config file, a configs/*.py, that all runs start from; override fields (docs/config.md) by --config.FIELD=VALUE.",
)
GRID = flags.DEFINE_string(
    "grid",
    None,
    "FIELD=VALUE,VALUE;FIELD=VALUE,...: every combination is a run. FIELD+FIELD=VALUE+VALUE,... ties fields.",
)
MAX_ROLLOUTS = flags.DEFINE_integer(
    "max_rollouts_per_step", None, "B_max: leave out combinations with more rollouts per step.", lower_bound=1
)
WORKERS = flags.DEFINE_integer(
    "workers",
    None,
    "Runs at a time; by default one per core, and as many as a scheduler likes. One alone has all cores.",
    lower_bound=1,
)
WORKDIR = flags.DEFINE_string("workdir", None, "The sweep's directory; made if absent, continued if it has runs.")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the plan, without what it takes, and run nothing.")
EXECUTOR = flags.DEFINE_enum("executor", "local", ["local", "slurm", "kubernetes"], "Who runs the runs.")
KUBERNETES = flags.DEFINE_string(
    "kubernetes", None, "YAML file with what each run's JobSet has: fields of launch/kubernetes/render.py."
)
NOWAIT = flags.DEFINE_bool("nowait", False, "Hand the runs to the scheduler and end.")
TOPOLOGY = flags.DEFINE_string(
    "topology",
    "",
    "Accelerators that `plan` compiles each distinct step for, as h200:2x8; config.plan.topology if empty.",
)
ONLY = flags.DEFINE_multi_string("only", [], "A run that `cancel` or `requeue` is for; may be repeated. All if absent.")
define_flags(Limits)
define_flags(SlurmOptions)

PLAN, STATUS, CANCEL, REQUEUE = ACTIONS = ("plan", "status", "cancel", "requeue")


def main(action: str) -> None:
    """Flags -> one call."""
    root = pathlib.Path(app.needed(WORKDIR, "say where the runs go"))
    check_flags(action)
    if action == STATUS:
        show_status(root)
    elif action in (CANCEL, REQUEUE):
        from isocompute_jax.sweeps import scheduled

        found = scheduler(root)
        chosen = (scheduled.cancel if action == CANCEL else scheduled.requeue)(root, found, ONLY.value)
        say(f"{action}: {', '.join(chosen) or f'no run is with {EXECUTOR.value}'}")
    elif action == PLAN:
        show_plan(planned_runs(), root)
    elif DRY_RUN.value:
        from isocompute_jax.sweeps.executor import check_directories, open_state
        from isocompute_jax.sweeps.status import print_plan

        runs = planned_runs()
        check_directories(runs, root)
        print_plan(open_state(runs, root))
    else:
        run(planned_runs(), root)


def check_flags(action: str) -> None:
    """Raises InputError for a flag that belongs to something else."""
    if action in (CANCEL, REQUEUE) and EXECUTOR.value == "local":
        raise InputError(
            f"{action} needs --executor=slurm or kubernetes; runs of this machine end with their sweep's Ctrl-C"
        )
    if NOWAIT.value and EXECUTOR.value == "local":
        raise InputError("--nowait goes with --executor=slurm or kubernetes: runs of this machine end with their sweep")
    for flag, actions in (("only", (CANCEL, REQUEUE)), ("topology", (PLAN,))):
        if flags.FLAGS[flag].present and action not in actions:
            raise InputError(f"--{flag} goes with {' or '.join(f'`sweep {name}`' for name in actions)}")
    slurm = [name for name in flags.FLAGS if name.startswith("slurm_") or name == "after"]
    for executor, names in (("slurm", slurm), ("kubernetes", ["kubernetes"])):
        given = [name for name in names if flags.FLAGS[name].present]
        if given and executor != EXECUTOR.value:
            raise InputError(f"--{given[0]} goes with --executor={executor}; this is --executor={EXECUTOR.value}")


def planned_runs() -> list[PlannedRun]:
    """The runs that --config and --grid say."""
    from isocompute_jax.experiment.config import from_dict
    from isocompute_jax.sweeps.grid import grid, parse_grid

    base = from_dict(app.config_values())
    fields = app.needed(GRID, "say which fields take which values, such as 'group_size=4,8;seed=0,1'")
    return grid(base, parse_grid(fields, type(base)), max_rollouts_per_step=MAX_ROLLOUTS.value)


def scheduler(root: pathlib.Path) -> Scheduler:
    """The one that --executor names."""
    from isocompute_jax.sweeps.jobs import make_scheduler

    return make_scheduler(EXECUTOR.value, root, slurm=from_flags(SlurmOptions), kubernetes=KUBERNETES.value or "")


def run(runs: list[PlannedRun], root: pathlib.Path) -> None:
    """Runs what is missing."""
    from isocompute_jax.experiment.config import how_to_hold_out
    from isocompute_jax.sweeps.executor import run_sweep
    from isocompute_jax.sweeps.scheduled import run_scheduled
    from isocompute_jax.sweeps.status import print_result

    limits = from_flags(Limits)
    if not runs[0].config.evaluation.sets:
        logging.getLogger(__name__).warning(how_to_hold_out(runs[0].config))
    if EXECUTOR.value == "local":
        result = run_sweep(runs, root, num_workers=WORKERS.value, limits=limits)
    else:
        result = run_scheduled(runs, root, scheduler(root), at_once=WORKERS.value, wait=not NOWAIT.value, limits=limits)
    print_result(result)
    if result.halted:
        raise RunError(
            f"{result.halted}: {len(result.interrupted)} of {len(runs)} runs are not done; the same command with a "
            "higher budget goes on"
        )
    if result.interrupted and not NOWAIT.value and EXECUTOR.value == "local":
        raise KeyboardInterrupt
    if result.failed:
        raise RunError(f"{len(result.failed)} of {len(runs)} runs failed; the same command tries them again")
    if result.interrupted and not NOWAIT.value:
        raise RunError(
            f"{len(result.interrupted)} of {len(runs)} runs were told to stop; the same command resumes them"
        )


def show_status(root: pathlib.Path) -> None:
    """How far the runs of a directory are."""
    from isocompute_jax.sweeps.books import planned_runs, read_state
    from isocompute_jax.sweeps.status import print_result

    print_result(read_state(planned_runs(root), root))


def show_plan(runs: list[PlannedRun], root: pathlib.Path) -> None:
    """The runs, and the device-hours that they take."""
    from isocompute_jax.sweeps import books, estimate
    from isocompute_jax.sweeps.executor import check_directories, open_state
    from isocompute_jax.sweeps.status import print_plan

    check_directories(runs, root)
    found = estimate.estimates(runs, root, TOPOLOGY.value)
    spent = books.spent_device_hours(root, [run.name for run in runs])
    hours = {name: estimate.as_text(each) for name, each in found.items()}
    print_plan(open_state(runs, root), hours, estimate.summary(found, spent, from_flags(Limits).max_device_hours))
    if misfits := [name for name, each in found.items() if each is not None and each.fits is False]:
        logging.getLogger(__name__).warning("does not fit: %s", ", ".join(misfits))
        raise RunError(f"{len(misfits)} of {len(runs)} runs do not fit on their devices")


if __name__ == "__main__":
    app.run(main, actions=ACTIONS)
