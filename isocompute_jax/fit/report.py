"""report.html: one file that opens offline and prints well, for a reader who has not read the paper."""

from __future__ import annotations

import base64
import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2

from isocompute_jax.fit import findings
from isocompute_jax.fit.sections import Figures, Section, Summary, analysis_sections

MEDIA_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
EN_DASH, NO_BREAK_SPACE = "\N{EN DASH}", "\N{NO-BREAK SPACE}"


def render_report(
    summary: Summary, figures: Figures, *, before: Sequence[Section] = (), after: Sequence[Section] = ()
) -> str:
    """The HTML text.

    Args:
      summary: content of summary.json.
      figures: name -> picture, as `draw_figures` returns them.
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
    environment.filters["cell"] = cell
    environment.filters["unbroken"] = unbroken
    return environment.get_template("report.html.j2").render(
        summary=summary,
        headline=findings.headline(summary),
        sections=[*before, *analysis_sections(summary, figures), *after],
    )


def embedded(path: pathlib.Path) -> str:
    """A picture as a data: address, so that the report is one file."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f"data:{MEDIA_TYPES[path.suffix]};base64,{data}"


def unbroken(text: str) -> str:
    """`n = 8` kept on one line; the text's own type (markup or plain) is kept too."""
    return text.replace(" = ", f"{NO_BREAK_SPACE}={NO_BREAK_SPACE}")


def cell(value: Any) -> str:
    """The text of a table's cell."""
    if value is None:
        return EN_DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.4g}"
    return str(value)
