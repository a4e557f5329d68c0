r"""A plain `vllm serve` as an engine: this process is its gateway, and nothing of ours runs on its machine.

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out \
        --logprobs-mode processed_logprobs --generation-config vllm
    python -m isocompute_jax.serve --engine=stock --model=MODEL --url=http://HOST:8000 --reload_dir=/shared/weights

Rollouts are drawn by vLLM's /inference/v1/generate, each as a request of its own with a seed of its own; it says of
each token which weights drew it. New weights are laid down as a checkpoint in a directory that both machines see, and
`collective_rpc reload_weights` has vLLM read them, with generation paused. A vLLM on GPUs that was started with
`--weight-transfer-config '{"backend": "nccl"}'` is sent them by the learner itself, through vLLM's own NCCL engine.

Where vLLM runs on CPUs the head of a tied model stays that of the old weights (0.32): such models are refused there. By
vLLM's own checksums embedding and head are compared with what it should have, at the start and after the first update.
A vLLM that was restarted, or that others send weights to, shows by its version: then this engine has failed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
import json
import logging
import pathlib
import re
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.server.engines.base import (
    EngineError,
    EngineFacts,
    NotTakenError,
    StockSettings,
    check_for_vllm,
    rollout_seed,
)
from isocompute_jax.service.server.engines.vllm.environment import (
    TIED_HEAD,
    init_info,
    read_config,
    resolve_dtype,
    tensor_specs,
    update_info,
)
from isocompute_jax.service.weights.files import WeightFile
from isocompute_jax.service.weights.nccl import TransferError

log = logging.getLogger(__name__)

START_S, CALL_S, JOIN_S, UPDATE_S = 600.0, 60.0, 60.0, 1800.0
WATCH_S = 2.0
PADDING = 64
"""vLLM fills vocabularies up to a multiple of it, with zeros."""
EMBEDDING = "model.embed_tokens.weight"
SAFETENSORS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
NOT_INVARIANT = f"same_bits: what it draws depends on what else is drawn, without {BATCH_INVARIANT}=1 around it"
FLAGS = "--enable-scale-out --logprobs-mode processed_logprobs --generation-config vllm"


class StockEngine:
    """Implements `service.server.engines.base.ReceivingEngine` by a vLLM server that somebody else has started."""

    facts: EngineFacts  # from `start` on

    def __init__(self, settings: StockSettings):
        self._settings = settings
        self._http: Any = None
        self._failure: EngineError | None = None
        self._name = f"gateway-{secrets.token_hex(8)}"
        self._watching: asyncio.Task[None] | None = None
        self._updating = asyncio.Lock()
        self._places = asyncio.Semaphore(1)
        self._open = asyncio.Event()
        self._open.set()
        self._updates = 0
        self._version = 0
        self._buckets: tuple[tuple[TensorSpec, ...], ...] | None = None  # of an open communicator
        self.tokens_generated = 0

    async def start(self) -> None:
        """Waits for the server, and looks at what it is.

        Raises:
          InputError: it serves another model than `--model`, or in a way that a run cannot use; says which flag of
            `vllm serve` changes that.
        """
        import httpx2

        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx2.AsyncClient(timeout=CALL_S, limits=limits, base_url=self._settings.url.rstrip("/"))
        vocab_size = int(read_config(self._settings.model)["vocab_size"])
        with _read(InputError, f"--url={self._settings.url}: what answers there is no vLLM that is known here"):
            await self._reached()
            await self._look(vocab_size)
        self._watching = asyncio.create_task(self._watch())

    async def _look(self, vocab_size: int) -> None:
        """Fills in `facts`. Raises InputError as `start` says."""
        info = await self._info()
        config = info["vllm_config"]
        model, device = config["model_config"], config["device_config"]["device"]
        tensors = self._tensors(model, device)
        [listed] = (await self._asked("GET", "/v1/models"))["data"][:1]
        await self._asked("POST", "/resume")  # of an update that was cut off
        await self._asked("POST", "/update_weight_version", {"new_version": "0"})
        devices = int((await self._asked("GET", "/get_world_size"))["world_size"])
        self._whole = devices == 1
        routing = bool(config.get("aux_output_config", {}).get("enable_return_routed_experts"))
        self.facts = EngineFacts(
            engine="stock vLLM",
            engine_version=str((await self._asked("GET", "/version"))["version"]),
            model=self._settings.model,
            vocab_size=vocab_size,
            max_model_len=int(listed["max_model_len"]),
            max_group_size=self._settings.max_group_size,
            tensors=tensors,
            devices=devices,
            device_kind=device,
            routing=routing,
            support=bool(model.get("return_sampling_mask")),
            nccl="" if device == "cpu" else _nccl(info),
            lacks=() if info.get("vllm_env", {}).get(BATCH_INVARIANT) else (NOT_INVARIANT,),
        )
        if not (self._settings.reload_dir or self.facts.nccl):
            raise InputError(
                f"--reload_dir: vLLM at {self._settings.url} takes no weights by NCCL: name a directory, that both "
                "machines see, for it to read them from"
            )
        self._places = asyncio.Semaphore(config["scheduler_config"]["max_num_seqs"])
        await self._probe()
        if self._settings.load:
            try:
                await self._compare(_checkpoint(self._settings.model, tensors), "it serves another model than --model")
            except EngineError as error:
                raise InputError(f"--model={self._settings.model}: {error}; name the model that it serves") from error

    async def _reached(self) -> None:
        """Waits until it is up."""
        began, said = time.monotonic(), False
        while True:
            try:
                await self._asked("GET", "/health")
                return
            except EngineError as error:
                if time.monotonic() - began > START_S:
                    raise InputError(f"--url={self._settings.url}: no vLLM within {START_S:g} s ({error})") from error
                if not said:
                    log.info("waiting for vLLM at %s (%s)", self._settings.url, error)
                    said = True
                await asyncio.sleep(WATCH_S)

    async def _info(self) -> dict[str, Any]:
        """Its settings and surroundings. Raises InputError where they are not for training."""
        url = self._settings.url
        try:
            info = await self._asked("GET", "/server_info?config_format=json")
        except EngineError as error:
            raise InputError(
                f"--url={url}: it has no /server_info ({error}): start vLLM with VLLM_SERVER_DEV_MODE=1 in its "
                "environment"
            ) from error
        model = info["vllm_config"]["model_config"]
        wanted = {"logprobs_mode": "processed_logprobs", "generation_config": "vllm"}
        for name, value in wanted.items():
            if model[name] != value:
                flag = f"--{name.replace('_', '-')} {value}"
                raise InputError(
                    f"--url={url}: vLLM runs with {name} = {model[name]!r}, and so would not say the log-probabilities "
                    f"of what it draws from: start it with {flag}"
                )
        if model["quantization"]:
            raise InputError(
                f"--url={url}: vLLM serves the model quantised, by {model['quantization']}: serve it as it is"
            )
        return info

    def _tensors(self, model: Mapping[str, Any], device: str) -> tuple[TensorSpec, ...]:
        """What updates must have. Raises InputError for settings and models that cannot be served so."""
        settings = self._settings
        if settings.lora_rank:
            raise InputError("--lora_rank: a stock vLLM takes all weights here: leave it out, or take --engine=vllm")
        if read_config(settings.model).get("tie_word_embeddings") and device == "cpu":
            raise InputError(
                f"--model={settings.model}: its head is its embedding, and on CPUs a stock vLLM that reads new weights "
                "keeps the head of the old ones: take --engine=vllm or --engine=jax, or an untied model"
            )
        dtype = str(model["dtype"]).removeprefix("torch.")
        if settings.dtype not in ("auto", dtype):
            raise InputError(f"--dtype={settings.dtype}: vLLM at {settings.url} serves {dtype}; leave it out")
        return tensor_specs(settings.model, dtype=resolve_dtype(settings.model, dtype), load=settings.load)

    async def _probe(self) -> None:
        """Draws a token, and looks whether everything is said of it that a run needs."""
        asked = {"max_tokens": 1, "logprobs": 0, "ignore_eos": True, "top_k": int(self.facts.support)}
        body = {"token_ids": [0], "sampling_params": asked}
        try:
            answer = await self._asked("POST", "/inference/v1/generate", body)
            _completion(answer, versions=("0",))
        except EngineError as error:
            raise InputError(
                f"--url={self._settings.url}: it does not draw as a run needs ({error}); start vLLM with {FLAGS}"
            ) from error

    async def _compare(self, tensors: Iterable[tuple[str, np.ndarray]], what: str) -> None:
        """Holds embedding and head to vLLM's own checksums of its weights.

        Raises:
          EngineError: one differs.
        """
        if not self._whole:  # each device has a part of them
            return
        found = (await self._asked("POST", "/weight_checker", {"action": "checksum"}, UPDATE_S))["checksums"]
        theirs = {name.rpartition(":")[2]: digest for name, digest in found.items()}
        for name, data in tensors:
            if name in (EMBEDDING, TIED_HEAD) and theirs.get(name, "") != _digest(data):
                raise EngineError(f"{what}: {name} of {self._settings.url} is not what it should be")

    async def generate(self, request: SampleRequest) -> AsyncGenerator[list[tuple[int, Completion]], None]:
        """As `Engine.generate` says; InputError is raised where vLLM would draw from another distribution."""
        await self.check_health()
        check_for_vllm(request)
        if self.facts.support and not request.params.top_k:
            raise InputError(
                "top_k = 0: a vLLM with --return-sampling-mask draws only with one: set config.sampling.top_k"
            )
        tasks = [asyncio.create_task(self._draw(request, index)) for index in range(request.group_size)]
        try:
            for finished in asyncio.as_completed(tasks):
                yield [await finished]
        finally:
            for task in tasks:
                task.cancel()  # which closes the connection, and so aborts the request
            await asyncio.wait(tasks)

    async def _draw(self, request: SampleRequest, index: int) -> tuple[int, Completion]:
        params = request.params
        asked = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "max_tokens": request.budget(index),
            "seed": rollout_seed(request, index),
            "stop_token_ids": list(request.stop_tokens),
            "ignore_eos": True,  # only the tokens that the request names end a completion
            "logprobs": 0,  # of the drawn token alone
            "detokenize": False,
        }
        async with self._places:
            await self._open.wait()
            body = {
                "token_ids": request.prompt_tokens.tolist(),
                "sampling_params": asked,
                "cache_salt": f"weights-{self._updates}",  # no cached prefix outlives its weights
            }
            with _read(EngineError, "vLLM gave no rollout"):
                answer = await self._asked("POST", "/inference/v1/generate", body, None)
                drawn = _completion(answer, versions=None)
        self.tokens_generated += len(drawn.tokens)
        return index, drawn

    async def update_weights(self, weights: WeightFile, *, version: int, recompute: bool) -> float:
        """As `Engine.update_weights` says; it is not interrupted half-way when the caller is cancelled."""
        return await asyncio.shield(asyncio.create_task(self._reload(weights, version, recompute)))

    async def _reload(self, weights: WeightFile, version: int, recompute: bool) -> float:
        if not self._settings.reload_dir:
            raise NotTakenError("--reload_dir: the gateway has none, and takes weights by NCCL alone")
        own = pathlib.Path(self._settings.reload_dir).resolve() / self._name  # others may share that directory
        path = own / f"version-{version}"

        async def load() -> None:
            reload = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
            await self._asked("POST", "/collective_rpc", reload, UPDATE_S)

        async with self._updating:
            await self.check_health()
            try:
                try:
                    await asyncio.to_thread(write_checkpoint, path, self._settings.model, weights)
                except OSError as error:
                    raise NotTakenError(f"--reload_dir: version {version} cannot be laid down: {error}") from error
                stopped = await self._update(load, version, recompute)
                if self._updates == 1:
                    await self._compare(_in_file(weights), f"vLLM did not take version {version}")
                return stopped
            except EngineError as error:
                raise self._fail(str(error)) from error
            finally:
                await asyncio.to_thread(shutil.rmtree, own, True)

    async def open_transfer(self, unique_id: bytes, buckets: tuple[tuple[TensorSpec, ...], ...]) -> None:
        """As `ReceivingEngine.open_transfer` says. A vLLM that then waits for a learner in vain is of no more use."""
        async with self._updating:
            await self.check_health()
            self._buckets = None
            await self._asked("POST", "/pause?mode=keep")
            body = {"init_info": init_info(unique_id, 1 + self.facts.devices, buckets)}
            try:
                await self._asked("POST", "/init_weight_transfer_engine", body, JOIN_S)
                self._buckets = buckets
            except EngineError as error:
                if error.__cause__ is not None:  # no answer, and none will come
                    self._fail(f"vLLM waits for a learner that did not come ({error}): start it again")
                raise TransferError(str(error)) from error
            finally:
                if self._failure is None:
                    await self._asked("POST", "/resume")

    async def take_sent_weights(
        self, receiving: Callable[[], Awaitable[None]], *, version: int, recompute: bool
    ) -> float:
        """As `ReceivingEngine.take_sent_weights` says, but that it has failed where not everything came."""

        async def load() -> None:
            await self._asked("POST", "/start_weight_update")
            await receiving()
            for bucket in self._buckets or ():
                await self._asked("POST", "/update_weights", {"update_info": update_info(bucket)})
            await self._asked("POST", "/finish_weight_update")

        async def taken() -> float:
            async with self._updating:
                await self.check_health()
                return await self._update(load, version, recompute)

        return await asyncio.shield(asyncio.create_task(taken()))

    async def _update(self, load: Callable[[], Awaitable[None]], version: int, recompute: bool) -> float:
        """Has vLLM `load` new weights while it draws nothing; the seconds that takes. It has failed if they fail."""
        began = time.perf_counter()
        self._open.clear()
        try:
            await self._asked("POST", "/pause?mode=keep")
            self._updates += 1
            again = "?reset_running_requests=true" if recompute else ""
            await self._asked("POST", f"/reset_prefix_cache{again}")
            await load()
            await self._asked("POST", "/update_weight_version", {"new_version": str(version)})
            self._version = version
            await self._asked("POST", "/resume")
            return time.perf_counter() - began
        except Exception as error:  # of a learner that is gone, too
            raise self._fail(
                f"vLLM failed while it took version {version} ({error or type(error).__name__})"
            ) from error
        finally:
            self._open.set()

    async def check_health(self) -> None:
        """Raises EngineError when vLLM is gone, or is not the one that it was."""
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Leaves vLLM as it is."""
        if self._watching is not None:
            self._watching.cancel()
        if self._http is not None:
            await self._http.aclose()

    async def _watch(self) -> None:
        """Looks whether it is there, and has the weights that it was given."""
        odd = set()  # kinds of answers that say nothing
        while self._failure is None:
            await asyncio.sleep(WATCH_S)
            async with self._updating:
                try:
                    found = (await self._asked("GET", "/weight_info"))["weight_version"]
                    if not isinstance(found, str):
                        raise TypeError(f"weight_version = {found!r}")
                except EngineError as error:
                    self._fail(f"vLLM is gone ({error})")
                    return
                except (ValueError, TypeError, KeyError) as error:  # what draws tokens says of each what drew it
                    if type(error) not in odd:
                        odd.add(type(error))
                        log.warning(
                            "%s/weight_info does not say which weights vLLM has (%r)", self._settings.url, error
                        )
                    continue
                if found != str(self._version):
                    self._fail(
                        f"vLLM has weights {found!r} where it was given version {self._version}: it was restarted, or "
                        "somebody else sends it weights"
                    )

    async def _asked(self, method: str, path: str, body: Any = None, timeout_s: float | None = CALL_S) -> Any:
        """The answer to a request. Raises EngineError where there is none."""
        import httpx2

        try:
            response = await self._http.request(method, path, json=body, timeout=timeout_s)
        except httpx2.HTTPError as error:
            raise EngineError(f"{path}: {str(error) or type(error).__name__}") from error
        if response.status_code != 200:
            raise EngineError(f"{path} answered {response.status_code}: {response.text[:300]}")
        return response.json() if response.content else None

    def _fail(self, message: str) -> EngineError:
        if self._failure is None:
            self._failure = EngineError(message)
        return self._failure


@contextlib.contextmanager
def _read(raised: type[Exception], said: str) -> Iterator[None]:
    """Makes one error of what reading an answer raises that is not as vLLM gives it, a page in HTML for example."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise raised(f"{said} ({error!r})") from error


def _completion(answer: Mapping[str, Any], *, versions: tuple[str, ...] | None) -> Completion:
    """A finished rollout; `versions` are those that may have drawn it, None for any that are numbers.

    Raises:
      EngineError: vLLM ended it for another reason than a stop token or its length, or left something out.
    """
    [choice] = answer["choices"]
    if choice["finish_reason"] not in ("stop", "length"):
        raise EngineError(f"vLLM ended a rollout with {choice['finish_reason']!r}")
    tokens = np.array(choice.get("token_ids") or [], np.int32)
    content = (choice.get("logprobs") or {}).get("content") or []
    spans = choice.get("weight_versions") or []
    for span in spans:
        if not span["version"].isdecimal() or (versions and span["version"] not in versions):
            raise EngineError(f"vLLM drew with weights {span['version']!r}, which this run did not send")
    each = [int(span["version"]) for span in spans for _ in range(span["start"], span["end"])]
    if not len(tokens) == len(content) == len(each) > 0:
        raise EngineError(
            f"vLLM gave {len(tokens)} tokens with {len(content)} log-probabilities and {len(each)} versions"
        )
    if [token["token_id"] for token in content] != tokens.tolist():
        raise EngineError("vLLM gave log-probabilities of other tokens than it drew")
    logprobs = np.array([token["logprob"] for token in content], np.float32)
    routed = choice.get("routed_experts")
    experts = None if routed is None else np.load(io.BytesIO(base64.b64decode(routed)), allow_pickle=False)
    support = _support(choice.get("sampling_mask"), len(tokens))
    return Completion.drawn(tokens, logprobs, np.array(each, np.int32), choice["finish_reason"], experts, support)


def _support(masks: list[list[int]] | None, length: int) -> np.ndarray | None:
    """`Completion.support` of the ids that vLLM kept for each token. Raises EngineError: they are of other tokens."""
    if masks is None:
        return None
    if len(masks) != length:
        raise EngineError(f"vLLM gave {length} tokens with {len(masks)} sampling masks")
    support = np.full((length, max(map(len, masks))), -1, np.int32)
    for row, mask in zip(support, masks, strict=True):
        row[: len(mask)] = mask
    return support


def _nccl(info: Mapping[str, Any]) -> str:
    """The version of NCCL by which it can be sent weights; empty where it was not started so, or does not say it."""
    if (info["vllm_config"].get("weight_transfer_config") or {}).get("backend") != "nccl":
        return ""
    found = re.search(r"nvidia-nccl-cu\d+==([\d.]+)", str(info.get("system_env", {}).get("pip_packages")))
    return found[1] if found else ""


def write_checkpoint(directory: pathlib.Path, model: str, weights: WeightFile) -> None:
    """The weights as a Hugging Face directory, beside the model's config.json; the numbers as they are."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(pathlib.Path(model) / "config.json", directory)
    header, end = {}, 0
    for tensor in weights.tensors:
        place = {"dtype": SAFETENSORS[tensor.dtype], "shape": list(tensor.shape)}
        header[tensor.name] = place | {"data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(written).to_bytes(8, "little") + written)
        for _, data in _in_file(weights):
            file.write(data.data)


def _in_file(weights: WeightFile) -> Iterable[tuple[str, np.ndarray]]:
    """Name and bytes of each tensor, as a matrix [rows, bytes of a row]."""
    data = np.memmap(weights.path, np.uint8, mode="r")
    for tensor, start in zip(weights.tensors, weights.starts, strict=True):
        yield tensor.name, data[start : start + tensor.nbytes].reshape(tensor.shape[0], -1)


def _checkpoint(model: str, tensors: Iterable[TensorSpec]) -> Iterable[tuple[str, np.ndarray]]:
    """The same of a checkpoint's embedding and head, where it has them in the dtype that is served."""
    wanted = {tensor.name: tensor for tensor in tensors if tensor.name in (EMBEDDING, TIED_HEAD)}
    for path in sorted(pathlib.Path(model).glob("*.safetensors")):
        data = np.memmap(path, np.uint8, mode="r")
        size = int.from_bytes(data[:8].tobytes(), "little")
        for name, place in json.loads(data[8 : 8 + size].tobytes()).items():
            if name in wanted and place["dtype"] == SAFETENSORS[wanted[name].dtype]:
                start, end = place["data_offsets"]
                yield name, data[8 + size + start : 8 + size + end].reshape(wanted[name].shape[0], -1)


def _digest(data: np.ndarray) -> str:
    """vLLM's checksum of a matrix with a row for each token."""
    digest = hashlib.sha256(data.data)
    digest.update(bytes(-len(data) % PADDING * data.shape[1]))
    return digest.hexdigest()
