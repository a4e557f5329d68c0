"""The turns of a rollout that an environment answers: a `TurnPolicy` (see `sampling.turns`).

What the policy drew since the last observation is a turn. It ends with the model's own end of an answer, with a text
that ends turns, or with its budget; then the environment is asked, and what it says is put behind it as context: read,
and neither trained on nor counted as drawn.

Engines stop at single tokens, and a text that ends turns may be several: `</tool>` may be `</`, `tool`, `>`. So they
are stopped at every token that could be its last (`ending_tokens`); where the text is not there after all, the turn
goes on. Nothing is drawn beyond it, and every token is drawn from the distribution that it would have been drawn from.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.environments.episodes import Play
from isocompute_jax.environments.protocol import Step
from isocompute_jax.environments.runner import Answered, Runner, failed
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion, Episode, Problem
from isocompute_jax.sampling.turns import Answer, Begun, Turn
from isocompute_jax.tasks.graders.protocol import Failure
from isocompute_jax.tasks.prompts import Observations
from isocompute_jax.tasks.tokenizer import Tokenizer

S = TypeVar("S")
T = TypeVar("T")

NOTHING = np.zeros(0, np.int32)
CUT = "observations_cut"
"""Metric: observations of a rollout whose end was left out."""


class EnvironmentTurns:
    """Continues rollouts as an environment answers them.

    Args:
      config: within which bounds.
      runner: plays the environment; closed with this.
      prompts: write observations as the model reads them.
      max_prompt_tokens: longest prompt.
      max_tokens: longest completion, observations included.
      problem_of: what a request is of.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        runner: Runner,
        prompts: Observations,
        *,
        max_prompt_tokens: int,
        max_tokens: int,
        problem_of: Callable[[SampleRequest], Problem],
    ):
        self._config = config
        self._runner = runner
        self._prompts = prompts
        self._tokenizer = prompts.tokenizer
        self._max_prompt_tokens = max_prompt_tokens
        self._max_tokens = max_tokens
        self._problem_of = problem_of
        self._stops = tuple(dict.fromkeys((*config.stop, *runner.kind.stop)))
        self._ending = ending_tokens(prompts.tokenizer, self._stops)

    @property
    def continued_tokens(self) -> int:
        """The longest completion that is continued."""
        return self._max_tokens - 1

    @property
    def turn_tokens(self) -> int:
        """The largest budget of a turn."""
        return min(self._config.turn_tokens, self._max_tokens)

    def first_turn(self, request: SampleRequest) -> SampleRequest:
        """The request, with a turn's budget and what may end one; what stands before it is turn 0."""
        params = dataclasses.replace(request.params, max_tokens=self.turn_tokens)
        stops = tuple(dict.fromkeys((*request.stop_tokens, *self._ending)))
        return dataclasses.replace(request, params=params, stop_tokens=stops, turn=1)

    def begin(self, request: SampleRequest) -> concurrent.futures.Future[Begun]:
        """Begins the group's rollouts, all with one seed: what follows differs by what the policy does alone."""
        rollouts = [request.first_rollout + i for i in range(request.group_size)]
        return _gathered(
            [self._play(request, rollout, ()) for rollout in rollouts], lambda steps: self._begun(request, steps)
        )

    def next_turn(
        self, request: SampleRequest, rollout: int, turn: int, completion: Completion
    ) -> concurrent.futures.Future[Answer]:
        """What the environment answers; a turn that only seemed to have ended goes on."""
        del turn  # engines' turns are counted there, the policy's here
        episode = completion.episode or Episode()
        if episode.failure:  # it did not even begin
            return _known(Answer(dataclasses.replace(episode, ends=(len(completion.tokens),), rewards=(0.0,)), None))
        begin, end = episode.begins[-1], len(completion.tokens)
        ids = completion.tokens[begin:].tolist()
        text = self._text(ids)
        left = min(self.turn_tokens - len(ids), self._max_tokens - end)
        ended = ids[-1] in request.stop_tokens or any(stop in text for stop in self._stops)
        if not ended and completion.finish_reason == "stop" and left > 0:
            return _known(Answer(episode, Turn(NOTHING, left)))
        spans = [*zip(episode.begins, (*episode.ends, end), strict=True)]
        turns = [completion.tokens[begin:end].tolist() for begin, end in spans]
        said = turns if self._runner.kind.takes_tokens else [self._text(ids) for ids in turns]
        return _gathered(
            [self._play(request, rollout, tuple(said))],
            lambda steps: self._answered(request, rollout, completion, end, steps[0]),
        )

    def close(self) -> None:
        """Ends the environments."""
        self._runner.close()

    def _text(self, ids: Sequence[int]) -> str:
        """What a turn says: without the token that ended it, and without what stands behind a text that ended it."""
        [text] = self._tokenizer.decode([list(ids)])
        ends = [text.index(stop) + len(stop) for stop in self._stops if stop in text]
        return text[: min(ends)] if ends else text

    def _play(self, request: SampleRequest, rollout: int, turns: tuple[Any, ...]) -> Answered:
        """Asks the environment."""
        return self._runner.play(Play(name_of(request, rollout), self._problem_of(request), seed_of(request), turns))

    def _begun(self, request: SampleRequest, steps: Sequence[Step | Failure]) -> Begun:
        """How rollouts begin: what they all read first is their prompt, as far as one may be long.

        One whose environment did not begin draws a token: a rollout without any is none.
        """
        problem, most = self._problem_of(request), min(self._config.observation_tokens, self._max_tokens - 1)
        said = [None if isinstance(step, Failure) else step.observation for step in steps]
        write = functools.partial(self._prompts.begun, problem)
        uncut = [request.prompt_tokens if text is None else write(text) for text in said]
        most += min(_common(uncut), self._max_prompt_tokens)
        wholes = [self._within(ids, most, text, write) for ids, text in zip(uncut, said, strict=True)]
        common = min(_common(wholes), self._max_prompt_tokens)
        answers = []
        for whole, before, step in zip(wholes, uncut, steps, strict=True):
            context, cut = whole[common:][: self._max_tokens - 1], whole is not before
            if isinstance(step, Failure):
                answers.append(Answer(Episode((len(context),), failure=failed(step)), Turn(context, 1)))
                continue
            budget = min(self.turn_tokens, self._max_tokens - len(context))
            answers.append(Answer(Episode((len(context),), metrics={CUT: 1.0} if cut else {}), Turn(context, budget)))
        return Begun(wholes[0][:common], answers)

    def _answered(
        self, request: SampleRequest, rollout: int, completion: Completion, end: int, step: Step | Failure
    ) -> Answer:
        """How a rollout goes on after a turn that ended at `end`."""
        before = completion.episode or Episode()
        if isinstance(step, Failure):
            ended = dataclasses.replace(before, ends=(*before.ends, end), rewards=(*before.rewards, 0.0))
            return Answer(dataclasses.replace(ended, failure=failed(step)), None)
        episode = Episode(
            before.begins,
            (*before.ends, end),
            (*before.rewards, step.reward),
            step.done,
            {**before.metrics, **step.metrics},
        )
        if step.done:
            return Answer(episode, None)
        room = self._max_tokens - end - 1
        if len(episode.ends) < self._config.turns and room > 0:
            turn = completion.tokens[before.begins[-1] :].tolist()
            write = functools.partial(self._prompts.observation, self._problem_of(request), turn=turn)
            observed = write(step.observation or "")
            context = self._within(observed, self._config.observation_tokens, step.observation, write)
            cut = context is not observed
            if len(context) <= room:
                metrics = {**episode.metrics, CUT: episode.metrics.get(CUT, 0.0) + cut} if cut else episode.metrics
                begins = (*episode.begins, end + len(context))
                budget = min(self.turn_tokens, self._max_tokens - begins[-1])
                return Answer(dataclasses.replace(episode, begins=begins, metrics=metrics), Turn(context, budget))
        self._runner.end(name_of(request, rollout))
        return Answer(episode, None)

    def _within(self, ids: np.ndarray, most: int, said: str | None, write: Callable[[str], np.ndarray]) -> np.ndarray:
        """Tokens of an observation; where they are too many, those that are written of its text without its end."""
        while said and len(ids) > most:  # again where the template strips what was left out
            said = self._prompts.shortened(said, len(ids) - most)
            ids = write(said)
        return ids


def name_of(request: SampleRequest, rollout: int) -> str:
    """The name of a rollout, which no other of a run has."""
    return f"{request.seed}/{request.step}/{request.problem_id}/{rollout}"


def seed_of(request: SampleRequest) -> int:
    """The seed of a group's environments, from (seed, step, problem) alone."""
    key = f"environment/{request.seed}/{request.step}/{request.problem_id}"
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "little")


def ending_tokens(tokenizer: Tokenizer, stops: Sequence[str]) -> tuple[int, ...]:
    """The ids that may be the last of a text that ends with one of `stops`.

    A token is one if it holds such a text, or begins with the end of one, be it within a character.

    Raises:
      InputError: there is none for one of them: the tokenizer cannot write it.
    """
    if not stops:
        return ()
    from tokenizers.pre_tokenizers import ByteLevel

    backend, ids = tokenizer.backend, range(tokenizer.vocab_size)
    texts = backend.decode_batch([[token] for token in ids], skip_special_tokens=False)
    # Some tokenizers leave out the space before a word where it stands alone. A part of a character is no text: what it
    # is its name says, its bytes as letters or, of a single one, as a number.
    forms = [(text, f" {text}", backend.id_to_token(token) or "") for token, text in enumerate(texts)]
    found = set()
    for stop in stops:
        [(letters, _)] = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(stop)
        tails = (
            f"<0x{stop.encode()[-1]:02X}>",
            *(text[start:] for text in (stop, letters) for start in range(len(text))),
        )
        ends = {token for token in ids if stop in texts[token] or any(form.startswith(tails) for form in forms[token])}
        if not ends:
            raise InputError(
                f"config.environment.stop, or the environment's own: no token of {tokenizer.directory} can end "
                f"{stop!r}, so that turns would never end with it; take a text that this tokenizer writes"
            )
        found |= ends
    return tuple(sorted(found))


def _common(texts: Sequence[np.ndarray]) -> int:
    """How many tokens all begin with."""
    most = min(map(len, texts))
    alike = np.all([text[:most] == texts[0][:most] for text in texts], axis=0)
    return most if alike.all() else int(np.argmin(alike))


def _gathered(
    futures: Sequence[concurrent.futures.Future[S]], then: Callable[[list[S]], T]
) -> concurrent.futures.Future[T]:
    """What `then` makes of what several futures have, once the last of them is done."""
    found: concurrent.futures.Future[T] = concurrent.futures.Future()
    left = itertools.count(len(futures) - 1, -1)

    def use(_: concurrent.futures.Future[S]) -> None:
        if next(left):
            return
        try:
            found.set_result(then([future.result() for future in futures]))
        except BaseException as error:  # whatever it is, it belongs to who waits
            found.set_exception(error)

    for future in futures:
        future.add_done_callback(use)
    return found


def _known(answer: Answer) -> concurrent.futures.Future[Answer]:
    found: concurrent.futures.Future[Answer] = concurrent.futures.Future()
    found.set_result(answer)
    return found
