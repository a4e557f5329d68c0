"""What a report is made of: sections with a picture, explanations, findings and a table."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

EN_DASH = "\N{EN DASH}"

Figures = Mapping[str, pathlib.Path]


class Html(str):
    """Text that is HTML already: templates put it in as it is, where plain text is escaped."""

    def __html__(self) -> str:
        """The protocol by which template engines recognise it."""
        return self


@dataclasses.dataclass(frozen=True)
class ReportTable:
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
    table: ReportTable | None = None


def cell(value: Any) -> str:
    """The text of a table's cell."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return EN_DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:z.4g}"
    return value if isinstance(value, str) else str(value)
