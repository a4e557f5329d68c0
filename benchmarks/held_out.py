"""`python -m benchmarks.held_out`: how often the predicted top quarter of compute lies inside its 95% intervals.

    python -m benchmarks.held_out --studies=60                    # 60 of each of seven families
    python -m benchmarks.held_out --draw=development              # what the method's constants were chosen on

Simulated sweeps (`families`) are cut at three quarters of their log compute; what is predicted of the rest is held
against the noisy rewards that are there. The standard error is over studies: the points of one have errors in common.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks import families
from benchmarks.harness import studies_of_flags, study_flags, with_all
from benchmarks.shared import print_head, print_row
from isocompute_jax import app
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.comparisons.held_out import HeldOut, held_out_quarter
from isocompute_jax.fit.curves.screening import Records
from isocompute_jax.fit.read import memory_table, read_curves

study_flags(60)

RULES: dict[Records, str] = {"off": "mean", "strict": "best so far"}
"""What is predicted of a curve."""
HEAD = ("family", "predicted", "studies", "inside 95%", "width", "n* within an octave", "measured reward lost by n*")


class Score(NamedTuple):
    """Of a study: share inside, width of the intervals, budgets with n* within one octave, and by how much it costs."""

    inside: float
    width: float
    octave: float
    regret: float


def main() -> None:
    """Flags -> table."""
    scores: dict[str, list[dict[Records, Score | None]]] = {}
    for _, study in studies_of_flags():
        scores.setdefault(study.family, []).append({rule: score(study, rule) for rule in RULES})
    print_head(HEAD, left=(0, 1))
    for family, found in with_all(scores):
        for rule, predicted in RULES.items():
            print_row(family, predicted, *cells([each[rule] for each in found if each[rule] is not None]))


def score(study: families.Study, rule: Records) -> Score | None:
    """None where the study has too few evaluations."""
    options = AnalysisOptions(records=rule)
    runs, _ = read_curves(memory_table(study.table(options.metric)), options.read)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = held_out_quarter(runs, options)
    return None if found is None else _scored(found)


def _scored(found: HeldOut) -> Score:
    places = np.arange(len(found.compute))
    lost = found.measured[found.measured_best, places] - found.measured[found.predicted_best, places]
    return Score(
        inside=float(found.inside[found.known].mean()),
        width=float(np.nanmean(found.interval95[1] - found.interval95[0])),
        octave=float(np.mean(np.abs(found.octaves) <= 1)),
        regret=float(lost.mean()),
    )


def cells(scores: Sequence[Score | None]) -> tuple[object, ...]:
    """Number of studies, means over them, and the standard error of the coverage."""
    rows = np.array(scores)
    inside, width, octave, regret = rows.mean(axis=0)
    error = rows[:, 0].std(ddof=1) / np.sqrt(len(rows))
    return len(rows), f"{inside:.1%} +- {error:.1%}", f"{width:.3f}", f"{octave:.0%}", f"{regret:.4f}"


if __name__ == "__main__":
    app.run(main)
