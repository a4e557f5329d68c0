"""avg@k, best@k and worst@k from the number of correct samples per problem.

With m samples of which c are correct, the unbiased estimators (best@k is pass@k of Chen et al., arXiv 2107.03374) are

    avg@k   = c / m
    best@k  = 1 - C(m - c, k) / C(m, k)      at least one of k is correct
    worst@k = C(c, k) / C(m, k)              all k are correct
"""

from __future__ import annotations

import numpy as np


def _all_drawn(good: np.ndarray, samples: int, k: int) -> np.ndarray:
    """C(good, k) / C(samples, k), as a product of k ratios so that nothing overflows."""
    i = np.arange(k)
    return np.prod(np.maximum(good[:, None] - i, 0) / (samples - i), axis=1)


def avg_at_k(correct: np.ndarray, samples: int) -> float:
    """Mean solve rate over problems. `correct`: [P] counts out of `samples`."""
    return float(np.mean(np.asarray(correct) / samples))


def best_at_k(correct: np.ndarray, samples: int, k: int) -> float:
    """Unbiased share of problems with at least one of k samples correct. `correct`: [P] counts."""
    _check(correct, samples, k)
    return float(np.mean(1.0 - _all_drawn(samples - np.asarray(correct), samples, k)))


def worst_at_k(correct: np.ndarray, samples: int, k: int) -> float:
    """Unbiased share of problems with all of k samples correct. `correct`: [P] counts."""
    _check(correct, samples, k)
    return float(np.mean(_all_drawn(np.asarray(correct), samples, k)))


def halves(correct: np.ndarray, samples: int) -> tuple[float, float]:
    """avg of the problems at even places of a set, and of those at odd ones: what decides, and what judges it.

    `correct`: [P] counts out of `samples`, in the order of the set; P >= 2.
    """
    correct = np.asarray(correct)
    if correct.size < 2:
        raise ValueError("one problem has no two halves")
    return avg_at_k(correct[::2], samples), avg_at_k(correct[1::2], samples)


def solve_rate_histogram(correct: np.ndarray, samples: int) -> list[int]:
    """Number of problems with 0, 1, ..., `samples` correct samples (length `samples` + 1)."""
    return np.bincount(np.asarray(correct, dtype=np.int64), minlength=samples + 1).tolist()


def _check(correct: np.ndarray, samples: int, k: int) -> None:
    correct = np.asarray(correct)
    if not 1 <= k <= samples:
        raise ValueError(f"k = {k} needs 1 <= k <= samples = {samples}")
    if correct.size == 0:
        raise ValueError("no problems: best@k and worst@k of an empty set are undefined")
    if correct.min() < 0 or correct.max() > samples:
        raise ValueError(f"correct counts must lie in 0..{samples}")
