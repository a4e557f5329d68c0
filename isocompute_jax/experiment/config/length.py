"""What becomes of long completions."""

from __future__ import annotations

import dataclasses
from typing import Literal

from isocompute_jax.options import check, described, option

Overlong = Literal["off", "all", "correct"]
Truncated = Literal["keep", "mask"]


@described
@dataclasses.dataclass(frozen=True)
class LengthConfig:
    """Length control by rewards and masks; see `learner.shaping` for the equations."""

    overlong: Overlong = option(
        "off",
        "Whose reward falls linearly by up to `overlong_penalty` over the last `overlong_tokens` before the limit: "
        "all, every completion (DAPO, arXiv 2503.14476); correct, those that solve their problem (ScaleRL's length "
        "penalty, arXiv 2510.13786).",
    )
    overlong_tokens: int = option(
        0, "L_cache, tokens over which the penalty grows; 0 for a fifth of the limit (DAPO: 4,096 of 20,480).", low=0
    )
    overlong_limit: int = option(0, "L_max, tokens at which it is complete; 0 for sampling.max_tokens.", low=0)
    overlong_penalty: float = option(1.0, "The penalty at the limit.", low=0)
    truncated: Truncated = option(
        "keep",
        "Completions that were cut off: keep, trained on like others; mask, they leave the loss and its denominators, "
        "and their reward still counts in the mean of their group (DAPO's overlong filtering).",
    )

    def __post_init__(self) -> None:
        check(self)
