"""The last part of docs/findings.md: n*(C) that theory expected of each sweep, beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isocompute_jax.gallery.page.chapter import Gallery, table
from isocompute_jax.gallery.theory_check import Agreement, agreement
from isocompute_jax.theory.forecast_files import read_forecast

PREDICTED = "predicted"
CALIBRATED = ("problems_64", "problems_256")
"""Sweeps that the constants were calibrated on."""
SEEN = (*CALIBRATED, "hard_b2", "late")
"""Those, one that was recorded before it was forecast, and one whose first half is half of `problems_64`."""

TEXT = """## What theory expected

`python -m isocompute_jax.theory` forecasts n\\*(C) from pass@1, the number of problems, n, B_problem and the rate
([docs/theory.md](theory.md)). Its constants were calibrated on {calibrated}. The forecasts of those that are marked
unseen stood in `gallery/predicted/` before their runs began; they are the second ones: a first calibration, on
`problems_64` alone, was replaced when `problems_256` had been recorded and before any of the unseen was. `hard_b2` was
recorded before it was forecast, and `late` repeats half of `problems_64` up to its budget. Sweeps without a row have
none: theory was not asked. Measured n\\* is here the n of the highest mean reward so far, not the fitter's as in
finding 1. Shares are of the {budgets} budgets of a sweep; an interval is that of the measured n\\* over seeds.

{rows}

Over the sweeps that were forecast unseen, {share:.0%} of budgets are within one octave, and {inside:.0%} within one
octave of the interval. For comparison: n\\*(C) of `problems_64`, taken for each of them, is within one octave at
{same:.0%}. Theory errs most where the rate grows with B, whose harm at large n it sees too late, and for the wider
model, whose constants are not its own. (`hard_b2` has one seed, so its interval is a point; its measured n\\* falls.)
"""


def section(gallery: Gallery) -> str:
    """Markdown."""
    found = {
        path.stem: agreement(gallery.sweep(path.stem), read_forecast(path))
        for path in sorted((gallery.path / PREDICTED).glob("*.json"))
        if path.stem in gallery
    }
    rows = [
        (
            f"{name}{'' if name in SEEN else ' (unseen)'}",
            f"{2 ** one.expected[0]:.0f} to {2 ** one.expected[-1]:.0f}",
            f"{2 ** one.measured[0]:.0f} to {2 ** one.measured[-1]:.0f}",
            f"{np.mean(one.apart <= 1):.0%}",
            f"{np.mean(one.beyond <= 1):.0%}",
            f"{one.apart.mean():.1f}",
        )
        for name, one in found.items()
    ]
    unseen = [one for name, one in found.items() if name not in SEEN]
    apart, beyond = (np.concatenate([getattr(one, name) for one in unseen]) for name in ("apart", "beyond"))
    heads = ("sweep", "expected n\\*", "measured n\\*", "within an octave", "of the interval", "mean octaves apart")
    return TEXT.format(
        calibrated=" and ".join(f"`{name}`" for name in CALIBRATED),
        budgets=len(next(iter(found.values())).compute),
        rows=table(heads, rows),
        share=float(np.mean(apart <= 1)),
        inside=float(np.mean(beyond <= 1)),
        same=float(np.mean(np.concatenate([_as_first(found, one) for one in unseen]) <= 1)),
    )


def _as_first(found: Mapping[str, Agreement], one: Agreement) -> np.ndarray:
    """[T] octaves between the measured n* of a sweep and that of the first calibrated one at the same compute."""
    first = found[CALIBRATED[0]]
    return np.abs(np.interp(np.log(one.compute), np.log(first.compute), first.measured) - one.measured)
