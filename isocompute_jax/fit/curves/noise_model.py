"""The noise of one curve as its fit knows it, and draws of it: the experiment repeated on paper."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class NoiseModel:
    """Stationary AR(1) noise whose correlation and variance are known as far as the residuals tell.

    Attributes:
      correlation: [N] grid of correlations of neighbouring points.
      weight: [N] how probable each is (see `uncertainty.noise`); sums to 1.
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
