"""`python -m isocompute_jax.interference`: how the policy gradients of different problems align.

    python -m isocompute_jax.interference --run=runs/hard
    python -m isocompute_jax.interference --run=runs/hard --model=models/hard-400 --problems=easy.jsonl --out=easy-400

The first takes the weights at the end of a run (of any checkpoint: `python -m isocompute_jax.export` first) and
problems of its training set. Sampling, rewards, credit and loss are those of the run. Writes interference.json (mean
cosines among solved problems, among unsolved ones and between them, with standard errors), interference.npz and a
picture.
"""

from __future__ import annotations

import pathlib

from absl import flags

from isocompute_jax import app
from isocompute_jax.compiling import HELP, use_training_cache
from isocompute_jax.drivers import check_driver_for_jax
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say

with app.imports():
    from isocompute_jax.experiment.interference import InterferenceConfig

RUN = flags.DEFINE_string("run", None, "Run directory, whose config.json says how it samples and what it minimises.")
TRUST_CONFIG = flags.DEFINE_bool(
    "trust_config",
    False,
    "Follow the run's config.json also where it names functions, addresses, and variables that hold secrets: only one "
    "that you know (docs/trust.md).",
)
MODEL = flags.DEFINE_string(
    "model", None, "Hugging Face directory of the weights; left out, RUN/model, those at the end of the run."
)
PROBLEMS = flags.DEFINE_string("problems", None, "Problem set; left out, the run's training set.")
OUT = flags.DEFINE_string(
    "out", None, "Directory to write to; left out, RUN/interference, where `fit` reads it for the report of the sweep."
)
COMPILE_CACHE = flags.DEFINE_string("compile_cache", "", HELP)
define_flags(InterferenceConfig)


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.experiment.config import check_trusted, read_resolved
    from isocompute_jax.experiment.interference import measure_interference
    from isocompute_jax.records import interference_files, run_files

    run = pathlib.Path(app.needed(RUN, "name a run directory"))
    if not OUT.value and (MODEL.value or PROBLEMS.value):
        raise InputError("--out is missing: RUN/interference is for a run's own weights and problems")
    out = pathlib.Path(OUT.value or run / interference_files.DIRECTORY)
    run_files.check_links(run)
    config = read_resolved(run / run_files.CONFIG, "--run")
    if not TRUST_CONFIG.value:
        check_trusted(config, run / run_files.CONFIG)
    weights = pathlib.Path(MODEL.value) if MODEL.value else run / run_files.MODEL
    if not weights.is_dir():
        raise InputError(f"--model: {weights} is no directory: the run has not ended, or name one that `export` wrote")
    options = from_flags(InterferenceConfig)
    check_driver_for_jax()
    use_training_cache(COMPILE_CACHE.value)
    found = measure_interference(config, weights, PROBLEMS.value or config.train_set, out, options)
    say(f"{len(found.problems)} problems, {found.with_signal.sum()} with signal")
    for name, mean in found.means.items():
        say(f"{name:>10}: mean cosine {mean.cosine:.3f} ± {mean.stderr:.3f} (standard error, {mean.pairs} pairs)")
    say(f"written to {out}")


if __name__ == "__main__":
    app.run(main)
