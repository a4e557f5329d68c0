"""Qwen2, Qwen3, Llama 3 and 4, dense or of experts, in pure JAX: parameters as pytrees, forward passes as functions."""

from isocompute_jax.model.config import (
    ATTENTION_HELP,
    EMBEDDED,
    FAMILIES,
    HEAD_HELP,
    REMAT_HELP,
    Architecture,
    AttentionKernel,
    Dtype,
    HeadPrecision,
    ModelConfig,
    QueryScaling,
    Remat,
    RopeScaling,
    check_length,
)
from isocompute_jax.model.decoding import Cache, SlotCache, decode, extend_slots, init_caches
from isocompute_jax.model.experts import UNKNOWN, Routed
from isocompute_jax.model.gguf import GgufFile
from isocompute_jax.model.head import logits
from isocompute_jax.model.hf_checkpoint import load_params, save_checkpoint, write_checkpoint
from isocompute_jax.model.hf_config import load_config
from isocompute_jax.model.hf_layout import hf_boxes, hf_tensor_shapes, hf_tensors, params_from_tensors, to_hf_layout
from isocompute_jax.model.lora import (
    LoraConfig,
    abstract_adapters,
    adapter_shardings,
    adapter_specs,
    init_adapters,
    is_adapted,
    merged,
    scaled_adapters,
    with_adapters,
)
from isocompute_jax.model.packed_attention import choose_kernel, context_divides
from isocompute_jax.model.params import (
    Params,
    abstract_params,
    all_finite,
    cast_params,
    count_params,
    init_params,
    param_shardings,
    param_specs,
)
from isocompute_jax.model.peft_files import fingerprint, load_adapter, save_adapter
from isocompute_jax.model.sampling_copy import abstract_sampling_params, is_copied, sampling_params, split_layers
from isocompute_jax.model.token_logprobs import token_logprobs
from isocompute_jax.model.transformer import Prefix, extend, packed_hidden, prefill, tree_hidden

__all__ = [
    "ATTENTION_HELP",
    "EMBEDDED",
    "FAMILIES",
    "HEAD_HELP",
    "REMAT_HELP",
    "UNKNOWN",
    "Architecture",
    "AttentionKernel",
    "Cache",
    "Dtype",
    "GgufFile",
    "HeadPrecision",
    "LoraConfig",
    "ModelConfig",
    "Params",
    "Prefix",
    "QueryScaling",
    "Remat",
    "RopeScaling",
    "Routed",
    "SlotCache",
    "abstract_adapters",
    "abstract_params",
    "abstract_sampling_params",
    "adapter_shardings",
    "adapter_specs",
    "all_finite",
    "cast_params",
    "check_length",
    "choose_kernel",
    "context_divides",
    "count_params",
    "decode",
    "extend",
    "extend_slots",
    "fingerprint",
    "hf_boxes",
    "hf_tensor_shapes",
    "hf_tensors",
    "init_adapters",
    "init_caches",
    "init_params",
    "is_adapted",
    "is_copied",
    "load_adapter",
    "load_config",
    "load_params",
    "logits",
    "merged",
    "packed_hidden",
    "param_shardings",
    "param_specs",
    "params_from_tensors",
    "prefill",
    "sampling_params",
    "save_adapter",
    "save_checkpoint",
    "scaled_adapters",
    "split_layers",
    "to_hf_layout",
    "token_logprobs",
    "tree_hidden",
    "with_adapters",
    "write_checkpoint",
]
