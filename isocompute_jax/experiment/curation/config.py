"""What curation measures, and which problem sets it cuts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError

Range = tuple[float, float]
"""Lowest and highest solve rate of a set, both included."""

RANGES: dict[str, Range] = {
    "easy": (0.3, 0.6),
    "hard": (0.0, 0.0625),
    "very_easy": (0.6, 0.9),
    "extremely_hard": (0.0, 0.0),
}
"""Solve-rate ranges of the IsoCompute Playbook, both ends included."""

COMPLETIONS = "completions"
"""Directory of the completions that are kept; no set has this name."""


@described
@dataclasses.dataclass(frozen=True)
class CurationConfig:
    """What to measure and which sets to cut."""

    samples: int = option(
        16,
        "k of avg@k, completions per problem: 16 as in the paper, 128 for extremely_hard (pass@128 = 0). May grow from "
        "one call to the next: what was drawn is used on.",
        low=1,
    )
    sets: tuple[str, ...] = option(
        ("easy", "hard"), "Sets to cut: easy, hard, very_easy, extremely_hard, beside those of --set."
    )
    ranges: Mapping[str, Range] = option(
        default_factory=dict, help="Sets with thresholds of their own, name -> (low, high).", flag=None
    )
    mixtures: Mapping[str, Mapping[str, float]] = option(
        default_factory=dict, help="Name -> {set: share}; shares add up to 1.", flag=None
    )
    train_size: int = option(0, "Problems per training set; 0 takes all that are left.", low=0)
    validation_size: int = option(300, "Held-out problems per set.", low=0)
    seed: int = option(0, "Seed of the rollouts and of the split.", low=0, high=2**32 - 1)
    solved_at: float = option(
        1.0,
        "A completion solves its problem if its reward is at least this; avg@k, sets and pictures count those that do. "
        "The record holds rewards: with another value it is cut again, and nothing is drawn.",
        later=True,
    )
    groups_in_flight: int = option(
        256,
        "Groups of 16 completions that are asked for at a time. At least twice what the servers draw at once, so that "
        "none of them waits; what is out is held in memory.",
        low=1,
        identity=False,
    )
    keep_completions: bool = option(
        False, "Keep the text of every completion, with its reward, in OUT/completions/*.jsonl.", identity=False
    )

    def __post_init__(self) -> None:
        check(self)
        for name, (low, high) in self.ranges.items():
            if not 0 <= low <= high <= 1:
                raise InputError(f"set {name!r}: [{low:g}, {high:g}] is no range of rates; 0 <= low <= high <= 1")
        known = RANGES | dict(self.ranges)
        for name in (*self.sets, *(part for mixture in self.mixtures.values() for part in mixture)):
            if name not in known:
                raise InputError(
                    f"unknown set {name!r}: known are {', '.join(known)}; --set={name}=LOW:HIGH makes one of that name"
                )
        for name in (*self.ranges, *self.mixtures):
            if not re.fullmatch(r"\w[\w.-]*", name) or name == COMPLETIONS:
                raise InputError(f"set {name!r} cannot be a directory's name here: use letters, digits, _ and -")
        if "extremely_hard" in self.sets and "extremely_hard" not in self.ranges and self.samples < 128:
            raise InputError(f"extremely_hard means pass@128 = 0: it needs 128 samples per problem, not {self.samples}")
        for name, mixture in self.mixtures.items():
            if name in self.wanted:
                raise InputError(f"mixture {name!r} has the name of a set: give it another one")
            if set(mixture) - set(self.wanted):
                raise InputError(f"mixture {name!r} needs the sets {', '.join(mixture)}; add them to the sets")
            if abs(sum(mixture.values()) - 1) > 1e-6 or min(mixture.values()) <= 0:
                raise InputError(f"mixture {name!r}: its shares must be above 0 and add up to 1")

    @property
    def wanted(self) -> dict[str, Range]:
        """The sets to cut with their ranges: those of `sets`, then the others of `ranges`."""
        known = RANGES | dict(self.ranges)
        return {name: known[name] for name in (*self.sets, *self.ranges)}
