"""The laws as sections of the report."""

from __future__ import annotations

from isocompute_jax.fit.laws import findings
from isocompute_jax.fit.laws.analysis import LawAnalysis
from isocompute_jax.fit.laws.chinchilla_results import ChinchillaFit, ChinchillaResult
from isocompute_jax.fit.laws.findings import METHODS
from isocompute_jax.fit.laws.law_options import LawOptions
from isocompute_jax.fit.laws.model_size_results import ModelSizeResult
from isocompute_jax.fit.laws.quotes import NOT_IDENTIFIED, reach
from isocompute_jax.fit.laws.results import Estimate
from isocompute_jax.fit.report.sections import Figures, Html, ReportTable, Section
from isocompute_jax.fit.report.wording import figures as number
from isocompute_jax.fit.report.wording import scale

TITLES = {
    "model_size": "How does the gain from training depend on the size of the model?",
    "chinchilla": "How does the loss depend on model size and tokens?",
}
SYMBOLS = {"e": "E", "a": "A", "b": "B", "alpha": "alpha", "beta": "beta", "exponent": "exponent of N*(C)"}
"""Estimates of a pre-training fit, in the order that tables have them."""


def law_title(options: LawOptions) -> str:
    """The report's heading."""
    return options.title or TITLES[options.analysis]


def law_sections(analysis: LawAnalysis, figures: Figures) -> list[Section]:
    """The law as sections of the report; a section whose picture is missing is kept when it has findings or a table.

    Args:
      analysis: the law, fitted.
      figures: name -> picture, as `draw_law_figures` returns them.
    """
    result = analysis.result
    if isinstance(result, ModelSizeResult):
        anchors = analysis.options.anchors
        return [_lines(result, figures), _slopes(result, figures), _transfer(result, figures, anchors), _reuse(result)]
    return [_prediction(result, figures), _optimal(result, figures)]


def _lines(result: ModelSizeResult, figures: Figures) -> Section:
    return Section(
        title="Loss against resource, model by model",
        paragraphs=(
            "The law of arXiv 2509.25300 says that the loss L = 1 - reward falls as a power of the resource X,",
            Html('<span class="formula">ln L(N, X) = -k(N) ln X + E(N),</span>'),
            "with a slope k that depends on the number of parameters N. The level E is free for each model. Two models "
            "change places where their lines cross, at X = exp((E2 - E1) / (k2 - k1)).",
        ),
        figure=figures.get("lines"),
        alt="One minus reward against the resource on logarithmic axes, with a line for each model size",
        how_to_read=(
            "Each dot is an evaluation, in the colour of its model size; lines are the law, where there are data. "
            "A ring marks a crossing inside the data of both models."
        ),
        findings=tuple(findings.crossings(result)),
        table=ReportTable(
            ("models", "cross at X", "95% interval", "inside both data", "better beyond", "remark"),
            tuple(
                (
                    f"{scale(row.smaller)}, {scale(row.larger)}", number(row.x), reach(row),
                    row.inside, scale(row.better_after), row.message or "ok",
                )
                for row in result.crossovers
            ),
        ) if result.crossovers else None,
    )  # fmt: skip


def _slopes(result: ModelSizeResult, figures: Figures) -> Section:
    predicted = [
        (f"{scale(row.model_params)} (predicted)", None, row.k.value, None, reach(row.k), None)
        for row in result.predictions
    ]
    return Section(
        title="The slope saturates with model size, or does it?",
        paragraphs=(
            Html(
                '<span class="formula">k(N) = k<sub>max</sub> / (1 + N<sub>0</sub> / N)</span> is fitted to all models '
                "at once; half of k<sub>max</sub> is reached at N = N<sub>0</sub>."
            ),
            "Intervals follow the sum of squares over N0 and are widened because evaluations of one run resemble each "
            "other. They say nothing about what other runs of the same models would have given.",
        ),
        figure=figures.get("slopes"),
        alt="Slope against number of parameters, with the saturating law",
        how_to_read=(
            "Dots are the slopes of each model's own line, with two standard errors; the band is the 95% region of the "
            "law, dashed where it is not identified. A diamond is the slope predicted from the smaller models alone."
        ),
        findings=tuple(findings.slopes(result)),
        table=ReportTable(
            ("model", "points", "k (law)", "k (own line)", "± / interval", "E"),
            tuple(
                (
                    scale(line.model_params),
                    line.num_points,
                    line.k,
                    line.free_k,
                    line.free_k_error,
                    line.intercept,
                )
                for line in result.models
            )
            + tuple(predicted),
        ),
    )


def _transfer(result: ModelSizeResult, figures: Figures, anchors: int) -> Section:
    rows = [("later evaluations", row) for row in result.intra_model]
    rows += [("larger model", row) for row in result.inter_model]
    return Section(
        title="Does the law predict?",
        paragraphs=(
            f"Within models: the law is fitted to the first {result.fitted_share:.0%} of each run's evaluations and "
            "predicts the rest. Across models: it is fitted without the largest ones; their slope is that of the law, "
            f"and their level E comes from their own first {anchors} evaluations, since the law has none.",
        ),
        figure=figures.get("holdout"),
        alt="Predicted against measured reward of evaluations that were not fitted",
        how_to_read="Each dot is an evaluation that was not fitted; on the dashed line the prediction is right.",
        findings=tuple(findings.transfer(result)) or ("There is nothing to predict: too few evaluations or models.",),
        table=ReportTable(
            ("predicted", "model", "fitted", "scored", "error in ln L", "error in reward", "error of no change"),
            tuple(
                (
                    kind, scale(row.model_params), row.num_fitted, row.num_scored, row.log_loss_error,
                    row.reward_error, row.unchanged_error,
                )
                for kind, row in rows
            ),
        ) if rows else None,
    )  # fmt: skip


def _reuse(result: ModelSizeResult) -> Section:
    return Section(
        title="Data reuse",
        paragraphs=(
            "tau is the number of times that each training problem has been used: compute / (n D). arXiv 2509.25300 "
            f"reports no significant degradation up to about tau = {result.reuse.threshold:g}.",
        ),
        findings=tuple(findings.data_reuse(result)),
        table=ReportTable(
            ("model", "problems D", "tau", "loss", "± (runs)", "runs"),
            tuple(
                (
                    scale(row.model_params), int(row.problem_set_size), row.tau, row.loss,
                    row.error, row.num_runs,
                )
                for row in result.equal_data
            ),
        ) if result.equal_data else None,
    )  # fmt: skip


def estimates(fit: ChinchillaFit) -> list[tuple[str, Estimate]]:
    """(symbol, estimate) of a pre-training fit."""
    return [(symbol, getattr(fit, name)) for name, symbol in SYMBOLS.items()]


def _prediction(result: ChinchillaResult, figures: Figures) -> Section:
    return Section(
        title="The pre-training law on these runs",
        paragraphs=(
            "Pre-training losses follow (arXiv 2203.15556)",
            Html(
                '<span class="formula">L(N, D) = E + A / N<sup>alpha</sup> + B / D<sup>beta</sup>.</span> It is given '
                "here for comparison: reinforcement learning need not follow it."
            ),
            "It is fitted twice: by least squares of the loss, and by a Huber loss of ln L, which outliers move less. "
            "Intervals come from resampling runs.",
        ),
        figure=figures.get("prediction"),
        alt="Loss of the law against measured loss",
        how_to_read="Each dot is a run's loss, in the colour of its model size; on the dashed line the law is exact.",
        findings=tuple(findings.exponents(result)),
        table=ReportTable(
            ("fit", "parameter", "value", "95% interval", "remark"),
            tuple(
                (
                    METHODS[fit.method],
                    symbol,
                    found.value if found.identified else NOT_IDENTIFIED,
                    reach(found),
                    found.note or "ok",
                )
                for fit in result.fits
                for symbol, found in estimates(fit)
            ),
        ),
    )


def _optimal(result: ChinchillaResult, figures: Figures) -> Section:
    rows = [row for fit in result.fits for row in result.path(fit.method)]
    return Section(
        title="The compute-optimal model",
        paragraphs=(
            "At a budget of C = 6 N D the loss is lowest at N* = G (C/6)^a and D* = (C/6)^(1-a) / G, with "
            "a = beta / (alpha + beta) and G = (alpha A / (beta B))^(1 / (alpha + beta)).",
        ),
        figure=figures.get("optimal"),
        alt="Lines of equal loss over parameters and tokens, with the compute-optimal path",
        how_to_read="Grey lines join N and D of equal loss; the dark line is the best N and D at each compute.",
        findings=tuple(findings.allocation(result)),
        table=ReportTable(
            ("fit", "C (FLOPs)", "N*", "95% interval", "D* (tokens)", "loss"),
            tuple(
                (
                    METHODS[row.method], number(row.flops), scale(row.model_params),
                    f"{scale(row.model_params_low)} to {scale(row.model_params_high)}", scale(row.tokens),
                    row.loss,
                )
                for row in rows
            ),
        ) if rows else None,
    )  # fmt: skip
