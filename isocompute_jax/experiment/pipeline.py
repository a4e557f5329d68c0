"""The window: batches on their way from the problem stream, through sampler and graders, to the learner.

Batch u is what the update from weights u to weights u + 1 trains on, and batches are used in the order of the stream.
On-policy, one batch is out at a time. Asynchronous training keeps `window` of them out: before update u the batches up
to u + window - 1 have been submitted, none of them before weights u - window + 1 served, so that no token in batch u
is more than window - 1 updates old when it is used. With as many batches out as the bound allows, deadlines leave no
choice of what to use next: update u waits for all of batch u, however long its slowest rollout takes, and nothing is
dropped or preferred for being short.

With dynamic sampling (DAPO, arXiv 2503.14476, equation 11) a batch is drawn in rounds, each of as many problems as it
lacks once the groups of the one before are graded. So no group with a signal is paid for in vain, and which problems
are drawn does not depend on the order in which groups arrive.

Where a policy deals a batch's rollouts to its problems, all of them are booked when it is begun. A policy that looks at
rewards deals them in rounds too, each once the groups of the one before are graded, knowing what the history said when
the batch was begun.

What is asked for never costs more than `max_compute`: a batch is begun only if a whole one can be paid, and completed
as far as what is left pays for it.

Of several processes, process 0 draws, and tells the others what it drew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isocompute_jax.allocation.policies import Belief
from isocompute_jax.allocation.schedule import BatchSize
from isocompute_jax.distributed import Team, alone
from isocompute_jax.experiment.dealing import Dealer, merged
from isocompute_jax.experiment.problem_history import History
from isocompute_jax.experiment.problem_stream import ProblemStream
from isocompute_jax.experiment.rollouts import GradedStream, check_versions
from isocompute_jax.learner import signal_of
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Problem, RolloutGroup

MakeRequests = Callable[[Sequence[Problem], int, int], list[SampleRequest]]
"""(problems, batch, rollouts of each) -> requests."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled:
    """What one step sampled."""

    groups: list[RolloutGroup]  # all of it, graded, in the order in which problems were drawn: what C counts
    size: BatchSize  # what it was to have
    rounds: int = 0  # how often dynamic sampling drew further problems


def groups_with_signal(groups: Sequence[RolloutGroup], credited_turns: int) -> list[RolloutGroup]:
    """The groups that have a signal, as graded, all of them known: what dynamic sampling trains on.

    What is subtracted for length does not give a group a signal. `credited_turns` is as in `learner.signal_of`.
    """
    if not groups:
        return []
    signal = signal_of(groups, credited_turns)
    return [group for group, has_one in zip(groups, signal, strict=True) if has_one and not group.dropped]


@dataclasses.dataclass(eq=False)
class _Out:
    """A batch that is out."""

    size: BatchSize
    problems: list[Problem] = dataclasses.field(default_factory=list)  # in the order of drawing; none twice
    asked: set[tuple[str, int]] = dataclasses.field(default_factory=set)  # groups: (problem, its first rollout)
    arrived: dict[tuple[str, int], RolloutGroup] = dataclasses.field(default_factory=dict)
    rounds: int = 0
    belief: Belief | None = None  # of the problems, where a policy deals
    dealt: list[np.ndarray] = dataclasses.field(default_factory=list)  # then, by round, [P] rollouts

    @property
    def waits(self) -> bool:
        return len(self.arrived) < len(self.asked)

    @property
    def groups(self) -> list[RolloutGroup]:
        """One of each problem, of the rounds that are asked for, all of which are there."""
        if not self.dealt:
            return [self.arrived[problem.id, 0] for problem in self.problems]
        return [
            merged([self.arrived[problem.id, sum(rounds[:r])] for r, n in enumerate(rounds) if n], rounds)
            for problem, rounds in zip(self.problems, np.stack(self.dealt, axis=1).tolist(), strict=True)
        ]


class Pipeline:
    """Submits batches ahead of their use and hands them out, whole and in order.

    Args:
      stream: where problems come from.
      rollouts: where they are sampled and graded; None in other processes than the first.
      make_requests: the `step` of what it makes is the batch, which keys its random numbers.
      size_at: (C, n) -> the size of a batch that is begun after C rollouts; n is what the run chose, 0 where a schedule
        does.
      max_compute: rollouts that may be asked for in all.
      window: batches that may be out at once, the next update's included.
      at_once: batches that are handed out together: 1, or those of a sampling phase.
      refill_up_to: problems that dynamic sampling draws for a batch, at most, in multiples of its size, until as many
        of its groups as that have a signal; None for the first draw alone.
      credited_turns: as in `learner.signal_of`.
      dealer: who gets how many of a batch's rollouts; None for n of each problem.
      team: the processes of the run; None for this one alone.
    """

    def __init__(
        self,
        stream: ProblemStream,
        rollouts: GradedStream | None,
        make_requests: MakeRequests,
        *,
        size_at: Callable[[int, int], BatchSize],
        max_compute: int,
        window: int,
        at_once: int,
        refill_up_to: float | None,
        credited_turns: int = 0,
        dealer: Dealer | None = None,
        team: Team | None = None,
    ):
        self._stream = stream
        self._rollouts = rollouts
        self._make_requests = make_requests
        self._size_at = size_at
        self._max_compute = max_compute
        self._window = window
        self._at_once = at_once
        self._refill_up_to = refill_up_to
        self._credited_turns = credited_turns
        self._dealer = dealer
        self._team = team or alone()
        self._next = 0  # the first batch that is not submitted
        self._asked = 0  # rollouts, of all batches so far
        self._out: dict[int, _Out] = {}
        self._history = History.empty(len(stream.places))

    def position(self, step: int) -> dict[str, Any]:
        """Where the stream has to stand to give batch `step` next: what a checkpoint before update `step` keeps.

        Batches that are out are not lost by it: their problems are drawn again before others, and sampled again.
        """
        return self._stream.get_state(
            [problem.id for number in sorted(self._out) if number >= step for problem in self._out[number].problems]
        )

    def restart(self, step: int, position: dict[str, Any], compute: int) -> None:
        """Continues from a `position` at which `compute` rollouts were paid; nothing may have been submitted yet."""
        self._stream.set_state(position)
        self._next, self._asked = step, compute

    def has(self, step: int, history: History, group_size: int = 0) -> bool:
        """Whether there is a batch for update `step`, or could be: problems are left, and compute for one more."""
        return self._team.broadcast(lambda: step in self._out or self._affordable(history, group_size))

    def exhausted(self, history: History) -> bool:
        """Whether every problem is retired."""
        return self._team.broadcast(lambda: not self._stream.available(history))

    def next(self, step: int, history: History, group_size: int = 0) -> tuple[list[Sampled], dict[str, Any]]:
        """Fills the window of update `step` and waits for its batch, or the phase that begins with it.

        Returns:
          The batches, and where the stream has to stand behind them.

        Raises:
          RunError: as `receive` does; in every process.
        """

        def draw() -> tuple[list[Sampled], dict[str, Any]]:
            self.submit(step, history, group_size)
            batches = self.receive(step)
            return batches, self.position(step + len(batches))

        return self._team.broadcast(draw)

    def grading_s(self) -> float:
        """As in `GradedStream`; 0 in other processes than the first."""
        return 0.0 if self._rollouts is None else self._rollouts.grading_s()

    def close(self) -> None:
        """Ends what reads the sampler, which must be closed before."""
        if self._rollouts is not None:
            self._rollouts.close()

    def _affordable(self, history: History, group_size: int) -> bool:
        size = self._size_at(self._asked, group_size)
        first = min(size.problems, self._stream.available(history))
        return first > 0 and self._asked + first * size.group_size <= self._max_compute

    def submit(self, step: int, history: History, group_size: int = 0) -> None:
        """Fills the window of update `step`, knowing `history`; returns at once."""
        self._history = history
        while self._next < step + self._window and self._affordable(history, group_size):
            size = self._size_at(self._asked, group_size)
            self._out[self._next] = _Out(size)
            self._next += 1
            self._draw(self._next - 1, size.problems)

    def _draw(self, number: int, count: int) -> None:
        """Draws and submits up to `count` further problems of a batch."""
        batch = self._out[number]
        problems = self._stream.draw(
            count,
            history=self._history,
            taken=[self._stream.places[problem.id] for problem in batch.problems],
            spent=self._asked / self._max_compute,
        )
        if not problems:
            return
        self._asked += len(problems) * batch.size.group_size
        batch.problems += problems
        if self._dealer is None:
            self._ask(batch, self._make_requests(problems, number, batch.size.group_size))
        else:
            places = [self._stream.places[problem.id] for problem in problems]
            batch.belief = self._dealer.believe(self._history, places)
            self._deal(number, self._dealer.first(batch.belief, len(problems) * batch.size.group_size))

    def _deal(self, number: int, counts: np.ndarray) -> None:
        """Asks for a round of a batch, so many further rollouts of each problem."""
        batch = self._out[number]
        before = np.sum([np.zeros_like(counts), *batch.dealt], axis=0).tolist()
        batch.dealt.append(counts)
        requests = [
            dataclasses.replace(request, group_size=count, first_rollout=first)
            for request, count, first in zip(
                self._make_requests(batch.problems, number, batch.size.group_size), counts.tolist(), before, strict=True
            )
            if count
        ]
        self._ask(batch, requests)

    def _ask(self, batch: _Out, requests: list[SampleRequest]) -> None:
        assert self._rollouts is not None  # only process 0 draws
        batch.asked |= {(request.problem_id, request.first_rollout) for request in requests}
        self._rollouts.submit(requests)

    def receive(self, step: int) -> list[Sampled]:
        """Waits for batch `step`, or for the phase that begins with it; graded groups, in the order of drawing.

        Raises:
          RunError: the sampler has failed, or has broken its word: a group twice, or of weights that are too old.
        """
        numbers = [number for number in range(step, step + self._at_once) if number in self._out]
        while any(self._out[number].waits for number in numbers):
            self._take()
            self._refill_all()
        batches = []
        for number in numbers:
            batch = self._out.pop(number)
            check_versions(batch.groups, oldest=number - self._window + 1, newest=step)
            batches.append(Sampled(batch.groups, batch.size, batch.rounds))
        return batches

    def _take(self) -> None:
        assert self._rollouts is not None
        group = self._rollouts.take()
        batch, which = self._out.get(group.step), (group.problem_id, group.first_rollout)
        if batch is None or which not in batch.asked or which in batch.arrived:
            raise RunError(f"the sampler returned problem {which[0]!r} of step {group.step} twice, or unasked")
        batch.arrived[which] = group

    def _refill_all(self) -> None:
        """Draws, or deals, what batches lack whose round is complete.

        Where batches do not overlap, rounds are those of all of them: what is submitted together, and so what is
        computed together, then does not depend on which group arrives first.
        """
        if self._refill_up_to is None and not (self._dealer is not None and self._dealer.looks):
            return
        if self._window == self._at_once and any(batch.waits for batch in self._out.values()):
            return
        for number in sorted(self._out):
            batch = self._out[number]
            if batch.waits:
                continue
            if self._dealer is not None:
                assert batch.belief is not None
                total = len(batch.problems) * batch.size.group_size
                counts = self._dealer.further(batch.belief, batch.groups, total)
                if counts.any():
                    self._deal(number, counts)
                continue
            missing = min(
                batch.size.problems - len(groups_with_signal(batch.groups, self._credited_turns)),
                int((self._refill_up_to or 0) * batch.size.problems) - len(batch.problems),
                (self._max_compute - self._asked) // batch.size.group_size,
            )
            before = len(batch.problems)
            if missing > 0:
                self._draw(number, missing)
            batch.rounds += len(batch.problems) > before
