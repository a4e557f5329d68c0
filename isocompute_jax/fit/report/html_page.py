"""report.html: one file that opens offline and prints well, for a reader who has not read the papers."""

from __future__ import annotations

import base64
import dataclasses
import html
import pathlib
import re
from collections.abc import Sequence

import jinja2

from isocompute_jax.fit.laws.analysis import LawAnalysis
from isocompute_jax.fit.laws.findings import law_headline
from isocompute_jax.fit.laws.law_sections import law_title
from isocompute_jax.fit.report.findings.answers import CONFIDENCE_RULE, answer_text, other_form, range_cells
from isocompute_jax.fit.report.findings.frontier_findings import cannot_compare
from isocompute_jax.fit.report.interactive import interactive_data
from isocompute_jax.fit.report.provenance import versions
from isocompute_jax.fit.report.sections import Figures, Html, Section, analysis_sections, cell
from isocompute_jax.fit.report.wording import unit
from isocompute_jax.fit.sweep_results import SweepResult

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
FLAG = r"--[a-z]\w*(=[\w.,:]*\w)?"

TEMPLATES = pathlib.Path(__file__).parent / "templates"

LEAD = (
    "Given a base model, training problems and a budget of C sampled answers (rollouts): how many answers, n, should "
    "each problem get?"
)
BACKGROUNDS = {
    "frontier": "Reinforcement learning of a language model spends its compute on sampled answers. Given a base model, "
    "a set of training problems and a budget of C sampled answers: is it better to sample many answers to each problem "
    "and take few steps, or few answers and take many steps? And how does the best choice move as the budget grows?",
    "model_size": "How much reward does a given amount of training bring to a small model, and how much to a large "
    "one? And can the one be told from the other?",
    "chinchilla": "The law by which pre-training divides compute between model size and tokens, fitted to these runs "
    "for comparison.",
}
GLOSSARIES: dict[str, tuple[tuple[str, str], ...]] = {
    "frontier": (
        (
            "rollout",
            "one sampled answer to a training problem, with the reward it got, such as 1 if it is right and 0 if not.",
        ),
        (
            "n",
            "group size: rollouts sampled for each problem in one step. They are compared with each other to see which "
            "to reinforce.",
        ),
        (
            Html("B<sub>problem</sub>"),
            Html("different problems in one step, so that a step has B = B<sub>problem</sub> &times; n rollouts."),
        ),
        ("M", Html("steps: updates of the model. They cost B<sub>problem</sub> &times; n &times; M rollouts in all.")),
        ("C", "compute: what training paid for, in the unit that the axes name."),
        ("n*", "the n with the highest reward at a given C, on the evaluation problems."),
        (
            "D, epoch",
            "D is the number of training problems; an epoch is one pass over them, so after C rollouts C / (n D) "
            "epochs have gone by.",
        ),
        ("seed", "a repetition of a run with other random numbers: how far results differ by chance."),
    ),
    "model_size": (
        ("N", "parameters of the model."),
        ("X", "the resource that training spends: compute in FLOPs, or data."),
        ("L", "the loss: one minus the reward."),
    ),
    "chinchilla": (
        ("N", "parameters of the model."),
        ("D", "tokens that it was trained on."),
        ("C", "compute in FLOPs, 6 N D."),
    ),
}


def render_report(
    result: SweepResult, figures: Figures, *, before: Sequence[Section] = (), after: Sequence[Section] = ()
) -> str:
    """The HTML text of an analysis of learning curves: the answer and its picture first, then checks and method folded.

    Args:
      result: of the analysis.
      figures: name -> picture, as `draw_figures` returns them.
      before: sections about how the runs were made.
      after: sections about what the analysis does not show.
    """
    options, records = result.options, result.options.records
    bins = f" (bin width {options.bin_width})" if options.bin_width else ""
    curves, *checks = analysis_sections(result, figures)
    asked = [answer_text(result, found) for found in result.asked]
    return (
        _environment()
        .get_template("sweep.html.j2")
        .render(
            title=options.title,
            lead=LEAD,
            cannot_say=cannot_compare(result),
            answers=asked,
            form_note=other_form(result),
            picture_path=curves.figure,
            picture_alt=curves.alt,
            asked_rows=[(t.question, t.pick, t.plan, t.expectation, f"{t.label}. {t.certainty}") for t in asked],
            range_columns=(f"budget ({unit(result)})", "answer", result.metric, "confidence"),
            range_rows=[range_cells(result, row) for row in result.ranges],
            confidence_rule=CONFIDENCE_RULE,
            checks=[_without_picture(curves), *checks, *after],
            warnings=result.warnings,
            background=BACKGROUNDS["frontier"],
            glossary=GLOSSARIES["frontier"],
            method=before,
            data=Html(interactive_data(result)),
            settings=_settings(
                len(result.runs),
                f"metric {options.metric} on {options.read.eval_set}; evaluations fitted: {records}{bins}; "
                f"seed {options.seed}",
            ),
        )
    )


def _without_picture(section: Section) -> Section:
    """The section of the picture that stands at the top: how to read it is told in its text."""
    return dataclasses.replace(section, figure=None, paragraphs=(*section.paragraphs, section.how_to_read))


def render_law_report(analysis: LawAnalysis, sections: Sequence[Section]) -> str:
    """The HTML text of a law's analysis, from its result and its sections (see `law_sections`)."""
    return (
        _environment()
        .get_template("law.html.j2")
        .render(
            title=law_title(analysis.options),
            lead=BACKGROUNDS[analysis.options.analysis],
            headline=law_headline(analysis),
            glossary=GLOSSARIES[analysis.options.analysis],
            sections=sections,
            warnings=analysis.warnings,
            settings=_settings(len(analysis.runs), f"metric {analysis.options.metric}"),
        )
    )


def _settings(num_runs: int, choices: str) -> str:
    """What was read, by which choices, with which versions."""
    libraries = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"{num_runs} run{'s' if num_runs != 1 else ''}; {choices}. {libraries}."


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(picture=picture, cell=cell, unbroken=unbroken)
    return environment


def picture(path: pathlib.Path, alt: str) -> Html:
    """A picture as HTML, so that the report is one file: an SVG as it is (its marks have tooltips), else as data."""
    label = html.escape(alt, quote=True)
    if path.suffix == ".svg":
        text = path.read_text(encoding="utf-8")
        return Html(f'<svg role="img" aria-label="{label}"{text[text.index("<svg") + len("<svg") :]}')
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return Html(f'<img src="data:image/{path.suffix[1:]};base64,{data}" alt="{label}">')


def unbroken(text: str) -> Html:
    """The text (plain, or `Html`) with `n = 8` and `--flag=value` each kept on one line."""
    marked = text if isinstance(text, Html) else html.escape(text, quote=False)
    marked = re.sub(FLAG, r'<span class="flag">\g<0></span>', marked)
    return Html(marked.replace(" = ", f"{NO_BREAK_SPACE}={NO_BREAK_SPACE}"))
