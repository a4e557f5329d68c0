"""Which evaluations of a curve are fitted: record-breaking ones, by one of several rules, or all."""

from __future__ import annotations

from typing import Literal

import numpy as np

Records = Literal["strict", "bucketed", "off"]

EDGE_TOLERANCE = 1e-8
"""A reward this share of a bin below a bin's edge belongs above it: 0.3 / 0.1 floors to 2 in binary."""


def record_breaking(reward: np.ndarray, *, records: Records, bin_width: float) -> np.ndarray:
    """[P] bool: the points of a run that count (arXiv 2603.12151).

    A point counts when its reward exceeds every earlier one (`strict`), or when its bin of width `bin_width` lies above
    every earlier bin (`bucketed`; width 0 is `strict`); `off` keeps all points.

    Args:
      reward: [P] in order of compute.
      records: which rule.
      bin_width: width of a bin, in units of reward.
    """
    reward = np.asarray(reward, dtype=np.float64)
    if records == "off" or reward.size == 0:
        return np.ones(reward.shape, dtype=bool)
    level = reward
    if records == "bucketed" and bin_width > 0:
        level = np.floor(reward / bin_width + EDGE_TOLERANCE)
    highest_before = np.concatenate([[-np.inf], np.maximum.accumulate(level)[:-1]])
    return level > highest_before


def points_to_fit(compute: np.ndarray, reward: np.ndarray, *, records: Records, bin_width: float) -> np.ndarray:
    """[E] bool: record-breaking points, or every point when fewer than two evaluations after the base model's count.

    The base model's evaluation is the first that later ones must exceed. A single record would make a flat curve at its
    luckiest evaluation.
    """
    keep = record_breaking(reward, records=records, bin_width=bin_width)
    return keep if np.count_nonzero(keep & (compute > 0)) >= 2 else np.ones_like(keep)
