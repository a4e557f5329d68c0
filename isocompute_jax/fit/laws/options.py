"""What the laws leave to their user; every check names the flag at fault."""

from __future__ import annotations

import dataclasses
from typing import Literal

from isocompute_jax.fit.laws.reuse import MOST_REUSE
from isocompute_jax.records.errors import InputError

Analysis = Literal["model_size", "chinchilla"]


@dataclasses.dataclass(frozen=True)
class LawOptions:
    """Options of `--analysis=model_size` and `--analysis=chinchilla`.

    Attributes:
      analysis: which law.
      metric: column that is read.
      eval_set: evaluation set whose rows are used.
      loss: what L is: `one_minus_metric` (rewards) or `metric` (the column is a loss already).
      x: resource of the model-size law: `compute` is 6 N tokens (training FLOPs; sampling is not in it), `data` is
        rollouts where every run has them, tokens otherwise.
      weights: of the model-size law: `points` counts evaluations alike, `models` counts model sizes alike.
      holdout: share of each run's evaluations, the last ones, that is predicted from the first.
      held_out_models: number of largest models that are predicted from the smaller ones.
      anchors: first evaluations of a held-out model that set its level.
      predict_params: model sizes, in parameters, whose slope is predicted.
      most_reuse: tau = epochs above which problems count as much reused.
      points: of the pre-training law: the `last` row of each run, or `all` rows with tokens.
      flops: budgets C = 6 N D at which the compute-optimal N and D are given; empty for the range of the data.
      resamples: bootstrap repetitions of the pre-training law.
      seed: of the bootstrap.
      title: heading of the report; empty for the law's own.
    """

    analysis: Analysis = "model_size"
    metric: str = "avg@4"
    eval_set: str = "validation"
    loss: Literal["one_minus_metric", "metric"] = "one_minus_metric"
    x: Literal["compute", "data"] = "compute"
    weights: Literal["points", "models"] = "points"
    holdout: float = 0.5
    held_out_models: int = 1
    anchors: int = 3
    predict_params: tuple[float, ...] = ()
    most_reuse: float = MOST_REUSE
    points: Literal["last", "all"] = "last"
    flops: tuple[float, ...] = ()
    resamples: int = 200
    seed: int = 0
    title: str = ""

    def __post_init__(self) -> None:
        choices = {
            "analysis": ("model_size", "chinchilla"),
            "loss": ("one_minus_metric", "metric"),
            "x": ("compute", "data"),
            "weights": ("points", "models"),
            "points": ("last", "all"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"--{name}={getattr(self, name)} must be one of {', '.join(allowed)}")
        if not 0 < self.holdout < 1:
            raise InputError(f"--holdout={self.holdout} must lie between 0 and 1: a share of each run's evaluations")
        for name, least in (("held_out_models", 0), ("anchors", 1), ("resamples", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"--{name}={getattr(self, name)} must be at least {least}")
        for name, values in (
            ("predict_params", self.predict_params), ("flops", self.flops), ("most_reuse", (self.most_reuse,)),
        ):  # fmt: skip
            if not all(0 < value < float("inf") for value in values):
                raise InputError(f"--{name}={','.join(f'{v:g}' for v in values)} must be above 0 and finite")
