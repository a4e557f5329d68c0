"""`python -m benchmarks.held_out`: how often the predicted top quarter of compute lies inside its 95% intervals.

    python -m benchmarks.held_out --studies=60                    # 60 of each of seven families

Simulated sweeps (`families`) are cut at three quarters of their log compute; what is predicted of the rest is held
against the noisy rewards that are there. The standard error is over studies: the points of one have errors in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks import families
from benchmarks.harness import studies_of_flags, study_flags, with_all
from benchmarks.shared import print_head, print_row
from isocompute_jax import app
from isocompute_jax.fit import AnalysisOptions, held_out_quarter
from isocompute_jax.fit.read import memory_table, read_curves

study_flags(60)


class Score(NamedTuple):
    """Of a study: share inside, width of the intervals, and budgets whose n* is within one octave."""

    inside: float
    width: float
    octave: float


def main() -> None:
    """Flags -> table."""
    scores: dict[str, list[Score]] = {}
    for _, study in studies_of_flags():
        scores.setdefault(study.family, []).extend(score(study))
    print_head(("family", "studies", "inside 95%", "width", "n* within an octave"))
    for family, found in with_all(scores):
        inside, width, octave = np.mean(found, axis=0)
        error = np.std([each.inside for each in found], ddof=1) / np.sqrt(len(found))
        print_row(family, len(found), f"{inside:.1%} +- {error:.1%}", f"{width:.3f}", f"{octave:.0%}")


def score(study: families.Study) -> Sequence[Score]:
    """None where the study has too few evaluations, or nothing beyond the cut is advised."""
    options = AnalysisOptions()
    runs, _ = read_curves(memory_table(study.table(options.metric)), options.read)
    found = held_out_quarter(runs, options)
    if found is None or not found.known.any():
        return ()
    width = (found.interval95[1] - found.interval95[0])[found.known]
    return (Score(found.inside[found.known].mean(), width.mean(), float(np.mean(np.abs(found.octaves) <= 1))),)


if __name__ == "__main__":
    app.run(main)
