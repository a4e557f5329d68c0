"""report.html: one file that opens offline and prints well, for a reader who has not read the papers."""

from __future__ import annotations

import base64
import html
import pathlib
from collections.abc import Sequence

import jinja2

from isocompute_jax.fit.laws.analysis import LawAnalysis
from isocompute_jax.fit.laws.findings import law_headline
from isocompute_jax.fit.laws.law_sections import law_title
from isocompute_jax.fit.report.findings import headline
from isocompute_jax.fit.report.findings.answers import Answer, answers
from isocompute_jax.fit.report.sections import Figures, Html, Section, Summary, analysis_sections, cell

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
    summary: Summary, figures: Figures, *, before: Sequence[Section] = (), after: Sequence[Section] = ()
) -> str:
    """The HTML text of an analysis of learning curves.

    Args:
      summary: content of summary.json.
      figures: name -> picture, as `draw_figures` returns them.
      before: sections that come before the analysis (how the runs were made).
      after: sections that come after it (what it does not show).
    """
    sections = [*before, *analysis_sections(summary, figures), *after]
    return _render(summary, summary["flags"]["title"], headline(summary), sections, answers(summary))


def render_law_report(analysis: LawAnalysis, summary: Summary, sections: Sequence[Section]) -> str:
    """The HTML text of a law's analysis, with its summary and its sections (see `law_sections`)."""
    return _render(summary, law_title(analysis.options), law_headline(analysis), sections)


def _render(
    summary: Summary, title: str, found: Sequence[str], sections: Sequence[Section], budgets: Sequence[Answer] = ()
) -> str:
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
    return environment.get_template("report.html.j2").render(
        title=title,
        lead=LEADS[summary["analysis"]],
        headline=found,
        answers=budgets,
        glossary=GLOSSARIES[summary["analysis"]],
        sections=sections,
        warnings=summary["warnings"],
        settings=_settings(summary),
    )


def _settings(summary: Summary) -> str:
    """What was read and by which choices, in one sentence, for the footer."""
    flags, count = summary["flags"], len(summary["inputs"])
    told = [f"{count} run{'s' if count != 1 else ''}; metric {flags['metric']}"]
    if summary["analysis"] == "frontier":
        bins = f" (bin width {flags['bin_width']})" if flags["bin_width"] else ""
        told.append(f"on {flags['eval_set']}; evaluations fitted: {flags['records']}{bins}; seed {flags['seed']}")
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    return f"{' '.join(told)}. {versions}."


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
