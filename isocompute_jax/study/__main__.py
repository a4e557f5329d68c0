"""`python -m isocompute_jax.study`: the whole playbook in one command.

    python -m isocompute_jax.study --preset=quick --workdir=runs/study-quick

Makes a base model, measures and cuts problem sets, trains over a grid of rollouts per problem, fits the frontier and
writes report.html. Interrupted (Ctrl-C), the same command goes on where it was; finished, it does nothing again.
"""

from __future__ import annotations

import os

from absl import flags

from isocompute_jax import app

PRESET = flags.DEFINE_enum(
    "preset",
    "quick",
    ["smoke", "quick", "full"],
    "smoke: a minute, to see that everything works. quick: the main question, n*(C) on Hard problems, a quarter of an "
    "hour on two cores. full: Easy, mixtures, fixed B, everything free, small problem sets, learning-rate rules.",
)
WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the study; default runs/study-PRESET.")
WORKERS = flags.DEFINE_integer("workers", 0, "Training runs at a time; 0 for one per core.", lower_bound=0)


def main() -> None:
    """Flags -> one call."""
    root = WORKDIR.value or f"runs/study-{PRESET.value}"
    # One process per core does the heavy work; a compile cache serves them all, and the next start.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.abspath(os.path.join(root, "compile-cache")))

    from isocompute_jax.fit.terminal import headline_table
    from isocompute_jax.study.presets import PRESETS
    from isocompute_jax.study.report import summary_of
    from isocompute_jax.study.stages import run_study

    for report in run_study(PRESETS[PRESET.value], root, workers=WORKERS.value or None):
        summary = summary_of(report)
        print(f"\n{summary['flags']['title']}\n")
        print(headline_table(summary))
        print(f"\nReport: {report}")


if __name__ == "__main__":
    app.run(main)
