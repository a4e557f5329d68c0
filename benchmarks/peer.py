"""The peer: the same model and prompts on transformers and torch, one thread, as a user would write it."""

from __future__ import annotations

import importlib.util
import pathlib
import time
from typing import Any

import numpy as np

from isocompute_jax.tasks import load_tokenizer, read_problems

REPEATS = 3


def measure(directory: pathlib.Path, *, group_size: int, rollouts: int) -> dict[str, float] | None:
    """Seconds of sampling one batch and of one policy-gradient update on it; None without torch."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch
    from transformers import Qwen2ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network: Any = Qwen2ForCausalLM.from_pretrained(directory, dtype=torch.float32)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5)
    prompts, mask = left_padded(directory, max(1, rollouts // group_size))
    inputs = {"input_ids": torch.tensor(prompts), "attention_mask": torch.tensor(mask)}
    tokenizer = load_tokenizer(directory)
    sampling, update = [], []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        sequences = network.generate(
            **inputs,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            num_return_sequences=group_size,
            max_new_tokens=10,
            eos_token_id=list(tokenizer.eos_ids),
            pad_token_id=tokenizer.pad_id,
        )
        sampled = time.perf_counter()
        step(torch, network, optimizer, sequences, torch.tensor(mask), tokenizer.pad_id, group_size)
        sampling.append(sampled - start)
        update.append(time.perf_counter() - sampled)
    return {"sampling": float(np.median(sampling[1:])), "update": float(np.median(update[1:]))}


def step(torch: Any, network: Any, optimizer: Any, sequences: Any, prompt_mask: Any, pad: int, group_size: int) -> None:
    """-A lp over completion tokens, clipped gradient, AdamW: one forward and backward pass over whole sequences."""
    width = prompt_mask.shape[1]
    completions = sequences[:, width:]
    whole = torch.cat([prompt_mask.repeat_interleave(group_size, 0), (completions != pad).long()], dim=1)
    logits = network(sequences, attention_mask=whole).logits[:, width - 1 : -1]
    logprobs = torch.log_softmax(logits, -1).gather(-1, completions[..., None])[..., 0]
    advantages = torch.randn(len(sequences), 1)
    trained = (completions != pad).float()
    loss = -(advantages * logprobs * trained).sum() / trained.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()


def left_padded(directory: pathlib.Path, problems: int) -> tuple[np.ndarray, np.ndarray]:
    """[P, S] prompt tokens and mask of the first problems."""
    tokenizer = load_tokenizer(directory)
    chosen = read_problems(directory.parent / "problems.jsonl")[:problems]
    encoded = tokenizer.encode_batch([problem.text for problem in chosen])
    width = max(map(len, encoded))
    tokens = np.full((len(encoded), width), tokenizer.pad_id, np.int64)
    mask = np.zeros(tokens.shape, np.int64)
    for row, prompt in enumerate(encoded):
        tokens[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    return tokens, mask
