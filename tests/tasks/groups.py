"""Groups of given texts, whose tokens are their characters, and their rewards."""

import numpy as np

from isocompute_jax.records.rollout import Completion, RolloutGroup


def group(*texts: str, problem_id: str = "p") -> RolloutGroup:
    """Ungraded."""
    completions = [
        Completion.drawn(np.array([*map(ord, text)], np.int32), np.zeros(1), np.zeros(1), "stop") for text in texts
    ]
    return RolloutGroup(problem_id, 0, np.zeros(1, np.int32), tuple(completions))


def decode(batch) -> list[str]:
    return ["".join(map(chr, ids)) for ids in batch]


def rewards_of(graded: RolloutGroup) -> list[float]:
    assert graded.rewards is not None and graded.rewards.dtype == np.float32
    return graded.rewards.tolist()
