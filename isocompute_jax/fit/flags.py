"""The flags of `python -m isocompute_jax.fit`, and the options that they spell."""

from __future__ import annotations

import functools
import math
import sys
import typing
from collections.abc import Sequence
from typing import Any

from absl import flags

from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.fit_options import FitOptions, Loss
from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.curves.points_to_fit import Records
from isocompute_jax.fit.curves.scalerl import Grid
from isocompute_jax.fit.frontier.bootstrap import Resampling
from isocompute_jax.fit.frontier.recommendation import LearningRate
from isocompute_jax.fit.laws.options import LawOptions
from isocompute_jax.fit.read import ReadOptions, parse_columns
from isocompute_jax.fit.read.read_options import Unit
from isocompute_jax.records.errors import InputError

VALUES = flags.FlagValues()
"""The flags as a set of their own: importing this module adds none to a program; `register` does."""

_string = functools.partial(flags.DEFINE_string, flag_values=VALUES)
_list = functools.partial(flags.DEFINE_list, flag_values=VALUES)
_enum = functools.partial(flags.DEFINE_enum, flag_values=VALUES)
_float = functools.partial(flags.DEFINE_float, flag_values=VALUES)
_integer = functools.partial(flags.DEFINE_integer, flag_values=VALUES)
_bool = functools.partial(flags.DEFINE_bool, flag_values=VALUES)

EXPONENTS = {"k": "e3", "M": "e6", "B": "e9"}

READ, FIT, OWN, LAW, RATE = ReadOptions(), FitOptions(), AnalysisOptions(), LawOptions(), LearningRate()

RUNS = _list(
    "runs", [], "Run directories, folders of them, .csv / .jsonl / .parquet tables, or globs; separated by commas."
)
OUT = _string("out", "", "Directory to write into; made if it does not exist.")
ANALYSIS = _enum(
    "analysis",
    "frontier",
    ["frontier", "model_size", "chinchilla"],
    "frontier: which n at which compute. model_size: ln L = -k(N) ln X + E(N) over model sizes N. chinchilla: "
    "L = E + A/N^alpha + B/D^beta.",
)
TITLE = _string("title", "", "Heading of the report.")

# Inputs.
METRIC = _string(
    "metric", READ.metric, "Column to optimise; best@k and worst@k come along with avg@k. chinchilla: loss."
)
TARGETS = _list("targets", [], "Further columns to find the best n for, in the same range as the metric.")
EVAL_SET = _string("eval_set", READ.eval_set, "Evaluation set whose rows are used, where rows name one.")
COLUMNS = _list(
    "columns",
    [],
    "theirs:ours,... renames columns, e.g. --columns=train/global_step:step,val/acc:avg@4. Ours are run, step, "
    "compute, tokens, gpu_hours, group_size, problems_per_batch, seed, problem_set_size, model_params and metrics.",
)
COMPUTE = _enum(
    "compute",
    READ.compute,
    typing.get_args(Unit),
    "Unit of compute. Rollouts are taken from the column compute, else from step x problems_per_batch x group_size; "
    "steps need neither. Laws over compute read tokens unless this is given.",
)
RUN_PATTERN = _string(
    "run_pattern",
    "",
    r"Regular expression that finds facts in run names: --run_pattern='n(?P<group_size>\d+)-s(?P<seed>\d+)'.",
)
CONSTANTS = _list("constants", [], "Facts that the tables leave out: --constants=problems_per_batch=32.")
REWARD_RANGE = _list("reward_range", ["0", "1"], "Least and largest possible reward, e.g. -1,1.")
STRICT = _bool("strict", False, "Any finding about the input (a bad row, a duplicate) ends the program.")

# Curves.
FORM = _enum(
    "form", FIT.form, list(FORMS), "Form of all curves: " + "; ".join(f"{f.name}: {f.equation}" for f in FORMS.values())
)
RECORDS = _enum(
    "records",
    OWN.records,
    typing.get_args(Records),
    "Evaluations that are fitted: those above every earlier one (strict), those in a higher bin than every earlier one "
    "(bucketed), or all (off: intervals are calibrated for this). The report shows the switch points of each choice.",
)
BIN_WIDTH = _float("bin_width", OWN.bin_width, "Bin of --records=bucketed, in units of reward.")
LOSS = _enum("loss", FIT.loss, typing.get_args(Loss), "Least squares, or Huber's loss against outliers.")
HUBER_DELTA = _float("huber_delta", FIT.huber_delta, "Residual from which Huber's loss is linear.")
FIX = _list("fix", [], "Parameters held at a value, by symbol or name: --fix=A=0.61,B=1.")
BOUNDS = _list("bounds", [], "Parameters held between two values: --bounds=A=0.5:0.9,B=0.3:3.")
R0 = _string("r0", "free", "Floor: free, first (each curve's first reward), or a value.")
WINDOW = _list("window", [], "Least and largest compute that is fitted: --window=1500,50000.")
TOLERANCE = _float("tolerance", FIT.tolerance, "A counts as identified when its 95% interval is no wider than +- this.")
STDERR_COLUMN = _string("stderr_column", "", "Column with each evaluation's standard error, for weights.")
EVALUATION_SAMPLES = _integer(
    "evaluation_samples", 0, "Samples behind an evaluation (k x problems), for binomial weights; 0: equal weights."
)
GRID = _string("grid", "", "Run ScaleRL's grid procedure beside the fit: A from:to:by, as 0.45:0.8:0.005.")
HOLDOUT = _float(
    "holdout",
    OWN.holdout,
    "Fit the first part of each curve and score the rest: a share of its compute, or a compute; 0: off. For laws: the "
    "share of each run's evaluations that is predicted.",
)

# Frontier and allocation.
SMOOTHING = _integer("smoothing", OWN.smoothing, "Running average of n*(C) over so many budgets; odd.")
BOOTSTRAP = _enum(
    "bootstrap",
    OWN.bootstrap,
    typing.get_args(Resampling),
    "Intervals of switch points and n*(C) by drawing seeds again (runs), blocks of neighbouring residuals (blocks), or "
    "seeds where there are at least five of each (auto).",
)
REPLICATES = _integer("replicates", OWN.replicates, "Bootstrap replicates.")
SEED = _integer("seed", OWN.seed, "Seed of the bootstrap.")
BUDGET = _list("budget", [], "Compute to recommend an allocation for: --budget=1e6,4M.")
BASE_LR = _float(
    "base_lr", None, f"Learning rate at --base_batch, for recommendations; else the runs' own, else {RATE.base_lr:g}."
)
BASE_BATCH = _float("base_batch", RATE.base_batch, "Rollouts per step that --base_lr is for.")
LR_EXPONENT = _float("lr_exponent", RATE.exponent, "Learning rate = base_lr x (B / base_batch)^this.")

# Laws.
LAW_LOSS = _enum(
    "law_loss", None, ["one_minus_metric", "metric"],
    "What L is in a law: 1 - metric (model_size), or the metric itself (chinchilla).")  # fmt: skip
X = _enum("x", LAW.x, ["compute", "data"], "Resource of model_size: compute (6 N tokens) or data.")
WEIGHTS = _enum("weights", LAW.weights, ["points", "models"], "What model_size counts alike.")
HELD_OUT_MODELS = _integer("held_out_models", LAW.held_out_models, "Largest models predicted from smaller.")
ANCHORS = _integer("anchors", LAW.anchors, "First evaluations that set a held-out model's level.")
PREDICT_PARAMS = _list("predict_params", [], "Model sizes to predict k(N) for: --predict_params=7e9,70e9.")
MOST_REUSE = _float("most_reuse", LAW.most_reuse, "Epochs above which problems count as much reused.")
POINTS = _enum("points", LAW.points, ["last", "all"], "Rows of each run that chinchilla fits.")
FLOPS = _list("flops", [], "Budgets C = 6 N D to give the optimal N and D for: --flops=1e21,1e23.")


def register() -> None:
    """Makes these the flags of the program that is running, and lists them in its --help."""
    flags.FLAGS.append_flag_values(VALUES)
    for name in VALUES:
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], VALUES[name])
    VALUES.mark_as_parsed()  # the program parses its own flags, and the values are shared


def read_options() -> ReadOptions:
    """How inputs are read. The laws over compute are laws over tokens, so their runs need no rollouts."""
    chinchilla = ANALYSIS.value == "chinchilla"
    by_tokens = chinchilla or (ANALYSIS.value == "model_size" and X.value == "compute")
    compute = "tokens" if by_tokens and not VALUES["compute"].present else COMPUTE.value
    ends = ["0", "inf"] if chinchilla and not VALUES["reward_range"].present else REWARD_RANGE.value
    return ReadOptions(
        metric=_metric(),
        eval_set=EVAL_SET.value,
        columns=parse_columns(COLUMNS.value),
        compute=typing.cast(Unit, compute),
        single_points=chinchilla,
        reward_range=_pair("reward_range", ends),
        run_pattern=RUN_PATTERN.value,
        constants=_named("constants", CONSTANTS.value),
        strict=STRICT.value,
    )


def options() -> AnalysisOptions:
    """The options of --analysis=frontier."""
    bounds = {name: _pair("bounds", text.split(":")) for name, text in _split("bounds", BOUNDS.value).items()}
    rate = None
    if BASE_LR.value is not None:
        rate = LearningRate(BASE_LR.value, BASE_BATCH.value, LR_EXPONENT.value, "that of --base_lr")
    own: dict[str, Any] = {"title": TITLE.value} if TITLE.value else {}
    return AnalysisOptions(
        read=read_options(),
        fit=FitOptions(
            form=FORM.value,
            loss=typing.cast(Loss, LOSS.value),
            huber_delta=HUBER_DELTA.value,
            fix=_named("fix", FIX.value),
            bounds=bounds,
            r0=R0.value if R0.value in ("free", "first") else _number("r0", R0.value),
            reward_range=_pair("reward_range", REWARD_RANGE.value),
            window=_pair("window", WINDOW.value) if WINDOW.value else None,
            tolerance=TOLERANCE.value,
        ),
        targets=tuple(TARGETS.value),
        records=typing.cast(Records, RECORDS.value),
        bin_width=BIN_WIDTH.value,
        smoothing=SMOOTHING.value,
        stderr_column=STDERR_COLUMN.value,
        evaluation_samples=EVALUATION_SAMPLES.value,
        bootstrap=typing.cast(Resampling, BOOTSTRAP.value),
        replicates=REPLICATES.value,
        seed=SEED.value,
        holdout=HOLDOUT.value,
        grid=_grid(GRID.value) if GRID.value else None,
        budgets=tuple(_number("budget", text) for text in BUDGET.value),
        learning_rate=rate,
        **own,
    )


def law_options() -> LawOptions:
    """The options of --analysis=model_size and --analysis=chinchilla."""
    chinchilla = ANALYSIS.value == "chinchilla"
    choices: dict[str, Any] = {  # absl holds enums to their values
        "analysis": ANALYSIS.value,
        "loss": LAW_LOSS.value or ("metric" if chinchilla else LAW.loss),
        "x": X.value,
        "weights": WEIGHTS.value,
        "points": POINTS.value,
    }
    return LawOptions(
        **choices,
        metric=_metric(),
        eval_set=EVAL_SET.value,
        holdout=HOLDOUT.value,
        held_out_models=HELD_OUT_MODELS.value,
        anchors=ANCHORS.value,
        predict_params=tuple(_number("predict_params", text) for text in PREDICT_PARAMS.value),
        most_reuse=MOST_REUSE.value,
        flops=tuple(_number("flops", text) for text in FLOPS.value),
        resamples=REPLICATES.value,
        seed=SEED.value,
        title=TITLE.value,
    )


def _metric() -> str:
    """The metric; chinchilla's is the loss unless another one is asked for."""
    return "loss" if ANALYSIS.value == "chinchilla" and not VALUES["metric"].present else METRIC.value


def _number(flag: str, text: str) -> float:
    """A number, which may end in k, M or B: `1.5M` is 1.5e6."""
    exponent = EXPONENTS.get(text[-1:], "")
    try:
        value = float(text[:-1] + exponent if exponent else text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise InputError(f"--{flag}: {text!r} is not a number")
    return value


def _pair(flag: str, texts: Sequence[str]) -> tuple[float, float]:
    if len(texts) != 2:
        raise InputError(f"--{flag} takes two numbers, not {len(texts)}")
    return _number(flag, texts[0]), _number(flag, texts[1])


def _split(flag: str, items: Sequence[str]) -> dict[str, str]:
    """name=value items as a mapping."""
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = (part.strip() for part in item.partition("="))
        if not (name and equals and value) or name in found:
            raise InputError(f"--{flag}: {item!r} is not of the form name=value, each name once")
        found[name] = value
    return found


def _named(flag: str, items: Sequence[str]) -> dict[str, float]:
    return {name: _number(flag, text) for name, text in _split(flag, items).items()}


def _grid(text: str) -> Grid:
    parts = text.split(":")
    if len(parts) != 3:
        raise InputError(f"--grid={text} must be from:to:by, e.g. --grid=0.45:0.8:0.005")
    return Grid(*(_number("grid", part) for part in parts))
