"""The problems that a run trains on: one set, or a mixture of several."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.data import load_problems
from isocompute_jax.records.rollout import Problem

ONE = ""
"""The name of a set that is all there is."""


@dataclasses.dataclass(frozen=True, eq=False)
class TrainSets:
    """D problems in all; a problem's place is its index among them.

    Attributes:
      problems: D problems, whose ids differ.
      members: name of a set -> [D_set] int64 places of its problems; `ONE` alone, or two sets or more by name.
    """

    problems: Sequence[Problem]
    members: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> TrainSets:
        """One set."""
        return cls(problems, {ONE: np.arange(len(problems))})

    @classmethod
    def mixture(cls, sets: Mapping[str, Sequence[Problem]]) -> TrainSets:
        """Several sets, by name; a problem is called NAME/ID, because files number theirs alike."""
        problems: list[Problem] = []
        members = {}
        for name in sorted(sets):  # whatever order they were written in: the draws are the same
            members[name] = len(problems) + np.arange(len(sets[name]))
            problems += [dataclasses.replace(problem, id=f"{name}/{problem.id}") for problem in sets[name]]
        return cls(problems, members)


def load_train_sets(config: RunConfig) -> TrainSets:
    """Reads what the config names.

    Raises:
      InputError: as `load_problems`.
    """
    load = functools.partial(load_problems, grader_name=config.reward.name_for)
    if config.curriculum.train_sets:
        return TrainSets.mixture({name: load(path) for name, path in config.curriculum.train_sets.items()})
    return TrainSets.of(load(config.train_set, config.problem_set_size))
