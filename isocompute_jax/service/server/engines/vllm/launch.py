"""Starts vLLM, and says a rollout in its terms. Imported once `environment.prepare` has run: it imports vllm."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Callable

import numpy as np
from vllm import SamplingParams  # pyright: ignore[reportAttributeAccessIssue, reportMissingImports]
from vllm.config import VllmConfig, WeightTransferConfig  # pyright: ignore[reportMissingImports]
from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
    WeightTransferUpdateRequest,
)
from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
from vllm.inputs.engine import TokensInput, tokens_input  # pyright: ignore[reportMissingImports]
from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]
from vllm.outputs import CompletionOutput  # pyright: ignore[reportMissingImports]
from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]
from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]
from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion
from isocompute_jax.service.server.engines.base import EngineError, VllmSettings, check_for_vllm, rollout_seed
from isocompute_jax.service.server.engines.vllm import environment, weight_transfer
from isocompute_jax.service.weights import nccl
from isocompute_jax.service.weights.files import WeightFile
from isocompute_jax.service.weights.nccl import TransferError

CPU_KV_CACHE_BYTES = 1 << 30

log = logging.getLogger(__name__)

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM makes room for."""


def resolve(settings: VllmSettings, dtype: str) -> VllmConfig:
    """vLLM's configuration; no process is started.

    `dtype` is that of weights and activations; vLLM's own choice would be bfloat16 for a float32 checkpoint.

    Raises:
      InputError: vLLM does not serve this model, or not with these settings.
    """
    temperature = _temperature_of_queries(settings.model)
    try:
        arguments = AsyncEngineArgs(
            model=settings.model,
            dtype=dtype,
            max_model_len=settings.max_model_len,
            tensor_parallel_size=settings.tensor_parallel,
            data_parallel_size=settings.data_parallel,
            load_format="auto" if settings.load else "dummy",
            skip_tokenizer_init=True,
            generation_config="vllm",  # what requests say counts, not generation_config.json
            override_generation_config=temperature,
            hf_overrides={"head_dtype": "float32"},  # the learner's head is float32, too
            logprobs_mode="processed_logprobs",  # of the tempered distribution that was drawn from
            max_logprobs=1,
            enable_prefix_caching=True,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            worker_extension_cls=f"{weight_transfer.__name__}.{weight_transfer.WorkerExtension.__name__}",
            weight_transfer_config=WeightTransferConfig(backend=weight_transfer.BACKEND),
            **_adapter_arguments(settings),
            **_platform_arguments(settings),
        )
        config = arguments.create_engine_config()
    except (ValueError, OSError, NotImplementedError) as error:
        raise InputError(f"--model={settings.model}: vLLM refuses it, or the settings: {error}") from error
    _check_heads(settings.model, config)
    _check_chunk(settings.model, config)
    if current_platform.is_cpu():
        _check_head_size(settings.model, config)
    return config


def _adapter_arguments(settings: VllmSettings) -> dict[str, object]:
    """Room for two adapters: rollouts that are being drawn keep theirs."""
    if not settings.lora_rank:
        return {}
    rank = next((rank for rank in LORA_RANKS if rank >= settings.lora_rank), 0)
    if not rank:
        raise InputError(f"--lora_rank={settings.lora_rank}: vLLM serves up to {LORA_RANKS[-1]}; or take --engine=jax")
    return {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 4, "max_lora_rank": rank}


def adapter(number: int, path: pathlib.Path) -> LoRARequest:
    """A new one, read from a PEFT directory."""
    return LoRARequest(f"adapter-{number}", number, str(path))


def device_kind() -> str:
    """As their maker calls the devices that vLLM runs on. No device is initialised."""
    return current_platform.get_device_name()


def start(config: VllmConfig, count: Callable[[int], None]) -> AsyncLLM:
    """Starts the engine's processes and waits until the model is in. Blocks; may run in any thread.

    `count` is told how many tokens each step drew.
    """
    llm = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
    process = llm.output_processor.process_outputs

    # The one place that every token passes, those of rollouts that are later cancelled included.
    def counted(outputs, *arguments, **keywords):
        count(sum(len(output.new_token_ids) for output in outputs))
        return process(outputs, *arguments, **keywords)

    llm.output_processor.process_outputs = counted
    return llm


def nccl_version() -> str:
    """Of the library by which the workers can be sent weights; empty where they run on CPUs, or there is none."""
    if current_platform.is_cpu():
        return ""
    try:
        return nccl.load().version
    except TransferError as error:
        log.warning("weights cannot come by NCCL: %s", error)
        return ""


def update_request(weights: WeightFile) -> WeightTransferUpdateRequest:
    """What the workers are told: where the tensors are. The numbers do not travel."""
    info = weight_transfer.UpdateInfo(
        path=weights.path,
        names=[tensor.name for tensor in weights.tensors],
        dtypes=[tensor.dtype for tensor in weights.tensors],
        shapes=[list(tensor.shape) for tensor in weights.tensors],
        starts=list(weights.starts),
    )
    return WeightTransferUpdateRequest(update_info=dataclasses.asdict(info))


def _temperature_of_queries(directory: str) -> dict[str, bool]:
    """What config.json says of Llama 4's temperature: vLLM asks the generation config, or goes by its own limit.

    Raises:
      InputError: the model sees as well, so that its tensors have other names than those that the learner sends.
    """
    raw = environment.read_config(directory)
    if raw.get("model_type") == "llama4":
        raise InputError(
            f"--model={directory}: this Llama 4 also sees, and the learner sends the weights of its text alone: write "
            'those to a directory of their own first (docs/real_models.md, "Llama 4")'
        )
    if raw.get("model_type") != "llama4_text":
        return {}
    return {"attn_temperature_tuning": bool(raw.get("attn_temperature_tuning", True))}


def _platform_arguments(settings: VllmSettings) -> dict[str, object]:
    """What differs between the CPU build and GPUs."""
    if current_platform.is_cpu():
        if settings.gpu_memory_utilization is not None:
            raise InputError("--gpu_memory_utilization: this vLLM runs on the CPU: give --kv_cache_bytes instead")
        return {
            # vLLM would take most of the machine's memory.
            "kv_cache_memory_bytes": settings.kv_cache_bytes or CPU_KV_CACHE_BYTES,
            "enforce_eager": True,  # compiling takes minutes, and a compiler
            "enable_chunked_prefill": False,  # generators of requests, which CPUs have, crash the engine there (0.32)
            "max_num_seqs": 256,
        }
    arguments: dict[str, object] = {"kv_cache_memory_bytes": settings.kv_cache_bytes, "max_num_seqs": 1024}
    if settings.gpu_memory_utilization is not None:
        arguments["gpu_memory_utilization"] = settings.gpu_memory_utilization
    return arguments


def _check_heads(model: str, config: VllmConfig) -> None:
    """vLLM's Qwen2 passes `head_dim` over: with another one than it computes, it would fail at the first token."""
    theirs = config.model_config.hf_text_config
    ours, computed = getattr(theirs, "head_dim", None), theirs.hidden_size // theirs.num_attention_heads
    if theirs.model_type == "qwen2" and ours not in (None, computed):
        raise InputError(
            f"--model={model}: config.json has head_dim = {ours}, and vLLM's Qwen2 takes hidden_size / "
            f"num_attention_heads = {computed}: choose another model, or --engine=jax"
        )


def _check_chunk(model: str, config: VllmConfig) -> None:
    """Chunked attention of other lengths fails at the first token."""
    chunk = getattr(config.model_config.hf_text_config, "attention_chunk_size", None)
    block = config.cache_config.block_size
    if chunk and block and chunk % block:
        raise InputError(
            f"--model={model}: its attention_chunk_size = {chunk} is no multiple of vLLM's block of {block} tokens: "
            "choose another model, or --engine=jax"
        )


def _check_head_size(model: str, config: VllmConfig) -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend  # pyright: ignore[reportMissingImports]

    size, served = config.model_config.get_head_size(), CPUAttentionBackend.get_supported_head_sizes()
    if size not in served:
        raise InputError(
            f"--model={model}: its head size is {size}; vLLM's CPU build serves {', '.join(map(str, served))}: "
            "choose another model, or --engine=jax"
        )


def prompt(request: SampleRequest, *, cache_key: str) -> TokensInput:
    """A prompt; only prompts with the same key share cached prefixes."""
    return tokens_input(request.prompt_tokens.tolist(), cache_salt=cache_key)


def sampling_params(request: SampleRequest, index: int) -> SamplingParams:
    """What vLLM is asked for the group's rollout `index`, from 0.

    Raises:
      InputError: vLLM would draw from another distribution.
    """
    check_for_vllm(request)
    return SamplingParams(
        temperature=request.params.temperature,
        top_p=request.params.top_p,
        top_k=request.params.top_k,
        max_tokens=request.budget(index),
        seed=rollout_seed(request, index),
        stop_token_ids=list(request.stop_tokens),
        ignore_eos=True,  # only the tokens that the request names end a completion
        logprobs=0,  # of the drawn token alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,  # a message for every token would cost more than drawing it
        skip_clone=True,
    )


def completion(output: CompletionOutput, *, version: int | None) -> Completion:
    """A finished rollout. `version` is that of the weights that drew all of it; None where vLLM says it of each token.

    Raises:
      EngineError: vLLM ended it for another reason than a stop token or its length, or left something out.
    """
    if output.finish_reason not in ("stop", "length"):
        raise EngineError(f"vLLM ended a rollout with {output.finish_reason!r}")
    tokens = np.array(output.token_ids, np.int32)
    logprobs = np.array(output.logprobs.logprobs if output.logprobs else [], np.float32)
    if version is None:
        spans = output.weight_versions or []
        versions = np.repeat(
            np.array([int(span.version) for span in spans], np.int32), [span.end - span.start for span in spans]
        )
    else:
        versions = np.full(len(tokens), version, np.int32)
    if not len(tokens) == len(logprobs) == len(versions) > 0:
        raise EngineError(
            f"vLLM gave {len(tokens)} tokens with {len(logprobs)} log-probabilities and {len(versions)} versions"
        )
    return Completion.drawn(tokens, logprobs, versions, output.finish_reason)
