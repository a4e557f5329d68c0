"""What the laws leave to their user; every check names the flag at fault."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np

from isocompute_jax.fit.laws.model_size_checks import MOST_REUSE
from isocompute_jax.options import check, described, numbers, option
from isocompute_jax.records.errors import InputError

Analysis = Literal["model_size", "chinchilla"]


@described
@dataclasses.dataclass(frozen=True)
class LawOptions:
    """Options of `--analysis=model_size` and `--analysis=chinchilla`."""

    analysis: Analysis = option("model_size", "Which law.", flag=None)
    metric: str = option("avg@4", "Column that is read.")
    eval_set: str = option("validation", "Evaluation set whose rows are used.")
    loss: Literal["one_minus_metric", "metric"] = option(
        "one_minus_metric",
        "What L is in a law: 1 - metric, as a share of --reward_range (model_size), or the metric itself (chinchilla).",
        flag="law_loss",
    )
    reward_range: tuple[float, float] = option(
        (0.0, 1.0), "Least and largest possible metric, of which 1 - metric is a share.", flag=None
    )
    x: Literal["compute", "data"] = option(
        "compute",
        "Resource of model_size: compute (6 N tokens, training FLOPs without sampling) or data (rollouts where every "
        "run has them, tokens otherwise).",
    )
    weights: Literal["points", "models"] = option(
        "points", "What model_size counts alike: evaluations (points), or model sizes (models)."
    )
    holdout: float = option(0.5, "Share of each run's evaluations, the last ones, that is predicted from the first.")
    held_out_models: int = option(1, "Largest models predicted from smaller.", low=0)
    anchors: int = option(3, "First evaluations that set a held-out model's level.", low=1)
    predict_params: tuple[float, ...] = option(
        (), "Model sizes, in parameters, to predict k(N) for: --predict_params=7e9,70e9.", parse=numbers
    )
    most_reuse: float = option(MOST_REUSE, "Epochs above which problems count as much reused.")
    points: Literal["last", "all"] = option("last", "Rows of each run that chinchilla fits.")
    flops: tuple[float, ...] = option(
        (),
        "Budgets C = 6 N D to give the optimal N and D for: --flops=1e21,1e23; empty for the range of the data.",
        parse=numbers,
    )
    resamples: int = option(200, "Bootstrap repetitions of the pre-training law.", flag="replicates", low=0)
    seed: int = option(0, "Seed of the bootstrap.", low=0)
    title: str = option("", "Heading of the report; empty for the law's own.")

    def __post_init__(self) -> None:
        check(self, "--")
        low, high = self.reward_range
        if self.loss == "one_minus_metric" and not -math.inf < low < high < math.inf:
            raise InputError(
                f"--reward_range={low:g},{high:g} must be two finite numbers, the lower one first: L is what "
                f"{self.metric} lacks of the larger one; a column that is a loss itself needs --law_loss=metric"
            )
        if not 0 < self.holdout < 1:
            raise InputError(f"--holdout={self.holdout} must lie between 0 and 1: a share of each run's evaluations")
        for name, values in (
            ("predict_params", self.predict_params), ("flops", self.flops), ("most_reuse", (self.most_reuse,)),
        ):  # fmt: skip
            if not all(0 < value < float("inf") for value in values):
                raise InputError(f"--{name}={','.join(f'{v:g}' for v in values)} must be above 0 and finite")

    @property
    def fitted_share(self) -> float:
        """Of each run's evaluations, that the others are predicted from."""
        return 1.0 - self.holdout

    @property
    def reward_name(self) -> str:
        """What L is one minus: the metric, as a share of its range where that is another one than 0 to 1."""
        low, high = self.reward_range
        return self.metric if (low, high) == (0, 1) else f"{self.metric} as a share of {low:g} to {high:g}"

    def loss_of(self, metric: np.ndarray) -> np.ndarray:
        """[P] L of a metric [P]: what it lacks of the largest possible one, as a share of the range, or itself."""
        low, high = self.reward_range
        return (high - metric) / (high - low) if self.loss == "one_minus_metric" else metric
