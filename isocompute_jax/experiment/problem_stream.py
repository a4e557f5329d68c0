"""The problems of a run in the order in which they are trained on: sets, mixtures, pools of difficulty, epochs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np

from isocompute_jax.experiment.config import CurriculumConfig
from isocompute_jax.experiment.problem_history import History
from isocompute_jax.experiment.rollouts import seed_of
from isocompute_jax.records.errors import CONFIG, InputError
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

        `taken` are places of those that the step has, none in its first draw; `spent` is the share of the run's compute
        that was asked for, which chooses the stage.
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

    def _shares(self, count: int, free: np.ndarray, history: History, spent: float) -> Iterator[tuple[Epochs, int]]:
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
        """Continues from a position that `get_state` gave, or from one of releases that had only shuffled sets.

        Raises:
          InputError: it is one in other pools, of a run that this one forks from.
        """
        if "next_index" in state:  # which batch, counted over epochs of whole batches
            size = self._problems_per_batch
            epoch, batch = divmod(state["next_index"], len(self.places) // size)
            [source] = self._sources.values()
            source.set_state({"epoch": epoch, "position": batch * size, "rested": []})
            return
        sources = {f"{name}:{pool}": source for (name, pool), source in self._sources.items()}
        if sources.keys() != state["sources"].keys():
            raise InputError(
                f"{CONFIG.curriculum.stages}: the position in the data is of pools {', '.join(state['sources'])}, and "
                f"this run has {', '.join(sources)}: a fork keeps the pools of the run that it begins from"
            )
        for name, source in sources.items():
            source.set_state(state["sources"][name])
        self._again = list(state["again"])
        self._credits = dict(state["credits"])


def stage_of(spent: float, stages: Collection[float]) -> int:
    """Which of the stages, given as shares of the compute, a share of it lies in."""
    ends = np.cumsum(list(stages))[:-1]
    return int(np.searchsorted(ends, spent + 1e-12, side="right"))


def make_sources(sets: TrainSets, config: CurriculumConfig, seed: int) -> dict[Pool, Epochs]:
    """A source for every set, and with stages for every pool of it that has problems.

    Raises:
      InputError: problems were not measured, or a pool has none.
    """
    ranks = ranks_of(sets.problems, config)
    pools = np.zeros(len(sets.problems), int)
    if config.stages:
        pools = pools_of(rates_of(sets.problems, config.rate_column), config.pools)
    found: dict[Pool, Epochs] = {}
    for name, places in sets.members.items():
        for pool in range(int(pools.max()) + 1):
            part = places[pools[places] == pool]
            alone = len(sets.members) == 1 and not config.stages
            if len(part):  # sets of one size are not shuffled alike
                own = seed if alone else seed_of(f"{seed}/{name}/{pool}")
                found[name, pool] = Epochs(part, ranks=ranks, seed=own)
    return found


class Epochs:
    """Gives the problems of a set, or of a pool of it, each once an epoch; the order depends on the seed alone.

    Args:
      members: [N] places of its problems.
      ranks: [D] by which an epoch is sorted, equals by chance; None for chance alone.
      seed: of the order, anew in every epoch.
    """

    def __init__(self, members: np.ndarray, *, ranks: np.ndarray | None, seed: int):
        self.members = members
        self._ranks = ranks
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._rested: set[int] = set()  # retired problems that sit this epoch out, or the one before
        self._order: tuple[int, np.ndarray] | None = None  # an epoch, and its places in order

    def take(
        self, count: int, *, retired: np.ndarray, rests: bool, taken: Collection[int], whole: bool
    ) -> tuple[list[int], list[int]]:
        """The next problems.

        Args:
          count: how many; at most those that are left for `taken` and, unless it `rests`, `retired`.
          retired: [D] bool, problems that are passed over,
          rests: every other time; otherwise always.
          taken: places of the step's other problems, which are passed over: drawn twice in a step, a problem would get
            the same random numbers.
          whole: from one epoch. What it leaves over is left out of it, another remainder in every epoch.

        Returns:
          Places, and those that were passed over because they were taken.
        """
        drawn: list[int] = []
        passed: list[int] = []
        while len(drawn) < count:
            if self._position == len(self.members):
                self._epoch, self._position = self._epoch + 1, 0
                if whole:  # once: of retired problems that rest, one epoch may have too few
                    drawn, whole = [], False
            place = self._at(self._position)
            self._position += 1
            if retired[place] and not (rests and self._is_back(place)):
                continue
            (passed if place in taken or place in drawn else drawn).append(place)
        return drawn, passed

    def _is_back(self, place: int) -> bool:
        """Whether a retired problem sat out the last time."""
        if place in self._rested:
            self._rested.remove(place)
            return True
        self._rested.add(place)
        return False

    def _at(self, position: int) -> int:
        """The place of the problem at a position of this epoch."""
        if self._order is None or self._order[0] != self._epoch:
            places = self.members[shuffled(len(self.members), self._seed, self._epoch)]
            if self._ranks is not None:
                places = places[np.argsort(self._ranks[places], kind="stable")]
            self._order = self._epoch, places
        return int(self._order[1][position])

    def get_state(self) -> dict[str, Any]:
        """JSON-able position."""
        return {"epoch": self._epoch, "position": self._position, "rested": sorted(self._rested)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from a position that `get_state` gave."""
        self._epoch, self._position, self._rested = state["epoch"], state["position"], set(state["rested"])


@functools.lru_cache(maxsize=64)
def shuffled(size: int, seed: int, epoch: int) -> np.ndarray:
    """[size] the order of an epoch: that of grain's `shuffle`, which runs had before there were curricula.

    Whole epochs, for grain takes 50 ms and more for one of any size (0.8 s of 50,000): streams that are alike share it.
    """
    dataset = grain.MapDataset.source(range(size)).seed(seed).shuffle()
    order = np.array([dataset[epoch * size + i] for i in range(size)])
    order.flags.writeable = False
    return order


def ranks_of(problems: Sequence[Problem], config: CurriculumConfig) -> np.ndarray | None:
    """[D] where each problem comes within an epoch, lowest first; None where the order is by chance alone."""
    if config.order == "shuffled":
        return None
    rates = rates_of(problems, config.rate_column)
    easy_last = pools_of(rates, config.pools) if config.pools else rates
    return -easy_last if config.order == "easy_to_hard" else easy_last


def rates_of(problems: Sequence[Problem], column: str) -> np.ndarray:
    """[D] float64 measured rates; an InputError where a problem has none."""
    for problem in problems:
        if column not in problem.measured:
            known = ", ".join(sorted(problem.measured)) or "none"
            raise InputError(
                f"config.curriculum.rate_column = {column!r}: problem {problem.id!r} was not measured so (it has: "
                f"{known}): curate the set (python -m isocompute_jax.curate), or name the column that it has"
            )
    return np.array([problem.measured[column] for problem in problems])


def pools_of(rates: np.ndarray, cuts: Sequence[float]) -> np.ndarray:
    """[D] int64 pool of each problem: 0 up to and with the first of the ascending `cuts`, and so on.

    Raises:
      InputError: a pool has no problem.
    """
    pools = np.searchsorted(np.asarray(cuts), rates, side="left")
    ends = [0.0, *cuts, 1.0]
    for pool in range(len(cuts) + 1):
        if not np.any(pools == pool):
            raise InputError(
                f"config.curriculum.pools = {tuple(cuts)}: no training problem has a rate "
                f"{'from' if pool == 0 else 'above'} {ends[pool]:g} up to {ends[pool + 1]:g}; the rates lie between "
                f"{rates.min():g} and {rates.max():g}: choose other cuts"
            )
    return pools


ONE = ""
"""The name of a set that is all there is."""


@dataclasses.dataclass(frozen=True, eq=False)
class TrainSets:
    """D problems in all; a problem's place is its index among them."""

    problems: Sequence[Problem]  # D problems, whose ids differ
    # name of a set -> [D_set] int64 places of its problems; `ONE` alone, or two sets or more by name
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


RECENT = 256
"""Problems of a set, those drawn last, whose groups say what signal the set has now."""
EXPLORED = 0.1
"""Share of a step that is divided equally, so that a set without signal is looked at again."""
UNTRIED = 0.25
"""p (1 - p) of a set of which nothing was drawn yet: the most there can be."""


def weights_of(config: CurriculumConfig, members: Mapping[str, np.ndarray], history: History) -> dict[str, float]:
    """Name -> weight of each set now; what they sum to does not matter."""
    if config.weighting == "adaptive":
        return adaptive_weights(members, history)
    if config.weights:
        return {name: config.weights[name] for name in members}
    return {name: float(len(places)) for name, places in members.items()}


def adaptive_weights(members: Mapping[str, np.ndarray], history: History) -> dict[str, float]:
    """Weights in proportion to the mean of p (1 - p) over the problems of a set that were drawn last.

    p is a problem's rate of success in its last group, so p (1 - p) is the variance of its rewards: the mean square of
    unscaled group-relative advantages, and zero where a group has no signal. As a measure of what can be learned from
    a task it is that of "sampling for learnability" (arXiv 2408.15099, and 2502.12272 for language models); weighing
    whole sets by what their advantages come to is DUMP's (arXiv 2504.09710), whose bandit is replaced here by the
    mean over `RECENT` problems, and its exploration by `EXPLORED`. From groups of n rollouts p (1 - p) comes out
    (n - 1) / n of its value, in every set alike.
    """
    signal = {name: _signal(history, places) for name, places in members.items()}
    total = sum(signal.values())
    equal = 1 / len(signal)
    return {
        name: EXPLORED * equal + (1 - EXPLORED) * (value / total if total else equal) for name, value in signal.items()
    }


def _signal(history: History, places: np.ndarray) -> float:
    steps = history.last_step[places]
    tried = np.flatnonzero(steps >= 0)
    if not len(tried):
        return UNTRIED
    recent = places[tried[np.argsort(steps[tried], kind="stable")[-RECENT:]]]
    rates = history.last_rate[recent].astype(np.float64)
    return float(np.mean(rates * (1 - rates)))


def share_out(
    count: int, weights: Mapping[str, float], room: Mapping[str, int], credits: Mapping[str, float]
) -> tuple[dict[str, int], dict[str, float]]:
    """How many of `count` problems come from each set.

    One by one: every set that has problems left earns its share of one problem, and the set with most credit gives it.
    So shares hold over few steps already, and nothing is left to chance.

    Args:
      count: problems.
      weights: of each set, above 0.
      room: problems that each set has.
      credits: what each set was owed when this was last asked; problems.

    Returns:
      Numbers by set, in all `count` or all that there is, and the credits to give next time.
    """
    numbers, credits = dict.fromkeys(weights, 0), {name: credits.get(name, 0.0) for name in weights}
    for _ in range(count):
        ready = [name for name in weights if numbers[name] < room[name]]
        if not ready:
            break
        total = sum(weights[name] for name in ready)
        for name in ready:
            credits[name] += weights[name] / total
        best = max(ready, key=lambda name: credits[name])
        credits[best] -= 1
        numbers[best] += 1
    return numbers, credits
