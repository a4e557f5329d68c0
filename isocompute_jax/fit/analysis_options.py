"""What an analysis of learning curves leaves to its user; every check names the flag at fault."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.points_to_fit import Records
from isocompute_jax.fit.curves.scalerl import Grid
from isocompute_jax.fit.frontier.bootstrap import Resampling
from isocompute_jax.fit.frontier.recommendation import LearningRate
from isocompute_jax.fit.read import ReadOptions
from isocompute_jax.records.errors import InputError


@dataclasses.dataclass(frozen=True)
class AnalysisOptions:
    """Options of `--analysis=frontier`.

    Attributes:
      read: how inputs are read; its metric is optimised, and best@k and worst@k are analysed beside it.
      fit: how curves are fitted; the range of rewards is that of `read`.
      targets: further columns to find the best n for, beside avg@k, best@k and worst@k.
      records: which evaluations of a mean curve are fitted (`strict` in the IsoCompute paper).
      bin_width: bin of the `bucketed` rule, in units of reward; 0 is strict.
      smoothing: running average over neighbouring budgets before the sigmoid of n*(C); odd.
      stderr_column: column with the standard error of each evaluation, for weights; empty for none.
      evaluation_samples: samples behind an evaluation (k x problems), for binomial weights; 0 for equal weights.
      bootstrap: how the frontier is resampled (see `bootstrap`).
      replicates: bootstrap replicates.
      seed: of the bootstrap.
      holdout: below 1 the share of each curve's compute that predicts the rest, from 1 on a compute; 0 for none.
      grid: asymptotes of ScaleRL's grid procedure, run beside the fit; None for none.
      budgets: compute to recommend an allocation for.
      learning_rate: the rule for recommendations; None for that of the runs, or the paper's where they do not say.
      title: heading of the report.
    """

    read: ReadOptions = dataclasses.field(default_factory=ReadOptions)
    fit: FitOptions = dataclasses.field(default_factory=FitOptions)
    targets: tuple[str, ...] = ()
    records: Records = "strict"
    bin_width: float = 0.0
    smoothing: int = 3
    stderr_column: str = ""
    evaluation_samples: int = 0
    bootstrap: Resampling = "auto"
    replicates: int = 200
    seed: int = 0
    holdout: float = 0.5
    grid: Grid | None = None
    budgets: tuple[float, ...] = ()
    learning_rate: LearningRate | None = None
    title: str = "How many rollouts per problem?"

    def __post_init__(self) -> None:
        if self.smoothing < 1 or self.smoothing % 2 == 0:
            raise InputError(f"--smoothing={self.smoothing} must be odd and at least 1")
        if not 0 <= self.bin_width < 1:
            raise InputError(f"--bin_width={self.bin_width} must lie in [0, 1), in units of reward")
        if self.records == "bucketed" and self.bin_width == 0:
            raise InputError("--records=bucketed needs --bin_width above 0, e.g. --bin_width=0.02")
        if self.stderr_column and self.evaluation_samples:
            raise InputError("--stderr_column and --evaluation_samples both give weights; leave one out")
        for name in ("evaluation_samples", "replicates", "seed"):
            if getattr(self, name) < 0:
                raise InputError(f"--{name}={getattr(self, name)} must be at least 0")
        if self.bootstrap != "none" and self.replicates < 20:
            raise InputError(
                f"--replicates={self.replicates} is too few for an interval: 20 or more, or --bootstrap=none"
            )
        if not (math.isfinite(self.holdout) and self.holdout >= 0):
            raise InputError(f"--holdout={self.holdout} must be a share below 1, a compute, or 0 for none")
        for budget in self.budgets:
            if not (math.isfinite(budget) and budget > 0):
                raise InputError(f"--budget={budget:g} must be above 0")
        if not math.isfinite(self.read.reward_range[0] + self.read.reward_range[1]):
            raise InputError("--reward_range must be finite for learning curves: an asymptote needs a bound")
        object.__setattr__(self, "fit", dataclasses.replace(self.fit, reward_range=self.read.reward_range))

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
