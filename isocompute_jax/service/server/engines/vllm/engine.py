"""An engine of vLLM's processes, driven from the server's event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import pathlib
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.server.engines.adapters import adapter_tensors, write_adapter
from isocompute_jax.service.server.engines.base import (
    EngineError,
    EngineFacts,
    HalfTakenError,
    NotTakenError,
    VllmSettings,
)
from isocompute_jax.service.server.engines.vllm import environment, reaper
from isocompute_jax.service.weights.files import WeightFile
from isocompute_jax.service.weights.nccl import TransferError

log = logging.getLogger(__name__)

SHUTDOWN_S = 1.0
KEPT_ADAPTERS = 8
"""Of the last updates, whose rollouts may still be drawn."""
POLL_S = 0.1

Finished = asyncio.Queue[tuple[int, Completion] | EngineError]


class VllmEngine:
    """Implements `service.server.engines.base.Engine` with vLLM's AsyncLLM.

    Every rollout is a request of its own, with a seed of its own: what it draws depends on nothing else, but for
    rounding, which varies with the batch that a step happens to compute. Weights are replaced in place with sampling
    paused, and vLLM's prefix cache is keyed by version, so that no cached prefix outlives its weights. Without
    `settings.load` they are random until the first update.
    """

    facts: EngineFacts  # from `start` on

    def __init__(self, settings: VllmSettings):
        self._settings = settings
        self._launch: Any = None  # the module of that name, which imports vllm: so it waits for `environment.prepare`
        self._llm: Any = None
        self._starting: asyncio.Future[None] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        self._mark = secrets.token_hex(16)
        self._updating = asyncio.Lock()
        self._buckets: tuple[tuple[TensorSpec, ...], ...] | None = None  # of the communicator that the workers are in
        self._half_taken = False
        self._places = asyncio.Semaphore(1)
        self._open = asyncio.Event()
        self._open.set()
        self._updates = 0
        self._version = 0
        self._adapter: Any = None  # vLLM's name for that of this version; None for the model alone
        self._adapters = tempfile.TemporaryDirectory(prefix="adapters-")
        self._says_versions = True
        self._requests = itertools.count()
        self._failure: EngineError | None = None
        self._groups: set[Finished] = set()
        self.tokens_generated = 0

    async def start(self) -> None:
        """Starts vLLM's processes and loads the model.

        Raises:
          InputError: vLLM is not there or of another version, the machine lacks what it needs, or vLLM does not serve
            this model or these settings.
          EngineError: its processes failed while they started.
        """
        version = environment.prepare()
        self._reaper = reaper.start(self._mark)
        self._starting = asyncio.get_running_loop().run_in_executor(None, self._load, version)
        await asyncio.shield(self._starting)
        if self._says_versions:
            await self._llm.update_weight_version("0")

    def _load(self, version: str) -> None:
        """Blocks for as long as the model takes to load; runs in a thread."""
        environment.check_machine()
        settings = self._settings
        dtype = environment.resolve_dtype(settings.model, settings.dtype)
        tensors = environment.tensor_specs(settings.model, dtype=dtype, load=settings.load)
        if settings.lora_rank:
            tensors = adapter_tensors(tensors, settings)
        absent = environment.missing()
        lacks = environment.lacks(version, absent)
        if lacks:
            log.warning("vLLM %s lacks %s", version, "; ".join(lacks))
        names = {each.name for each in absent}
        # A rollout keeps the adapter that it began with.
        self._says_versions = environment.TOKEN_VERSIONS not in names and not settings.lora_rank
        from isocompute_jax.service.server.engines.vllm import launch  # what some versions lack is known by now

        self._launch = launch
        config = launch.resolve(settings, dtype)
        self.facts = EngineFacts(
            engine="vllm",
            engine_version=version,
            model=settings.model,
            vocab_size=config.model_config.get_vocab_size(),
            max_model_len=config.model_config.max_model_len,
            max_group_size=settings.max_group_size,
            tensors=tensors,
            nccl="" if environment.NCCL in names or settings.lora_rank else launch.nccl_version(),
            lacks=lacks,
            token_versions=self._says_versions or bool(settings.lora_rank),
            devices=config.parallel_config.world_size_across_dp,
            device_kind=launch.device_kind(),
        )
        self._places = asyncio.Semaphore(config.scheduler_config.max_num_seqs)
        os.environ[reaper.MARK] = self._mark
        try:
            self._llm = launch.start(config, self._count)
        except Exception as error:  # vLLM's processes say in their logs what went wrong; here it may be anything
            raise EngineError(f"vLLM did not start, see its own messages above ({error})") from error
        finally:
            del os.environ[reaper.MARK]

    def _count(self, tokens: int) -> None:
        self.tokens_generated += tokens

    async def generate(self, request: SampleRequest) -> AsyncGenerator[list[tuple[int, Completion]], None]:
        """As `Engine.generate` says; InputError is raised where vLLM would draw from another distribution."""
        self._check()
        parameters = [self._launch.sampling_params(request, index) for index in range(request.group_size)]
        finished: Finished = asyncio.Queue()
        tasks = [
            asyncio.create_task(self._draw(request, params, index, finished)) for index, params in enumerate(parameters)
        ]
        self._groups.add(finished)
        try:
            left = request.group_size
            while left:
                ready = [await finished.get()]
                while not finished.empty():
                    ready.append(finished.get_nowait())
                completions = [_completed(result) for result in ready]
                left -= len(completions)
                yield completions
        finally:
            self._groups.discard(finished)
            for task in tasks:
                task.cancel()  # which aborts the request in the engine
            await asyncio.wait(tasks)

    async def _draw(self, request: SampleRequest, params: Any, index: int, finished: Finished) -> None:
        """One rollout. It waits here and not in vLLM, where it would find prefixes from before an update."""
        try:
            async with self._places:
                await self._open.wait()
                version, adapter = None if self._says_versions else self._version, self._adapter
                prompt = self._launch.prompt(request, cache_key=str(self._updates))
                name = f"rollout-{next(self._requests)}"
                async for output in self._llm.generate(prompt, params, name, lora_request=adapter):
                    [drawn] = output.outputs
                    finished.put_nowait((index, self._launch.completion(drawn, version=version)))
        except EngineError as error:
            finished.put_nowait(error)
        except Exception as error:  # of vLLM, which has many
            finished.put_nowait(EngineError(f"vLLM failed while it drew ({type(error).__name__}: {error})"))

    async def open_transfer(self, unique_id: bytes, buckets: tuple[tuple[TensorSpec, ...], ...]) -> None:
        """As `ReceivingEngine.open_transfer` says. Nothing is drawn meanwhile: the workers do nothing else."""
        async with self._updating:
            self._check()
            await self._llm.pause_generation(mode="keep", clear_cache=False)
            self._buckets = None
            try:
                info = environment.init_info(unique_id, 1 + self.facts.devices, buckets)
                await self._in_workers("join_transfer", info)
                self._buckets = buckets
            finally:
                if not self._half_taken:
                    await self._llm.resume_generation()

    async def _in_workers(self, method: str, *arguments: object) -> None:
        """A call of `WorkerExtension`: an error that a worker raised would cost vLLM the answers of the others.

        Raises:
          TransferError: the first one that a worker met.
        """
        errors = await self._llm.collective_rpc(method, args=arguments)
        if error := next(filter(None, errors), ""):
            raise TransferError(error)

    async def update_weights(self, weights: WeightFile, *, version: int, recompute: bool) -> float:
        """As `Engine.update_weights` says; it is not interrupted half-way when the caller is cancelled."""
        if self._settings.lora_rank:
            return await asyncio.shield(asyncio.create_task(self._take_adapter(weights, version)))

        async def load() -> None:
            await self._llm.update_weights(self._launch.update_request(weights))

        return await asyncio.shield(asyncio.create_task(self._update(load, version, recompute)))

    async def _take_adapter(self, weights: WeightFile, version: int) -> float:
        """New rollouts are drawn with the new adapter; nothing waits for it, and nothing is replaced."""
        async with self._updating:
            self._check()
            began, self._updates = time.perf_counter(), self._updates + 1
            directory = pathlib.Path(self._adapters.name)
            path = directory / str(self._updates)
            # vLLM may read those of running rollouts again.
            shutil.rmtree(directory / str(self._updates - KEPT_ADAPTERS), ignore_errors=True)
            try:
                await asyncio.to_thread(write_adapter, path, weights, self._settings.lora_rank)
            except Exception as error:  # of a full disk; safetensors has its own
                shutil.rmtree(path, ignore_errors=True)
                raise NotTakenError(f"the adapter of version {version} cannot be laid down: {error}") from error
            adapter = self._launch.adapter(self._updates, path)
            try:
                await self._llm.add_lora(adapter)
            except Exception as error:  # of vLLM, which has many
                raise self._fail(f"vLLM failed while it took version {version} ({error})") from error
            self._adapter, self._version = adapter, version
            return time.perf_counter() - began

    async def take_sent_weights(
        self, receiving: Callable[[], Awaitable[None]], *, version: int, recompute: bool
    ) -> float:
        """As `ReceivingEngine.take_sent_weights` says; not interrupted either."""

        async def load() -> None:
            try:
                if self._buckets is None:
                    raise TransferError("the workers are in no communicator")
                await receiving()
                for bucket in self._buckets:
                    await self._in_workers("receive", environment.update_info(bucket))
            except Exception as error:  # of a learner that is gone, too
                self._check()
                self._buckets = None
                await self._in_workers("give_up")
                raise HalfTakenError(str(error) or repr(error)) from error

        return await asyncio.shield(asyncio.create_task(self._update(load, version, recompute)))

    async def _update(self, load: Callable[[], Awaitable[None]], version: int, recompute: bool) -> float:
        async with self._updating:
            self._check()
            began = time.perf_counter()
            self._open.clear()
            try:
                # Even when nothing runs: a request that came in half-way would crash the engine.
                await self._llm.pause_generation(mode="keep", clear_cache=recompute)
                # New requests do not find the old prefixes, which running sequences may still hold in memory.
                self._updates += 1
                if not recompute:
                    await self._llm.reset_prefix_cache()
                await self._llm.start_weight_update()
                await load()
                await self._llm.finish_weight_update(*([str(version)] if self._says_versions else []))
                self._version = version
                self._half_taken = False
                await self._llm.resume_generation()
            except HalfTakenError:
                self._half_taken = True
                raise
            except Exception as error:  # of vLLM, which has many
                raise self._fail(f"vLLM failed while it took version {version} ({error})") from error
            finally:
                if not self._half_taken:
                    self._open.set()
            return time.perf_counter() - began

    async def check_health(self) -> None:
        """Raises EngineError when the engine has died."""
        self._check()

    async def stop(self) -> None:
        """Ends the engine and every process it started."""
        while self._starting is not None and not self._starting.done():
            await asyncio.to_thread(reaper.sweep, self._mark)
            await asyncio.wait([self._starting], timeout=POLL_S)
        self._fail("the engine was stopped")
        if self._llm is not None:
            if self._llm.output_handler is not None:
                self._llm.output_handler.cancel()  # it would report that the processes are gone
            await asyncio.to_thread(self._llm.shutdown, SHUTDOWN_S)
            self._llm = None
        await asyncio.to_thread(reaper.sweep, self._mark)
        self._adapters.cleanup()
        if self._reaper is not None:
            self._reaper.terminate()
            await asyncio.to_thread(self._reaper.wait)
            self._reaper = None

    def _check(self) -> None:
        if self._failure is None and self._llm.errored:
            self._fail("one of vLLM's processes has died")
        if self._failure is not None:
            raise self._failure

    def _fail(self, message: str) -> EngineError:
        """From here on the engine is of no use; groups that are being drawn end with the error."""
        if self._failure is None:
            self._failure = EngineError(message)
            for finished in self._groups:
                finished.put_nowait(self._failure)
        return self._failure


def _completed(result: tuple[int, Completion] | EngineError) -> tuple[int, Completion]:
    if isinstance(result, EngineError):
        raise result
    return result
