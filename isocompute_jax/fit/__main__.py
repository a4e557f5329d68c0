"""Learning curves in, compute-optimal allocation out.

    python -m isocompute_jax.fit --runs=DIR[,DIR...] --out=DIR

Reads run directories (or long-form CSV / JSONL tables), averages the seeds of each configuration, fits a monotone curve to
each, takes their upper envelope, and writes which group size n is best at which compute: fits.csv, frontier.csv,
switches.csv, summary.json, figures/ and one self-contained report.html. A short table is printed.
"""

from __future__ import annotations

import os
import sys

from absl import app, flags

from isocompute_jax.fit.analysis import Options
from isocompute_jax.fit.outputs import REPORT, analyse, headline_table
from isocompute_jax.fit.summary import summarise
from isocompute_jax.records.errors import InputError

DEFAULTS = Options()
RUNS = flags.DEFINE_list(
    "runs", None, "Run directories, folders of them, or .csv / .jsonl tables; separated by commas."
)
OUT = flags.DEFINE_string("out", None, "Directory to write into; made if it does not exist.")
METRIC = flags.DEFINE_string("metric", DEFAULTS.metric, "Column to optimise, in [0, 1]; best@k and worst@k come along.")
EVAL_SET = flags.DEFINE_string("eval_set", DEFAULTS.eval_set, "Evaluation set whose rows are used.")
RECORDS = flags.DEFINE_enum(
    "records", DEFAULTS.records, ["strict", "bucketed", "off"],
    "Evaluations that are fitted: those above every earlier one (strict), those in a higher bin than every earlier one "
    "(bucketed), or all (off). The summary shows the switch points of each choice.",
)  # fmt: skip
BIN_WIDTH = flags.DEFINE_float("bin_width", DEFAULTS.bin_width, "Bin of --records=bucketed, in units of reward.")
WINDOW = flags.DEFINE_integer(
    "window", DEFAULTS.window, "Running average of n*(C) over so many budgets; odd, 1 for none."
)
TITLE = flags.DEFINE_string("title", DEFAULTS.title, "Heading of the report.")


def main(argv: list[str]) -> None:
    """Flags to one call."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}; did you mean --runs={argv[1]}?")
    try:
        options = Options(
            metric=METRIC.value,
            eval_set=EVAL_SET.value,
            records=RECORDS.value,
            bin_width=BIN_WIDTH.value,
            window=WINDOW.value,
            title=TITLE.value,
        )
        analysis = analyse(RUNS.value, OUT.value, options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    for warning in analysis.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(headline_table(summarise(analysis)))
    print(f"\nreport: {os.path.join(OUT.value, REPORT)}")


def run() -> None:
    """Entry point: `--runs` and `--out` are required."""
    flags.mark_flags_as_required(["runs", "out"])
    app.run(main)


if __name__ == "__main__":
    run()
