"""The engine that samples with JAX: continuous batching in slots (`sampling.slot_sampler`).

One thread owns the device: it takes what the event loop has put into its inbox, draws a chunk of tokens, hands over
what ended, and begins again. A group drawn again by the same weights is bit-identical, whatever runs beside it.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import math
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from isocompute_jax import model as models
from isocompute_jax.devices import cores_for
from isocompute_jax.model import ModelConfig, Params
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion
from isocompute_jax.records.tensors import DTYPE_BYTES, TensorSpec
from isocompute_jax.sampling.slot_sampler import SlotSampler
from isocompute_jax.sampling.slots import slot_multiple, slots_that_fit
from isocompute_jax.service.server.engines.adapters import adapter_tensors
from isocompute_jax.service.server.engines.base import EngineError, EngineFacts, JaxSettings, NotTakenError
from isocompute_jax.service.weights.files import WeightFile
from isocompute_jax.sharding import MESH_AXES, make_mesh

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE, LOWEST_TOP_P = 1e-4, 1e30, 1e-30
CHUNK_STEPS = 16
"""Tokens drawn in each slot before the event loop is heard again."""


class JaxEngine:
    """Implements `service.server.engines.base.Engine` with this process's devices.

    `settings.max_slots` is rounded down to a multiple of `slot_multiple`; a group that is larger than the free slots is
    cut. Without `settings.load` weights are zero until the first update.
    """

    facts: EngineFacts  # from `start` on

    def __init__(self, settings: JaxSettings):
        self._settings = settings
        self._mesh: Mesh | None = None
        self._lora: models.LoraConfig | None = None  # of the adapters that updates are; and what they belong to
        self._base: Params | None = None
        self._failure: str | None = "the engine has not been started"
        self._thread: threading.Thread | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._tickets = itertools.count()
        # Read and written by the event loop alone: a group's completions, or what ended it.
        self._groups: dict[int, asyncio.Queue[list[tuple[int, Completion]] | EngineError]] = {}
        self._updates: set[asyncio.Future[float]] = set()

    @property
    def tokens_generated(self) -> int:
        """Tokens drawn since the start, as of the last chunk."""
        return self._sampler.tokens_generated if self._thread else 0

    async def start(self) -> None:
        """Loads the model and compiles. Raises InputError for one that it cannot serve."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._prepare)
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="jax-engine", daemon=True)
        self._thread.start()

    async def generate(self, request: SampleRequest) -> AsyncGenerator[list[tuple[int, Completion]], None]:
        """As `Engine.generate` says; closing it frees the slots at the next chunk.

        InputError is raised for a temperature, or a top_p, that float32 does not hold, and for a top_k.
        """
        await self.check_health()
        params = request.params
        if params.top_k:
            raise InputError(f"top_k = {params.top_k}: the engine jax draws from all tokens, or by top_p: set it to 0")
        if params.temperature < LOWEST_TEMPERATURE:
            raise InputError(
                f"temperature = {params.temperature} is below {LOWEST_TEMPERATURE}, where float32 overflows"
            )
        if params.temperature > HIGHEST_TEMPERATURE or params.top_p < LOWEST_TOP_P:
            raise InputError(
                f"temperature = {params.temperature}, top_p = {params.top_p}: float32 needs a temperature of at most "
                f"{HIGHEST_TEMPERATURE:g} and a top_p of at least {LOWEST_TOP_P}"
            )
        ticket = next(self._tickets)
        arrived = self._groups[ticket] = asyncio.Queue()
        self._inbox.put(partial(self._sampler.submit, ticket, request))
        left = request.group_size
        try:
            while left:
                finished = await arrived.get()
                if isinstance(finished, EngineError):
                    raise finished
                left -= len(finished)
                yield finished
        finally:
            del self._groups[ticket]
            if left:
                self._inbox.put(partial(self._sampler.cancel, [ticket]))

    async def update_weights(self, weights: WeightFile, *, version: int, recompute: bool) -> float:
        """As `Engine.update_weights`, between two chunks; old and new ones are in memory together while they load."""
        await self.check_health()
        try:
            params = await asyncio.to_thread(self._read, weights)
        except Exception as error:  # of the file or of the devices; what serves has not been touched
            raise NotTakenError(f"the weights of version {version} cannot be loaded: {error!r}") from error
        await self.check_health()
        done: asyncio.Future[float] = self._loop.create_future()
        self._updates.add(done)
        self._inbox.put(partial(self._apply, params, version, recompute, done))
        return await done

    def _read(self, weights: WeightFile) -> Params:
        """All weights, or those of the model with the adapters that came."""
        if self._lora is None:
            return read_weights(weights, self._config, self._shardings)
        assert self._base is not None
        if self._mesh is None:
            places = jax.tree.map(lambda _: self._here, models.abstract_adapters(self._config, self._lora))
        else:
            places = models.adapter_shardings(self._config, self._lora, self._mesh)
        table = models.adapter_specs(self._config, self._lora)
        adapters = read_weights(weights, self._config, places, table=table, dtype=self._config.float_dtype)
        return models.with_adapters(self._base, adapters)

    async def check_health(self) -> None:
        """Raises EngineError when the engine has died."""
        if self._failure is not None:
            raise EngineError(self._failure)

    async def stop(self) -> None:
        """Ends the thread after the chunk it is at; groups that are not done end with EngineError."""
        if self._thread is not None:
            self._inbox.put(None)
            await asyncio.to_thread(self._thread.join)
        self._fail(self._failure or "the engine was stopped")

    def _prepare(self) -> None:
        settings = self._settings
        dtype = None if settings.dtype == "auto" else settings.dtype
        config = self._config = models.load_config(settings.model, dtype=dtype)
        if config.dtype not in DTYPE_BYTES:
            raise InputError(f"dtype = {config.dtype!r} cannot be served; ask for one of {', '.join(DTYPE_BYTES)}")
        length = settings.max_model_len or config.max_positions
        if not 2 <= length <= config.max_positions:
            raise InputError(f"max_model_len = {length} must lie in 2 .. {config.max_positions}, the model's length")
        if not config.num_experts and (settings.routing or settings.mesh_expert > 1):
            raise InputError(f"--routing, --mesh_expert: {settings.model} has no experts")
        if config.num_experts % settings.mesh_expert:
            raise InputError(f"--mesh_expert={settings.mesh_expert} does not divide {config.num_experts} experts")
        self._mesh = _mesh(settings)
        slots = self._count_slots(length)
        self._here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        if self._mesh is None:
            self._shardings = jax.tree.map(lambda _: self._here, models.abstract_params(config))
        else:
            self._shardings = models.param_shardings(config, self._mesh)
        if settings.load:
            params = models.load_params(settings.model, config, shardings=self._shardings)
        else:
            params = jax.tree.map(
                lambda x, place: jnp.zeros(x.shape, x.dtype, device=place),
                models.abstract_params(config),
                self._shardings,
            )
        tensors = tuple(TensorSpec(name, config.dtype, shape) for name, shape in models.hf_tensor_shapes(config))
        if settings.lora_rank:
            tensors = adapter_tensors(tensors, settings)
            # B comes scaled.
            self._lora = models.LoraConfig(settings.lora_rank, float(settings.lora_rank), settings.lora_targets)
            self._base = params
        self._sampler = SlotSampler(
            config,
            params,
            slots=slots,
            length=length,
            chunk_steps=CHUNK_STEPS,
            mesh=self._mesh,
            routing=settings.routing,
        )
        self._sampler.compile()
        self.facts = EngineFacts(
            engine="jax",
            engine_version=jax.__version__,
            model=settings.model,
            vocab_size=config.vocab_size,
            max_model_len=length,
            max_group_size=settings.max_group_size,
            tensors=tensors,
            devices=1 if self._mesh is None else self._mesh.size,
            device_kind=jax.devices()[0].device_kind,
            routing=settings.routing,
        )

    def _count_slots(self, length: int) -> int:
        multiple = slot_multiple(self._mesh)
        max_slots, cache_bytes = self._settings.max_slots, self._settings.kv_cache_bytes
        limits = []
        if max_slots is not None:
            limits.append(max_slots // multiple * multiple)
            if not limits[-1]:
                raise InputError(f"max_slots = {max_slots} must be at least {multiple}")
        if cache_bytes is not None:
            limits.append(slots_that_fit(self._config, length=length, cache_bytes=cache_bytes, mesh=self._mesh))
            if not limits[-1]:
                raise InputError(
                    f"kv_cache_bytes = {cache_bytes} is less than {multiple} sequences of {length} tokens "
                    f"need: raise it, or lower max_model_len"
                )
        if not limits:
            raise InputError("give max_slots or kv_cache_bytes")
        return min(limits)

    def _run(self) -> None:
        """The thread: commands, a chunk, completions, until told to stop or something fails."""
        try:
            while True:
                while not self._sampler.busy or not self._inbox.empty():
                    command = self._inbox.get()
                    if command is None:
                        return
                    command()
                finished: dict[int, list[tuple[int, Completion]]] = collections.defaultdict(list)
                for ticket, index, completion in self._sampler.step():
                    finished[ticket].append((index, completion))
                if finished:
                    self._loop.call_soon_threadsafe(self._deliver, finished)
        except Exception as error:  # a device call may fail in many ways; all end the engine
            self._loop.call_soon_threadsafe(self._fail, f"the JAX engine has failed: {error!r}")

    def _apply(self, params: Params, version: int, recompute: bool, done: asyncio.Future[float]) -> None:
        started = time.monotonic()
        self._sampler.update_weights(params, version=version, recompute=recompute)
        self._loop.call_soon_threadsafe(self._applied, done, time.monotonic() - started)

    def _applied(self, done: asyncio.Future[float], paused_s: float) -> None:
        self._updates.discard(done)
        if not done.done():  # the caller may have been cancelled
            done.set_result(paused_s)

    def _deliver(self, finished: dict[int, list[tuple[int, Completion]]]) -> None:
        for ticket, completions in finished.items():
            if ticket in self._groups:
                self._groups[ticket].put_nowait(completions)

    def _fail(self, message: str) -> None:
        """Ends every group and update with an error of its own."""
        self._failure = message
        for arrived in self._groups.values():
            arrived.put_nowait(EngineError(message))
        for done in self._updates:
            if not done.done():
                done.set_exception(EngineError(message))
        self._updates.clear()


def _mesh(settings: JaxSettings) -> Mesh | None:
    """Where weights (`model.param_shardings`) and slots go; None for one device. No rows are packed, to be cut."""
    sizes = {axis: getattr(settings, f"mesh_{axis}") for axis in MESH_AXES if axis != "context"}
    size = math.prod(sizes.values())
    cores_for(size)
    try:
        return make_mesh(**sizes) if size > 1 else None
    except ValueError as error:
        raise InputError(f"{', '.join(f'--mesh_{axis}' for axis in sizes)}: {error}") from error


def read_weights(
    weights: WeightFile, config: ModelConfig, shardings: Params, *, table: Any = None, dtype: Any = None
) -> Params:
    """Parameters from a file of tensors, in place on their devices; nothing of the file is referred to afterwards.

    Those of another `table` than the model's are in `dtype`.
    """
    places = {tensor.name: (tensor, start) for tensor, start in zip(weights.tensors, weights.starts, strict=True)}
    data = np.memmap(weights.path, np.uint8, mode="r")

    def read(name: str, index: tuple[slice, ...]) -> np.ndarray:
        tensor, start = places[name]
        return data[start : start + tensor.nbytes].view(jnp.dtype(tensor.dtype)).reshape(tensor.shape)[index]

    return jax.block_until_ready(
        models.params_from_tensors(config, read, shardings=shardings, table=table, dtype=dtype)
    )
