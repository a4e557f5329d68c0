"""Do the gradients of different problems point the same way, where that was measured?

`python -m isocompute_jax.interference` leaves mean cosines in a run directory; see there, and docs/runs.md, for how
noise is kept out of them. Those of solved with unsolved problems say whether what is learned from the one helps the
other.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.report.sections import ReportTable, Section
from isocompute_jax.fit.sweep_results import SweepResult
from isocompute_jax.records.interference_files import Cosine, Summary, read_summary
from isocompute_jax.records.run_files import EVAL

CLEAR = 2.0
"""A mean cosine stands out from 0 where it is so many standard errors away."""
SHOWN = ("solved", "unsolved", "between")
HEADS = ("among solved", "among unsolved", "between the two")


class GradientCosines(NamedTuple):
    """Of one run: its name, n, and what was measured at its end."""

    run: str
    group_size: int
    measured: Summary

    @property
    def verdict(self) -> Literal["together", "against", "open", "none"]:
        """How solved and unsolved problems pull; `none` where there are no such pairs, or no signal."""
        value, error, _ = self.measured.cosines["between"]
        if not math.isfinite(value):
            return "none"
        if not abs(value) > CLEAR * error:  # nor with an error that is unknown
            return "open"
        return "together" if value > 0 else "against"


def gradient_cosines(runs: Sequence[RunCurve]) -> tuple[GradientCosines, ...]:
    """Those of every run directory that has them, in order of n.

    Raises:
      InputError: an interference.json is damaged.
    """
    paths = [(run, pathlib.Path(run.source)) for run in runs]
    read = [(run, read_summary(path.parent)) for run, path in paths if path.name == EVAL]
    found = [GradientCosines(run.run, run.facts.group_size, summary) for run, summary in read if summary is not None]
    return tuple(sorted(found, key=lambda each: each.group_size))


def section(result: SweepResult, figures: pathlib.Path) -> list[Section]:
    """One section where run directories have interference.json; it has no picture."""
    found = gradient_cosines(result.runs)
    if not found:
        return []
    return [
        Section(
            title="Do problems pull the same way?",
            paragraphs=(
                "Mean cosine of two training problems' policy gradients at the end of a run, ± its standard error over "
                "problems. Solved are those that half of the rollouts solve, or more.",
            ),
            findings=(_finding(found),),
            table=ReportTable(("run", *HEADS), tuple(_row(each) for each in found)),
        )
    ]


def _row(found: GradientCosines) -> tuple[str | None, ...]:
    return found.run, *(_told(found.measured.cosines[name]) for name in SHOWN)


def _told(mean: Cosine) -> str | None:
    """`0.123 ± 0.012`."""
    if not math.isfinite(mean.cosine):
        return None
    return f"{mean.cosine:z.3f}" + (f" ± {mean.stderr:.3f}" if math.isfinite(mean.stderr) else "")


def _finding(found: Sequence[GradientCosines]) -> str:
    verdicts = [each.verdict for each in found]
    known = len(verdicts) - verdicts.count("none")
    if not known:
        return "No run has a signal from both solved and unsolved problems: how they pull on each other is not known."
    return (
        f"Between solved and unsolved problems the mean cosine is more than {CLEAR:g} standard errors above 0 in "
        f"{verdicts.count('together')} of {known} run{'s' * (known > 1)} (what is learned from the one helps the "
        f"other), and as far below 0 in {verdicts.count('against')}."
    )
