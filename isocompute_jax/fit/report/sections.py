"""Sections that no template makes, those of comparisons and of other rooms: prose, a picture, findings and a table."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isocompute_jax.fit.comparisons.comparison import Cell, ComparisonResult, DrawnSeries, Picture
from isocompute_jax.fit.report.templating import words
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
    said = words(f"questions/{question}", result=result, part=part, rows=rows, numbers=numbers or {}, **values)
    return ComparisonResult(
        question=question,
        part=part,
        verdict=verdict,
        columns=columns,
        rows=tuple(rows),
        numbers=numbers or {},
        series=tuple(series),
        picture=picture,
        **said | {"findings": (*said["findings"], *remarks)},
    )


def comparison_sections(result: SweepResult, figures: Mapping[str, pathlib.Path]) -> list[Section]:
    """A section for each answer to a question beside the frontier.

    Args:
      result: of the analysis.
      figures: name -> picture, as `draw_figures` returns them.
    """
    found = []
    for name, each in result.named_comparisons.items():
        rows = tuple(tuple(row.get(key) for key in each.columns) for row in each.rows)
        found.append(
            Section(
                title=each.title,
                paragraphs=(each.about,),
                figure=figures.get(name),
                alt=each.alt,
                how_to_read=each.how_to_read,
                findings=each.findings,
                table=ReportTable(tuple(each.columns.values()), rows),
            )
        )
    return found
