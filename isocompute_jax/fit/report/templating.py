"""The templates' language: what a section of the report may call, and its sentences as plain text.

A section is one file, `templates/sections/NAME.html.j2`: its title, its findings (what the data say, a sentence to a
line, as strong as the results are) and its body. Numbers and verdicts come from results; a template computes none.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import html
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isocompute_jax.fit.advice import LIKELY
from isocompute_jax.fit.comparisons.comparison import Cell, ComparisonResult, DrawnSeries, Picture
from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.report import facts, wording
from isocompute_jax.fit.results import SURE
from isocompute_jax.fit.sweep_results import SweepResult

if TYPE_CHECKING:
    import jinja2

SHARED = (
    wording.amount, wording.between, wording.capital, wording.cell, wording.course, wording.every_seed, wording.listed,
    wording.not_fitted, wording.reach, wording.reward, wording.scale, wording.shortlist, wording.span, wording.spent,
    wording.stated, wording.symbol, wording.unit,
)  # fmt: skip
"""What a template may call by its name, and use as a filter."""
LEAST_COST = 5e-4
"""An expected regret below this is not worth a sentence."""

TEMPLATES = pathlib.Path(__file__).parent / "templates"
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
FLAG = r"--[a-z]\w*(=[\w.,:]*\w)?"


class Html(str):
    """Text that is HTML already: templates put it in as it is, where plain text is escaped."""

    def __html__(self) -> str:
        """The protocol by which template engines recognise it."""
        return self


def _escaped(text: str) -> str:
    return str(text) if hasattr(text, "__html__") else html.escape(text, quote=False)


def render(template: str, *, templates: jinja2.Environment | None = None, **context: Any) -> str:
    """The text of a template, of the report's own unless others are given."""
    return (templates or environment()).get_template(template).render(context)


def told(
    template: str,
    result: Any,
    *,
    block: str = "findings",
    templates: jinja2.Environment | None = None,
    **context: Any,
) -> list[str]:
    """What the data say in a section (`sections/forms`) or in a `headline`, as plain sentences."""
    found = (templates or environment()).get_template(f"{template}.html.j2")
    text = "".join(found.blocks[block](found.new_context({"result": result, **context})))
    return [html.unescape(str(sentence)) for sentence in sentences(text)]


def words(template: str | pathlib.Path, **values: Any) -> dict[str, Any]:
    """Every block of a template as plain text, by its name: `title`, `about`, ...; `findings` as sentences.

    Args:
      template: one of the fit's by its name, without its ending, or the file of another room's.
      values: what it may use.
    """
    if isinstance(template, str):
        found = environment().get_template(f"{template}.html.j2")
    else:
        found = environment().from_string(template.read_text(encoding="utf-8"))
    texts = {name: "".join(block(found.new_context(values))) for name, block in found.blocks.items()}
    blocks = {name: html.unescape(_paragraphs(text)) for name, text in texts.items()}
    return blocks | {"findings": tuple(html.unescape(str(each)) for each in sentences(texts.get("findings", "")))}


def _paragraphs(text: str) -> str:
    """Text whose lines are joined, but for an empty line between two paragraphs."""
    return "\n\n".join(re.sub(r"[ \t\n]+", " ", part).strip() for part in re.split(r"\n[ \t]*\n", text.strip()))


def said(macro: str, *given: Any) -> list[str]:
    """What a macro of the shared sentences says, as plain sentences."""
    found = getattr(environment().globals["say"], macro)(*given)
    return [html.unescape(str(sentence)) for sentence in sentences(found)]


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the report that is no template; text with `__html__` is put in as it is, the rest is escaped."""

    title: str
    paragraphs: tuple[str, ...] = ()  # explanation
    figure: pathlib.Path | None = None  # an .svg or .png, which is put into the report itself
    alt: str = ""  # what the figure shows, for those who cannot see it
    how_to_read: str = ""  # the figure's caption
    findings: tuple[str, ...] = ()  # sentences computed from data
    columns: tuple[str, ...] = ()  # headings of a table under the figure; empty without one
    rows: Sequence[Sequence[Any]] = ()  # of cells: floats to four significant figures, None as a dash, the rest as text


def section(
    template: pathlib.Path,
    *,
    figure: pathlib.Path | None = None,
    columns: tuple[str, ...] = (),
    rows: Sequence[Sequence[Any]] = (),
    **values: Any,
) -> Section:
    """A section with the words of a template, which is given the `values`."""
    texts = words(template, **values)
    paragraphs = tuple(texts.pop("about").split("\n\n"))
    return Section(**texts, paragraphs=paragraphs, figure=figure, columns=columns, rows=rows)


def answer(
    result: SweepResult,
    question: str,
    *,
    part: str = "",
    verdict: str | None,
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, Cell]],
    numbers: Mapping[str, Any] | None = None,
    series: Iterable[DrawnSeries] = (),
    picture: Picture | None = None,
    remarks: Sequence[str] = (),
    **values: Any,
) -> ComparisonResult:
    """The answer to a question, with its words: by the template `questions/QUESTION`, which is given the `values`.

    `remarks` are findings that no template says.
    """
    texts = words(f"questions/{question}", result=result, part=part, rows=rows, numbers=numbers or {}, **values)
    texts["findings"] = (*texts["findings"], *remarks)
    return ComparisonResult(
        question=question,
        part=part,
        verdict=verdict,
        columns=columns,
        rows=tuple(rows),
        numbers=numbers or {},
        series=tuple(series),
        picture=picture,
        **texts,
    )


@functools.cache
def environment(*folders: pathlib.Path) -> jinja2.Environment:
    """Every filter and function of the templates, and their shared macros: `m` for HTML, `say` for sentences.

    Templates are looked for in the report's own folder, then in `folders`.
    """
    import jinja2  # reading and fitting need no templates

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader([TEMPLATES, *folders]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    shared = {function.__name__: function for function in SHARED}
    found.filters.update(
        shared,
        f=format,
        listing=listing,
        listing_all=lambda lines: listing(lines, wording.listed),
        lookup=lambda key, table: table[key],
        parameter=lambda name, curve: wording.parameter(curve, name),
        percent=lambda share: f"{share:.0%}",
        picture=picture,
        sentences=sentences,
        three=wording.figures,
        typeset=typeset,
        unbroken=unbroken,
    )
    found.tests["finite"] = math.isfinite
    found.globals.update(
        shared,
        facts=facts,
        FORMS=FORMS,
        LEAST_COST=LEAST_COST,
        MOST_LISTED=wording.MOST_LISTED,
        LIKELY=LIKELY,
        SURE=SURE,
    )
    for name, file in (("m", "macros"), ("say", "sentences")):
        found.globals[name] = found.get_template(f"{file}.html.j2").module
    return found


def sentences(text: str) -> list[Html]:
    """Sentences of a template's text: one ends with a full stop at the end of a line, and may have several lines."""
    parts = re.split(r"(?<=\.)[ \t]*\n", str(text))
    joined = (re.sub(r"[ \t\n]+", " ", part).strip() for part in parts)
    return [Html(part) for part in joined if part]


def listing(lines: str, join: Callable[[Sequence[Any]], str] = wording.shortlist) -> Html:
    """`a, b and 3 more` of lines; with `wording.listed` all of them."""
    return Html(join([line.strip() for line in str(lines).splitlines() if line.strip()]))


def unbroken(text: str) -> Html:
    """The text, escaped unless it is HTML, with `n = 8` and `--flag=value` each kept on one line."""
    marked = re.sub(FLAG, r'<span class="flag">\g<0></span>', _escaped(text))
    return Html(marked.replace(" = ", f"{NO_BREAK_SPACE}={NO_BREAK_SPACE}"))


def typeset(text: str, *, formula: bool = False) -> Html:
    """Symbols with their subscripts and powers raised; as a line of its own where it is a `formula`."""
    marked = _escaped(text)
    for pattern, mark in ((r"C_mid", "C<sub>mid</sub>"), (r"R0", "R<sub>0</sub>"), (r"\^(-?B)", r"<sup>\1</sup>")):
        marked = re.sub(pattern, mark, marked)
    return Html(f'<span class="formula">{marked}.</span>' if formula else marked)


def picture(path: pathlib.Path, alt: str) -> Html:
    """A picture as HTML, so that the report is one file: an SVG as it is (its marks have tooltips), else as data."""
    label = html.escape(alt, quote=True)
    if path.suffix == ".svg":
        text = path.read_text(encoding="utf-8")
        return Html(f'<svg role="img" aria-label="{label}"{text[text.index("<svg") + len("<svg") :]}')
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return Html(f'<img src="data:image/{path.suffix[1:]};base64,{data}" alt="{label}">')
