"""summary.json: everything that was found, as plain data. Tables, the report's sentences and pictures read from it.

Keys: `schema_version`, `inputs`, `flags`, `versions`, `seed`, `warnings`, `base_model`, `curves`, `frontier`,
`allocation`, `ties`, `per_seed`, `record_choices`, `targets`, `training`. Compute is in rollouts; null is unknown.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib.metadata
import io
import math
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np

from isocompute_jax import __version__
from isocompute_jax.fit.analysis import Analysis, MetricAnalysis
from isocompute_jax.fit.inputs import SOLVE_SHARES
from isocompute_jax.fit.pooling import average_seeds, lead
from isocompute_jax.fit.results import Configuration, Switch

SCHEMA_VERSION = 1

FIT_COLUMNS = (
    "run", "group_size", "problems_per_batch", "num_seeds", "form", "floor", "asymptote", "midpoint", "steepness",
    "window_start", "window_end", "num_points", "sse", "r2", "status", "message",
)  # fmt: skip
FRONTIER_COLUMNS = ("compute", "run", "group_size", "problems_per_batch", "reward", "smoothed_group_size")
SWITCH_COLUMNS = (
    "compute", "from_group_size", "to_group_size", "from_problems_per_batch", "to_problems_per_batch", "from_run",
    "to_run", "reward", "epochs", "cause", "beyond_noise", "established",
)  # fmt: skip

LEAD_ERRORS = 2.0
"""A lead counts as beyond seed noise above so many standard errors."""


def summarise(analysis: Analysis) -> dict[str, Any]:
    """The content of summary.json: dicts, lists, strings, numbers and None only."""
    return _plain({
        "schema_version": SCHEMA_VERSION,
        "inputs": _inputs(analysis),
        "flags": dataclasses.asdict(analysis.options),
        "versions": _versions(),
        "seed": None,  # nothing in this analysis draws random numbers
        "warnings": list(analysis.warnings),
        "base_model": _base_model(analysis),
        "curves": _curves(analysis.main),
        "frontier": _frontier(analysis),
        "allocation": _allocation(analysis),
        "ties": _ties(analysis.main),
        "per_seed": _per_seed(analysis),
        "record_choices": {rule: _choice(found) for rule, found in analysis.by_records.items()},
        "targets": {name: _target(found) for name, found in analysis.targets.items()},
        "training": _training(analysis),
    })  # fmt: skip


def _inputs(analysis: Analysis) -> list[dict[str, Any]]:
    return [
        {
            "run": run.run,
            "path": run.source,
            "sha256": run.sha256,
            **dataclasses.asdict(run.facts),
            "finished": run.finished,
            "evaluations": len(run.compute),
            "max_compute": run.compute[-1],
        }
        for run in analysis.runs
    ]


def _versions() -> dict[str, str]:
    names = ("jax", "numpy", "scipy")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"isocompute_jax": __version__, "python": platform.python_version(), **found}


def _base_model(analysis: Analysis) -> dict[str, float]:
    """metric -> mean over every run's evaluation at compute 0."""
    means = {}
    for name, found in ({analysis.main.metric: analysis.main} | analysis.targets).items():
        values = np.concatenate(
            [c.per_seed[:, 0] for c in found.curves if len(c.compute) and c.compute[0] == 0] or [[]]
        )
        if len(values):
            means[name] = values.mean()
    return means


def _curves(main: MetricAnalysis) -> list[dict[str, Any]]:
    return [
        {
            "run": curve.configuration.name,
            "group_size": curve.configuration.group_size,
            "problems_per_batch": curve.configuration.problems_per_batch,
            "seeds": curve.seeds,
            "form": fit.form,
            "params": fit.params,
            "stderr": fit.stderr,
            "interval95": fit.interval95,
            "identified": fit.identified,
            "at_bound": fit.at_bound,
            "window": fit.window,
            "num_points": fit.num_points,
            "sse": fit.sse,
            "r2": fit.r2,
            "aicc": fit.aicc,
            "bic": fit.bic,
            "condition": fit.condition,
            "noise": fit.noise,
            "correlation": fit.correlation,
            "status": fit.status,
            "message": fit.message,
            "points": {"compute": curve.compute, "reward": curve.reward, "used": used},
        }
        for curve, fit, used in zip(main.curves, main.fits, main.used, strict=True)
    ]


def _frontier(analysis: Analysis) -> dict[str, Any]:
    main = analysis.main
    configurations = [curve.configuration for curve in main.curves]
    smoothed = dict(zip(analysis.allocation.compute, analysis.allocation.smoothed, strict=True))
    budgets = []
    for budget in main.budgets:
        index = main.frontier.index_at(budget.compute)
        if index is not None:
            budgets.append(
                {
                    "compute": budget.compute,
                    **_cell(configurations[index]),
                    "reward": main.fits[index].reward(budget.compute),
                    "smoothed_group_size": smoothed[budget.compute],
                }
            )
    return {
        "metric": main.metric,
        "switches": [
            switch | _support(analysis, switch, found)
            for switch, found in zip(_switches(main), main.frontier.switches, strict=True)
        ],
        "segments": [_cell(configurations[s.index]) | {"start": s.start, "end": s.end} for s in main.frontier.segments],
        "budgets": budgets,
    }


def _cell(configuration: Configuration) -> dict[str, Any]:
    return {
        "run": configuration.name,
        "group_size": configuration.group_size,
        "problems_per_batch": configuration.problems_per_batch,
    }


def _switches(found: MetricAnalysis) -> list[dict[str, Any]]:
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


def _support(analysis: Analysis, switch: dict[str, Any], found: Switch) -> dict[str, Any]:
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
        str(seed): next((other["compute"] for other in _switches(found) if matches(other)), None)
        for seed, found in analysis.by_seed.items()
    }


def _allocation(analysis: Analysis) -> dict[str, Any]:
    fit = analysis.allocation
    return {
        "law": {"span": fit.span, "slope": fit.slope, "midpoint": fit.midpoint, "floor": fit.floor},
        "saturation": fit.saturation,
        "window": analysis.options.window,
        "status": fit.status,
        "message": fit.message,
    }


def _ties(found: MetricAnalysis) -> dict[str, Any]:
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


def _per_seed(analysis: Analysis) -> dict[str, Any]:
    """Which configuration has the best evaluation at each budget in each seed, and each seed's fitted switches."""
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
                "unanimous": len(sizes[compute]) == len(analysis.by_seed) and len(set(sizes[compute].values())) == 1,
            }
            for compute in sorted(best)
        ],
        "switches": {str(seed): _switches(found) for seed, found in analysis.by_seed.items()},
    }


def _choice(found: MetricAnalysis) -> dict[str, Any]:
    fitted = sum(int(np.count_nonzero(used)) for used in found.used)
    return {"num_points": fitted, "switches": _switches(found)}


def _target(found: MetricAnalysis) -> dict[str, Any]:
    configurations = [curve.configuration for curve in found.curves]
    at = {budget.compute: found.frontier.index_at(budget.compute) for budget in found.budgets}
    ties = _ties(found)["budgets"]
    for row in ties:
        index = at[row["compute"]]
        row["frontier_group_size"] = None if index is None else configurations[index].group_size
        row["frontier_run"] = None if index is None else configurations[index].name
    return {"budgets": ties, "switches": _switches(found)}


def _training(analysis: Analysis) -> list[dict[str, Any]]:
    """Entropy and solve-rate shares over training, per configuration, as far as the runs have them."""
    rows = []
    for group in analysis.groups:
        series = {}
        for name in ("entropy", *SOLVE_SHARES):
            curve = average_seeds(group, name)
            if curve is not None and np.any(curve.compute > 0):
                series[name] = {"compute": curve.compute, "mean": curve.reward}
        if series:
            rows.append(_cell(group.configuration) | {"series": series})
    return rows


def _plain(value: Any) -> Any:
    """Plain Python for JSON: NumPy scalars and arrays unpacked, NaN and infinity as None."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def tables(summary: dict[str, Any]) -> dict[str, str]:
    """File name -> CSV text of fits.csv, frontier.csv and switches.csv."""
    fits = [
        curve
        | curve["params"]
        | {"window_start": curve["window"][0], "window_end": curve["window"][1], "num_seeds": len(curve["seeds"])}
        for curve in summary["curves"]
    ]
    return {
        "fits.csv": _csv(fits, FIT_COLUMNS),
        "frontier.csv": _csv(summary["frontier"]["budgets"], FRONTIER_COLUMNS),
        "switches.csv": _csv(summary["frontier"]["switches"], SWITCH_COLUMNS),
    }


def _csv(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """CSV text with these columns of the rows."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
