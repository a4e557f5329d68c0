r"""`python -m isocompute_jax.sweep`: a grid of training runs, side by side.

    python -m isocompute_jax.sweep --config=configs/arithmetic_hard.py --workdir=runs/sweep \
        --grid='group_size=2,4,8,16;seed=0,1,2'
    python -m isocompute_jax.sweep ... --grid='group_size+problems_per_batch=2+32,4+16,8+8;seed=0,1,2' --dry_run
    python -m isocompute_jax.sweep ... --grid='optimizer.base_lr=1e-4,2.5e-4' --config.max_compute=65536

`--grid` lists config fields and their values, `;` between fields; fields joined with `+` change together. Every run
gets a directory in --workdir, named after its values, and a log in --workdir/logs. The same command skips finished
runs and resumes broken ones. A run that fails stops no other; the exit code is then 1.

Each run has one CPU core, as many at a time as there are cores (`taskset` limits them); with accelerators runs come
one after the other unless --workers says otherwise.
"""

from __future__ import annotations

from absl import flags

from isocompute_jax import app
from isocompute_jax.records.errors import InputError, RunError

with app.imports():
    from ml_collections import config_flags

CONFIG = config_flags.DEFINE_config_file(
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
WORKERS = flags.DEFINE_integer("workers", None, "Runs at a time; by default one per core.", lower_bound=1)
WORKDIR = flags.DEFINE_string("workdir", None, "The sweep's directory; made if absent, continued if it has runs.")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the plan and run nothing.")


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.experiment.config import from_dict
    from isocompute_jax.sweeps.executor import check_directories, open_state, run_sweep
    from isocompute_jax.sweeps.grid import grid, parse_grid
    from isocompute_jax.sweeps.status import print_plan, print_result

    if not CONFIG.value:
        raise InputError("--config is missing: give configs/NAME.py, which all runs start from")
    if not GRID.value:
        raise InputError("--grid is missing: say which fields take which values, such as 'group_size=4,8;seed=0,1'")
    if not WORKDIR.value:
        raise InputError("--workdir is missing: say where the runs go")
    base = from_dict(CONFIG.value.to_dict())
    runs = grid(base, parse_grid(GRID.value, type(base)), max_rollouts_per_step=MAX_ROLLOUTS.value)
    if DRY_RUN.value:
        check_directories(runs, WORKDIR.value)
        print_plan(open_state(runs, WORKDIR.value))
        return
    result = run_sweep(runs, WORKDIR.value, num_workers=WORKERS.value)
    print_result(result.state)
    if result.interrupted:
        raise KeyboardInterrupt
    if result.failed:
        raise RunError(f"{len(result.failed)} of {len(runs)} runs failed; the same command tries them again")


if __name__ == "__main__":
    app.run(main)
