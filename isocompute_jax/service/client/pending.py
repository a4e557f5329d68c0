"""A group that is being sampled, and what has come of it."""

from __future__ import annotations

import dataclasses

from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb


class BadReplyError(Exception):
    """A server sent what was not asked for."""


@dataclasses.dataclass(eq=False)
class PendingGroup:
    """A group on its way.

    Attributes:
      request: what is asked for.
      lane: where it is delivered.
      number: tells groups of one fleet apart.
      attempts: calls that were made for it.
      bad_replies: of those, how many brought what was not asked for.
      losses: how many were lost on a server that lived on.
      finished: rollouts of the present call that are there, by index.
      tokens: of these.
    """

    request: SampleRequest
    lane: str
    number: int
    attempts: int = 0
    bad_replies: int = 0
    losses: int = 0
    finished: dict[int, Completion] = dataclasses.field(default_factory=dict)
    tokens: int = 0

    def __str__(self) -> str:
        return f"of problem {self.request.problem_id!r}, step {self.request.step}, {self.lane}"

    def begin(self) -> None:
        """Another call is made for it."""
        self.attempts += 1
        self.finished.clear()
        self.tokens = 0

    def keep(
        self, message: pb.Completion, *, vocab_size: int, version: int | None, newest: int, one_version: bool
    ) -> None:
        """Checks one finished rollout and keeps it.

        Args:
          message: as it came.
          vocab_size: V.
          version: the only one that its tokens may have; None where they may have others.
          newest: of the weights that there are.
          one_version: whether all its tokens must have the same.

        Raises:
          BadReplyError: it is not what was asked for.
        """
        try:
            completion = convert.message_to_completion(message)
        except (ValueError, OverflowError) as error:
            raise BadReplyError(str(error)) from error
        if message.index >= self.request.group_size or message.index in self.finished:
            raise BadReplyError(f"rollout {message.index} came twice, or was not asked for")
        if completion.tokens.max() >= vocab_size or completion.tokens.min() < 0:
            raise BadReplyError(f"rollout {message.index} has a token id outside 0 .. {vocab_size - 1}")
        budget = self.request.budget(message.index)
        if len(completion.tokens) > budget:
            raise BadReplyError(f"rollout {message.index} has more than {budget} tokens")
        versions = [span.version for span in message.spans]
        if version is not None and versions != [version]:
            raise BadReplyError(f"rollout {message.index} has the versions {versions}, not {version}")
        if one_version and len(versions) != 1:
            raise BadReplyError(f"rollout {message.index} mixes the versions {versions}")
        if versions != sorted(versions) or versions[-1] > newest:
            raise BadReplyError(f"rollout {message.index} has the versions {versions}; the newest is {newest}")
        self.finished[message.index] = completion
        self.tokens += len(completion.tokens)
