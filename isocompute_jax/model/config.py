"""The shape of a decoder-only transformer: Qwen2, Llama 3, Qwen3, Qwen3-MoE and Llama 4 are fields of one config."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

import jax.numpy as jnp

from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import Field, InputError

Dtype = Literal["float32", "bfloat16", "float16", "float64"]
Remat = Literal["none", "full", "dots", "attention_output", "offload"]
AttentionKernel = Literal["auto", "chunked", "mosaic", "triton", "splash"]
HeadPrecision = Literal["auto", "float32", "bf16_x3", "bf16"]

Architecture = Literal["qwen2", "llama", "qwen3", "qwen3_moe", "llama4_text"]
"""What Hugging Face calls the families (`model_type`)."""


class Family(NamedTuple):
    """What a family has: fields of `ModelConfig`, and whether its MLPs are experts."""

    attention_bias: bool
    qk_norm: bool
    experts: bool
    shared_expert: bool = False
    sigmoid_routing: bool = False

    @property
    def local_layers(self) -> bool:
        """Whether its layers are of two kinds; only then the config may have the fields of `LOCAL_FIELDS`."""
        return self.shared_expert


FAMILIES: dict[Architecture, Family] = {
    "qwen2": Family(attention_bias=True, qk_norm=False, experts=False),
    "llama": Family(attention_bias=False, qk_norm=False, experts=False),
    "qwen3": Family(attention_bias=False, qk_norm=True, experts=False),
    "qwen3_moe": Family(attention_bias=False, qk_norm=True, experts=True),
    "llama4_text": Family(attention_bias=False, qk_norm=False, experts=True, shared_expert=True, sigmoid_routing=True),
}

LOCAL_FIELDS = ("attention_chunk", "global_interval", "qk_l2_norm", "query_scaling")
"""Fields of families whose layers are of two kinds, local ones and global ones."""


@described
@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's stretched RoPE: long wavelengths are multiplied by `factor`, short ones kept, those between blended.

    Wavelengths are counted in positions: short is below `original_positions` / `high_frequency`, long above
    `original_positions` / `low_frequency` (arXiv 2407.21783; `rope_type: llama3` of Hugging Face). Llama 4's are equal:
    nothing lies between.
    """

    factor: float = option(help="Wavelengths grow by it.", low=1)
    low_frequency: float = option(help="Turns within `original_positions` below which a wavelength is long.", low=0)
    high_frequency: float = option(help="Turns within `original_positions` above which it is short.", above=0)
    original_positions: int = option(help="Longest sequence before stretching.", low=1)

    def __post_init__(self) -> None:
        check(self)
        if self.high_frequency < self.low_frequency:
            raise InputError(
                f"rope_scaling: high_freq_factor = {self.high_frequency} is below low_freq_factor = "
                f"{self.low_frequency}"
            )


@described
@dataclasses.dataclass(frozen=True)
class QueryScaling:
    """Llama 4's temperature: queries are multiplied by 1 + `scale` ln(1 + floor((position + 1) / `floor`)).

    Attention over many keys would flatten without it (arXiv 2501.19399; `attn_temperature_tuning` of Hugging Face).
    """

    floor: int = option(help="Positions below which nothing is scaled; Hugging Face's floor_scale.", low=1)
    scale: float = option(help="How much queries grow; Hugging Face's attn_scale.", low=0)

    def __post_init__(self) -> None:
        check(self)


REMAT_HELP = (
    "What each layer keeps for the backward pass: none, everything; dots, the results of its matrix products and what "
    "attention gives; attention_output, the last alone; full, nothing but its input; offload, the same, and the input "
    "in host memory. What is not kept is computed again: full costs about a third more compute."
)
ATTENTION_HELP = (
    "Kernel of packed attention: auto, what the platform has; mosaic (NVIDIA Hopper and later) and triton (other "
    "GPUs), both of tokamax; splash (TPU); chunked, plain XLA, everywhere."
)
HEAD_HELP = (
    "Precision of the output head's products: float32; bf16_x3, three products of bfloat16 parts, nearly as exact; "
    "bf16, one; auto, bf16_x3 for models narrower than float32 and float32 for the others. Sums are float32 in each."
)


@described
@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """RMSNorm, RoPE, grouped-query attention, SwiGLU, dense or of experts; what differs by family is a field.

    Raises:
      InputError: an unknown dtype, a size below 1, or fields that do not go together; it names the field.
    """

    vocab_size: int = option(help="V.", low=1)
    embed_dim: int = option(help="D.", low=1)
    num_layers: int = option(help="L.", low=1)
    num_heads: int = option(help="N, query heads.", low=1)
    num_kv_heads: int = option(help="K, key and value heads; divides N.", low=1)
    head_dim: int = option(help="H; even, because RoPE rotates pairs.", low=2)
    mlp_dim: int = option(help="F, of the MLP, or of each expert.", low=1)
    tied_embeddings: bool = option(help="The output head is the embedding table.")
    rope_theta: float = option(help="RoPE base.", low=1)
    norm_eps: float = option(help="RMSNorm epsilon.", low=0)
    max_positions: int = option(
        help="Longest sequence, prompt and completion together; Hugging Face's max_position_embeddings.", low=1
    )
    dtype: Dtype = option(
        "float32", "Of parameters and activations; norms, softmax, RoPE and the output head are float32 at least."
    )
    attention_bias: bool = option(True, "Biases of the query, key and value projections (Qwen2).")
    qk_norm: bool = option(False, "RMSNorm of each query and key head before RoPE (Qwen3, arXiv 2505.09388).")
    rope_scaling: RopeScaling | None = option(None, "Stretched RoPE (Llama 3.1); None for plain RoPE.")
    num_experts: int = option(0, "E, experts of every layer, a shared one not counted; 0 for a dense MLP.", low=0)
    experts_per_token: int = option(0, "Experts that each token is sent to.", low=0)
    normalized_routing: bool = option(True, "The weights of a token's experts sum to 1 (`norm_topk_prob`).")
    shared_expert: bool = option(False, "Beside its experts, a layer has an MLP that every token meets (Llama 4).")
    sigmoid_routing: bool = option(
        False, "What an expert reads is scaled by the sigmoid of its score, and what it gives is not (Llama 4)."
    )
    attention_chunk: int = option(
        0, "Local layers attend within chunks of so many positions (Llama 4); 0 where none does.", low=0
    )
    global_interval: int = option(
        0,
        "Of every so many layers the last is global: without RoPE, it sees all positions (Llama 4); 0 for none.",
        low=0,
    )
    qk_l2_norm: bool = option(False, "Queries and keys of local layers have norm sqrt(H) after RoPE (Llama 4).")
    query_scaling: QueryScaling | None = option(None, "Temperature of global layers' queries (Llama 4).")
    remat: Remat = option("none", REMAT_HELP, identity=False)
    attention: AttentionKernel = option("auto", ATTENTION_HELP, identity=False)
    head: HeadPrecision = option("auto", HEAD_HELP)

    def __post_init__(self) -> None:
        check(self)
        if self.num_heads % self.num_kv_heads:
            raise InputError(f"num_kv_heads = {self.num_kv_heads} does not divide num_heads = {self.num_heads}")
        if self.head_dim % 2:
            raise InputError(f"head_dim = {self.head_dim} is odd; RoPE needs pairs")
        if not (1 <= self.experts_per_token <= self.num_experts or self.num_experts == self.experts_per_token == 0):
            raise InputError(
                f"experts_per_token = {self.experts_per_token} must be between 1 and num_experts = {self.num_experts}, "
                "or both 0 for a dense model"
            )
        if self.dtype == "float64" and self.head not in ("auto", "float32"):
            raise InputError(f"head = {self.head!r} is narrower than dtype = 'float64': set head = 'auto'")
        if self._family not in FAMILIES.values():
            raise InputError(
                f"attention_bias = {self.attention_bias}, qk_norm = {self.qk_norm}, num_experts = {self.num_experts}, "
                f"shared_expert = {self.shared_expert} and sigmoid_routing = {self.sigmoid_routing} are no family "
                f"together; known are {', '.join(FAMILIES)}"
            )
        self._check_local_layers()

    def _check_local_layers(self) -> None:
        if self._family.local_layers and not self.attention_chunk:
            raise InputError(
                f"attention_chunk = 0: local layers of {self.architecture} attend within chunks, of 1 or more"
            )
        for name in LOCAL_FIELDS:
            if getattr(self, name) and not self._family.local_layers:
                raise InputError(f"{name} = {getattr(self, name)!r}: a {self.architecture} has no local layers")

    @property
    def _family(self) -> Family:
        return Family(self.attention_bias, self.qk_norm, self.num_experts > 0, self.shared_expert, self.sigmoid_routing)

    @property
    def local_layers(self) -> tuple[bool, ...] | None:
        """Of each layer, whether it is local: it has RoPE and attends within chunks; None where all are alike."""
        if not self.attention_chunk:
            return None
        every = self.global_interval
        return tuple(not every or (layer + 1) % every != 0 for layer in range(self.num_layers))

    @property
    def architecture(self) -> Architecture:
        """Hugging Face's `model_type`."""
        return next(name for name, family in FAMILIES.items() if family == self._family)

    @property
    def float_dtype(self) -> jnp.dtype:
        """`dtype`, or float32 where that is narrower: for norms, softmax and the head."""
        return jnp.promote_types(self.dtype, jnp.float32)


def check_length(config: ModelConfig, max_prompt_tokens: int, max_tokens: int) -> None:
    """Refuses sequences that are longer than those the model was made for; positions beyond were never trained.

    Args:
      config: model shape.
      max_prompt_tokens: longest prompt.
      max_tokens: longest completion.

    Raises:
      InputError: they are longer together than `config.max_positions`.
    """
    longest = max_prompt_tokens + max_tokens
    if longest > config.max_positions:
        raise InputError(
            Field("max_prompt_tokens"),
            f" = {max_prompt_tokens} and ",
            Field("max_tokens"),
            f" = {max_tokens} make sequences of up to {longest} tokens; the model's max_position_embeddings = "
            f"{config.max_positions}: lower one of them, or take a model made for longer sequences",
        )


EMBEDDED = ModelConfig(
    vocab_size=32,
    embed_dim=64,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    mlp_dim=192,
    tied_embeddings=True,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    max_positions=64,
)
"""The embedded default: 0.1 M parameters; the head size of 32 is one that vLLM's CPU build serves.

The arithmetic tokenizer's 17 ids are rounded up to 32, as is usual; the ids beyond them are never taught.
"""
