"""report.html: one file that opens offline, for a reader who has not read the paper.

Prose that explains lives here and in the template; prose that claims comes from `findings`, computed from the summary.
"""

from __future__ import annotations

import base64
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from isocompute_jax.fit import findings

MEDIA_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of the report; cells are shown as text, floats to four significant figures."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclasses.dataclass(frozen=True)
class Section:
    """One section of the report.

    Attributes:
      title: its heading.
      paragraphs: explanation; plain text, or `markupsafe.Markup` where HTML is meant.
      figure: path of an .svg or .png, which is put into the file itself.
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


def render_report(
    summary: dict[str, Any],
    figures: Mapping[str, pathlib.Path],
    *,
    before: Sequence[Section] = (),
    after: Sequence[Section] = (),
) -> str:
    """The HTML text.

    Args:
      summary: content of summary.json.
      figures: name -> picture, as `draw_figures` returns them; missing ones are left out with their section.
      before: sections that come before the analysis (how the runs were made).
      after: sections that come after it (what it does not show).
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["embedded"] = embedded
    environment.filters["cell"] = _cell
    return environment.get_template("report.html.j2").render(
        summary=summary,
        headline=findings.headline(summary),
        sections=[*before, *analysis_sections(summary, figures), *after],
    )


def embedded(path: pathlib.Path) -> str:
    """A picture as a data: address, so that the report is one file."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f"data:{MEDIA_TYPES[path.suffix]};base64,{data}"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return str(value)


def analysis_sections(summary: dict[str, Any], figures: Mapping[str, pathlib.Path]) -> list[Section]:
    """The analysis as sections, for this report or as part of a larger one."""
    sections = [_learning_curves(summary, figures), _optimal_group_size(summary, figures), _ties(summary)]
    if "targets" in figures:
        sections.append(_targets(summary, figures))
    if "epochs" in figures:
        sections.append(_epochs(summary, figures))
    sections += [_training(name, summary, figures) for name in ("entropy", "solve_rates") if name in figures]
    return sections


def _learning_curves(summary: dict[str, Any], figures: Mapping[str, pathlib.Path]) -> Section:
    return Section(
        title="Learning curves and the frontier",
        paragraphs=(
            "Each configuration was trained several times if it has several seeds; their evaluations are averaged first. Through "
            "the mean runs a monotone curve, R(C) = R0 + (A − R0) / (1 + (C_mid / C)^B): it starts at the floor R0, rises fastest "
            "around C_mid, and levels off at the asymptote A.",
        ),
        figure=figures.get("learning_curves"),
        alt="Held-out reward against compute for each group size, with fitted curves and their upper envelope",
        how_to_read=(
            "Each dot is one evaluation on held-out problems (hollow: it did not exceed the earlier ones and was not fitted). Thin "
            "lines are the fitted curves, drawn only where there are data. The thick line is the frontier: the best curve at each "
            "budget, in the colour of its n. Dotted verticals mark where the lead changes."
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


def _optimal_group_size(summary: dict[str, Any], figures: Mapping[str, pathlib.Path]) -> Section:
    choices = summary["record_choices"]
    return Section(
        title="The best number of rollouts per problem, n*(C)",
        paragraphs=(
            "Reading the frontier's n at each evaluated budget gives n*(C). A sigmoid in log C is fitted to it, as in the IsoCompute "
            "playbook: log2 n* = L / (1 + exp(−k (log10 C − log10 C0))) + b, which levels off at n = 2^(L + b).",
        ),
        figure=figures.get("optimal_group_size"),
        alt="Optimal group size against compute, with its running average and fitted sigmoid",
        how_to_read=(
            "Each dot is the n on the frontier at one budget; its colour is the reward reached there. A dashed sigmoid is one that "
            "the data do not pin down; the finding below says why."
        ),
        findings=tuple(findings.optimal_group_size(summary)),
        table=Table(
            ("evaluations fitted", "lead passes", "at compute", "epochs", "why"),
            tuple(
                (rule, f"{s['from_run']} → {s['to_run']}", s["compute"], s["epochs"], s["cause"])
                for rule, found in choices.items()
                for s in found["switches"]
            )
            + tuple((rule, "no switch", None, None, None) for rule, found in choices.items() if not found["switches"]),
        ),
    )


def _ties(summary: dict[str, Any]) -> Section:
    seeds = summary["per_seed"]["seeds"]
    by_seed = {row["compute"]: row["best_group_size"] for row in summary["per_seed"]["budgets"]}
    return Section(
        title="Is the lead real? Ties and seeds",
        paragraphs=(
            "Here nothing is fitted. At each budget the configurations' mean evaluations are compared; one ties with the best when it "
            "lies within one standard error of their difference, with the noise of a seed pooled over all configurations.",
        ),
        findings=tuple(findings.ties(summary)),
        table=Table(
            (
                "compute",
                "best",
                "reward",
                "tied with the best",
                "s.d. of a seed",
                *(f"best n, seed {seed}" for seed in seeds),
            ),
            tuple(
                (
                    row["compute"],
                    row["best_run"],
                    row["reward"],
                    ", ".join(run for run in row["tied_runs"] if run != row["best_run"]) or None,
                    row["seed_sd"],
                    *(by_seed.get(row["compute"], {}).get(str(seed)) for seed in seeds),
                )
                for row in summary["ties"]["budgets"]
            ),
        ),
    )


def _targets(summary: dict[str, Any], figures: Mapping[str, pathlib.Path]) -> Section:
    return Section(
        title="Average, best and worst of k",
        paragraphs=(
            "avg@k is the average solve rate over k samples of each held-out problem. best@k asks whether at least one of k samples is "
            "right (coverage: how many problems are within reach); worst@k whether all k are (sharpening: how reliable it is).",
        ),
        figure=figures["targets"],
        alt="The best group size at each budget for each target",
        how_to_read=(
            "One panel per target. A dot is the n with the best evaluation at that budget, a grey bar spans the n that tie with it, and "
            "the line is the n on the fitted frontier."
        ),
        findings=tuple(findings.targets(summary)),
    )


def _epochs(summary: dict[str, Any], figures: Mapping[str, pathlib.Path]) -> Section:
    return Section(
        title="When to switch, in epochs",
        paragraphs=(
            "Compute at a switch, divided by n D, is the number of times that the run which is left has seen each training problem: "
            "a way to carry a switch point over to a problem set of another size.",
        ),
        figure=figures["epochs"],
        alt="Number of epochs at each switch of the frontier",
        how_to_read="Filled: the mean of the seeds. Hollow: the same switch in one seed alone. The dotted line is one epoch.",
        findings=tuple(findings.switch_epochs(summary)),
    )


def _training(name: str, summary: dict[str, Any], figures: Mapping[str, pathlib.Path]) -> Section:
    if name == "entropy":
        return Section(
            title="Entropy over training",
            paragraphs=(
                "Entropy is how undecided the policy is about its next token. Near zero it no longer explores.",
            ),
            figure=figures[name],
            alt="Entropy against compute for each group size",
            how_to_read="One line per n, the mean of its seeds.",
            findings=tuple(findings.entropy(summary)),
        )
    return Section(
        title="Which problems improve",
        paragraphs=(
            "Held-out problems, sorted by how many of their samples are right. When all bands move together, problems learn alike; when "
            "the top band grows while the bottom one stays, the ones that were easy already got the compute.",
        ),
        figure=figures[name],
        alt="Shares of held-out problems by solve rate over training",
        how_to_read="Each panel is one configuration; the height of a band is the share of problems with that solve rate.",
        findings=tuple(findings.solve_rates(summary)),
    )
