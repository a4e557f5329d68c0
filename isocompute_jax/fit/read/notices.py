"""What is to be said about the inputs: one sentence for each cause, with its count and the first places."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from isocompute_jax.fit.read.read_options import ReadOptions
from isocompute_jax.records.printing import printable

MAX_PLACES = 3
"""Places that are named of each cause; the rest is their number."""

MAX_CELL = 60
"""Characters of a cell that are shown."""


@dataclasses.dataclass(frozen=True)
class Notes:
    """How the inputs were understood, and what of them was not used as it stands; clean tables leave it empty."""

    rows: int = 0  # rows that were left out
    runs: int = 0  # runs that were left out; a file that cannot be used counts as one
    texts: tuple[str, ...] = ()  # whole sentences, each with its count, its cause and where
    read: ReadOptions | None = dataclasses.field(
        default=None, compare=False
    )  # as used: with the metric that was chosen


@dataclasses.dataclass
class _Cause:
    unit: str
    what: str  # what happened, after `was` or `were`
    left_out: bool
    finding: bool
    count: int = 0
    places: list[str] = dataclasses.field(default_factory=list)

    def sentence(self, total: int) -> str:
        of = f" of {total}" if total > self.count else ""
        plural, were = ("", "was") if self.count == 1 and not of else ("s", "were" if self.count > 1 else "was")
        more = f"; and {self.count - len(self.places)} more" if 1 < MAX_PLACES <= len(self.places) < self.count else ""
        return f"{self.count}{of} {self.unit}{plural} {were} {self.what}: {'; '.join(self.places)}{more}."


class Notices:
    """Collects what happened, by cause: ten million bad rows are one sentence."""

    def __init__(self) -> None:
        self.rows_seen = 0
        self._causes: dict[tuple[str, str], _Cause] = {}
        self._texts: list[str] = []
        self._remarks: list[str] = []

    def left_out(self, unit: str, why: str, places: Iterable[str], *, count: int = 1) -> None:
        """Some rows, runs or files are not used; of `places` (file, line and what is there) the first are named."""
        self._add(_Cause(unit, f"left out {why}", left_out=True, finding=True), places, count)

    def changed(self, unit: str, what: str, places: Iterable[str], *, count: int = 1, finding: bool = False) -> None:
        """Some rows, runs or columns are not used as they stand; a finding where something is wrong with them."""
        self._add(_Cause(unit, what, left_out=False, finding=finding), places, count)

    def say(self, text: str) -> None:
        """Adds a finding of its own words, a whole sentence."""
        self._texts.append(text)

    def remark(self, text: str) -> None:
        """Adds a whole sentence on how the inputs were understood, which is no finding."""
        self._remarks.append(text)

    def _add(self, cause: _Cause, places: Iterable[str], count: int) -> None:
        if not count:
            return
        cause = self._causes.setdefault((cause.unit, cause.what), cause)
        cause.count += count
        cause.places += [place for _, place in zip(range(MAX_PLACES - len(cause.places)), places, strict=False)]

    @property
    def findings(self) -> int:
        """Number of the rows, runs and files with which something is wrong."""
        return len(self._texts) + sum(cause.count for cause in self._causes.values() if cause.finding)

    def notes(self, runs_used: int) -> Notes:
        """Everything, what was left out first."""
        causes = sorted(self._causes.values(), key=lambda cause: not cause.left_out)
        lost = [cause for cause in causes if cause.left_out]
        rows = sum(cause.count for cause in lost if cause.unit == "row")
        runs = sum(cause.count for cause in lost if cause.unit != "row")
        totals = {"row": self.rows_seen, "run": runs_used + runs}
        texts = [cause.sentence(totals.get(cause.unit, 0) if cause.left_out else 0) for cause in causes]
        return Notes(rows, runs, tuple(map(printable, self._remarks + texts + self._texts)))


def shown(value: object) -> str:
    """A cell as it stands, cut where it is long."""
    text = repr(value) if not isinstance(value, str) else repr(value[: MAX_CELL + 1])
    return text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}..."
