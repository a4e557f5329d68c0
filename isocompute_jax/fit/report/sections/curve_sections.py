"""Sections about the fitted curves: the curves themselves, and how far they can be trusted."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from isocompute_jax.fit.curve_results import CurveResult
from isocompute_jax.fit.curves.forms import FORMS, SYMBOLS
from isocompute_jax.fit.report.findings import curve_findings
from isocompute_jax.fit.report.findings.curve_findings import not_fitted
from isocompute_jax.fit.report.sections.section import Figures, Html, ReportTable, Section
from isocompute_jax.fit.report.wording import between, parameter
from isocompute_jax.fit.sweep_results import SweepResult

MEANINGS = {
    "floor": "R0 is the level that it starts from",
    "asymptote": "A, the asymptote, is the level that it tends to, the reward of unlimited compute",
    "midpoint": "C_mid is the compute at half of the gain",
    "steepness": "B says how steep it is",
    "rate": "k says how fast it rises",
    "scale": "D is how far it is from A at C = 1",
    "exponent": "B is the power by which it nears A",
}
_NAMES = {name: symbol for symbol, name in SYMBOLS.items()} | {"exponent": "B"}


def symbol(name: str) -> str:
    """What the papers call a parameter."""
    return _NAMES[name]


def typeset(text: str, *, formula: bool = False) -> Html:
    """Symbols with their subscripts and powers raised; as a line of its own where it is a `formula`."""
    marked = html.escape(text)
    for pattern, mark in ((r"C_mid", "C<sub>mid</sub>"), (r"R0", "R<sub>0</sub>"), (r"\^(-?B)", r"<sup>\1</sup>")):
        marked = re.sub(pattern, mark, marked)
    return Html(f'<span class="formula">{marked}.</span>' if formula else marked)


def learning_curves(result: SweepResult, figures: Figures) -> Section:
    """The curves, their frontier, and the table of parameters."""
    form = FORMS[result.curves[0].fit.form]
    meanings = "; ".join(MEANINGS[name] for name in form.params)
    return Section(
        title="Learning curves and the frontier",
        paragraphs=(
            "The seeds of a configuration (runs that differ in nothing but their random numbers) are averaged first. "
            f"Through the mean evaluations runs a monotone curve of the form {form.name},",
            typeset(form.equation, formula=True),
            typeset(
                f"{meanings}. A parameter that the data do not pin down is not identified: only its 95% interval is "
                "given."
            ),
        ),
        figure=figures.get("learning_curves"),
        alt="Reward against compute for each configuration, with fitted curves and their upper envelope",
        how_to_read=(
            "Each dot is the mean evaluation of a configuration on the evaluation problems; hollow ones were not "
            f"fitted: they {not_fitted(result)}. Thin lines are the fitted curves, drawn only where there are data; a "
            "triangle marks the peak of one that falls after it. The thick line is the frontier, the best curve at "
            "each budget, in its configuration's colour; where another panel has it, it is dotted. Dotted verticals "
            "mark where the lead changes. The base model has no place on a logarithmic axis."
        ),
        findings=tuple(curve_findings.learning_curves(result)),
        table=ReportTable(
            ("configuration", "seeds", "points", *(symbol(name) for name in form.params), "R²", "remark"),
            tuple(
                (
                    c.run, len(c.seeds), c.fit.num_points, *(parameter(c, name) for name in form.params),
                    c.fit.r2, c.fit.message or "ok",
                )
                for c in result.curves
            ),
        ),
    )  # fmt: skip


def profiles(result: SweepResult, figures: Figures) -> Section:
    """Which asymptotes are identified."""
    tolerance = result.options.fit.tolerance * result.options.fit.width
    return Section(
        title="Is the asymptote identified?",
        paragraphs=(
            "The asymptote A is an extrapolation: data that end before the curve bends say little about it. So A is "
            "moved away from its estimate, the other parameters are fitted anew, and the fit becomes worse; how soon, "
            "gives its interval. A counts as identified when the data reach twice C_mid and the 95% interval is "
            f"narrower than ±{tolerance:g} and stays inside the bounds.",
        ),
        figure=figures["profiles"],
        alt="Profile of the asymptote of each configuration",
        how_to_read=(
            "Each line shows how much worse the fit of a configuration becomes as A is moved (signed, in units of the "
            "95% limit). The interval is where it lies in the grey band. Dots are estimates; where A is not "
            "identified the line is dashed and has none."
        ),
        findings=tuple(curve_findings.identification(result)),
        table=_asymptotes(result.curves),
    )


def _asymptotes(curves: Sequence[CurveResult]) -> ReportTable:
    """A of each curve, how far its data reach, and what ScaleRL's grid procedure finds where it was asked for."""
    by_grid = any(curve.grid for curve in curves)
    return ReportTable(
        ("configuration", "A", *(["A by grid"] if by_grid else []), "data end at C / C_mid", "remark"),
        tuple(
            (
                c.run, parameter(c, "asymptote"), *([_grid(c)] if by_grid else []), c.relative_end,
                c.fit.message or "ok",
            )
            for c in curves
        ),
    )  # fmt: skip


def _grid(curve: CurveResult) -> str | None:
    """The grid's A, where it is an estimate and not the end of the grid."""
    if not curve.grid:
        return None
    if curve.grid.at_edge:
        return "at the edge of the grid"
    return f"{curve.grid.asymptote:z.4g}" if curve.identified() else "not identified"


def residuals(result: SweepResult, figures: Figures) -> Section:
    """What the curves leave."""
    return Section(
        title="What the curves leave",
        paragraphs=(
            "A residual is an evaluation minus its curve. A good fit leaves noise without a pattern; a bend in the "
            "residuals says that the form of the curve is wrong. The noise is the residuals' standard deviation.",
        ),
        figure=figures["residuals"],
        alt="Residuals against compute for each configuration, in units of the noise",
        how_to_read=(
            "One panel per configuration (a selection, when there are many). Hollow dots were not fitted. About "
            "19 of 20 should lie in the grey band of two standard deviations."
        ),
        findings=tuple(curve_findings.residuals(result)),
        table=ReportTable(
            ("configuration", "points", "noise", "correlation of neighbours", "condition number"),
            tuple((c.run, c.fit.num_points, c.fit.noise, c.fit.correlation, c.fit.condition) for c in result.curves),
        ),
    )


def forms(result: SweepResult, figures: Figures) -> Section:
    """Other forms of curve."""
    return Section(
        title="Would another form of curve do better?",
        paragraphs=(
            "The same evaluations, fitted by every form. AICc weighs misfit against the number of parameters: lower is "
            "better, and a difference of 10 is clear. The sharper test is prediction: each form is fitted to the "
            "first part of each curve and scored on the rest.",
        ),
        figure=figures["forms"],
        alt="AICc and prediction error of each form of curve",
        how_to_read="Short bars are good; the dark bar is the best.",
        findings=tuple(curve_findings.forms(result)),
        table=ReportTable(
            ("form", "equation", "AICc", "BIC", "mean error, held out", "in 95% interval"),
            tuple(
                (
                    name, typeset(FORMS[name].equation), row.aicc, row.bic, row.holdout_mean_abs_error,
                    None if row.holdout_coverage is None else f"{row.holdout_coverage:.0%}",
                )
                for name, row in result.forms.items()
            ),
        ),
    )  # fmt: skip


def holdout(result: SweepResult, figures: Figures) -> Section:
    """How well the curves predict."""
    cut = result.options.holdout
    first = f"the first {cut:.0%} of the compute" if cut < 1 else f"compute up to {cut:,.0f}"
    return Section(
        title="Do the curves predict?",
        paragraphs=(
            f"Each curve is fitted to {first} alone and predicts the evaluations after it, with the interval in which "
            "19 of 20 evaluations should lie.",
        ),
        figure=figures["holdout"],
        alt="Predicted and measured reward after the cut",
        how_to_read="Grey dots were fitted, black ones held out; the dotted vertical is the cut.",
        findings=tuple(curve_findings.holdout(result)),
        table=ReportTable(
            ("configuration", "cut at", "held out", "mean error", "bias", "in 95% interval"),
            tuple(
                (c.run, h.cut, h.num_points, h.mean_abs_error, h.bias, f"{h.coverage:.0%}")
                for c in result.curves
                if c.holdout and (h := c.holdout.own)
            ),
        ),
    )


def comparison(result: SweepResult, figures: Figures) -> Section:
    """Steepness under one asymptote."""
    found = result.comparison
    return Section(
        title="Which configuration learns more efficiently?",
        paragraphs=(
            "A and B trade off in a fit. To compare efficiency, ScaleRL (arXiv 2510.13786) fits all curves again with "
            "the same A and compares the steepness B.",
            Html(
                '<span class="formula">F = C<sub>mid</sub><sup>B</sup> / ((A - R<sub>0</sub>) / (R - R<sub>0</sub>) '
                "- 1)</span> makes a straight line of such a curve: ln F = B ln C."
            ),
        ),
        figure=figures["comparison"],
        alt="ln F against ln C, and the steepness of each configuration with its interval",
        how_to_read=(
            "Above, dots are evaluations and lines have slope B; below, B with its 95% interval. "
            "Dots far from their line are evaluations close to R0 or A, where F magnifies noise."
        ),
        findings=tuple(curve_findings.comparison(result)),
        table=ReportTable(
            ("configuration", "B", "95% interval"),
            tuple(
                (row.run, row.steepness if row.identified else "not identified", between(row.interval95))
                for row in (found.curves if found else ())
            ),
        ),
    )
