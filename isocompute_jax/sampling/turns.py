"""Turns: a completion as a sequence of segments, drawn by the policy or inserted between two of them.

A forced end of thinking, the answer of a tool and what an environment says are the same thing: a rollout is drawn up to
a point, tokens are put behind what it has so far, and it is continued. `TurnSampler` does that around any sampler,
in process or remote: whenever a group arrives, each of its rollouts that is to be continued is asked for again as a
group of its own, whose prompt is the prompt and all that the rollout has; a group is yielded once all its rollouts are
done.

What comes next (`TurnPolicy.next_turn`) is known at once, or asked for elsewhere and waited for while others are drawn.
Where it is a pure function of the rollout a group is the same whatever finishes first, and on-policy it is so after a
restart too: the random numbers of a turn are keyed by the rollout and the turn, and a sampler that draws while it is
read is asked for turns in an order that no clock decides. The engine reads a rollout again in each turn; that is the
price (docs/length_control.md).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from isocompute_jax.model import Params
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion, Episode, RolloutGroup
from isocompute_jax.sampling.protocol import TRAIN, Compiles, Sampler

WAKE_S = 1.0
"""Who waits for groups that are continued in the background never waits longer at a time, so that signals are seen."""


@dataclasses.dataclass(frozen=True, eq=False)
class Turn:
    """How a rollout goes on."""

    context: np.ndarray  # [C] int32 tokens that are put behind what it has so far; there may be none
    budget: int  # tokens that are drawn then, at most; at least 1


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """What an environment makes of a rollout: what it has said so far, and how it goes on."""

    episode: Episode
    turn: Turn | None  # None when it is done


@dataclasses.dataclass(frozen=True, eq=False)
class Begun:
    """How the rollouts of a group begin."""

    prompt_tokens: np.ndarray  # [S] int32 of all of them, in place of the request's
    answers: Sequence[Answer]  # of each, with a turn whose context is what it alone has before its first


Next = Turn | None | concurrent.futures.Future[Answer]
"""How a rollout goes on, None when it is done; or what will say so."""


class TurnPolicy(Protocol):
    """When rollouts are continued, and with what."""

    @property
    def continued_tokens(self) -> int:
        """The longest completion that is continued, with what was put behind it, in tokens."""
        ...

    @property
    def turn_tokens(self) -> int:
        """The largest budget of a later turn."""
        ...

    def first_turn(self, request: SampleRequest) -> SampleRequest:
        """What is asked of the sampler first: the request with the budgets and stop tokens of its first turn."""
        ...

    def begin(self, request: SampleRequest) -> concurrent.futures.Future[Begun] | None:
        """How the group's rollouts begin, where that is asked for elsewhere; None where the request says it.

        Turn 0 then is what stands before them, and turn 1 the first that is drawn.
        """
        ...

    def next_turn(self, request: SampleRequest, rollout: int, turn: int, completion: Completion) -> Next:
        """What follows turn `turn` of a rollout.

        Args:
          request: as the caller made it.
          rollout: its index i, which keys random numbers.
          turn: the one that has just ended, from 0.
          completion: all that the rollout has so far.
        """
        ...

    def close(self) -> None:
        """Gives back what it holds."""
        ...


def joined(before: Completion, context: np.ndarray, after: Completion) -> Completion:
    """A completion, what was put behind it, and what was drawn then, as one.

    Experts are those that were chosen when a token was first read, as they were in the pass that it was drawn from:
    `after` says those of `before` once more, and its own of the last of them.
    """
    inserted = len(context)
    experts = None
    if not len(before.tokens):
        experts = after.experts
    elif before.experts is not None and after.experts is not None:
        experts = np.concatenate([before.experts, after.experts[len(before.experts) :]])
    support = None
    if after.support is not None:  # each as wide as the most that one of its own tokens could have been
        of_before = np.zeros((len(before.tokens), 0), np.int32) if before.support is None else before.support
        parts = [of_before, np.zeros((inserted, 0), np.int32), after.support]
        width = max(part.shape[1] for part in parts)
        parts = [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=-1) for part in parts]
        support = np.concatenate(parts)
    return Completion(
        tokens=np.concatenate([before.tokens, context, after.tokens]).astype(np.int32),
        logprobs=np.concatenate([before.logprobs, np.zeros(inserted, np.float32), after.logprobs]),
        mask=np.concatenate([before.mask, np.zeros(inserted, bool), after.mask]),
        policy_versions=np.concatenate(
            [before.policy_versions, np.full(inserted, after.policy_versions[0], np.int32), after.policy_versions]
        ),
        finish_reason=after.finish_reason,
        experts=experts,
        support=support,
        episode=before.episode,
    )


class TurnSampler:
    """Implements `sampling.protocol.Sampler` by a sampler whose rollouts it continues.

    Args:
      sampler: draws every turn; nobody else uses it.
      policy: what follows a turn.
      single: lanes whose rollouts have one turn, as the caller asked for it.
      background: rollouts are continued when they arrive, by a thread of its own, and not when the caller next reads
        its lane. For samplers that work on while the learner updates, and can be called from several threads.
    """

    def __init__(self, sampler: Sampler, policy: TurnPolicy, *, single: Collection[str] = (), background: bool = False):
        self._sampler = sampler
        self._policy = policy
        self._single = frozenset(single)
        self._background = background
        self._lanes: dict[str, _Lane] = {}

    @property
    def concurrent(self) -> bool:
        """Whether groups are finished while nobody reads them."""
        return self._background

    @property
    def redrawn_rollouts(self) -> int:
        """Rollouts asked for again so far, turn by turn, because what drew them was lost."""
        return self._sampler.redrawn_rollouts

    @property
    def device_seconds(self) -> Mapping[str, float]:
        """As in `Sampler`."""
        return self._sampler.device_seconds

    def submit(self, requests: Sequence[SampleRequest], *, lane: str = TRAIN) -> None:
        """Queues groups and returns at once.

        Raises:
          ValueError: a group of the same problem, step and first rollout is out in this lane.
        """
        if lane in self._single:
            self._sampler.submit(requests, lane=lane)
            return
        if lane not in self._lanes:
            self._lanes[lane] = _Lane(self._sampler, self._policy, lane, background=self._background)
        self._lanes[lane].submit(requests)
        if self._background:
            self._lanes[lane].follow()

    def completed(self, *, lane: str = TRAIN) -> Iterator[RolloutGroup]:
        """Yields ungraded groups of a lane, each whole: when all turns of all its rollouts are done."""
        if lane in self._single:
            yield from self._sampler.completed(lane=lane)
        elif lane in self._lanes:
            yield from self._lanes[lane].followed() if self._background else self._lanes[lane].whole_groups()

    def update_weights(self, params: Params, *, version: int) -> None:
        """As the sampler's; turns that are asked for later are drawn with these weights."""
        self._sampler.update_weights(params, version=version)

    def compile(self, requests: Sequence[SampleRequest]) -> None:
        """As the sampler's, where it does, of first turns; how many rollouts are continued is not known."""
        if isinstance(self._sampler, Compiles):
            self._sampler.compile([self._policy.first_turn(request) for request in requests])

    def close(self) -> None:
        """As the sampler's, and the policy's."""
        self._sampler.close()
        self._policy.close()


@dataclasses.dataclass(eq=False)
class _Unfinished:
    """A group some of whose rollouts are not done."""

    request: SampleRequest  # the caller's
    first: SampleRequest  # what is asked of the sampler in its place
    so_far: list[Completion]  # of each rollout; before its first turn there are none
    left: int  # rollouts that are not done


Key = tuple[str, int, int, int]
"""Problem, step, first rollout and turn: the name of a group in its lane."""

Then = Callable[[Any], tuple[list[SampleRequest], RolloutGroup | None]]
"""Answer -> the turns to ask for next, and a group that it makes whole."""


class _Lane:
    """The groups that are out in one lane. Methods may be called from several threads.

    Args:
      sampler, policy: as in `TurnSampler`.
      name: of the lane.
      background: whether answers are used as they come; else those that are waited for are used together, in the order
        in which they were asked for, once the sampler has nothing left to draw.
    """

    def __init__(self, sampler: Sampler, policy: TurnPolicy, name: str, *, background: bool):
        self._sampler = sampler
        self._policy = policy
        self._name = name
        self._background = background
        self._lock = threading.RLock()
        self._out: dict[Key, tuple[_Unfinished, tuple[Turn, ...]]] = {}
        self._expected: list[tuple[concurrent.futures.Future[Any], Then]] = []  # in order; not in the background
        self._waited_for = 0  # answers, in the background
        self._more = threading.Event()
        self._following = False
        self._asked = 0
        self._waiting = 0  # in the background: groups that the caller has not taken yet
        self._whole: queue.SimpleQueue[RolloutGroup | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Asks for the first turn of groups."""
        groups = [
            _Unfinished(request, self._policy.first_turn(request), [], request.group_size) for request in requests
        ]
        with self._lock:
            new: dict[Key, tuple[_Unfinished, tuple[Turn, ...]]] = {}
            for group in groups:
                key = (group.request.problem_id, group.request.step, group.request.first_rollout, 0)
                if key in self._out or key in new:
                    raise ValueError(f"problem {key[0]!r} of step {key[1]} is being sampled already")
                new[key] = group, ()
            self._asked += len(groups)
            self._waiting += len(groups)
            self._out |= new
            at_once = []
            for group in groups:
                begun = self._policy.begin(group.request)
                if begun is None:
                    at_once.append(group.first)
                else:
                    self._expect(begun, functools.partial(self._begun, group))
            self._sampler.submit(at_once, lane=self._name)

    def whole_groups(self) -> Iterator[RolloutGroup]:
        """Continues rollouts as groups arrive, and yields those that are done."""
        while True:
            yield from self._use_expected()
            for group in self._sampler.completed(lane=self._name):
                with self._lock:
                    later, whole = self._advance(group)
                    if later:
                        self._sampler.submit(later, lane=self._name)
                if whole is not None:
                    yield whole
            if not self._expected:
                return

    def follow(self) -> None:
        """Starts the thread that does it in the background, unless it runs."""
        with self._lock:
            if not self._following and self._failure is None:
                self._following = True
                threading.Thread(target=self._run, name=f"turns of {self._name}", daemon=True).start()

    def followed(self) -> Iterator[RolloutGroup]:
        """The groups that the thread has finished. Raises what ended it."""
        while self._waiting:
            if self._failure is not None:
                raise self._failure
            try:
                whole = self._whole.get(timeout=WAKE_S)
            except queue.Empty:
                continue
            if whole is not None:
                with self._lock:
                    self._waiting -= 1
                yield whole

    def _run(self) -> None:
        try:
            while self._failure is None:
                self._more.clear()
                asked = self._asked
                for whole in self.whole_groups():
                    self._whole.put(whole)
                with self._lock:
                    if not self._out and not self._waited_for:
                        self._following = False
                        return
                    waits = self._waited_for > 0
                    if not waits and not self._more.is_set() and self._asked == asked:
                        raise RunError("the sampler lost groups: it says that all are done, and some never came")
                if waits:
                    self._more.wait(WAKE_S)
        except BaseException as error:  # whatever it is, it belongs to who waits
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._whole.put(None)

    def _expect(self, answer: concurrent.futures.Future[Any], then: Then) -> None:
        """Has an answer used once it is there."""
        if not self._background:
            self._expected.append((answer, then))
            return
        self._waited_for += 1
        answer.add_done_callback(functools.partial(self._use, then))

    def _use(self, then: Then, answer: concurrent.futures.Future[Any]) -> None:
        """Uses an answer that has come; in any thread."""
        try:
            with self._lock:
                self._waited_for -= 1
                later, whole = then(answer.result())
                if later:
                    self._sampler.submit(later, lane=self._name)
                self._more.set()
            if whole is not None:
                self._whole.put(whole)
        except BaseException as error:  # whatever it is, it belongs to who waits
            self._fail(error)

    def _use_expected(self) -> Iterator[RolloutGroup]:
        """Uses what is expected, all of it and in order."""
        while self._expected:
            expected, self._expected = self._expected, []
            later, finished = [], []
            for answer, then in expected:
                asked, whole = then(answer.result())
                later += asked
                finished += [] if whole is None else [whole]
            self._sampler.submit(later, lane=self._name)
            yield from finished

    def _advance(self, group: RolloutGroup) -> tuple[list[SampleRequest], RolloutGroup | None]:
        """Takes a group in; the turns to ask for next, and the caller's group if that is whole now."""
        unfinished, turns = self._out.pop((group.problem_id, group.step, group.first_rollout, group.turn))
        first = group.first_rollout - unfinished.request.first_rollout
        ended = range(first, first + len(group.completions))
        if not unfinished.so_far:
            unfinished.so_far = list(group.completions)
        for place, turn, drawn in zip(ended, turns, group.completions, strict=False):
            unfinished.so_far[place] = joined(unfinished.so_far[place], turn.context, drawn)
        later, whole = [], None
        for place in ended:
            found = self._policy.next_turn(
                unfinished.request,
                unfinished.request.first_rollout + place,
                group.turn,
                unfinished.so_far[place],
            )
            if isinstance(found, concurrent.futures.Future):
                self._expect(found, functools.partial(self._answered, unfinished, place, group.turn))
                continue
            asked, whole = self._follow(unfinished, place, group.turn, found)
            later += asked
        return later, whole

    def _begun(self, group: _Unfinished, begun: Begun) -> tuple[list[SampleRequest], None]:
        """Asks for the first turns of a group: in one group, where all begin alike; else each by itself."""
        old, step = group.request, group.request.step
        del self._out[old.problem_id, step, old.first_rollout, 0]
        request = group.request = dataclasses.replace(old, prompt_tokens=begun.prompt_tokens)
        first = group.first = dataclasses.replace(group.first, prompt_tokens=begun.prompt_tokens)
        group.so_far = [_nothing(answer.episode) for answer in begun.answers]
        turns = tuple(answer.turn for answer in begun.answers if answer.turn is not None)
        if all(turn.budget == turns[0].budget and not len(turn.context) for turn in turns):
            self._out[request.problem_id, step, request.first_rollout, 1] = group, turns
            return [dataclasses.replace(first, budgets=(turns[0].budget,) * request.group_size)], None
        later = []
        for place, turn in enumerate(turns):
            rollout = request.first_rollout + place
            self._out[request.problem_id, step, rollout, 1] = group, (turn,)
            later.append(_continued(first, rollout, 1, group.so_far[place], turn, self._policy.turn_tokens))
        return later, None

    def _answered(
        self, group: _Unfinished, place: int, turn: int, answer: Answer
    ) -> tuple[list[SampleRequest], RolloutGroup | None]:
        """Continues a rollout as an environment says."""
        reason = group.so_far[place].finish_reason
        if answer.turn is None:  # a rollout is cut by its bounds alone, and not as its last turn was
            reason = "stop" if answer.episode.done or answer.episode.failure else "length"
        group.so_far[place] = dataclasses.replace(group.so_far[place], episode=answer.episode, finish_reason=reason)
        return self._follow(group, place, turn, answer.turn)

    def _follow(
        self, group: _Unfinished, place: int, turn: int, following: Turn | None
    ) -> tuple[list[SampleRequest], RolloutGroup | None]:
        """What to ask for where a rollout goes on so; the caller's group if that makes it whole."""
        request, completion = group.request, group.so_far[place]
        if following is None:
            group.left -= 1
            return [], None if group.left else request.grouped(group.so_far)
        rollout = request.first_rollout + place
        self._out[request.problem_id, request.step, rollout, turn + 1] = group, (following,)
        return [_continued(group.first, rollout, turn + 1, completion, following, self._policy.turn_tokens)], None


def _nothing(episode: Episode) -> Completion:
    """A rollout before its first turn."""
    none = np.zeros(0)
    return Completion(
        none.astype(np.int32),
        none.astype(np.float32),
        none.astype(bool),
        none.astype(np.int32),
        "length",
        None,
        episode,
    )


def _continued(
    first: SampleRequest, rollout: int, turn: int, so_far: Completion, following: Turn, max_tokens: int
) -> SampleRequest:
    """A group of one rollout that draws its next turn. All have one `max_tokens`, so that units hold many of them."""
    return dataclasses.replace(
        first,
        prompt_tokens=np.concatenate([first.prompt_tokens, so_far.tokens, following.context]).astype(np.int32),
        group_size=1,
        params=dataclasses.replace(first.params, max_tokens=max_tokens),
        budgets=(following.budget,),
        first_rollout=rollout,
        turn=turn,
    )
