"""What an analysis of learning curves leaves to its user; every check names the flag at fault."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from isocompute_jax.fit.curves.diagnostics import Grid
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.forms import FORMS, FormName
from isocompute_jax.fit.curves.screening import Falls, Outliers, Records
from isocompute_jax.fit.frontier.bootstrap import Resampling
from isocompute_jax.fit.frontier.recommendation import LearningRate
from isocompute_jax.fit.read import ReadOptions
from isocompute_jax.options import check, described, number, numbers, option
from isocompute_jax.records.errors import InputError

Beyond = Literal["average", "form"]
FormOption = Literal["auto", FormName]


def _grid(flag: str, text: str) -> Grid:
    parts = text.split(":")
    if len(parts) != 3:
        raise InputError(f"{flag}={text} must be from:to:by, e.g. {flag}=0.45:0.8:0.005")
    return Grid(*(number(flag, part) for part in parts))


@described
@dataclasses.dataclass(frozen=True)
class AnalysisOptions:
    """Options of `--analysis=frontier`; rewards of `fit` have the range of those of `read`."""

    read: ReadOptions = option(help="How inputs are read.", default_factory=ReadOptions, flag=None)
    fit: FitOptions = option(help="How curves are fitted.", default_factory=FitOptions, flag=None)
    form: FormOption = option(
        "auto",
        "Form of all curves; auto: answers average all forms by how well they fit, and curves, switches and tables "
        "have Hill's, or that which fits the whole sweep clearly better. "
        + "; ".join(f"{form.name}: {form.equation}" for form in FORMS.values()),
    )
    targets: tuple[str, ...] = option(
        (), "Further columns to find the best n for, beside avg@k, best@k and worst@k; in the same range as the metric."
    )
    records: Records = option(
        "off",
        "Evaluations that are fitted: all (off: intervals are calibrated for this), those above every earlier one "
        "(strict, as in IsoCompute), or those in a higher bin than every earlier one (bucketed). The report shows the "
        "switch points of each choice, and the answer says where all and strict disagree on it.",
    )
    bin_width: float = option(0.0, "Bin of --records=bucketed, as a share of the width of --reward_range.")
    falls: Falls = option(
        "end",
        "Curves whose late evaluations lie clearly below an earlier stretch (one-sided test, 1%) end at their peak, or "
        "keep what comes after it.",
    )
    outliers: Outliers = option(
        "name",
        "Single evaluations far from the curve through all others, at most a tenth of them, are named and left out, or "
        "kept.",
    )
    forecast: Beyond = option(
        "average",
        "What answers rest on: draws of all curves, the forms of --form averaged and neighbouring n alike (average), "
        "or the fitted curves, each carried on to at most twice its data (form). --fix, --bounds, --r0 and "
        "--records=strict or bucketed imply form.",
    )
    smoothing: int = option(3, "Running average of n*(C) over so many budgets; odd.")
    stderr_column: str = option("", "Column with each evaluation's standard error, for weights.")
    evaluation_samples: int = option(
        0, "Samples behind an evaluation (k x problems), for binomial weights; 0: equal weights.", low=0
    )
    bootstrap: Resampling = option(
        "auto",
        "Intervals of switch points, n*(C) and rewards by drawing new noise around the fitted curves, with the "
        "correlation and the differences that the seeds show (noise, which auto is), seeds again (runs), or blocks of "
        "neighbouring residuals (blocks).",
    )
    replicates: int = option(200, "Bootstrap replicates.", low=0)
    seed: int = option(0, "Seed of the bootstrap.", low=0)
    holdout: float = option(
        0.5,
        "Fit the first part of each curve and score the rest: a share of its log compute, or a compute; 0: off. For "
        "laws: the share of each run's evaluations that is predicted.",
    )
    grid: Grid | None = option(
        None, "Run ScaleRL's grid procedure beside the fit: A from:to:by, as 0.45:0.8:0.005.", parse=_grid
    )
    budgets: tuple[float, ...] = option(
        (), "Compute to recommend an allocation for: --budget=1e6,4M.", flag="budget", parse=numbers
    )
    next: int = option(
        0,
        "Propose so many further runs (n, B_problem, compute, seeds): those that reduce the expected regret at "
        "--budget most for what they cost (rollouts, or GPU-hours); without --budget, at four times the data.",
        low=0,
    )
    learning_rate: LearningRate | None = option(
        None, "Rule for recommendations; None for that of the runs, as far as they say it.", flag=None
    )
    title: str = option("How many rollouts per problem?", "Heading of the report.")

    def __post_init__(self) -> None:
        check(self, "--")
        if self.smoothing < 1 or self.smoothing % 2 == 0:
            raise InputError(f"--smoothing={self.smoothing} must be odd and at least 1")
        if not 0 <= self.bin_width < 1:
            raise InputError(f"--bin_width={self.bin_width} must lie in [0, 1), a share of the reward range")
        if self.records == "bucketed" and self.bin_width == 0:
            raise InputError("--records=bucketed needs --bin_width above 0, e.g. --bin_width=0.02")
        if self.stderr_column and self.evaluation_samples:
            raise InputError("--stderr_column and --evaluation_samples both give weights; leave one out")
        if self.bootstrap != "none" and self.replicates < 20:
            raise InputError(
                f"--replicates={self.replicates} is too few for an interval: 20 or more, or --bootstrap=none"
            )
        if not (math.isfinite(self.holdout) and self.holdout >= 0):
            raise InputError(f"--holdout={self.holdout} must be a share below 1, a compute, or 0 for none")
        if self.next and (self.forecast == "form" or self.fit.holds):
            raise InputError(
                f"--next={self.next} weighs forms of curve by the data: leave out --forecast=form, --fix, --bounds and "
                "--r0"
            )
        for budget in self.budgets:
            if not (math.isfinite(budget) and budget > 0):
                raise InputError(f"--budget={budget:g} must be above 0")
        if not math.isfinite(self.read.reward_range[0] + self.read.reward_range[1]):
            raise InputError("--reward_range must be finite for learning curves: an asymptote needs a bound")
        form = self.fit.form if self.form == "auto" else self.form
        if self.fit.form != "hill" or self.fit.holds:  # what holds parameters holds those of one form
            object.__setattr__(self, "form", form)
        fit = dataclasses.replace(self.fit, form=form, reward_range=self.read.reward_range)
        object.__setattr__(self, "fit", fit)

    @property
    def metric(self) -> str:
        """The column that is optimised."""
        return self.read.metric

    def flags(self) -> dict[str, Any]:
        """Everything as one flat mapping, named like the flags."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        nested = dataclasses.asdict(own.pop("read")) | dataclasses.asdict(own.pop("fit"))
        for name in ("grid", "learning_rate"):
            value = getattr(self, name)
            own[name] = None if value is None else dataclasses.asdict(value)
        return nested | own
