"""What a table says of its runs in words: which model was trained, and on what."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.blocks import Block
from isocompute_jax.records.printing import printable

LABELS = ("model", "train_set")
"""Columns of words that are a part of a run's identity, as the fields of these names in config.json are."""


class Labels:
    """The words of each run, as its first row that has one says."""

    def __init__(self) -> None:
        self._words: dict[tuple[int, str], str] = {}

    def changed(self, block: Block, runs: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Takes note of what is new; yields each label and its rows [n] that contradict what their run began with.

        Args:
          block: n rows.
          runs: [n] number of each row's run.
        """
        for name, (codes, words) in label_codes(block).items():
            told = np.flatnonzero(codes >= 0)
            found, first = np.unique(runs[told], return_index=True)
            for run, i in zip(found.tolist(), told[first].tolist(), strict=True):
                self._words.setdefault((run, name), words[codes[i]])
            places = {word: code for code, word in enumerate(words)}
            began = np.array([places.get(self._words[run, name], -1) for run in found.tolist()], dtype=np.int64)
            wrong = np.zeros(len(runs), dtype=bool)
            wrong[told] = codes[told] != began[np.searchsorted(found, runs[told])]
            yield name, wrong

    def of(self, run: int) -> dict[str, str]:
        """What is known of a run."""
        return {name: printable(self._words[run, name]) for name in LABELS if (run, name) in self._words}


def label_codes(block: Block) -> dict[str, tuple[np.ndarray, list[str]]]:
    """Label -> codes [n] and words, as `cells.texts` has them."""
    return {name: cells.texts(block.columns[name]) for name in LABELS if name in block.columns}
