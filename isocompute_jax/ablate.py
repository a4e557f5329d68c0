r"""`python -m isocompute_jax.ablate`: a recipe, and the recipe with one thing changed at a time.

    python -m isocompute_jax.ablate --config=configs/arithmetic_hard.py --workdir=runs/ablate --seeds=0,1,2 \
        --vary='token_mean: recipe.aggregation=token_mean; no_tis: loss.correction_mode=off'
    python -m isocompute_jax.ablate ... --vary='group_size=4,16; optimizer.base_lr=1e-4,5e-4' --dry_run

`--vary` lists the variants, `;` between them: `NAME: FIELD=VALUE + FIELD=VALUE` changes fields together, and
`FIELD=VALUE,VALUE` makes a variant of each value. A name alone stands for a known list: regularisation (KL, entropy,
both, none), learning_rate (constant, square root, linear in B), zero_variance (what groups of equal rewards do),
scalerl (one part of its recipe at a time).

Each variant and the recipe itself run once per seed, as a sweep: finished runs are skipped, broken ones resumed. Then
all curves are fitted under a common asymptote, as in ScaleRL's leave-one-out figures (arXiv 2510.13786): the steepness
B, the midpoint C_mid and each one's own asymptote A, with intervals, in --workdir/ablation.json, .txt, .svg and .png.
"""

from __future__ import annotations

import pathlib

from absl import flags

from isocompute_jax import app
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.printing import say

CONFIG = flags.DEFINE_string(
    "config", None, "Config file of the recipe, a configs/*.py; override with --config.FIELD=VALUE (docs/config.md)."
)
VARY = flags.DEFINE_string("vary", None, "What to change, one variant at a time.")
SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of every variant.")
WORKDIR = flags.DEFINE_string("workdir", None, "Where the runs go; made if absent, continued if it has runs.")
METRIC = flags.DEFINE_string("metric", None, "Column of eval.jsonl to compare; by default avg@k, k of the config.")
EVAL_SET = flags.DEFINE_string("eval_set", None, "Evaluation set to compare; the first one by default.")
WORKERS = flags.DEFINE_integer("workers", None, "Runs at a time; by default one per core.", lower_bound=1)
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the plan and run nothing.")


def main() -> None:
    """Flags -> runs -> one comparison."""
    from isocompute_jax.ablation import outputs
    from isocompute_jax.ablation.analysis import analyse
    from isocompute_jax.ablation.variants import KNOWN, parse_variants, planned
    from isocompute_jax.experiment.config import from_dict, how_to_hold_out
    from isocompute_jax.fit import AnalysisOptions, ReadOptions
    from isocompute_jax.sweeps.executor import check_directories, open_state, run_sweep
    from isocompute_jax.sweeps.status import print_plan, print_result

    base = from_dict(app.config_values())
    vary = app.needed(VARY, "say what to change; see --help")
    runs = planned(base, parse_variants(vary, KNOWN), [_seed(text) for text in SEEDS.value])
    root = pathlib.Path(app.needed(WORKDIR, "say where the runs go; see --help"))
    if DRY_RUN.value:
        check_directories(runs, root)
        print_plan(open_state(runs, root))
        return
    if not base.evaluation.sets:
        raise InputError(how_to_hold_out(base))
    result = run_sweep(runs, root, num_workers=WORKERS.value)
    if result.interrupted:
        raise KeyboardInterrupt
    if result.failed:
        print_result(result)
        raise RunError(f"{len(result.failed)} of {len(runs)} runs failed; the same command tries them again")
    evaluation = base.evaluation
    read = ReadOptions(
        metric=METRIC.value or f"avg@{evaluation.k}", eval_set=EVAL_SET.value or next(iter(evaluation.sets))
    )
    say(outputs.write(analyse([root / run.name for run in runs], AnalysisOptions(read=read)), root))
    say(f"written to {root}/ablation.*")


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--seeds: {text!r} is not a whole number") from None


if __name__ == "__main__":
    app.run(main)
