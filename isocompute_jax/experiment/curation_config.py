"""What curation measures, and which problem sets it cuts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from isocompute_jax.options import check, option
from isocompute_jax.records.errors import InputError

RANGES: dict[str, tuple[float, float]] = {
    "easy": (0.3, 0.6),
    "hard": (0.0, 0.0625),
    "very_easy": (0.6, 0.9),
    "extremely_hard": (0.0, 0.0),
}
"""Solve-rate ranges of the IsoCompute Playbook, both ends included."""


@dataclasses.dataclass(frozen=True)
class CurationConfig:
    """What to measure and which sets to cut."""

    samples: int = option(
        16, "k of avg@k, completions per problem: 16 as in the paper, 128 for extremely_hard (pass@128 = 0).", low=1
    )
    sets: tuple[str, ...] = option(("easy", "hard"), "Sets to cut: easy, hard, very_easy, extremely_hard.")
    mixtures: Mapping[str, Mapping[str, float]] = option(
        default_factory=dict, help="Name -> {set: share}; shares add up to 1.", flag=None
    )
    train_size: int = option(0, "Problems per training set; 0 takes all that are left.", low=0)
    validation_size: int = option(300, "Held-out problems per set.", low=0)
    seed: int = option(0, "Seed of the rollouts and of the split.", low=0, high=2**32 - 1)

    def __post_init__(self) -> None:
        check(self)
        for name in (*self.sets, *(part for mixture in self.mixtures.values() for part in mixture)):
            if name not in RANGES:
                raise InputError(f"unknown set {name!r}: known are {', '.join(RANGES)}")
        if "extremely_hard" in self.sets and self.samples < 128:
            raise InputError(f"extremely_hard means pass@128 = 0: it needs 128 samples per problem, not {self.samples}")
        for name, mixture in self.mixtures.items():
            if set(mixture) - set(self.sets):
                raise InputError(f"mixture {name!r} needs the sets {', '.join(mixture)}; add them to the sets")
            if abs(sum(mixture.values()) - 1) > 1e-6 or min(mixture.values()) <= 0:
                raise InputError(f"mixture {name!r}: its shares must be above 0 and add up to 1")
