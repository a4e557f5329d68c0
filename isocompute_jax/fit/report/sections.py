"""Sections that no template makes, those of comparisons and of other rooms: prose, a picture, findings and a table."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from isocompute_jax.fit.sweep_results import SweepResult


@dataclasses.dataclass(frozen=True)
class ReportTable:
    """A table of the report; cells are shown as text, floats to four significant figures, None as a dash."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclasses.dataclass(frozen=True)
class Section:
    """One section of the report; text that has `__html__` is put in as it is, the rest is escaped.

    Attributes:
      title: its heading.
      paragraphs: explanation.
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
    table: ReportTable | None = None


def comparison_sections(result: SweepResult, figures: Mapping[str, pathlib.Path]) -> list[Section]:
    """A section for each answer to a question beside the frontier.

    Args:
      result: of the analysis.
      figures: name -> picture, as `draw_figures` returns them.
    """
    found = []
    for name, answer in result.named_comparisons.items():
        rows = tuple(tuple(row.get(key) for key in answer.columns) for row in answer.rows)
        picture = answer.picture
        found.append(
            Section(
                title=answer.title,
                paragraphs=(answer.about,),
                figure=figures.get(name),
                alt=picture.alt if picture else "",
                how_to_read=picture.how_to_read if picture else "",
                findings=answer.findings,
                table=ReportTable(tuple(answer.columns.values()), rows),
            )
        )
    return found
