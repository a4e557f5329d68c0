"""The noise of one curve as its fit knows it, and draws of it: the experiment repeated on paper."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

APART = 0.15
"""Standard deviation of the correlations of a sweep's curves about their mean: evaluated alike, they are alike."""


@dataclasses.dataclass(frozen=True, eq=False)
class NoiseModel:
    """Stationary AR(1) noise whose correlation and variance are known as far as the residuals tell.

    Attributes:
      correlation: [N] grid of correlations of neighbouring points.
      weight: [N] how probable each is by the restricted likelihood (see `uncertainty.noise`); sums to 1.
      variance: [N] of a point of weight 1, as estimated under each.
      freedom: points less parameters, the degrees of freedom of the estimates.
    """

    correlation: np.ndarray
    weight: np.ndarray
    variance: np.ndarray
    freedom: int

    def draw(self, count: int, points: int, rng: np.random.Generator) -> np.ndarray:
        """[count, points] noise of points of weight 1.

        Each row has a correlation drawn by its weight and, given that, a variance freedom s^2 / chi^2: over many rows
        a mean of points then scatters as widely as Student's distribution says that the true one may lie from it.
        """
        which = rng.choice(len(self.weight), size=count, p=self.weight)
        rho = self.correlation[which]
        freedom = max(self.freedom, 1)
        noise = rng.standard_normal((count, points))
        for t in range(1, points):  # the first point has the stationary variance already
            noise[:, t] = rho * noise[:, t - 1] + np.sqrt(1.0 - rho**2) * noise[:, t]
        return noise * np.sqrt(self.variance[which] * freedom / rng.chisquare(freedom, count))[:, None]


def alike(models: Sequence[NoiseModel]) -> list[NoiseModel]:
    """The models of a sweep's curves with correlations that are taken as alike: each learns from all others.

    Each correlation is normal about one that all share (`APART`), which may be any of the grid; a model's weight then
    is its own likelihood times what the others say of its correlation. Models of one correlation alone, which have too
    few points to tell, neither teach nor learn.
    """
    telling = [model for model in models if np.count_nonzero(model.weight) > 1]
    if len(telling) < 2:
        return list(models)
    grid = telling[0].correlation
    near = np.exp(-0.5 * (np.subtract.outer(grid, grid) / APART) ** 2)
    near /= near.sum(axis=1, keepdims=True)  # [shared, own]
    with np.errstate(divide="ignore"):
        each = {id(model): np.log(near @ model.weight) for model in telling}
    total = sum(each.values())
    found = []
    for model in models:
        if id(model) in each:
            others = total - each[id(model)]
            weight = model.weight * (np.exp(others - others.max()) @ near)
            model = dataclasses.replace(model, weight=weight / weight.sum())
        found.append(model)
    return found
