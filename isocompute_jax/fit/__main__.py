"""`python -m isocompute_jax.fit`: learning curves in, compute-optimal allocation out.

    python -m isocompute_jax.fit --runs=DIR[,FILE,GLOB...] --out=DIR

Reads run directories and CSV, JSONL or Parquet tables of any framework (--columns=theirs:ours), averages the seeds of
each configuration, fits a monotone curve to each with its uncertainty, takes their upper envelope, and writes which
group size n is best at which compute: summary.json, ranges.csv, fits.csv, frontier.csv, switches.csv, allocation.csv,
ties.csv, figures/ and one self-contained report.html. The answer is printed, ten lines, and with --tables what it rests
on. --budget=1e6 recommends how to spend a budget.

--analysis=model_size fits the law of reward against compute over model sizes, --analysis=chinchilla the pre-training
law.
"""

from __future__ import annotations

import gc
import os
import sys

from isocompute_jax import app
from isocompute_jax.compiling import use_compile_cache
from isocompute_jax.fit import flags
from isocompute_jax.fit.curves.seeds import ENDED_EARLY
from isocompute_jax.fit.outputs import REPORT, SUMMARY, analyse, analyse_law
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say

MOST_NAMED = 3
"""Runs that ended early are named on stderr, whatever else there is to remark; so many of them."""


def main() -> None:
    """Flags -> one call."""
    for flag in (flags.RUNS, flags.OUT):
        if not flag.value:
            raise InputError(f"--{flag.name} is missing: {flags.VALUES[flag.name].help} See --help")
    _collect_seldom()
    command = flags.command_options()
    use_compile_cache(command.compile_cache)
    where = flags.RUNS.value, flags.OUT.value
    if flags.ANALYSIS.value == "frontier":
        result = analyse(*where, flags.options(), png=command.png, progress=True)
    else:
        result = analyse_law(*where, flags.read_options(), flags.law_options(), png=command.png, progress=True)
    warnings, out = result.summary["warnings"], flags.OUT.value
    if len(warnings) > 1 and not command.tables:
        early = [warning for warning in warnings if ENDED_EARLY in warning][:MOST_NAMED]
        warnings = [
            *early,
            f"{len(warnings)} remarks on the data: in {os.path.join(out, SUMMARY)}, or printed by --tables",
        ]
    for warning in warnings:
        say(f"warning: {warning}", file=sys.stderr)
    if command.tables and result.tables:
        say(result.tables, end="\n\n")
    say(result.text)
    say(f"Report: {os.path.join(out, REPORT)}")


def _collect_seldom() -> None:
    """Most objects are those of the imports, and stay: to look through them again and again takes a tenth of a run."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


if __name__ == "__main__":
    flags.register()
    app.run(main)
