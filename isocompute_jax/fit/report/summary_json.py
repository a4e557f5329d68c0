"""summary.json: everything that was found, as plain data. Tables, the report's sentences and pictures read from it.

BUILD.md documents the keys. Compute is in the unit `compute_unit`; null is unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isocompute_jax.fit.analysis import Analysis
from isocompute_jax.fit.curves.forms import FormName
from isocompute_jax.fit.curves.holdout import CurveHoldout
from isocompute_jax.fit.curves.seeds import average_seeds
from isocompute_jax.fit.frontier.bootstrap import PERCENTILES, leaders_at, parameter_intervals, switch_interval
from isocompute_jax.fit.frontier.switch_evidence import cell, per_seed, support, switches_of, ties
from isocompute_jax.fit.read import SOLVE_SHARES
from isocompute_jax.fit.report.provenance import SCHEMA_VERSION, input_row, plain, versions
from isocompute_jax.fit.results import AllocationFit, CurveFit, Frontier
from isocompute_jax.fit.stages import FrontierSlice, MetricAnalysis, uncontested


def summarise(analysis: Analysis) -> dict[str, Any]:
    """The content of summary.json: dicts, lists, strings, numbers and None only."""
    resampled = analysis.resampled
    return plain({
        "schema_version": SCHEMA_VERSION,
        "analysis": "frontier",
        "compute_unit": analysis.options.read.compute,
        "inputs": [input_row(run) for run in analysis.runs],
        "flags": analysis.options.flags(),
        "versions": versions(),
        "seed": analysis.options.seed,
        "warnings": list(analysis.warnings),
        "base_model": _base_model(analysis),
        "curves": _curves(analysis),
        "forms": _forms(analysis),
        "comparison": _comparison(analysis),
        "frontier": _frontier(analysis),
        "bootstrap": None if resampled is None else {"method": resampled.method, "replicates": len(resampled.leader)},
        "allocation": _allocation(analysis.allocation) | {
            "smoothing": analysis.options.smoothing,
            "recommendations": [dataclasses.asdict(r) for r in analysis.recommendations],
        },
        "slices": [_slice(analysis.main, part) for part in analysis.slices],
        "ties": ties(analysis.main),
        "per_seed": per_seed(analysis),
        "record_choices": {rule: _choice(found) for rule, found in analysis.by_records.items()},
        "targets": {name: _target(found) for name, found in analysis.targets.items()},
        "training": _training(analysis),
    })  # fmt: skip


def _base_model(analysis: Analysis) -> dict[str, float]:
    """metric -> mean over every run's evaluation at compute 0."""
    means = {}
    for name, found in ({analysis.main.metric: analysis.main} | dict(analysis.targets)).items():
        values = np.concatenate(
            [c.per_seed[:, 0] for c in found.curves if len(c.compute) and c.compute[0] == 0] or [[]]
        )
        if len(values):
            means[name] = values.mean()
    return means


def _curves(analysis: Analysis) -> list[dict[str, Any]]:
    main, rows = analysis.main, []
    held = [name for name, (least, most) in analysis.options.fit.limits().items() if least == most]
    held += ["floor"] if analysis.options.fit.r0 == "first" else []
    for k, (curve, fit) in enumerate(zip(main.curves, main.fits, strict=True)):
        points = {"compute": curve.compute, "reward": curve.reward, "used": main.used[k]}
        if main.errors is not None:
            points["stderr"] = main.errors[k]
        profile = analysis.profiles[k]
        rows.append(
            cell(curve.configuration)
            | {"seeds": curve.seeds}
            | _fit(fit)
            | {
                "held": held,
                "bootstrap95": None if analysis.resampled is None else parameter_intervals(analysis.resampled, fit, k),
                "forms": {
                    name: {"aicc": fits[k].aicc, "bic": fits[k].bic, "sse": fits[k].sse, "r2": fits[k].r2}
                    for name, fits in analysis.forms.items()
                },
                "holdout": _holdout(analysis.holdout[k], fit.form) if analysis.holdout else None,
                "grid": dataclasses.asdict(analysis.grid[k]) if analysis.grid else None,
                "profile": None if profile is None else profile._asdict(),
                "points": points,
            }
        )
    return rows


def _fit(fit: CurveFit) -> dict[str, Any]:
    """A fit without what only further computations need."""
    return {field.name: getattr(fit, field.name) for field in dataclasses.fields(fit) if field.name != "search"}


def _holdout(found: Mapping[FormName, CurveHoldout], form: FormName) -> dict[str, Any] | None:
    """The fitted form's own holdout, and the scores of the other forms."""
    if form not in found:
        return None
    scores = {name: {"mean_abs_error": h.mean_abs_error, "coverage": h.coverage} for name, h in found.items()}
    return dataclasses.asdict(found[form]) | {"forms": scores}


def _forms(analysis: Analysis) -> dict[str, Any]:
    """form -> sums over curves of AICc and BIC, mean holdout error and coverage; a sum needs every curve."""
    rows = {}
    for name, fits in analysis.forms.items():
        fitted = [fit for fit in fits if fit.status != "failed"]
        held = [h[name] for h in analysis.holdout if name in h]
        rows[name] = {
            "aicc": sum(fit.aicc for fit in fitted),
            "bic": sum(fit.bic for fit in fitted),
            "holdout_mean_abs_error": np.mean([h.mean_abs_error for h in held]) if held else None,
            "holdout_coverage": np.mean([h.coverage for h in held]) if held else None,
            "holdout_curves": len(held),
        }
    return rows


def _comparison(analysis: Analysis) -> dict[str, Any] | None:
    found = analysis.comparison
    if found is None:
        return None
    rows = [
        {
            "run": curve.configuration.name,
            "group_size": curve.configuration.group_size,
            "steepness": fit.params["steepness"],
            "midpoint": fit.params["midpoint"],
            "interval95": fit.interval95["steepness"],
            "identified": fit.identified["steepness"],
            "asymptote_within": low <= found.asymptote <= high,
            "log_compute": log_compute,
            "log_f": log_f,
        }
        for curve, fit, (low, high), log_compute, log_f in zip(
            analysis.main.curves,
            found.fits,
            [own.interval95["asymptote"] for own in analysis.main.fits],
            found.log_compute,
            found.log_f,
            strict=True,
        )
        if fit.status != "failed"
    ]
    return {"asymptote": found.asymptote, "curves": rows}


def _frontier(analysis: Analysis) -> dict[str, Any]:
    main, resampled = analysis.main, analysis.resampled
    configurations = [curve.configuration for curve in main.curves]
    smoothed = dict(zip(analysis.allocation.compute, analysis.allocation.smoothed, strict=True))
    budgets = _budgets(main, main.frontier)
    for row in budgets:
        row["smoothed_group_size"] = smoothed.get(row["compute"])
        row["interval95"], row["leader_share"] = None, None
        if resampled is not None:
            leaders = leaders_at(resampled, row["compute"])
            leaders = leaders[leaders >= 0]
            sizes = np.array([configurations[i].group_size for i in leaders])
            row["interval95"] = np.percentile(sizes, PERCENTILES, method="nearest")
            row["leader_share"] = np.mean([configurations[i].name == row["run"] for i in leaders])
    switches = []
    for switch, found in zip(switches_of(main), main.frontier.switches, strict=True):
        again = None if resampled is None else switch_interval(resampled, found)
        switch |= {"interval95": again.interval95 if again else None, "share": again.share if again else None}
        switches.append(switch | support(analysis, switch, found))
    segments = [cell(configurations[s.index]) | {"start": s.start, "end": s.end} for s in main.frontier.segments]
    return {"metric": main.metric, "switches": switches, "segments": segments, "budgets": budgets}


def _budgets(main: MetricAnalysis, envelope: Frontier, members: Sequence[int] = ()) -> list[dict[str, Any]]:
    """The envelope at the uncontested budgets: n*(C), B_problem*(C), M*(C) and the fitted reward."""
    rows = []
    for budget, index in uncontested(main, envelope, members):
        configuration = main.curves[index].configuration
        per_step = configuration.group_size * configuration.problems_per_batch
        spent = main.rollouts(index, budget.compute) if main.rollouts else budget.compute
        rows.append(
            {"compute": budget.compute}
            | cell(configuration)
            | {"num_steps": spent / per_step if per_step else None, "reward": main.fits[index].reward(budget.compute)}
        )
    return rows


def _allocation(fit: AllocationFit) -> dict[str, Any]:
    return {
        "axis": fit.axis,
        "law": {"span": fit.span, "slope": fit.slope, "midpoint": fit.midpoint, "floor": fit.floor},
        "saturation": fit.saturation,
        "interval95": fit.interval95,
        "status": fit.status,
        "message": fit.message,
    }


def _slice(main: MetricAnalysis, part: FrontierSlice) -> dict[str, Any]:
    configurations = [curve.configuration for curve in main.curves]
    return {
        "kind": part.kind,
        "value": part.value,
        "runs": [configurations[i].name for i in part.members],
        "budgets": _budgets(main, part.frontier, part.members),
        "switches": switches_of(dataclasses.replace(main, frontier=part.frontier)),
        "allocation": _allocation(part.allocation),
    }


def _choice(found: MetricAnalysis) -> dict[str, Any]:
    fitted = sum(int(np.count_nonzero(used)) for used in found.used)
    keys = ("compute", "run", "group_size")
    budgets = [{key: row[key] for key in keys} for row in _budgets(found, found.frontier)]
    return {"num_points": fitted, "switches": switches_of(found), "budgets": budgets}


def _target(found: MetricAnalysis) -> dict[str, Any]:
    configurations = [curve.configuration for curve in found.curves]
    at = {budget.compute: found.frontier.index_at(budget.compute) for budget in found.budgets}
    rows = ties(found)["budgets"]
    for row in rows:
        index = at[row["compute"]]
        row["frontier_group_size"] = None if index is None else configurations[index].group_size
        row["frontier_run"] = None if index is None else configurations[index].name
    return {"budgets": rows, "switches": switches_of(found)}


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
            rows.append(cell(group.configuration) | {"series": series})
    return rows
