"""The problems of a run in the order in which they are trained on; checkpointable, no problem twice in a step."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from isocompute_jax.experiment.config import CurriculumConfig
from isocompute_jax.experiment.curriculum.history import History
from isocompute_jax.experiment.curriculum.mixtures import share_out, weights_of
from isocompute_jax.experiment.curriculum.pools import pools_of, ranks_of, rates_of
from isocompute_jax.experiment.curriculum.sets import ONE, TrainSets
from isocompute_jax.experiment.curriculum.source import Source
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem

Pool = tuple[str, int]
"""A set and the number of a pool of it; 0 where the run has no stages."""


class ProblemStream(Iterator[list[Problem]]):
    """Draws the problems of one step after another; which depends on the seed, on the history and on what was spent.

    The first draw of a step does not straddle epochs. A problem whose turn comes while its step has it already, as
    happens when a refill begins an epoch, is drawn first in the next step.

    Args:
      sets: what there is.
      config: order, mixture, retirement.
      problems_per_batch: problems of a step, at most D.
      seed: of every shuffle.

    Raises:
      InputError: too few problems, or they were not measured, or a pool or stage has none.
    """

    def __init__(self, sets: TrainSets, config: CurriculumConfig, *, problems_per_batch: int, seed: int):
        if problems_per_batch > len(sets.problems):
            raise InputError(
                f"config.problems_per_batch = {problems_per_batch}, but the training set has only "
                f"{len(sets.problems)} problems: lower problems_per_batch or train on more problems"
            )
        self.sets = sets
        self.places = {problem.id: place for place, problem in enumerate(sets.problems)}
        self._config = config
        self._problems_per_batch = problems_per_batch
        self._sources = make_sources(sets, config, seed)
        self._again: list[int] = []  # places that are drawn first, in order
        self._credits: dict[str, float] = {}

    def draw(self, count: int, *, history: History, taken: Collection[int] = (), spent: float = 0.0) -> list[Problem]:
        """The next problems of a step: `count` of them, or as many as there are.

        Args:
          count: how many are wanted.
          history: what is known of the problems.
          taken: places of those that the step has; none in its first draw.
          spent: share of the run's compute that was asked for, which chooses the stage.
        """
        rests = self._config.retire_for == "epoch"
        retired = self.retired(history)
        free = np.ones_like(retired) if rests else ~retired
        free[list(taken)] = False
        drawn = self._first(count, free, taken)
        free[drawn] = False
        for source, number in self._shares(count - len(drawn), free, history, spent):
            new, passed = source.take(number, retired=retired, rests=rests, taken={*taken, *drawn}, whole=not taken)
            drawn += new
            self._again += [place for place in dict.fromkeys(passed) if place not in self._again]
        return [self.sets.problems[place] for place in drawn]

    def available(self, history: History, taken: Collection[int] = ()) -> int:
        """How many problems a draw could give."""
        free = ~self.retired(history) if self._config.retire_for == "run" else np.ones(len(self.places), bool)
        free[list(taken)] = False
        return int(np.count_nonzero(free))

    def retired(self, history: History) -> np.ndarray:
        """[D] bool."""
        return history.retired(rate=self._config.retire_rate, attempts=self._config.retire_attempts)

    def _first(self, count: int, free: np.ndarray, taken: Collection[int]) -> list[int]:
        """Those that are drawn again, or were passed over."""
        drawn: list[int] = []
        later = []
        for place in self._again:
            if len(drawn) == count or place in taken or place in drawn:
                later.append(place)
            elif free[place]:  # it may have been retired since
                drawn.append(place)
        self._again = later
        return drawn

    def _shares(self, count: int, free: np.ndarray, history: History, spent: float) -> Iterator[tuple[Source, int]]:
        """How many of `count` problems come from each source."""
        members = self.sets.members
        room = {pool: int(np.count_nonzero(free[source.members])) for pool, source in self._sources.items()}
        numbers = {ONE: count}
        if len(members) > 1:
            of_set = {name: sum(room[pool] for pool in room if pool[0] == name) for name in members}
            weights = weights_of(self._config, members, history)
            numbers, self._credits = share_out(count, weights, of_set, self._credits)
        for name, wanted in numbers.items():
            for pool in self._preferred(name, spent):
                number = min(wanted, room[pool])
                wanted -= number
                if number:
                    yield self._sources[pool], number

    def _preferred(self, name: str, spent: float) -> list[Pool]:
        """The pools of a set: that of the stage, those after it, and last those before it."""
        pools = [pool for pool in self._sources if pool[0] == name]
        if not self._config.stages:
            return pools
        if self._config.order == "easy_to_hard":
            pools = pools[::-1]
        stage = stage_of(spent, self._config.stages)
        return pools[stage:] + pools[:stage][::-1]

    def __next__(self) -> list[Problem]:
        """The problems of a step, of whose history nothing is known."""
        return self.draw(self._problems_per_batch, history=History.empty(len(self.places)))

    def get_state(self, again: Collection[str] = ()) -> dict[str, Any]:
        """JSON-able position; from it, the problems `again` (ids) are drawn first."""
        return {
            "sources": {f"{name}:{pool}": source.get_state() for (name, pool), source in self._sources.items()},
            "again": [*(self.places[problem] for problem in again), *self._again],
            "credits": dict(self._credits),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from a position that `get_state` gave, or from one of releases that had only shuffled sets."""
        if "next_index" in state:  # which batch, counted over epochs of whole batches
            size = self._problems_per_batch
            epoch, batch = divmod(state["next_index"], len(self.places) // size)
            [source] = self._sources.values()
            source.set_state({"epoch": epoch, "position": batch * size, "rested": []})
            return
        for (name, pool), source in self._sources.items():
            source.set_state(state["sources"][f"{name}:{pool}"])
        self._again = list(state["again"])
        self._credits = dict(state["credits"])


def stage_of(spent: float, stages: Collection[float]) -> int:
    """Which of the stages, given as shares of the compute, a share of it lies in."""
    ends = np.cumsum(list(stages))[:-1]
    return int(np.searchsorted(ends, spent + 1e-12, side="right"))


def make_sources(sets: TrainSets, config: CurriculumConfig, seed: int) -> dict[Pool, Source]:
    """A source for every set, and with stages for every pool of it that has problems.

    Raises:
      InputError: problems were not measured, or a pool has none.
    """
    ranks = ranks_of(sets.problems, config)
    pools = np.zeros(len(sets.problems), int)
    if config.stages:
        pools = pools_of(rates_of(sets.problems, config.rate_column), config.pools)
    found: dict[Pool, Source] = {}
    for name, places in sets.members.items():
        for pool in range(int(pools.max()) + 1):
            part = places[pools[places] == pool]
            alone = len(sets.members) == 1 and not config.stages
            if len(part):
                found[name, pool] = Source(part, ranks=ranks, seed=seed if alone else _seed_of(seed, name, pool))
    return found


def _seed_of(seed: int, name: str, pool: int) -> int:
    """A seed of its own for each pool, so that sets of one size are not shuffled alike."""
    digest = hashlib.blake2b(f"{seed}/{name}/{pool}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")
