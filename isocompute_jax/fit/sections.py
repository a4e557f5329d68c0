"""The report's sections: what each picture shows, how to read it, what the data say, and the table behind it.

Prose that explains stands here; prose that claims comes from `findings`, computed from the summary.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from isocompute_jax.fit import findings

Summary = dict[str, Any]
Figures = Mapping[str, pathlib.Path]


class Html(str):
    """Text that is HTML already: templates put it in as it is, where plain text is escaped."""

    def __html__(self) -> str:
        """The protocol by which template engines recognise it."""
        return self


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of the report; cells are shown as text, floats to four significant figures, None as a dash."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclasses.dataclass(frozen=True)
class Section:
    """One section of the report.

    Attributes:
      title: its heading.
      paragraphs: explanation; plain text, or `Html`.
      figure: path of an .svg or .png, which is put into the report itself.
      alt: what the figure shows, for those who cannot see it.
      how_to_read: the figure's caption.
      findings: sentences computed from data.
      table: shown under the figure.
    """

    title: str
    paragraphs: tuple[str, ...] = ()
    figure: pathlib.Path | None = None
    alt: str = ""
    how_to_read: str = ""
    findings: tuple[str, ...] = ()
    table: Table | None = None


def analysis_sections(summary: Summary, figures: Figures) -> list[Section]:
    """The analysis as sections, for its own report or as part of a larger one.

    Args:
      summary: content of summary.json.
      figures: name -> picture, as `draw_figures` returns them; a section whose picture is missing is left out.
    """
    sections = [_learning_curves(summary, figures), _optimal_group_size(summary, figures), _ties(summary)]
    optional = {"targets": _targets, "epochs": _epochs, "entropy": _entropy, "solve_rates": _solve_rates}
    return sections + [section(summary, figures) for name, section in optional.items() if name in figures]


def _learning_curves(summary: Summary, figures: Figures) -> Section:
    return Section(
        title="Learning curves and the frontier",
        paragraphs=(
            "The seeds of a configuration are averaged first. Through the mean evaluations runs a monotone curve,",
            Html(
                '<span class="formula">R(C) = R<sub>0</sub> + (A - R<sub>0</sub>) / '
                "(1 + (C<sub>mid</sub> / C)<sup>B</sup>),</span>"
            ),
            Html(
                "which starts at the floor R<sub>0</sub>, has made half of its gain at C<sub>mid</sub>, and levels "
                "off at the asymptote A; B says how steep it is. The base model's own score, at C = 0, measures "
                "R<sub>0</sub>."
            ),
        ),
        figure=figures.get("learning_curves"),
        alt="Reward against compute for each group size, with fitted curves and their upper envelope",
        how_to_read=(
            "Each dot is the mean evaluation of a configuration on the evaluation problems; hollow ones were not "
            "fitted, because they do not exceed the earlier ones. Thin lines are the fitted curves, drawn only where "
            "there are data. The thick line is the frontier: the best curve at each budget, in the colour of its n. "
            "Dotted verticals mark where the lead changes. The base model has no place on a logarithmic axis."
        ),
        findings=tuple(findings.learning_curves(summary)),
        table=Table(
            ("configuration", "seeds", "points", "R0", "A", "C_mid", "B", "R²", "remark"),
            tuple(
                (c["run"], len(c["seeds"]), c["num_points"], *c["params"].values(), c["r2"], c["message"] or "ok")
                for c in summary["curves"]
            ),
        ),
    )


def _optimal_group_size(summary: Summary, figures: Figures) -> Section:
    choices = summary["record_choices"]
    return Section(
        title="The best number of rollouts per problem, n*(C)",
        paragraphs=(
            "Reading the frontier's n at each evaluated budget gives n*(C). A sigmoid in log C is fitted to it, as in "
            "the IsoCompute playbook (arXiv 2603.12151):",
            Html(
                '<span class="formula">log<sub>2</sub> n* = L / (1 + exp(-k (log<sub>10</sub> C - log<sub>10</sub> '
                "C<sub>0</sub>))) + b.</span>"
            ),
            Html("Where it has levelled off, n* stays at 2<sup>L + b</sup>, its saturation value."),
        ),
        figure=figures.get("optimal_group_size"),
        alt="Optimal group size against compute, with its running average and fitted sigmoid",
        how_to_read=(
            "Each dot is the n on the frontier at one budget; its colour is the reward reached there. A dashed "
            "sigmoid is one that the data do not pin down; the findings say why. The table shows how much the lead "
            "depends on which evaluations are fitted: record-breaking ones only (strict), those that reach a new bin "
            "of reward (bucketed), or all of them (off)."
        ),
        findings=tuple(findings.optimal_group_size(summary)),
        table=Table(
            ("evaluations fitted", "lead passes", "at compute", "epochs", "why"),
            tuple(row for rule, found in choices.items() for row in _choice_rows(rule, found["switches"])),
        ),
    )


def _choice_rows(rule: str, switches: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    if not switches:
        return [(rule, "no switch", None, None, None)]
    why = {"crossing": "the curves cross", "range": "data begin or end"}
    return [(rule, f"{s['from_run']} → {s['to_run']}", s["compute"], s["epochs"], why[s["cause"]]) for s in switches]


def _ties(summary: Summary) -> Section:
    by_seed = {row["compute"]: row["best_group_size"] for row in summary["per_seed"]["budgets"]}
    return Section(
        title="Is the lead real? Ties and seeds",
        paragraphs=(
            "Here nothing is fitted. At each budget the mean evaluations of the configurations are compared. One ties "
            "with the best when it lies within one standard error of their difference; the noise of a seed is pooled "
            "over all configurations at that budget.",
        ),
        findings=tuple(findings.ties(summary)),
        table=Table(
            ("compute", "best", "reward", "tied with it", "s.d. of a seed", "best n in each seed"),
            tuple(
                (
                    row["compute"],
                    row["best_run"],
                    row["reward"],
                    ", ".join(run for run in row["tied_runs"] if run != row["best_run"]) or None,
                    row["seed_sd"],
                    ", ".join(str(n) for n in by_seed.get(row["compute"], {}).values()) or None,
                )
                for row in summary["ties"]["budgets"]
            ),
        ),
    )


def _targets(summary: Summary, figures: Figures) -> Section:
    return Section(
        title="Average, best and worst of k",
        paragraphs=(
            "avg@k is the average solve rate over k samples of each evaluation problem. best@k asks whether at least "
            "one of k samples is right (coverage: how many problems are within reach); worst@k asks whether all k are "
            "(sharpening: how reliable the model is).",
        ),
        figure=figures["targets"],
        alt="The best group size at each budget for each target",
        how_to_read=(
            "One panel per target. A dot is the n with the best evaluation at that budget, a grey bar spans the n "
            "that tie with it, and the line is the n on the fitted frontier."
        ),
        findings=tuple(findings.targets(summary)),
    )


def _epochs(summary: Summary, figures: Figures) -> Section:
    return Section(
        title="When to switch, in epochs",
        paragraphs=(
            "Compute at a switch, divided by n D of the configuration that is left, is the number of times that it "
            "has gone through the training problems: a way to carry a switch point over to a problem set of another "
            "size.",
        ),
        figure=figures["epochs"],
        alt="Number of epochs at each switch of the frontier",
        how_to_read="Filled: the mean of the seeds. Hollow: the same switch in one seed alone. Dotted: one epoch.",
        findings=tuple(findings.switch_epochs(summary)),
    )


def _entropy(summary: Summary, figures: Figures) -> Section:
    return Section(
        title="Entropy over training",
        paragraphs=("Entropy is how undecided the policy is about its next token. Near zero it no longer explores.",),
        figure=figures["entropy"],
        alt="Entropy against compute for each group size",
        how_to_read="One line per configuration, the mean of its seeds, in the colour of its n.",
        findings=tuple(findings.entropy(summary)),
    )


def _solve_rates(summary: Summary, figures: Figures) -> Section:
    return Section(
        title="Which problems improve",
        paragraphs=(
            "Evaluation problems, divided by how many of their samples are right. When all bands move together, "
            "problems improve alike; when the top band grows and the bottom one stays, the rich get richer.",
        ),
        figure=figures["solve_rates"],
        alt="Shares of evaluation problems by solve rate over training",
        how_to_read="One panel per configuration; the height of a band is the share of problems with that solve rate.",
        findings=tuple(findings.solve_rates(summary)),
    )
