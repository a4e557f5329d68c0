"""The peer of `benchmarks.h200`: the same shapes on transformers and torch, as a user would train them on one GPU.

Weights, gradients and AdamW's moments are bfloat16 (this library keeps float32 masters and gradients: the peer has less
to move and to hold), layers are recomputed in the backward pass, and log-probabilities are made of 2,048 tokens at a
time, so that no [tokens, V] exists. Sequences of a row are a batch, and attention is torch's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.h200_cases import Case, shape_of
from benchmarks.shared import median_seconds
from isocompute_jax.records.errors import InputError

CHUNK = 2048


def torch_of(case: Case) -> dict[str, Any]:
    """One update: forward, backward and AdamW.

    Raises:
      InputError: torch or transformers is not there.
    """
    try:
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is not installed") from None

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = shape_of(case)
    sequence = case.sequence or case.row_tokens
    options: dict[str, Any] = {"attn_implementation": "sdpa"}
    config = Qwen2Config(
        vocab_size=shape["vocab_size"],
        hidden_size=shape["embed_dim"],
        num_hidden_layers=shape["num_layers"],
        num_attention_heads=shape["num_heads"],
        num_key_value_heads=shape["num_kv_heads"],
        intermediate_size=shape["mlp_dim"],
        tie_word_embeddings=shape["tied_embeddings"],
        max_position_embeddings=case.row_tokens,
        use_cache=False,
        **options,
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with device:
        network: Any = Qwen2ForCausalLM(config).train()
    torch.set_default_dtype(before)
    network.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-6, fused=device.type == "cuda")
    rng = np.random.default_rng(0)
    tokens = torch.tensor(rng.integers(0, config.vocab_size, (case.rows * case.row_tokens // sequence, sequence)))
    tokens = tokens.to(device)

    def update() -> None:
        hidden = network.model(input_ids=tokens).last_hidden_state[:, :-1].reshape(-1, config.hidden_size)
        logprobs = _logprobs(torch, network.lm_head, hidden, tokens[:, 1:].reshape(-1))
        (-logprobs.mean()).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    rate = _product_rate(torch, device, 256 if case.model == "small" else 8192)
    seconds = _median_seconds(torch, device, update, case.repeats)
    held = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    return {
        "seconds": seconds,
        "tokens_per_s": tokens.numel() / seconds,
        "product_rate": rate,
        "peak_bytes": held,
        "torch": torch.__version__,
    }


def _logprobs(torch: Any, head: Any, hidden: Any, targets: Any) -> Any:
    """[n] log-probabilities, float32, of chunks whose logits are made again in the backward pass."""

    def of_chunk(hidden: Any, targets: Any) -> Any:
        return -torch.nn.functional.cross_entropy(head(hidden).float(), targets, reduction="none")

    parts = zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True)
    return torch.cat([torch.utils.checkpoint.checkpoint(of_chunk, *part, use_reentrant=False) for part in parts])


def _product_rate(torch: Any, device: Any, size: int) -> float:
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))

    def products() -> None:
        for _ in range(16):
            torch.matmul(a, b)

    return 16 * 2 * size**3 / _median_seconds(torch, device, products, 5)


def _median_seconds(torch: Any, device: Any, step: Any, repeats: int) -> float:
    def waited_for() -> None:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return median_seconds(waited_for, repeats)
