"""What a server asks of an engine. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol, runtime_checkable

from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.weights.files import WeightFile
from isocompute_jax.service.weights.nccl import Opening


class EngineError(Exception):
    """The engine has failed and cannot continue; the message says why."""


class NotTakenError(Exception):
    """New weights were not taken, and the old ones serve on; the message says why."""


class HalfTakenError(Exception):
    """New weights came in part: nothing can be drawn until whole ones are taken; the message says why."""


@dataclasses.dataclass(frozen=True)
class EngineFacts:
    """What an engine serves.

    Attributes:
      engine: `vllm`, `jax`, ...
      engine_version: of the engine's library.
      model: the model's directory, as it was given.
      vocab_size: V; every token id lies below it.
      max_model_len: longest prompt and completion together, in tokens.
      max_group_size: largest group it takes.
      tensors: every tensor of the model, in the order and dtype that updates must have.
      devices: how many it holds, all of one kind.
      device_kind: as their maker calls them; `cpu` for processors.
      routing: whether completions say the experts that their tokens went to.
      token_versions: whether completions say which weights drew each token, should these change meanwhile.
      nccl: version of NCCL by which its ranks, one on each of its devices, can be sent weights; empty where not.
      lacks: what the installed version of its library cannot do, as `name: what that means`.
    """

    engine: str
    engine_version: str
    model: str
    vocab_size: int
    max_model_len: int
    max_group_size: int
    tensors: tuple[TensorSpec, ...]
    devices: int
    device_kind: str
    routing: bool = False
    token_versions: bool = True
    nccl: str = ""
    lacks: tuple[str, ...] = ()


class Engine(Protocol):
    """Draws completions. All methods are called on one asyncio event loop, and none may block it."""

    @property
    def facts(self) -> EngineFacts:
        """What it serves; valid after `start`."""
        ...

    @property
    def tokens_generated(self) -> int:
        """Tokens drawn since the start; while groups run it grows."""
        ...

    async def start(self) -> None:
        """Loads the model. Raises InputError for one that it cannot serve."""
        ...

    def generate(self, request: SampleRequest) -> AsyncGenerator[list[tuple[int, Completion]], None]:
        """Yields (rollout index, completion) as they finish, each index once. Closing it early frees the engine.

        The request is checked: prompt and completion fit the model, ids lie in its vocabulary.

        Raises EngineError when the engine has died, and InputError, before anything is drawn, for a request that it
        cannot serve.
        """
        ...

    async def update_weights(self, weights: WeightFile, *, version: int, recompute: bool) -> float:
        """Takes new weights, marks what is drawn from now on with `version`, and forgets every cached prefix.

        Args:
          weights: a file already checked against `facts.tensors`; it may vanish after the call.
          version: theirs.
          recompute: what is running continues with keys and values computed anew, else with those of the old weights.

        Returns:
          seconds with sampling stopped.

        Raises:
          NotTakenError: nothing was touched.
          EngineError: it failed; nobody knows what the engine serves now, so the caller stops serving.
        """
        ...

    async def check_health(self) -> None:
        """Raises EngineError when the engine has died."""
        ...

    async def stop(self) -> None:
        """Ends the engine and every process it started."""
        ...


@runtime_checkable
class ReceivingEngine(Engine, Protocol):
    """An engine whose ranks can be sent weights by NCCL."""

    async def open_transfer(self, opening: Opening) -> None:
        """Makes its ranks members of a communicator, in place of any former one.

        Raises TransferError when not all came.
        """
        ...

    async def take_sent_weights(
        self, receiving: Callable[[], Awaitable[None]], *, version: int, recompute: bool
    ) -> float:
        """As `update_weights`, with what its ranks are sent once it has said that they are `receiving`.

        Raises HalfTakenError when not everything came.
        """
        ...
