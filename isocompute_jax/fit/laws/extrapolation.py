"""Does the model-size law predict? Later evaluations of the same models, and models larger than those fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.laws.model_size import fit_model_size
from isocompute_jax.fit.laws.model_size_results import Holdout, HoldoutScore, ModelSizeFit, ScoredPoints


def first_part(x: np.ndarray, run: np.ndarray, *, share: float) -> np.ndarray:
    """[P] bool: the first ceil(share n) of each run's n evaluations with X > 0, in order of X."""
    first = np.zeros(len(x), bool)
    for name in np.unique(run):
        rows = np.flatnonzero((run == name) & (x > 0))
        rows = rows[np.argsort(x[rows], kind="stable")]
        first[rows[: math.ceil(share * len(rows))]] = True
    return first


def intra_model(
    model_params: np.ndarray,
    x: np.ndarray,
    reward: np.ndarray,
    *,
    weight: np.ndarray | None,
    run: np.ndarray,
    share: float,
) -> tuple[Holdout, ...]:
    """Fits the law to the first part of every run and scores the rest; one entry per model that has a rest.

    Args:
      model_params: [P].
      x: [P].
      reward: [P].
      weight: [P] or None.
      run: [P].
      share: of each run's evaluations that is fitted, in (0, 1).
    """
    first = first_part(x, run, share=share)
    fit = fit_model_size(
        model_params[first], x[first], reward[first], weight=None if weight is None else weight[first], run=run[first]
    )
    lines = _own_lines(model_params, x, reward)
    found = []
    for index, size in enumerate(fit.model_params):
        own = (model_params == size) & _scorable(x, reward)
        rest = own & ~first
        if rest.any():
            known = own & first
            found.append(_score(fit, size, fit.intercept[index], fit.k[index], (x, reward), known, rest, lines[size]))
    return tuple(found)


def inter_model(
    model_params: np.ndarray,
    x: np.ndarray,
    reward: np.ndarray,
    *,
    weight: np.ndarray | None,
    run: np.ndarray,
    held_out: int,
    anchors: int,
) -> tuple[Holdout, ...]:
    """Fits the law without the `held_out` largest models and predicts those; empty with fewer than two lines left.

    The slope of a held-out model is k(N) of the law, from the smaller models alone. Its level E cannot come from them
    (the law has none): it is the mean of ln L + k(N) ln X over the model's own first `anchors` evaluations, and nothing
    else of that model is used. The rest of its evaluations is scored.

    Args:
      model_params: [P].
      x: [P].
      reward: [P].
      weight: [P] or None.
      run: [P].
      held_out: number of largest models to predict.
      anchors: evaluations of each that set its level.
    """
    usable = _scorable(x, reward)
    sizes = np.unique(model_params[usable])
    if held_out < 1 or len(sizes) - held_out < 2:
        return ()
    small = model_params < sizes[-held_out]
    fit = fit_model_size(
        model_params[small], x[small], reward[small], weight=None if weight is None else weight[small], run=run[small]
    )
    if len(fit.model_params) < 2:
        return ()
    lines = _own_lines(model_params, x, reward)
    found = []
    for size in sizes[-held_out:]:
        rows = np.flatnonzero(usable & (model_params == size))
        rows = rows[np.argsort(x[rows], kind="stable")]
        known, rest = np.zeros(len(x), bool), np.zeros(len(x), bool)
        known[rows[:anchors]], rest[rows[anchors:]] = True, True
        if rest.any() and size in lines:
            k = fit.slope(size).value
            level = float(np.mean(np.log(1.0 - reward[known]) + k * np.log(x[known])))
            found.append(_score(fit, size, level, k, (x, reward), known, rest, lines[size]))
    return tuple(found)


def mean_score(holdouts: Sequence[Holdout]) -> HoldoutScore | None:
    """The score of all scored points together; None without any."""
    if not holdouts:
        return None
    counts = [holdout.num_scored for holdout in holdouts]
    errors = [(holdout.reward_error, holdout.unchanged_error) for holdout in holdouts]
    return HoldoutScore(*(float(mean) for mean in np.average(errors, axis=0, weights=counts)))


def _scorable(x: np.ndarray, reward: np.ndarray) -> np.ndarray:
    return np.isfinite(x) & np.isfinite(reward) & (x > 0) & (reward < 1)


def _own_lines(model_params: np.ndarray, x: np.ndarray, reward: np.ndarray) -> dict[float, float]:
    """N -> slope of the model's own line through all of its points."""
    fit = fit_model_size(model_params, x, reward, weight=None, run=None)
    return dict(zip(fit.model_params, fit.free_k, strict=True))


def _score(fit: ModelSizeFit, size, level, k, data, known, rest, measured_k) -> Holdout:
    x, reward = data
    rows = np.flatnonzero(rest)[np.argsort(x[rest], kind="stable")]
    log_loss = level - k * np.log(x[rows])
    last = reward[known][np.argmax(x[known])]
    predicted = 1.0 - np.exp(log_loss)
    return Holdout(
        model_params=float(size),
        num_fitted=int(np.count_nonzero(known)),
        num_scored=len(rows),
        log_loss_error=float(np.mean(np.abs(log_loss - np.log(1.0 - reward[rows])))),
        reward_error=float(np.mean(np.abs(predicted - reward[rows]))),
        unchanged_error=float(np.mean(np.abs(last - reward[rows]))),
        predicted_k=fit.slope(float(size)),
        measured_k=float(measured_k),
        points=ScoredPoints(x[rows], reward[rows], predicted),
    )
