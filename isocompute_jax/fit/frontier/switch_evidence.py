"""How well the evaluations themselves bear the frontier out: leads, ties within seed noise, and each seed alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from isocompute_jax.fit.analysis import Analysis
from isocompute_jax.fit.frontier.ties import lead
from isocompute_jax.fit.results import Configuration, Switch
from isocompute_jax.fit.stages import MetricAnalysis

LEAD_ERRORS = 2.0
"""A lead counts as beyond seed noise above so many standard errors."""


def cell(configuration: Configuration) -> dict[str, Any]:
    """How rows of the summary name a configuration."""
    return {
        "run": configuration.name,
        "group_size": configuration.group_size,
        "problems_per_batch": configuration.problems_per_batch,
    }


def switches_of(found: MetricAnalysis) -> list[dict[str, Any]]:
    """The switches of a frontier as rows."""
    return [_switch(switch, [curve.configuration for curve in found.curves]) for switch in found.frontier.switches]


def _switch(switch: Switch, configurations: Sequence[Configuration]) -> dict[str, Any]:
    left, entered = configurations[switch.from_index], configurations[switch.to_index]
    return {
        "compute": switch.compute,
        "from_group_size": left.group_size,
        "to_group_size": entered.group_size,
        "from_problems_per_batch": left.problems_per_batch,
        "to_problems_per_batch": entered.problems_per_batch,
        "from_run": left.name,
        "to_run": entered.name,
        "reward": switch.reward,
        "epochs": switch.epochs,
        "cause": switch.cause,
    }


def support(analysis: Analysis, switch: dict[str, Any], found: Switch) -> dict[str, Any]:
    """How well the evaluations bear a switch out.

    `lead_before` is that of the old configuration over the budgets before the switch, `lead_after` that of the new one
    over those after it. `beyond_noise`: both exceed `LEAD_ERRORS` standard errors. `by_seed`: where each seed alone has
    this switch. `established`: beyond noise, and in every seed. None where there are no two seeds to tell.
    """
    main = analysis.main
    computes = np.array([budget.compute for budget in main.budgets])
    before = computes[(computes >= found.span[0]) & (computes <= found.compute)]
    after = computes[(computes >= found.compute) & (computes <= found.span[1])]
    leads = (
        lead(main.curves, found.from_index, found.to_index, compute=before),
        lead(main.curves, found.to_index, found.from_index, compute=after),
    )
    noise = any(math.isfinite(budget.seed_sd) for budget in main.budgets)
    beyond = all(difference > LEAD_ERRORS * error for difference, error in leads)
    by_seed = _seen_by_seed(analysis, switch)
    return {
        "lead_before": dict(zip(("difference", "stderr"), leads[0], strict=True)),
        "lead_after": dict(zip(("difference", "stderr"), leads[1], strict=True)),
        "beyond_noise": beyond if noise else None,
        "by_seed": by_seed,
        "established": beyond and None not in by_seed.values() if noise and by_seed else None,
    }


def _seen_by_seed(analysis: Analysis, switch: dict[str, Any]) -> dict[str, float | None]:
    """seed -> compute of the same switch on that seed's own frontier, or None where it is absent."""

    def matches(other: dict[str, Any]) -> bool:
        return all(other[key] == switch[key] for key in ("from_run", "to_run"))

    return {
        str(seed): next((other["compute"] for other in switches_of(found) if matches(other)), None)
        for seed, found in analysis.by_seed.items()
    }


def ties(found: MetricAnalysis) -> dict[str, Any]:
    """Who leads at each budget by the evaluations alone, and who cannot be told from the leader."""
    seeds = max(len(curve.seeds) for curve in found.curves)
    noise = any(math.isfinite(budget.seed_sd) for budget in found.budgets)
    return {
        "rule": "tied with the best when within one standard error of the difference; "
        "the standard deviation of a seed is pooled over configurations at each budget",
        "seeds": seeds,
        "noise_estimate": noise,
        "budgets": [
            {
                "compute": budget.compute,
                "best_run": found.curves[budget.best].configuration.name,
                "best_group_size": found.curves[budget.best].configuration.group_size,
                "tied_runs": [found.curves[k].configuration.name for k in budget.tied],
                "tied_group_sizes": sorted({found.curves[k].configuration.group_size for k in budget.tied}),
                "compared": int(np.count_nonzero(~np.isnan(budget.mean))),
                "reward": budget.mean[budget.best],
                "seed_sd": budget.seed_sd,
            }
            for budget in found.budgets
        ],
    }


def per_seed(analysis: Analysis) -> dict[str, Any]:
    """Which configuration has the best evaluation at each budget of all seeds, and each seed's fitted switches."""
    best: dict[float, dict[str, str]] = {}
    sizes: dict[float, dict[str, int]] = {}
    for seed, found in analysis.by_seed.items():
        for budget in found.budgets:
            leader = found.curves[budget.best].configuration
            best.setdefault(budget.compute, {})[str(seed)] = leader.name
            sizes.setdefault(budget.compute, {})[str(seed)] = leader.group_size
    return {
        "seeds": list(analysis.by_seed),
        "budgets": [
            {
                "compute": compute,
                "best_run": best[compute],
                "best_group_size": sizes[compute],
                "unanimous": len(set(sizes[compute].values())) == 1,
            }
            for compute in sorted(best)
            if len(best[compute]) == len(analysis.by_seed)  # where one seed was evaluated alone nothing can agree
        ],
        "switches": {str(seed): switches_of(found) for seed, found in analysis.by_seed.items()},
    }
