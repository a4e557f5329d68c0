"""What the results of both laws have in common."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval, and whether the data pin it down at all.

    Attributes:
      value: best value; NaN when there is none.
      low: lower end of the interval; 0 or -inf when the data set none, NaN when it is unknown.
      high: upper end; inf when the data set none, NaN when it is unknown.
      identified: whether the value may be quoted; when not, only the interval's reach says something.
      note: empty, or why it is not identified.
    """

    value: float
    low: float
    high: float
    identified: bool
    note: str
