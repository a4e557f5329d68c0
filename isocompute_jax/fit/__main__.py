"""`python -m isocompute_jax.fit`: learning curves in, how to spend a budget out.

    python -m isocompute_jax.fit --runs=DIR[,FILE,GLOB...] --out=DIR --budget=1e6

Reads run directories, and tables and logs of any framework (docs/strangers.md), fits one model to all runs, and answers
for each budget: which n, how many steps, what to expect, and what other choices cost. Writes summary.json, tables,
figures/ and one self-contained report.html; prints the answer, and with --tables the numbers behind it.

--analysis=model_size fits the law of reward against compute over model sizes, --analysis=chinchilla the pre-training
law.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import sys
import typing
from typing import Any

from absl import flags

from isocompute_jax import app
from isocompute_jax.compiling import use_compile_cache
from isocompute_jax.fit.laws import LawOptions
from isocompute_jax.fit.options import LEFT, AnalysisOptions
from isocompute_jax.fit.outputs import REPORT, analyse, write_law
from isocompute_jax.fit.read import ReadOptions
from isocompute_jax.options import define_flags, described, from_flags, numbers, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say


def main() -> None:
    """Analyses what the flags name, writes it, and prints the answer."""
    for flag in (RUNS, OUT):
        if not flag.value:
            raise InputError(f"--{flag.name} is missing: {VALUES[flag.name].help} See --help")
    _collect_seldom()
    command = from_flags(CommandOptions, VALUES)
    use_compile_cache(command.compile_cache)
    where = RUNS.value, OUT.value
    if ANALYSIS.value == "frontier":
        written = analyse(*where, options(), png=command.png)
    else:
        written = write_law(*where, read_options(), law_options(), png=command.png)
    if command.tables and written.tables:
        say(written.tables, end="\n\n")
    say(written.text)
    say(f"Report: {os.path.join(OUT.value, REPORT)}")


def _collect_seldom() -> None:
    """Raises the garbage collector's thresholds: nearly all objects are those of imports, which stay."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@described
@dataclasses.dataclass(frozen=True)
class CommandOptions:
    """Options of `python -m isocompute_jax.fit` beside those of the analysis."""

    tables: bool = option(
        False,
        "Print the numbers behind the answer, above it: every choice at each budget, curves, switches, and each note "
        "on the data. Without it they are in tables.txt and summary.json.",
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
    "Run directories, folders of them, tables or logs in any form of docs/strangers.md, globs; separated by commas.",
    flag_values=VALUES,
)
OUT = flags.DEFINE_string("out", "", "Directory to write into; made if it does not exist.", flag_values=VALUES)
ANALYSIS = flags.DEFINE_enum(
    "analysis",
    "frontier",
    ["frontier", "model_size", "model_size_data", "chinchilla"],
    "frontier: how to spend a budget. model_size: ln L = -k(N) ln X + E(N) over model sizes N, X in training FLOPs; "
    "model_size_data: over data. chinchilla: L = E + A/N^alpha + B/D^beta. L is 1 - metric, or a metric that is named "
    "a loss.",
    flag_values=VALUES,
)
define_flags(CommandOptions, VALUES)
define_flags(ReadOptions, VALUES)
define_flags(AnalysisOptions, VALUES)


def read_options() -> ReadOptions:
    """How inputs are read. The laws over compute are laws over tokens, so their runs need no rollouts."""
    law: dict[str, Any] = _metric()
    if ANALYSIS.value in ("model_size", "chinchilla") and not VALUES["compute"].present:
        law["compute"] = "tokens"
    if ANALYSIS.value == "chinchilla" and not VALUES["reward_range"].present:
        law["reward_range"] = (0.0, math.inf)
    return from_flags(ReadOptions, VALUES, **law)


def options() -> AnalysisOptions:
    """The options of --analysis=frontier."""
    return from_flags(AnalysisOptions, VALUES, read=read_options())


def law_options() -> LawOptions:
    """The options of the laws."""
    read = read_options()
    return LawOptions(
        analysis=typing.cast(typing.Any, ANALYSIS.value),
        metric=read.metric,
        eval_set=read.eval_set,
        reward_range=read.reward_range,
        budgets=numbers("--budget", VALUES["budget"].value or []),
    )


def _metric() -> dict[str, Any]:
    """The metric where it is not the flag's: chinchilla's is the loss unless another one is asked for."""
    return {"metric": "loss"} if ANALYSIS.value == "chinchilla" and not VALUES["metric"].present else {}


def refuse_left(arguments: list[str]) -> None:
    """Names the successor of a flag that is no more.

    Raises:
      InputError: one of the arguments is such a flag.
    """
    for argument in arguments:
        name = argument.removeprefix("-").removeprefix("-").partition("=")[0]
        for form in (name, name.removeprefix("no")):
            if argument.startswith("-") and form in LEFT:
                raise InputError(f"--{form} is no flag any more: {LEFT[form]}")


def register() -> None:
    """Makes these the flags of the program that is running, and lists them in its --help."""
    flags.FLAGS.append_flag_values(VALUES)
    for name in VALUES:
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], VALUES[name])
    VALUES.mark_as_parsed()  # the program parses its own flags, and the values are shared


if __name__ == "__main__":
    register()
    if code := app.exit_code(lambda: refuse_left(sys.argv[1:])):
        sys.exit(code)
    app.run(main)
