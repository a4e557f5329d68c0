"""The answer of a law in at most eight sentences."""

from __future__ import annotations

import math

from isocompute_jax.fit.laws import Estimate, LawResult


def sentences(result: LawResult) -> list[str]:
    """Returns what the law says; a number that is not identified is not quoted."""
    return (_chinchilla if result.options.analysis == "chinchilla" else _model_size)(result)[:8]


def _model_size(result: LawResult) -> list[str]:
    unit, tables, k_max, n0 = result.facts["unit"], result.tables, *result.parameters.values()
    gains = [f"{1 - 10 ** -row['k']:.0%} at {_text(row['model_params'])} parameters" for row in tables["models"]]
    said = [f"Ten times the {unit} lower the loss by {gains[0]} and by {gains[-1]}."]
    if k_max.value <= 0:
        said = [f"The loss does not fall with more {unit}."]
    levels = f"The slope levels off at k_max = {_of(k_max)}, and is half of it at N0 = {_of(n0)} parameters."
    said.append(levels if n0.identified else f"Where that levels off with model size is not known: {n0.note}.")
    if result.facts["misfit"] < 0.01:
        said.append("The models' own slopes depart from this law by more than noise, so its intervals are too narrow.")
    for row in [row for row in tables["crossovers"] if row["inside"] and row["x"].identified][-1:]:
        pair, better = f"{_text(row['smaller'])} and {_text(row['larger'])}", _text(row["better_after"])
        said.append(f"The lines of {pair} cross at {_of(row['x'])} {unit}; beyond, {better} is better.")
    for kind, what in (("later evaluations", "the later half of each run"), ("larger model", "the largest model")):
        if rows := [row for row in tables["holdouts"] if row["kind"] == kind]:
            count = sum(row["scored"] for row in rows)
            law, stays = (sum(r[e] * r["scored"] for r in rows) / count for e in ("loss_error", "unchanged_error"))
            said.append(f"Held out, {what} is predicted within {law:.2g}; to expect no change errs by {stays:.2g}.")
    return said


def _chinchilla(result: LawResult) -> list[str]:
    known = [f"{name} = {_of(e)}" for name, e in result.parameters.items() if e.identified and name != "exponent"]
    said = [f"L = E + A/N^alpha + B/D^beta: {', '.join(known) or 'nothing is determined'}."]
    doubts = dict.fromkeys(e.note for e in result.parameters.values() if e.note)
    said += [f"Not determined: {note}." for note in doubts][:2]
    for row in result.tables["budgets"][-1:]:
        said.append(f"The best model size grows as compute to the power {_of(result.parameters['exponent'])}.")
        best = f"{_of(row['model_params'])} parameters on {_of(row['tokens'])} tokens, for a loss of {_of(row['loss'])}"
        said.append(f"For {_text(row['flops'])} FLOPs it is {best}.")
    for row in [row for row in result.tables["sections"] if row["alpha"].identified]:
        expected = f"; the law of both expects {row['expected']:.3g}" if math.isfinite(row["expected"]) else ""
        said.append(f"Of {row['variable']} alone the exponent is {_of(row['alpha'])}{expected}.")
    return said


def _of(found: Estimate) -> str:
    ends = f" ({_text(found.low)} to {_text(found.high)})" if math.isfinite(found.low + found.high) else ""
    return _text(found.value) + ends


def _text(value: float) -> str:
    """Writes a number to three digits: 500M, 1.5B, 0.12."""
    of, unit = next(((of, unit) for of, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if of <= value < 1e15), (1, ""))
    return f"{value / of:.3g}{unit}"
