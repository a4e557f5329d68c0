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

import dataclasses
import gc
import math
import os
import sys
from typing import Any

from absl import flags

from isocompute_jax import app
from isocompute_jax.compiling import use_compile_cache
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.seeds import ENDED_EARLY
from isocompute_jax.fit.frontier.recommendation import LearningRate
from isocompute_jax.fit.outputs import REPORT, SUMMARY, analyse
from isocompute_jax.fit.read import ReadOptions
from isocompute_jax.laws.analysis import LawOptions
from isocompute_jax.laws.report import write_law
from isocompute_jax.options import define_flags, described, from_flags, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say

MOST_NAMED = 3
"""Runs that ended early are named on stderr, whatever else there is to remark; so many of them."""


def main() -> None:
    """Flags -> one call."""
    for flag in (RUNS, OUT):
        if not flag.value:
            raise InputError(f"--{flag.name} is missing: {VALUES[flag.name].help} See --help")
    _collect_seldom()
    command = command_options()
    use_compile_cache(command.compile_cache)
    where = RUNS.value, OUT.value
    if ANALYSIS.value == "frontier":
        result = analyse(*where, options(), png=command.png, progress=True)
    else:
        result = write_law(*where, read_options(), law_options(), png=command.png, progress=True)
    warnings, out = result.summary["warnings"], OUT.value
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


@described
@dataclasses.dataclass(frozen=True)
class CommandOptions:
    """Options of `python -m isocompute_jax.fit` beside those of the analysis."""

    tables: bool = option(
        False,
        "Print what the answer rests on, above it: fits, switches, the law, runs to add, findings, and each warning. "
        "Without it they are in tables.txt and summary.json.",
        identity=False,
    )
    png: bool = option(False, "Write every picture as figures/NAME.png too, beside NAME.svg.", identity=False)
    compile_cache: str = option(
        "",
        "Directory that keeps compiled programs between calls; off: none. Left alone it is isocompute_jax/fit in "
        "XDG_CACHE_HOME or ~/.cache, or JAX_COMPILATION_CACHE_DIR where that is set.",
        identity=False,
    )


VALUES = flags.FlagValues()
"""The flags as a set of their own: importing this module adds none to a program; `register` does."""

RUNS = flags.DEFINE_list(
    "runs",
    [],
    "Run directories, folders of them, .csv / .jsonl / .parquet tables, or globs; separated by commas.",
    flag_values=VALUES,
)
OUT = flags.DEFINE_string("out", "", "Directory to write into; made if it does not exist.", flag_values=VALUES)
ANALYSIS = flags.DEFINE_enum(
    "analysis",
    "frontier",
    ["frontier", "model_size", "chinchilla"],
    "frontier: which n at which compute. model_size: ln L = -k(N) ln X + E(N) over model sizes N. chinchilla: "
    "L = E + A/N^alpha + B/D^beta.",
    flag_values=VALUES,
)
# Left alone, these two follow from the data: the runs' own learning rate, and what each law takes for its loss.
BASE_LR = flags.DEFINE_float(
    "base_lr",
    None,
    "Learning rate at --base_batch, for recommendations; else the runs' own, where they say it.",
    flag_values=VALUES,
)
LAW_LOSS = flags.DEFINE_enum(
    "law_loss",
    None,
    ["one_minus_metric", "metric"],
    "What L is in a law: 1 - metric (model_size), or the metric itself (chinchilla).",
    flag_values=VALUES,
)
define_flags(CommandOptions, VALUES)
define_flags(ReadOptions, VALUES)
define_flags(FitOptions, VALUES, leave_out=("reward_range",))
define_flags(AnalysisOptions, VALUES)
define_flags(LearningRate, VALUES, leave_out=("base_lr",))
SHARED = ("metric", "eval_set", "holdout", "resamples", "seed", "title")
"""Fields of the laws' options whose flags the other classes define."""
define_flags(LawOptions, VALUES, leave_out=(*SHARED, "loss"))


def command_options() -> CommandOptions:
    """How the command runs and what it writes."""
    return from_flags(CommandOptions, VALUES)


def read_options() -> ReadOptions:
    """How inputs are read. The laws over compute are laws over tokens, so their runs need no rollouts."""
    chinchilla = ANALYSIS.value == "chinchilla"
    by_tokens = chinchilla or (ANALYSIS.value == "model_size" and VALUES["x"].value == "compute")
    law: dict[str, Any] = {"single_points": chinchilla} | _metric()
    if by_tokens and not VALUES["compute"].present:
        law["compute"] = "tokens"
    if chinchilla and LAW_LOSS.value != "one_minus_metric" and not VALUES["reward_range"].present:
        law["reward_range"] = (0.0, math.inf)
    return from_flags(ReadOptions, VALUES, **law)


def options() -> AnalysisOptions:
    """The options of --analysis=frontier."""
    read, rate = read_options(), None
    if BASE_LR.value is not None:
        rate = from_flags(LearningRate, VALUES, base_lr=BASE_LR.value, source="that of --base_lr")
    form = VALUES["form"].value
    fit = from_flags(FitOptions, VALUES, reward_range=read.reward_range, form="hill" if form == "auto" else form)
    return from_flags(AnalysisOptions, VALUES, read=read, fit=fit, learning_rate=rate)


def law_options() -> LawOptions:
    """The options of --analysis=model_size and --analysis=chinchilla."""
    law = {"reward_range": read_options().reward_range} | _metric()
    if LAW_LOSS.value or ANALYSIS.value == "chinchilla":
        law["loss"] = LAW_LOSS.value or "metric"
    return from_flags(LawOptions, VALUES, analysis=ANALYSIS.value, **law)


def _metric() -> dict[str, Any]:
    """The metric where it is not the flag's: chinchilla's is the loss unless another one is asked for."""
    return {"metric": "loss"} if ANALYSIS.value == "chinchilla" and not VALUES["metric"].present else {}


def register() -> None:
    """Makes these the flags of the program that is running, and lists them in its --help."""
    flags.FLAGS.append_flag_values(VALUES)
    for name in VALUES:
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], VALUES[name])
    VALUES.mark_as_parsed()  # the program parses its own flags, and the values are shared


if __name__ == "__main__":
    register()
    app.run(main)
