"""`python -m benchmarks.long_context`: forward and backward of one long row on CPU, beside transformers on torch.

    python -m benchmarks.long_context                                # 1k, 4k, 16k and 32k tokens; needs a few minutes
    python -m benchmarks.long_context --tokens=1024,4096 --rounds=5  # both in turns, for a machine that is busy
    python -m benchmarks.long_context --sequence=1024                # the same rows, packed of sequences of 1,024

A Qwen2 model of 4 layers (D = 256, 4 query and 2 kv heads of 64, F = 768) with random float32 weights; the loss is the
mean square of its hidden states, so that no head is in it, and the gradient is that of all parameters. Every figure is
of a process of its own: the median of the timed passes, and by how much its peak of resident memory (ru_maxrss) lies
above what it held before the first. With several rounds it is the median of theirs, and `ratio` that of the rounds'
ratios (from .. to). `CPU s` is the time of all threads on the processor, which other work disturbs least. XLA's own
account (`memory_analysis`) stands beside it. transformers runs on torch's scaled_dot_product_attention (a flash kernel
on CPUs) as it comes; there, sequences of a row are a batch.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import flags

from benchmarks.shared import in_a_process, peak_mib, print_head, print_row, spread
from isocompute_jax import app

TOKENS = flags.DEFINE_list("tokens", ["1024", "4096", "16384", "32768"], "Tokens of the row.")
SEQUENCE = flags.DEFINE_integer("sequence", 0, "Tokens of each of its sequences; 0: the row is one.", lower_bound=0)
REMAT = flags.DEFINE_enum("remat", "none", ["none", "attention_output", "full"], "What our layers keep.")
REPEATS = flags.DEFINE_integer("repeats", 3, "Timed passes of a round.", lower_bound=1)
WARM = flags.DEFINE_bool("warm", True, "One pass before them that is not timed.")
ROUNDS = flags.DEFINE_integer("rounds", 1, "Times that both are measured, in turns.", lower_bound=1)
ONE = flags.DEFINE_enum("one", None, ["ours", "torch"], "Measure this one for the first of --tokens, here, as JSON.")

VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, MLP = 512, 256, 4, 4, 2, 768
MIB = 2**20
HEAD = (
    *("tokens", "seconds", "torch", "ratio", "CPU s", "torch", "ratio", "peak MiB", "torch", "ratio"),
    "of XLA's account",
)


def main() -> None:
    """Flags -> table, or one measurement."""
    if ONE.value is not None:
        tokens = int(TOKENS.value[0])
        print(json.dumps({"ours": ours, "torch": theirs}[ONE.value](tokens, SEQUENCE.value or tokens)))
        return
    print_head(HEAD, left=())
    for tokens in TOKENS.value:
        rounds = [(measured("ours", tokens), measured("torch", tokens)) for _ in range(ROUNDS.value)]
        print_row(*cells(int(tokens), rounds))


def measured(name: str, tokens: str) -> dict[str, float]:
    """One of both in a process of its own."""
    options = [f"--one={name}", f"--tokens={tokens}", f"--sequence={SEQUENCE.value}", f"--repeats={REPEATS.value}"]
    options += [f"--remat={REMAT.value}", f"--warm={WARM.value}"]
    return in_a_process("long_context", options, what=f"{name}, {tokens} tokens")


def timed(step: Callable[[], Any]) -> dict[str, float]:
    """Median seconds of `step`, by the clock and of its threads; and the MiB that its peak adds to what is held now."""
    before = _resident()
    if WARM.value:
        step()
    seconds, processor = [], []
    for _ in range(REPEATS.value):
        start, used = time.perf_counter(), time.process_time()
        step()
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - used)
    middle = {"seconds": statistics.median(seconds), "cpu_s": statistics.median(processor)}
    return middle | {"peak_mib": peak_mib() - before}


def _resident() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / MIB


def ours(tokens: int, sequence: int) -> dict[str, float]:
    """This library: one row, with its sequences one after the other."""
    import jax
    import jax.numpy as jnp

    from isocompute_jax import model

    config = model.ModelConfig(
        vocab_size=VOCABULARY,
        embed_dim=WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=WIDTH // HEADS,
        mlp_dim=MLP,
        tied_embeddings=True,
        rope_theta=1e6,
        norm_eps=1e-6,
        max_positions=tokens,
        remat=REMAT.value,  # pyright: ignore[reportArgumentType]
    )
    params = model.init_params(config, jax.random.key(0))
    row = jnp.asarray(_tokens(1, tokens), jnp.int32)
    first = jnp.asarray(np.arange(tokens) // sequence * sequence, jnp.int32)[None]

    def loss(params: model.Params, row: jax.Array, first: jax.Array) -> jax.Array:
        return jnp.mean(model.packed_hidden(config, params, row, first, mesh=None)[0] ** 2)

    compiled: Any = jax.jit(jax.value_and_grad(loss)).lower(params, row, first).compile()
    found = timed(lambda: jax.block_until_ready(compiled(params, row, first)))
    return found | {"account_mib": compiled.memory_analysis().temp_size_in_bytes / MIB}


def theirs(tokens: int, sequence: int) -> dict[str, float]:
    """transformers on torch: the sequences as a batch."""
    import torch
    from transformers import Qwen2Config, Qwen2Model

    torch.manual_seed(0)
    options: dict[str, Any] = {"attn_implementation": "sdpa"}
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        intermediate_size=MLP,
        max_position_embeddings=tokens,
        use_cache=False,
        **options,
    )
    network: Any = Qwen2Model(config).train()
    batch = torch.tensor(_tokens(tokens // sequence, sequence))

    def step() -> None:
        network.zero_grad()
        (network(input_ids=batch).last_hidden_state ** 2).mean().backward()

    return timed(step)


def _tokens(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARY, (rows, length))


def cells(tokens: int, rounds: Sequence[tuple[dict[str, float], dict[str, float]]]) -> list[str]:
    """The cells of `HEAD`; ratios above 1 mean that this library is faster, or smaller."""

    def median(side: int, name: str) -> float:
        return statistics.median(found[side][name] for found in rounds)

    ratios = [theirs["seconds"] / ours["seconds"] for ours, theirs in rounds]
    range_of = f" ({spread(ratios)})" if len(ratios) > 1 else ""
    found = [f"{tokens:,}", *(f"{median(side, 'seconds'):.2f}" for side in (0, 1))]
    found.append(f"{statistics.median(ratios):.2f}x{range_of}")
    for name, digits in (("cpu_s", ".2f"), ("peak_mib", ",.0f")):
        ours, theirs = median(0, name), median(1, name)
        found += [f"{ours:{digits}}", f"{theirs:{digits}}", f"{theirs / ours:.2f}x"]
    return [*found, f"{median(0, 'account_mib'):,.0f}"]


if __name__ == "__main__":
    app.run(main)
