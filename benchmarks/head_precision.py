"""`python -m benchmarks.head_precision`: errors of log-probabilities in each precision of the head, against float64.

    python -m benchmarks.head_precision                          # vocabularies of 32k, 128k and 152k, D = 3,584
    python -m benchmarks.head_precision --vocabularies=32000 --embed_dim=1024

Heads are random, with logits as trained models have them: a standard deviation of 3, and at each position one token
that stands out by 0 to 24, so that entropies range from nearly 0 to several nats; targets are drawn from the softmax.
`config.head` names the first three lines; beside them stand

- `default`: what a float32 matrix product gives on this backend unless told otherwise;
- `TF32`: float32 operands rounded to 10 bits of mantissa, the default of NVIDIA's GPUs;
- `bfloat16 logits`: rounded to bfloat16, as a linear layer in bfloat16 returns them;
- `float32 masters`: a bfloat16 model whose head is the learner's float32 masters, beside a sampler that has them in
  bfloat16, both without any other error.

The reference takes the same operands, float32 or bfloat16 as the model's, and computes in float64. The last column is
the error of the gradient towards the hidden states (of the sum of log-probabilities), by the norm of the gradient,
before it is rounded to their dtype.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from benchmarks.shared import print_head, print_row
from isocompute_jax import app, model

VOCABULARIES = flags.DEFINE_list("vocabularies", ["32000", "128256", "152064"], "Sizes of the vocabulary.")
EMBED_DIM = flags.DEFINE_integer("embed_dim", 3_584, "Size of the hidden states.", 1)
TOKENS = flags.DEFINE_integer("tokens", 128, "Positions.", 1)

PRECISIONS: tuple[model.HeadPrecision, ...] = ("float32", "bf16_x3", "bf16")

BLOCK = 4096
"""Columns of the head that are in float64 at once."""


class Case(NamedTuple):
    """Operands of a head in float32 (rounded to bfloat16 where the model is), and what float64 makes of them."""

    hidden: np.ndarray
    head: np.ndarray
    targets: np.ndarray
    logprobs: np.ndarray
    to_hidden: np.ndarray


def draw(rng: np.random.Generator, vocab: int, embed: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states [n, D] and a head [D, V]."""
    head = rng.standard_normal((embed, vocab), np.float32) * np.float32(3 / np.sqrt(embed))
    hidden = rng.standard_normal((tokens, embed), np.float32)
    likely, height = rng.integers(0, vocab, tokens), rng.uniform(0, 24, (tokens, 1))
    directions = head[:, likely].T
    return (hidden + height * directions / np.sum(directions**2, axis=1, keepdims=True)).astype(np.float32), head


def logits64(hidden: np.ndarray, head: np.ndarray) -> np.ndarray:
    """In float64, [n, V]."""
    wide = hidden.astype(np.float64)
    parts = [wide @ head[:, at : at + BLOCK].astype(np.float64) for at in range(0, head.shape[1], BLOCK)]
    return np.concatenate(parts, axis=1)


def reference(rng: np.random.Generator, hidden: np.ndarray, head: np.ndarray) -> Case:
    """Targets drawn from the softmax, their log-probabilities, and the gradient of the sum of these."""
    logits = logits64(hidden, head)
    top = logits.max(axis=1, keepdims=True)
    logprobs = logits - top - np.log(np.sum(np.exp(logits - top), axis=1, keepdims=True))
    targets = np.argmax(logprobs + rng.gumbel(size=logits.shape), axis=1)
    to_logits = -np.exp(logprobs)
    to_logits[np.arange(len(targets)), targets] += 1
    blocks = range(0, head.shape[1], BLOCK)
    gradient = sum(to_logits[:, at : at + BLOCK] @ head[:, at : at + BLOCK].T.astype(np.float64) for at in blocks)
    return Case(hidden, head, targets, logprobs[np.arange(len(targets)), targets], np.asarray(gradient))


def ours(case: Case, dtype: model.Dtype, head: model.HeadPrecision) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities and the gradient of `token_logprobs`.

    Of a bfloat16 model, both are float32 numbers that bfloat16 holds: nothing is rounded but in the products.
    """
    tokens, embed = case.hidden.shape
    config = model.ModelConfig(
        vocab_size=case.head.shape[1],
        embed_dim=embed,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        mlp_dim=1,
        tied_embeddings=False,
        rope_theta=1e4,
        norm_eps=1e-6,
        max_positions=tokens,
        dtype=dtype,
        head=head,
    )

    def loss(hidden: jax.Array, table: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        logprobs, _ = model.token_logprobs(
            config, {"head": table}, hidden[None], targets[None], temperature=1.0, chunk_tokens=8
        )
        return jnp.sum(logprobs), logprobs[0]

    gradient, logprobs = jax.jit(jax.grad(loss, has_aux=True))(case.hidden, case.head, case.targets)
    return np.asarray(logprobs), np.asarray(gradient)


def others(case: Case) -> dict[str, np.ndarray]:
    """Log-probabilities of heads that are not ours, by name."""

    @jax.jit
    def scored(logits: jax.Array) -> jax.Array:
        return jnp.take_along_axis(jax.nn.log_softmax(logits), case.targets[:, None], axis=1)[:, 0]

    def rounded(x: np.ndarray) -> jax.Array:
        return jax.lax.reduce_precision(jnp.asarray(x), exponent_bits=8, mantissa_bits=10)

    plain = jax.jit(jnp.matmul)(case.hidden, case.head)
    exact = jnp.asarray(logits64(case.hidden, case.head), jnp.float32)
    tf32 = jnp.matmul(rounded(case.hidden), rounded(case.head), precision=jax.lax.Precision.HIGHEST)
    return {
        f"default ({jax.default_backend()})": np.asarray(scored(plain)),
        "TF32": np.asarray(scored(tf32)),
        "bfloat16 logits": np.asarray(scored(exact.astype(jnp.bfloat16).astype(jnp.float32))),
    }


def measure(vocab: int, embed: int, tokens: int) -> dict[tuple[str, str], str]:
    """The cells of one vocabulary, by model and head: largest and mean error, and that of the gradient."""
    rng = np.random.default_rng(0)
    hidden, head = draw(rng, vocab, embed, tokens)
    half = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32) for x in (hidden, head)]
    operands: dict[model.Dtype, list[np.ndarray]] = {"bfloat16": half, "float32": [hidden, head]}
    cells = {}
    for dtype, given in operands.items():
        case = reference(rng, *given)
        for precision in PRECISIONS:
            cells[dtype, precision] = cell(case, *ours(case, dtype, precision))
        for name, logprobs in others(case).items():
            cells[dtype, name] = cell(case, logprobs)
        if dtype == "bfloat16":
            masters = logits64(case.hidden, head)
            top = masters.max(axis=1)
            normalizers = top + np.log(np.sum(np.exp(masters - top[:, None]), axis=1))
            logprobs = masters[np.arange(len(case.targets)), case.targets] - normalizers
            cells[dtype, "float32 masters"] = cell(case, logprobs)
    return cells


def cell(case: Case, logprobs: np.ndarray, gradient: np.ndarray | None = None) -> str:
    """Errors as the table has them."""
    error = np.abs(logprobs.astype(np.float64) - case.logprobs)
    relative = "-"
    if gradient is not None:
        relative = f"{np.linalg.norm(gradient - case.to_hidden) / np.linalg.norm(case.to_hidden):.0e}"
    return f"{error.max():.1e} ({error.mean():.1e}), {relative}"


def main() -> None:
    """Flags -> table."""
    found = {int(vocab): measure(int(vocab), EMBED_DIM.value, TOKENS.value) for vocab in VOCABULARIES.value}
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}: largest (mean) error, error of the gradient\n")
    print_head(("model", "head", *(f"V = {vocab:,}" for vocab in found)), left=(0, 1))
    for key in next(iter(found.values())):
        print_row(*key, *(cells[key] for cells in found.values()))


if __name__ == "__main__":
    app.run(main)
