"""Floating-point operations of a step, by formula: the programs' own counts take a loop's body once.

A product of [M, K] and [K, N] is 2 M K N. A step's are 6 x parameters x tokens (2 forward, 4 backward; arXiv
2001.08361), and those of attention: 4 N H a pair of query and key in each layer forward, twice that backward.
"""

from __future__ import annotations

import dataclasses

from isocompute_jax.model import ModelConfig
from isocompute_jax.model.head import precision_of

BODY_AGAIN = {"none": 0, "dots": 0, "attention_output": 1, "full": 1, "offload": 1}
"""By `remat`: whether the layers' products are computed again in the backward pass."""
ATTENTION_AGAIN = {"none": 0, "dots": 0, "attention_output": 0, "full": 1, "offload": 1}
"""The same of attention."""
HEAD_PRODUCTS = {"float32": 4, "bf16": 4, "bf16_x3": 6}
"""Of hidden states and the head's matrix: logits, again in the backward pass, and two gradients. Of those, float32
cotangents take two products each where operands are split (see `model.head`)."""
TABLE_PRODUCTS = {"float32": 1, "bf16": 1, "bf16_x3": 2}
"""Among these, the gradient of the head's matrix."""


@dataclasses.dataclass(frozen=True)
class Work:
    """What one step computes."""

    rollouts: int  # in a step
    # of prompts and completions, as far as the layout reads them: packed rows read a prompt for each rollout
    tokens: float
    positions: float  # computed, padding included
    pairs: float  # of query and key that see each other, in the mean of the layers
    computed_pairs: float  # that are computed
    microbatches: int  # that hold tokens


@dataclasses.dataclass(frozen=True)
class Flops:
    """Of one step, over all devices."""

    body: float  # the layers' matrices
    attention: float  # of pairs that see each other
    head: float  # the output head
    # all that the devices do in bfloat16: padding, what is computed again, and the head's passes included
    computed: float
    computed_float32: float  # the same, in float32

    @property
    def model(self) -> float:
        """What the model needs, each product once: the numerator of MFU (arXiv 2204.02311)."""
        return self.body + self.attention + self.head


def active_matrices(config: ModelConfig) -> int:
    """Entries of the layers' matrices that one token meets."""
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    experts = config.experts_per_token + config.shared_expert if config.num_experts else 1
    mlp = 3 * config.embed_dim * config.mlp_dim * experts + config.embed_dim * config.num_experts
    return config.num_layers * (config.embed_dim * heads * config.head_dim + mlp)


def matrices_again(config: ModelConfig) -> int:
    """Entries of the layers' matrices that one token meets once more where a layer is computed again.

    Not those of w_down, whose result is added and not read by the backward pass; experts' are, to weigh them.
    """
    added = int(config.shared_expert) if config.num_experts else 1
    return active_matrices(config) - config.num_layers * config.embed_dim * config.mlp_dim * added


def head_matrix(config: ModelConfig) -> int:
    """Entries of the output head."""
    return config.embed_dim * config.vocab_size


def step_flops(config: ModelConfig, work: Work, *, adapters: bool = False) -> Flops:
    """Of one update; of `adapters` without their own products, which are few, and without gradients of the weights."""
    width = config.num_layers * config.num_heads * config.head_dim
    each = 4.0 if adapters else 6.0
    body, head = each * active_matrices(config), each * head_matrix(config)
    attention = 12.0 * width
    body_again = 2.0 * matrices_again(config) * BODY_AGAIN[config.remat]
    attention_again = attention / 3 * ATTENTION_AGAIN[config.remat]
    layers = (body + body_again) * work.positions + (attention + attention_again) * work.computed_pairs
    precision = precision_of(config)
    products = HEAD_PRODUCTS[precision] - (TABLE_PRODUCTS[precision] if adapters else 0)
    heads = 2.0 * head_matrix(config) * products * work.positions
    if config.dtype != "bfloat16":
        narrow, wide = 0.0, layers + heads
    else:
        narrow, wide = (layers, heads) if precision == "float32" else (layers + heads, 0.0)
    return Flops(body * work.tokens, attention * work.pairs, head * work.tokens, narrow, wide)
