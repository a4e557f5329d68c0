"""The predicted top quarter of compute in the report: counts, a table by budget, and every curve with its band."""

from __future__ import annotations

import math
import pathlib

import numpy as np

from isocompute_jax.fit.comparisons.held_out import ROUNDING, SHARE, HeldOut, held_out_quarter
from isocompute_jax.fit.curves.seeds import SAME_COMPUTE
from isocompute_jax.fit.intervals import holding
from isocompute_jax.fit.report.sections import ReportTable, Section
from isocompute_jax.fit.report.wording import amount, between, shortlist, unit
from isocompute_jax.fit.sweep_results import SweepResult

FIGURE = "comparison_held_out.svg"


def section(result: SweepResult, figures: pathlib.Path) -> list[Section]:
    """One section, with its picture in `figures`; none where the sweep has too few evaluations on a side of the cut."""
    found = held_out_quarter(result.runs, result.options)
    if found is None:
        return []
    from isocompute_jax.fit.comparisons.held_out_figure import draw  # matplotlib takes a second to import

    return [
        Section(
            title="The last quarter, predicted from the rest",
            paragraphs=_paragraphs(result, found),
            figure=draw(result, found, figures / FIGURE),
            alt="Reward of each configuration over compute, with predicted bands and measured dots after the cut",
            how_to_read=f"Shaded: held out. Grey: {_fitted_dots(found)}. Line and band: predicted, with its 95% "
            f"interval. Black: {_what(found)}, measured."
            + (" Hollow: the mean, where it lies below." if found.best_so_far else ""),
            findings=tuple(_findings(result, found)),
            table=_table(result, found),
        )
    ]


def _what(found: HeldOut) -> str:
    return "best mean so far" if found.best_so_far else "mean reward"


def _fitted_dots(found: HeldOut) -> str:
    return "fitted means" + (", from which each draw picks its own records" if found.best_so_far else "")


def _paragraphs(result: SweepResult, found: HeldOut) -> tuple[str, ...]:
    text = (
        f"Evaluations up to {amount(found.cut)} {unit(result)}, {SHARE:.0%} of the way in log C, were fitted; those "
        "after it were not looked at. Intervals, for what the same seeds will measure, hold what is open of parameters "
        "and form of the curves, and the noise of a mean over seeds."
    )
    target = (
        "Record-breaking evaluations are analysed here, so what is predicted and measured is the best mean so far: "
        "what is left to a run that keeps its best checkpoint. It never falls."
    )
    if found.widening is None:
        checked = "The fitted part is too short to ask it how large such errors are."
    elif found.widening == 1.0:
        checked = "Tried inside the fitted part, errors are no larger than intervals say."
    else:
        checked = (
            f"Tried inside the fitted part, errors there were {found.widening:.2f} times as large as they "
            "should be, so intervals are as much wider."
        )
    return (" ".join([text, *([target] if found.best_so_far else []), checked]),)


def _findings(result: SweepResult, found: HeldOut) -> list[str]:
    known, inside = int(found.known.sum()), int(found.inside.sum())
    configurations = int(found.known.any(axis=1).sum())
    each = f"{configurations} configurations at {len(found.compute)} budgets" if configurations > 1 else ""
    text = f"{inside} of {known} measured rewards{f' ({each})' if each else ''} lie inside their 95% interval"
    if found.best_so_far and not found.rose[found.known].all():
        rose = int(found.rose.sum())
        text += f": {int((found.rose & found.inside).sum())} of the {rose} that rose after the cut, and "
        text += f"{int((~found.rose & found.inside).sum())} of the {known - rose} where the record stood"
    lines = [f"{text}{_outside(found, found.measured, found.interval95)}."]
    if found.best_so_far:
        means = int(found.mean_inside.sum())
        text = f"The mean itself, which may fall, lies inside its own interval at {means} of {known}"
        lines.append(f"{text}{_outside(found, found.mean, found.mean_interval95)}.")
    if result.several_sizes:
        lines.append(_sizes(result, found))
    return lines


def _outside(found: HeldOut, reward: np.ndarray, interval95: np.ndarray) -> str:
    """`; below: n = 4 and n = 8; above: n = 64`, the configurations with rewards out of their interval."""
    sides = {
        "below": found.known & (reward < interval95[0] - ROUNDING),
        "above": found.known & (reward > interval95[1] + ROUNDING),
    }
    names = {
        side: [each.name for each, row in zip(found.configurations, rows, strict=True) if row.any()]
        for side, rows in sides.items()
    }
    return "".join(f"; {side}: {shortlist(those)}" for side, those in names.items() if those)


def _sizes(result: SweepResult, found: HeldOut) -> str:
    near = int(np.count_nonzero(np.abs(found.octaves) <= 1))
    text = f"n* is predicted within one octave of the measured one at {near} of {len(found.octaves)} budgets"
    sizes = np.log2(found.group_sizes[found.predicted_best])
    rows = [(size, n) for size, n in zip(sizes, _fitted_sizes(result, found), strict=True) if n]
    close = sum(abs(size - math.log2(n)) <= 1 for size, n in rows)
    return text + (f", and of the frontier over all evaluations at {close} of {len(rows)}." if rows else ".")


def _fitted_sizes(result: SweepResult, found: HeldOut) -> list[int | None]:
    """[H] n on the frontier of the curves that were fitted to everything; None where nothing is compared."""
    of = [(row.compute, row.group_size) for row in result.frontier.budgets]
    return [next((n for c, n in of if abs(c / budget - 1) <= SAME_COMPUTE), None) for budget in found.compute]


def _table(result: SweepResult, found: HeldOut) -> ReportTable:
    """A row for each budget: who was expected to lead, who does, and the reward of the one that was expected."""
    names = [each.name for each in found.configurations]
    rows = []
    for h, (compute, fitted) in enumerate(zip(found.compute, _fitted_sizes(result, found), strict=True)):
        k, best = found.predicted_best[h], found.measured_best[h]
        predicted = float(found.predicted[k, h])
        low, high = found.interval95[:, k, h].tolist()
        ends = between(holding(low, high, predicted), "{:.3f}".format) or None
        reward = f"{predicted:.3f}", ends, f"{found.measured[k, h]:.3f}"
        if result.several_sizes and not result.several_batches:
            sizes, (least, most) = found.group_sizes, found.group_size95[h]
            between_n = None if not least <= sizes[k] <= most else f"{least} to {most}" if least < most else str(least)
            leaders = [int(sizes[k]), between_n, int(sizes[best]), fitted]
        else:
            leaders = [names[k], names[best]] if result.several else []
        rows.append((f"{compute:,.0f}", *leaders, *reward))
    if result.several_sizes and not result.several_batches:
        columns = ("n* predicted", "95%", "n* measured", "n* of the frontier")
    else:
        columns = ("best, predicted", "best, measured") if result.several else ()
    ahead = "reward of the one predicted" if result.several else "reward, predicted"
    return ReportTable((unit(result), *columns, ahead, "95% interval", "measured"), tuple(rows))
