"""Sections that another room adds to a report: prose, a picture, findings and a table."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any


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
