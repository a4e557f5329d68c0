"""Messages about the inputs: findings (something is wrong with them) and notes (something to know)."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterable

import numpy as np

from isocompute_jax.records.printing import printable

MAX_REPEATED = 20
"""Findings of one kind in one file that are listed one by one; the rest is one line with their number."""

MAX_CELL = 60
"""Characters of a cell that are shown."""


class Notices:
    """Findings and notes in order; what is repeated is kept short (ten million bad rows are twenty lines)."""

    def __init__(self) -> None:
        self.findings = 0
        self._texts: list[str] = []
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()

    def note(self, path: str | os.PathLike[str], kind: str, text: str) -> None:
        """Something to know; never fatal."""
        self._add(path, kind, 1, [text])

    def finding(self, path: str | os.PathLike[str], kind: str, text: str) -> None:
        """Something wrong, of a `kind` that can be repeated in a file; `text` begins with where it is."""
        self.count(path, kind, 1, [text])

    def count(self, path: str | os.PathLike[str], kind: str, number: int, texts: Iterable[str]) -> None:
        """`number` findings of a kind at once; as many of `texts` are used as may still be listed."""
        self.findings += number
        self._add(path, kind, number, texts)

    def _add(self, path: str | os.PathLike[str], kind: str, number: int, texts: Iterable[str]) -> None:
        listed = self._counts[str(path), kind]
        self._counts[str(path), kind] += number
        for _, text in zip(range(min(number, MAX_REPEATED - listed)), texts, strict=False):
            self._texts.append(printable(text))

    def rows(self, path: str, kind: str, bad: np.ndarray, text: Callable[[int], str]) -> None:
        """A finding for each row where `bad` [n] is set; `text` makes that of one of them."""
        where = np.flatnonzero(bad)
        if len(where):
            self.count(path, kind, len(where), (text(int(i)) for i in where))

    def texts(self) -> list[str]:
        """Everything, with one line for each kind of which only the first are listed."""
        more = [
            f"{path}: {kind}: {count} in all, of which the first {MAX_REPEATED} are listed"
            for (path, kind), count in self._counts.items()
            if count > MAX_REPEATED
        ]
        return self._texts + more


def shown(value: object) -> str:
    """A cell for a message."""
    text = repr(value) if not isinstance(value, str) else repr(value[: MAX_CELL + 1])
    return text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}..."
