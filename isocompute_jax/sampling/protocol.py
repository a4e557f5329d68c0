"""How the loop talks to a sampler: submit requests, stream finished groups, send new weights.

On-policy training waits for every group of a step before it updates; asynchronous training is the same protocol with
a window. A sampler in this process and a remote service implement it alike.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from isocompute_jax.model import Params
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import RolloutGroup

TRAIN = "train"
"""The lane of training rollouts. Evaluation and agreement checks use lanes of their own, so that streams never mix."""

NO_DEVICES: Mapping[str, float] = types.MappingProxyType({})
"""`Sampler.device_seconds` of one that draws on the learner's devices."""


class Source(Protocol):
    """Where rollouts come from."""

    @property
    def concurrent(self) -> bool:
        """Whether it draws by itself, and another thread may read a lane while this one submits or sends weights.

        One that is not draws while it is read.
        """
        ...

    def submit(self, requests: Sequence[SampleRequest], *, lane: str = TRAIN) -> None:
        """Queues groups and returns at once."""
        ...

    def completed(self, *, lane: str = TRAIN) -> Iterator[RolloutGroup]:
        """Yields ungraded groups of a lane as they finish, until every submitted one has been yielded.

        More may be submitted while it is being read.
        """
        ...


class Sampler(Source, Protocol):
    """What draws them, under weights that it is given."""

    @property
    def redrawn_rollouts(self) -> int:
        """Rollouts asked for again so far, because what drew them was lost."""
        ...

    @property
    def device_seconds(self) -> Mapping[str, float]:
        """Kind -> seconds x devices that it has held so far, idle or not, the learner's own left out."""
        ...

    def update_weights(self, params: Params, *, version: int) -> None:
        """Uses `params` for everything sampled from now on, and marks its tokens with `version`.

        They are the learner's, of any float dtype: the sampler casts them to the one it computes in.
        """
        ...

    def close(self) -> None:
        """Gives back what it holds; groups not yet yielded are lost."""
        ...


@runtime_checkable
class Compiles(Protocol):
    """A sampler whose programs depend on what is asked for at once."""

    def compile(self, requests: Sequence[SampleRequest]) -> None:
        """Compiles what such requests take if they are submitted together; from any thread. Nothing is sampled."""
        ...
