"""Length in the reward and in the loss: what long completions lose, and which are left out.

Rewards stay what the grader gave: logs, histories of problems and the question whether a group has signal look at
correctness alone, as in DAPO's own runs, where dynamic sampling filters by accuracy. What stands here enters through
`credit` (`penalties`, `masked`), and so the advantages only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax.records.rollout import RolloutGroup


def overlong_penalty(
    lengths: Int[Array | np.ndarray, "P G"], *, limit: int, buffer: int, penalty: float
) -> Float[np.ndarray, "P G"]:
    """The soft overlong punishment of DAPO (arXiv 2503.14476, equation 13), as what is subtracted from the reward.

    With |y| tokens, L_max = `limit` and L_cache = `buffer`:

        0                                    |y| <= L_max - L_cache
        (|y| - (L_max - L_cache)) / L_cache  in between, times `penalty`
        1                                    |y| >= L_max

    ScaleRL's length penalty (arXiv 2510.13786, equation 9: -clip((L_max - |y|) / L_cache - 1, -1, 0)) is the same
    function, for correct completions alone; it used L_max = 14k and L_cache = 2k tokens.

    Args:
      lengths: [P, G] tokens of each completion.
      limit: L_max, at least `buffer`.
      buffer: L_cache, at least 1.
      penalty: the penalty at the limit.
    """
    return penalty * np.clip((np.asarray(lengths, np.float64) - (limit - buffer)) / buffer, 0.0, 1.0)


def completion_lengths(groups: Sequence[RolloutGroup]) -> Int[np.ndarray, "P G"]:
    """How many tokens each completion has, context that was put into it included: it takes room too."""
    return np.array([[len(completion.tokens) for completion in group.completions] for group in groups])


def truncated(groups: Sequence[RolloutGroup]) -> Bool[np.ndarray, "P G"]:
    """Which completions were cut off at the longest length."""
    return np.array([[completion.finish_reason == "length" for completion in group.completions] for group in groups])
