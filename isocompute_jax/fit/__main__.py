"""Learning curves in, compute-optimal allocation out.

    python -m isocompute_jax.fit --runs=DIR[,DIR...] --out=DIR

Reads run directories (or long-form CSV / JSONL tables), averages the seeds of each configuration, fits a monotone
curve to each, takes their upper envelope, and writes which group size n is best at which compute: fits.csv,
frontier.csv, switches.csv, summary.json, figures/ and one self-contained report.html. A short table is printed.
"""

from __future__ import annotations

import os
import sys
import typing

from absl import flags

from isocompute_jax import app
from isocompute_jax.fit.analysis import Options
from isocompute_jax.fit.curves import Records
from isocompute_jax.fit.outputs import REPORT, analyse, headline_table
from isocompute_jax.fit.summary import summarise
from isocompute_jax.records.errors import InputError

DEFAULTS = Options()
RUNS = flags.DEFINE_list("runs", [], "Run directories, folders of them, or .csv / .jsonl tables; separated by commas.")
OUT = flags.DEFINE_string("out", "", "Directory to write into; made if it does not exist.")
METRIC = flags.DEFINE_string("metric", DEFAULTS.metric, "Column to optimise, in [0, 1]; best@k and worst@k come along.")
EVAL_SET = flags.DEFINE_string("eval_set", DEFAULTS.eval_set, "Evaluation set whose rows are used.")
RECORDS = flags.DEFINE_enum(
    "records",
    DEFAULTS.records,
    typing.get_args(Records),
    "Evaluations that are fitted: those above every earlier one (strict), those in a higher bin than every earlier one "
    "(bucketed), or all (off). The summary shows the switch points of each choice.",
)
BIN_WIDTH = flags.DEFINE_float("bin_width", DEFAULTS.bin_width, "Bin of --records=bucketed, in units of reward.")
WINDOW = flags.DEFINE_integer("window", DEFAULTS.window, "Running average of n*(C) over so many budgets; odd.")
TITLE = flags.DEFINE_string("title", DEFAULTS.title, "Heading of the report.")


def main() -> None:
    """Flags -> one call."""
    for flag in (RUNS, OUT):
        if not flag.value:
            raise InputError(f"--{flag.name} is missing; see --help")
    options = Options(
        metric=METRIC.value,
        eval_set=EVAL_SET.value,
        records=typing.cast(Records, RECORDS.value),
        bin_width=BIN_WIDTH.value,
        window=WINDOW.value,
        title=TITLE.value,
    )
    analysis = analyse(RUNS.value, OUT.value, options)
    for warning in analysis.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(headline_table(summarise(analysis)))
    print(f"\nreport: {os.path.join(OUT.value, REPORT)}")


if __name__ == "__main__":
    app.run(main)
