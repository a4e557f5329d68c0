"""Supervised fine-tuning: texts of the train set stand where rollouts would, each with an advantage of 1.

The step is the same: with `policy_loss=reinforce` and no baseline its loss is -log p of the text's tokens, weighed by
`recipe.aggregation` (`token_mean` is the usual cross-entropy). C counts texts. Evaluations sample from the model.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from isocompute_jax.records.errors import CONFIG, InputError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion, Problem, RolloutGroup
from isocompute_jax.sampling.protocol import TRAIN
from isocompute_jax.tasks import Tokenizer

LOG = logging.getLogger(__name__)


def text_of(problem: Problem, column: str) -> str:
    """The text that a problem has in a column, or its `answer`. Raises InputError: there is none."""
    found = problem.answer if column == "answer" else problem.extra.get(column)
    if not isinstance(found, str) or not found:
        raise InputError(
            f"{CONFIG.supervised} = {column!r}: problem {problem.id!r} has {found!r} there, which is no text: name a "
            f"column that has one in every row ({', '.join(['answer', *problem.extra])} are there)"
        )
    return found


def demonstrations(
    problems: Sequence[Problem], column: str, tokenizer: Tokenizer, max_tokens: int
) -> dict[str, np.ndarray]:
    """The tokens of each problem's text, and the one that ends an answer; says which are cut, or read back otherwise.

    A text that ends with such a token, and white space behind it, as a chat template writes answers, ends there.

    Raises:
      InputError: a text has no tokens.
    """
    texts = [text_of(problem, column) for problem in problems]
    stops = tuple(filter(None, map(tokenizer.backend.id_to_token, tokenizer.eos_ids)))
    texts = [bare if (bare := text.rstrip()).endswith(stops) else text for text in texts]
    encoded = [ids.tolist() for ids in tokenizer.encode_batch(texts, special_tokens=False)]
    read = tokenizer.backend.decode_batch(encoded, skip_special_tokens=False)
    lost = [text for text, back in zip(texts, read, strict=True) if back != text]
    if not all(encoded):
        raise InputError(f"{CONFIG.supervised}: {lost[0]!r} has no token that the tokenizer knows")
    whole = [ids if ids[-1] in tokenizer.eos_ids else [*ids, tokenizer.eos_ids[0]] for ids in encoded]
    long = [text for text, ids in zip(texts, whole, strict=True) if len(ids) > max_tokens]
    cut = f"have no room for the token that ends them in sampling.max_tokens = {max_tokens}, and are cut"
    for what, found in (("have characters that the tokenizer does not know, or writes otherwise", lost), (cut, long)):
        if found:
            LOG.warning("%d of %d texts %s: %r is one", len(found), len(texts), what, found[0])
    return {problem.id: np.array(ids, np.int32) for problem, ids in zip(problems, whole, strict=True)}


def with_reward_of_one(group: RolloutGroup, problem: Problem) -> concurrent.futures.Future[RolloutGroup]:
    """The group of a text, graded: a future that is done."""
    done: concurrent.futures.Future[RolloutGroup] = concurrent.futures.Future()
    rewards = np.ones(len(group.completions), np.float32)
    done.set_result(dataclasses.replace(group, rewards=rewards, task=problem.task))
    return done


class Demonstrations:
    """Implements `sampling.protocol.Source` by texts: tokens by problem, longer ones cut at what is asked for."""

    concurrent = False

    def __init__(self, texts: Mapping[str, np.ndarray]):
        self._texts = texts
        self._asked: collections.deque[SampleRequest] = collections.deque()

    def submit(self, requests: Sequence[SampleRequest], *, lane: str = TRAIN) -> None:
        """As in `Source`, of one lane."""
        self._asked.extend(requests)

    def completed(self, *, lane: str = TRAIN) -> Iterator[RolloutGroup]:
        """As in `Source`. They count as drawn under the weights of the step that asks."""
        while self._asked:
            request = self._asked.popleft()
            tokens = self._texts[request.problem_id]
            kept = tokens[: request.params.max_tokens]
            versions = np.full(len(kept), request.step, np.int32)
            reason = "stop" if len(kept) == len(tokens) else "length"
            yield request.grouped([Completion.drawn(kept, np.zeros(len(kept), np.float32), versions, reason)])
