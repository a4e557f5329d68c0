"""What went on in training: entropy, and which problems improve."""

from __future__ import annotations

from isocompute_jax.fit.read import SOLVE_SHARES
from isocompute_jax.fit.report.wording import listed
from isocompute_jax.fit.sweep_results import SweepResult


def entropy(result: SweepResult) -> list[str]:
    """How entropy moved between the first and the last evaluation after the base model's."""
    moves = [
        (row.run, row.series["entropy"].mean[0], row.series["entropy"].mean[-1])
        for row in result.training
        if "entropy" in row.series and len(row.series["entropy"].mean) >= 2
    ]
    if not moves:
        return []
    down = [run for run, first, last in moves if last < first]
    ends = moves[:1] + (moves[-1:] if len(moves) > 1 else [])
    each = listed(f"{run}: {first:.2f} to {last:.2f}" for run, first, last in ends)
    return [f"Entropy ends lower than it began in {len(down)} of {len(moves)} configurations ({each} nats per token)."]


def solve_rates(result: SweepResult) -> list[str]:
    """Who leaves fewest problems unsolved, and who solves most of them always."""
    last = {
        row.run: {name: row.series[name].mean[-1] for name in SOLVE_SHARES}
        for row in result.training
        if all(name in row.series for name in SOLVE_SHARES)
    }
    if len(last) < 2:
        return []
    reach = min(last, key=lambda run: last[run]["never_solved"])
    sure = max(last, key=lambda run: last[run]["always_solved"])
    return [
        f"At its last evaluation {reach} leaves the smallest share of evaluation problems never solved "
        f"({last[reach]['never_solved']:.1%}); {sure} has the largest share solved in every sample "
        f"({last[sure]['always_solved']:.1%})."
    ]
