"""What an analysis of a sweep leaves to its user; every check names the flag at fault."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.forms import FORMS, FormName
from isocompute_jax.fit.curves.scalerl import Grid
from isocompute_jax.fit.read import ReadOptions
from isocompute_jax.options import check, described, named_numbers, number, numbers, option, pair
from isocompute_jax.records.errors import InputError

_DRAWS = "intervals are those of the model's draws"
_CURVES = "`fit_curves` of isocompute_jax.fit has it as an option"
_RATE = "the learning rate is that of the runs: give its column as --columns=THEIRS:learning_rate"
_NOISE = "the noise of evaluations is estimated"
_LAW = "the laws take every run and hold out the largest model"
LEFT = {
    "records": "record-breaking evaluations are drawn in the report's section As in the paper (--bin_width)",
    "falls": "the answer follows falls as they are",
    "outliers": _NOISE,
    "forecast": "every answer is a statistic of one model's draws",
    "smoothing": "n*(C) is read off the draws",
    "holdout": "`held_out_quarter` of isocompute_jax.fit predicts the top quarter",
    "bounds": "--fix holds parameters; `fit_curves` of isocompute_jax.fit takes bounds",
    "r0": "--fix=R0=VALUE holds the floor",
    "targets": "best@k and worst@k come along with avg@k; fit others by --metric",
    "x": "--analysis=model_size_data is the law over data",
    "law_loss": "a metric with `loss` in its name is the loss itself",
    "predict_params": "the laws' table has k(N) of every model that was run",
    "flops": "--budget gives the budgets of --analysis=chinchilla",
    **dict.fromkeys(("bootstrap", "replicates", "seed"), _DRAWS),
    **dict.fromkeys(("loss", "huber_delta", "tolerance"), _CURVES),
    **dict.fromkeys(("base_lr", "base_batch", "lr_exponent"), _RATE),
    **dict.fromkeys(("stderr_column", "evaluation_samples"), _NOISE),
    **dict.fromkeys(("weights", "held_out_models", "anchors", "most_reuse", "points"), _LAW),
}
"""Flags of earlier versions, and what to use in their place."""


def _grid(flag: str, text: str) -> Grid:
    parts = text.split(":")
    if len(parts) != 3:
        raise InputError(f"{flag}={text} must be from:to:by, e.g. {flag}=0.45:0.8:0.005")
    return Grid(*(number(flag, part) for part in parts))


@described
@dataclasses.dataclass(frozen=True)
class AnalysisOptions:
    """Options of `analyze` and of `--analysis=frontier`; the last five are of the section As in the paper alone."""

    read: ReadOptions = option(help="How inputs are read.", default_factory=ReadOptions, flag=None)
    budgets: tuple[float, ...] = option(
        (), "Compute to answer for, as 1e6,4M; without it the end of the data.", above=0, flag="budget", parse=numbers
    )
    next: int = option(
        0,
        "Propose this many further runs: those that lower the expected loss at the largest --budget most for their "
        "compute; without --budget, at the end of the data.",
        low=0,
    )
    title: str = option("How many rollouts per problem?", "Heading of the report.")
    form: FormName = option("hill", "; ".join(f"{form.name}: {form.equation}" for form in FORMS.values()))
    fix: Mapping[str, float] = option(
        help="Parameters of the curves held at a value, by symbol or name: --fix=A=0.61,B=1.",
        default_factory=dict,
        parse=named_numbers,
    )
    window: tuple[float, float] | None = option(
        None, "Least and largest compute that curves are fitted to: --window=1500,50000.", finite=False, parse=pair
    )
    bin_width: float = option(
        0.0,
        "Width of the bins in which a record-breaking evaluation must be a new high, a share of the range; 0: any.",
        low=0,
        below=1,
    )
    grid: Grid | None = option(None, "Run ScaleRL's grid procedure too: A from:to:by, as 0.45:0.8:0.005.", parse=_grid)

    def __post_init__(self) -> None:
        check(self, "--")
        if not math.isfinite(self.read.reward_range[0] + self.read.reward_range[1]):
            raise InputError("--reward_range must be finite for learning curves: rewards are counted as shares of it")
        _ = self.fit

    @property
    def metric(self) -> str:
        """The column that is optimised."""
        return self.read.metric

    @property
    def width(self) -> float:
        """Width of the range of rewards, of which 0.01 is what a verdict calls a difference."""
        low, high = self.read.reward_range
        return high - low

    @property
    def fit(self) -> FitOptions:
        """How the curves of the section As in the paper are fitted."""
        return FitOptions(form=self.form, fix=self.fix, window=self.window, reward_range=self.read.reward_range)

    def flags(self) -> dict[str, Any]:
        """Everything as one flat mapping, named like the flags."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        nested = dataclasses.asdict(own.pop("read"))
        own["grid"] = None if self.grid is None else dataclasses.asdict(self.grid)
        return nested | own
