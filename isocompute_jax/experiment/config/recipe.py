"""How rewards become a batch, and how its rows are laid out."""

from __future__ import annotations

import dataclasses
from typing import Literal

from isocompute_jax.learner import CreditConfig
from isocompute_jax.options import check, described, option


@described
@dataclasses.dataclass(frozen=True)
class RecipeConfig(CreditConfig):
    """How rewards become a batch of weighted tokens; `CreditConfig` says what they are worth."""

    healthy: Literal["none", "easy", "hard", "mixture"] = option(
        "none",
        "Regularisation preset of the IsoCompute Playbook: easy turns KL and entropy terms on, hard and mixture "
        "require both off, none leaves them to `loss` (ablations).",
    )
    microbatch_tokens: int = option(
        2048,
        "Completion tokens computed at once, forward and backward, over all devices; of packed rows all tokens, and at "
        "least a row for each part of the batch.",
        low=1,
    )
    epochs: int = option(1, "Passes over each sampled batch; C counts its rollouts once.", low=1, later=True)
    minibatches: int = option(
        1,
        "Equal parts that each pass cuts a sampled batch into, its groups dealt whole and at random; each is an update "
        "with denominators of its own. A step makes epochs x minibatches updates.",
        low=1,
        later=True,
    )


Trees = Literal["auto", "on", "off"]


@described
@dataclasses.dataclass(frozen=True)
class PackingConfig:
    """How rollouts become rows of tokens."""

    row_tokens: int = option(
        0,
        "Tokens of a row, into which whole rollouts, prompts included, are packed; 0 reads each prompt once for its "
        "group and pads completions to sampling.max_tokens, which is quicker where they are short.",
        low=0,
    )
    trees: Trees = option(
        "auto",
        "Whether what rollouts of a prompt have in common, equal beginnings of their completions included, is computed "
        "once: auto, where sequences are short (64 tokens) and batches have 32 rollouts, row_tokens is not set and the "
        "model is no mixture of experts; on, in rows of row_tokens, whose attention holds all pairs of a row; off. "
        "Gradients differ by rounding alone.",
        later=True,
    )

    def __post_init__(self) -> None:
        check(self)
