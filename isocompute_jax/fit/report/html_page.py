"""report.html: one file that opens offline and prints well, for a reader who has not read the papers."""

from __future__ import annotations

import base64
import dataclasses
import html
import pathlib
from collections.abc import Sequence

import jinja2

from isocompute_jax.fit.laws.analysis import LawAnalysis
from isocompute_jax.fit.laws.findings import law_headline
from isocompute_jax.fit.laws.law_sections import law_title
from isocompute_jax.fit.report.findings import headline
from isocompute_jax.fit.report.findings.answers import Answer, answers
from isocompute_jax.fit.report.provenance import versions
from isocompute_jax.fit.report.sections import Figures, Html, Section, analysis_sections, cell
from isocompute_jax.fit.sweep_results import SweepResult

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"

LEADS = {
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
    """The HTML text of an analysis of learning curves.

    Args:
      result: of the analysis.
      figures: name -> picture, as `draw_figures` returns them.
      before: sections that come before the analysis (how the runs were made).
      after: sections that come after it (what it does not show).
    """
    sections = [*before, *analysis_sections(result, figures), *after]
    options, records = result.options, result.options.records
    bins = f" (bin width {options.bin_width})" if options.bin_width else ""
    return _render(
        Page(
            analysis="frontier",
            title=options.title,
            headline=headline(result),
            answers=answers(result),
            warnings=result.warnings,
            num_runs=len(result.runs),
            settings=f"metric {options.metric} on {options.read.eval_set}; evaluations fitted: {records}{bins}; "
            f"seed {options.seed}",
        ),
        sections,
    )


def render_law_report(analysis: LawAnalysis, sections: Sequence[Section]) -> str:
    """The HTML text of a law's analysis, from its result and its sections (see `law_sections`)."""
    return _render(
        Page(
            analysis=analysis.options.analysis,
            title=law_title(analysis.options),
            headline=law_headline(analysis),
            answers=(),
            warnings=analysis.warnings,
            num_runs=len(analysis.runs),
            settings=f"metric {analysis.options.metric}",
        ),
        sections,
    )


@dataclasses.dataclass(frozen=True)
class Page:
    """What a report has beside its sections.

    Attributes:
      analysis: which analysis.
      title: its heading.
      headline: the answer in a few sentences.
      answers: one for each budget that was asked for.
      warnings: remarks on the input.
      num_runs: runs that were read.
      settings: by which choices, for the footer.
    """

    analysis: str
    title: str
    headline: Sequence[str]
    answers: Sequence[Answer]
    warnings: Sequence[str]
    num_runs: int
    settings: str


def _render(page: Page, sections: Sequence[Section]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["picture"] = picture
    environment.filters["cell"] = cell
    environment.filters["unbroken"] = unbroken
    plural = "s" if page.num_runs != 1 else ""
    libraries = ", ".join(f"{name} {version}" for name, version in versions().items())
    return environment.get_template("report.html.j2").render(
        title=page.title,
        lead=LEADS[page.analysis],
        headline=page.headline,
        answers=page.answers,
        glossary=GLOSSARIES[page.analysis],
        sections=sections,
        warnings=page.warnings,
        settings=f"{page.num_runs} run{plural}; {page.settings}. {libraries}.",
    )


def picture(path: pathlib.Path, alt: str) -> Html:
    """A picture as HTML, so that the report is one file: an SVG as it is (its marks have tooltips), else as data."""
    label = html.escape(alt, quote=True)
    if path.suffix == ".svg":
        text = path.read_text(encoding="utf-8")
        return Html(f'<svg role="img" aria-label="{label}"{text[text.index("<svg") + len("<svg") :]}')
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return Html(f'<img src="data:image/{path.suffix[1:]};base64,{data}" alt="{label}">')


def unbroken(text: str) -> str:
    """`n = 8` kept on one line; the text's own type (markup or plain) is kept too."""
    return type(text)(text.replace(" = ", f"{NO_BREAK_SPACE}={NO_BREAK_SPACE}"))
