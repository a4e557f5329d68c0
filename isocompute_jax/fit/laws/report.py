"""The laws for readers: sections of the report, a table for the terminal, and CSV tables; all from summary.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isocompute_jax.fit.laws import findings
from isocompute_jax.fit.laws.findings import METHODS
from isocompute_jax.fit.report.csv_tables import csv_text
from isocompute_jax.fit.report.sections import Figures, Html, ReportTable, Section
from isocompute_jax.fit.report.wording import aligned, reach, scale, wrapped
from isocompute_jax.fit.report.wording import figures as number

Summary = dict[str, Any]

TITLES = {
    "model_size": "How does the gain from training depend on the size of the model?",
    "chinchilla": "How does the loss depend on model size and tokens?",
}
FIT_NAMES = ("e", "a", "b", "alpha", "beta", "exponent")
SYMBOLS = dict(zip(FIT_NAMES, ("E", "A", "B", "alpha", "beta", "exponent of N*(C)"), strict=True))


def law_title(summary: Summary) -> str:
    """The report's heading."""
    return summary["flags"]["title"] or TITLES[summary["analysis"]]


def law_sections(summary: Summary, figures: Figures) -> list[Section]:
    """The law as sections of the report; a section whose picture is missing is kept when it has findings or a table.

    Args:
      summary: content of summary.json.
      figures: name -> picture, as `draw_law_figures` returns them.
    """
    if summary["analysis"] == "model_size":
        return [_lines(summary, figures), _slopes(summary, figures), _transfer(summary, figures), _reuse(summary)]
    return [_prediction(summary, figures), _optimal(summary, figures)]


def _lines(summary: Summary, figures: Figures) -> Section:
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
        findings=tuple(findings.crossings(summary)),
        table=ReportTable(
            ("models", "cross at X", "95% interval", "inside both data", "better beyond", "remark"),
            tuple(
                (
                    f"{scale(row['smaller'])}, {scale(row['larger'])}", number(row["x"]), reach(row),
                    row["inside"], scale(row["better_after"]), row["message"] or "ok",
                )
                for row in summary["crossovers"]
            ),
        ) if summary["crossovers"] else None,
    )  # fmt: skip


def _slopes(summary: Summary, figures: Figures) -> Section:
    predicted = [
        (f"{scale(row['model_params'])} (predicted)", None, row["k"]["value"], None, reach(row["k"]), None)
        for row in summary["predictions"]
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
        findings=tuple(findings.slopes(summary)),
        table=ReportTable(
            ("model", "points", "k (law)", "k (own line)", "± / interval", "E"),
            tuple(
                (scale(m["model_params"]), m["num_points"], m["k"], m["free_k"], m["free_k_error"], m["intercept"])
                for m in summary["models"]
            )
            + tuple(predicted),
        ),
    )


def _transfer(summary: Summary, figures: Figures) -> Section:
    share = 1.0 - summary["flags"]["holdout"]
    rows = [("later evaluations", row) for row in summary["intra_model"]]
    rows += [("larger model", row) for row in summary["inter_model"]]
    return Section(
        title="Does the law predict?",
        paragraphs=(
            f"Within models: the law is fitted to the first {share:.0%} of each run's evaluations and predicts the "
            "rest. Across models: it is fitted without the largest ones; their slope is that of the law, and their "
            f"level E comes from their own first {summary['flags']['anchors']} evaluations, since the law has none.",
        ),
        figure=figures.get("holdout"),
        alt="Predicted against measured reward of evaluations that were not fitted",
        how_to_read="Each dot is an evaluation that was not fitted; on the dashed line the prediction is right.",
        findings=tuple(findings.transfer(summary)) or ("There is nothing to predict: too few evaluations or models.",),
        table=ReportTable(
            ("predicted", "model", "fitted", "scored", "error in ln L", "error in reward", "error of no change"),
            tuple(
                (
                    kind, scale(row["model_params"]), row["num_fitted"], row["num_scored"], row["log_loss_error"],
                    row["reward_error"], row["unchanged_error"],
                )
                for kind, row in rows
            ),
        ) if rows else None,
    )  # fmt: skip


def _reuse(summary: Summary) -> Section:
    rows = summary["equal_data"]
    return Section(
        title="Data reuse",
        paragraphs=(
            "tau is the number of times that each training problem has been used: compute / (n D). arXiv 2509.25300 "
            f"reports no significant degradation up to about tau = {summary['reuse']['threshold']:g}.",
        ),
        findings=tuple(findings.data_reuse(summary)),
        table=ReportTable(
            ("model", "problems D", "tau", "loss", "± (runs)", "runs"),
            tuple(
                (scale(r["model_params"]), int(r["problem_set_size"]), r["tau"], r["loss"], r["error"], r["num_runs"])
                for r in rows
            ),
        ) if rows else None,
    )  # fmt: skip


def _prediction(summary: Summary, figures: Figures) -> Section:
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
        findings=tuple(findings.exponents(summary)),
        table=ReportTable(
            ("fit", "parameter", "value", "95% interval", "remark"),
            tuple(
                (
                    METHODS[fit["method"]],
                    SYMBOLS[name],
                    fit[name]["value"] if fit[name]["identified"] else "not identified",
                    reach(fit[name]),
                    fit[name]["note"] or "ok",
                )
                for fit in summary["fits"]
                for name in FIT_NAMES
            ),
        ),
    )


def _optimal(summary: Summary, figures: Figures) -> Section:
    rows = [row for row in summary["optimal"] if row["identified"]]
    return Section(
        title="The compute-optimal model",
        paragraphs=(
            "At a budget of C = 6 N D the loss is lowest at N* = G (C/6)^a and D* = (C/6)^(1-a) / G, with "
            "a = beta / (alpha + beta) and G = (alpha A / (beta B))^(1 / (alpha + beta)).",
        ),
        figure=figures.get("optimal"),
        alt="Lines of equal loss over parameters and tokens, with the compute-optimal path",
        how_to_read="Grey lines join N and D of equal loss; the dark line is the best N and D at each compute.",
        findings=tuple(findings.allocation(summary)),
        table=ReportTable(
            ("fit", "C (FLOPs)", "N*", "95% interval", "D* (tokens)", "loss"),
            tuple(
                (
                    METHODS[row["method"]], number(row["flops"]), scale(row["model_params"]),
                    f"{scale(row['model_params_low'])} to {scale(row['model_params_high'])}", scale(row["tokens"]),
                    row["loss"],
                )
                for row in rows
            ),
        ) if rows else None,
    )  # fmt: skip


def law_table(summary: Summary) -> str:
    """The law for a terminal: what was fitted, parameters with intervals, one line per model, then the findings."""
    parts = _model_size_lines(summary) if summary["analysis"] == "model_size" else _chinchilla_lines(summary)
    return "\n".join([*parts, "", *(line for sentence in findings.law_headline(summary) for line in wrapped(sentence))])


def _model_size_lines(summary: Summary) -> list[str]:
    law, flags = summary["law"], summary["flags"]
    errors = (law["k_max_error"], None if law["log_n0_error"] is None else law["log_n0_error"] * law["n0"]["value"])
    estimates = [
        (name, _value(found, text), text(error if found["identified"] else None), reach(found, text))
        for name, found, error, text in (
            ("k_max", law["k_max"], errors[0], number),
            ("N0", law["n0"], errors[1], scale),
        )
    ]
    rows = [
        tuple(
            [scale(m["model_params"]), str(m["num_runs"]), str(m["num_points"])]
            + [number(m[name]) for name in ("k", "free_k", "free_k_error", "intercept")]
        )
        for m in summary["models"]
    ]
    return [
        "ln L = -k(N) ln X + E(N),  k(N) = k_max / (1 + N0 / N)",
        f"metric {flags['metric']}  X in {summary['resource']['unit']}  points {law['num_points']}  "
        f"R2 within models {number(law['r2'])}  status {law['status']}",
        "",
        *aligned([("parameter", "value", "s.e.", "95% interval"), *estimates]),
        "",
        *aligned([("model", "runs", "points", "k law", "k own", "s.e.", "E"), *rows]),
    ]


def _chinchilla_lines(summary: Summary) -> list[str]:
    rows = [
        (METHODS[fit["method"]], SYMBOLS[name], _value(fit[name], number), reach(fit[name]), fit["status"])
        for fit in summary["fits"]
        for name in FIT_NAMES
    ]
    return [
        "L(N, D) = E + A / N^alpha + B / D^beta",
        f"metric {summary['flags']['metric']}  points {len(summary['points']['loss'])}",
        "",
        *aligned([("fit", "parameter", "value", "95% interval", "status"), *rows]),
    ]


def _value(estimate: dict[str, Any], text) -> str:
    return text(estimate["value"]) if estimate["identified"] else "not identified"


def law_tables(summary: Summary) -> dict[str, str]:
    """File name -> CSV text."""
    if summary["analysis"] == "chinchilla":
        fits = [_flat(fit, FIT_NAMES, keep=("method", "num_points", "objective", "r2", "status", "message"))
                for fit in summary["fits"]]  # fmt: skip
        return _texts({"chinchilla.csv": fits, "chinchilla_optimal.csv": summary["optimal"]})
    law = _flat(summary["law"], ("k_max", "n0"), keep=tuple(k for k in summary["law"] if k not in ("k_max", "n0")))
    models = [{key: value for key, value in row.items() if key != "points"} for row in summary["models"]]
    predicted = [
        {"kind": kind} | {k: v for k, v in _flat(row, ("predicted_k",), keep=tuple(row)).items() if k != "points"}
        for kind in ("intra_model", "inter_model")
        for row in summary[kind]
    ]
    slopes = [_flat(row, ("k",), keep=("model_params",)) for row in summary["predictions"]]
    return _texts({
        "model_size.csv": [law],
        "models.csv": models,
        "crossovers.csv": summary["crossovers"],
        "extrapolation.csv": predicted,
        "predictions.csv": slopes,
        "equal_data.csv": summary["equal_data"],
    })  # fmt: skip


def _texts(tables: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """CSV text of each table that has rows; the first row names the columns."""
    return {name: csv_text(rows, list(rows[0])) for name, rows in tables.items() if rows}


def _flat(row: dict[str, Any], estimates: Sequence[str], *, keep: Sequence[str]) -> dict[str, Any]:
    """A row with each estimate spread over columns; a value that is not identified is left empty."""
    flat = {}
    for name in estimates:
        found = row[name]
        flat[name] = found["value"] if found["identified"] else None
        flat |= {f"{name}_low": found["low"], f"{name}_high": found["high"], f"{name}_identified": found["identified"]}
    return flat | {name: row[name] for name in keep if name not in estimates}
