"""What a layer keeps for its backward pass, by name (`jax.checkpoint`, arXiv 1604.06174)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from isocompute_jax.model.config import Remat
from isocompute_jax.model.kernels import ATTENTION_OUTPUT

LAYER_INPUT = "layer_input"

_policies = jax.checkpoint_policies

POLICIES: Mapping[Remat, Any] = {
    "full": _policies.nothing_saveable,
    # Attention's output beside them: the kernels' products are none that XLA knows, and would run again.
    "dots": _policies.save_from_both_policies(
        _policies.dots_with_no_batch_dims_saveable, _policies.save_only_these_names(ATTENTION_OUTPUT)
    ),
    "attention_output": _policies.save_only_these_names(ATTENTION_OUTPUT),
    "offload": _policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[LAYER_INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}
"""Beside `none`, which keeps everything."""

LayerBody = Callable[[Float[Array, "..."], Any], tuple[Float[Array, "..."], Any]]


def rematerialized(body: LayerBody, remat: Remat) -> LayerBody:
    """`body(x, scanned)` of a scan over layers, keeping what `remat` names (see `ModelConfig.remat`)."""
    if remat == "none":
        return body

    def named(x: Float[Array, "..."], scanned: Any) -> tuple[Float[Array, "..."], Any]:
        return body(checkpoint_name(x, LAYER_INPUT), scanned)

    # In a scan nothing can be moved between the two passes, so they need no barrier against it.
    return jax.checkpoint(named, policy=POLICIES[remat], prevent_cse=False)
