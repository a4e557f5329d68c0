"""The stream of training problems: shuffled anew every epoch, checkpointable, each batch without repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import grain

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem


class ProblemStream(Iterator[list[Problem]]):
    """Batches of B_problem distinct problems, for ever; the order depends on the seed alone.

    Batches do not straddle epochs: a problem twice in one step would be drawn with the same random numbers twice.
    What an epoch leaves over is left out of it, another remainder in every epoch.
    """

    def __init__(self, problems: Sequence[Problem], *, problems_per_batch: int, seed: int):
        if problems_per_batch > len(problems):
            raise InputError(
                f"config.problems_per_batch = {problems_per_batch}, but the training set has only {len(problems)} "
                "problems: lower problems_per_batch or train on more problems"
            )
        dataset = (
            grain.MapDataset.source(list(problems))
            .seed(seed)
            .shuffle()
            .batch(problems_per_batch, drop_remainder=True, batch_fn=list)
            .repeat()
        )
        self._iterator = iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))

    def __next__(self) -> list[Problem]:
        return next(self._iterator)

    def get_state(self) -> dict[str, Any]:
        """JSON-able position."""
        return self._iterator.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from a position that `get_state` gave."""
        self._iterator.set_state(state)
