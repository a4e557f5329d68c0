"""What a mean over few seeds leaves open: seeds that differ carry it along, and no residual of its fit shows it.

The draws of a forecast (see `forecast`) are of the curve through the means. Where the seeds of a sweep differ by more
than their noise (F test, see `curves.seed_noise`), the curve of the next seed, and of all seeds, lies as far from that
mean as they let expect: each draw of a configuration is moved by the mean of as many differences as it has seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit.curves.forms import FormName
from isocompute_jax.fit.curves.posterior import Draws, moved
from isocompute_jax.fit.curves.seed_noise import SeedDifferences, differences, seed_noise
from isocompute_jax.fit.frontier.replicates import FittedPoints

FAR = 0.5
"""Curves that end before this share of the furthest one's compute do not tell how seeds differ: where a curve has not
come far enough to show its asymptote, seeds seem to differ in it by more than anything that they truly do."""


class BetweenSeeds(NamedTuple):
    """How seeds differ.

    Attributes:
      differences: in the coordinates of a fit of `form`: A in reward, and the first shape parameter's logarithm.
      form: of the fits.
      seeds: [K] of each configuration.
    """

    differences: SeedDifferences
    form: FormName
    seeds: Sequence[int]

    def all_moved(
        self, name: FormName, row: Sequence[Draws | None], reward_span: float, rng: np.random.Generator
    ) -> tuple[Draws | None, ...]:
        """The draws of every configuration that has any (see `moved`); those beyond the K, which were not run, stay."""
        tried = len(self.seeds)
        return tuple(
            self.moved(name, one, k, reward_span, rng) if one is not None and k < tried else one
            for k, one in enumerate(row)
        )

    def moved(self, name: FormName, draws: Draws, index: int, reward_span: float, rng: np.random.Generator) -> Draws:
        """The draws [S] of configuration `index` under the form `name`, as they may lie from the mean of its seeds."""
        own = self.differences.draw(len(draws.high), self.seeds[index], rng).mean(axis=1)
        high, shape = own.T
        zero = np.zeros_like(shape)
        later, steeper = {"expsat": (-shape, zero), "power": (zero, shape)}.get(self.form, (shape, zero))
        raised = np.clip(draws.high + high / reward_span, draws.low, 1.0)
        return Draws(draws.low, raised, moved(name, draws.theta, later, steeper))


def between_seeds(points: Sequence[FittedPoints | None], seeds: Sequence[int]) -> BetweenSeeds | None:
    """How seeds differ over all configurations; None where they do not by more than their noise, or nothing tells.

    Args:
      points: [K] curves as they were fitted, all in one form; None where the fit failed.
      seeds: [K] how many each has.
    """
    known = [each for each in points if each is not None]
    ends = [float(each.curve.compute[each.use].max(initial=0.0)) for each in known]
    known = [each for each, end in zip(known, ends, strict=True) if end >= FAR * max(ends)]
    told = [seed_noise(each.curve, each.fit, use=each.use, size=each.size) for each in known]
    apart = differences([one for one in told if one is not None])
    return None if apart is None else BetweenSeeds(apart, known[0].fit.form, seeds)
