"""Run by test_head.py where the compilers are."""

import math
import re

import jax
import jax.numpy as jnp

from isocompute_jax import model, sharding
from isocompute_jax.plan.topology import parse_topology

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_PRODUCTS = re.compile(r" (?:dot|convolution)\(|__cublas\$gemm")
_COLLECTIVES = re.compile(r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


def gradient(name, fields):
    """`_gradient` with keywords that came as JSON."""
    return _gradient(name, **fields)


def _gradient(
    name,
    *,
    vocab,
    embed,
    tokens,
    tied=False,
    dtype: model.Dtype = "bfloat16",
    head: model.HeadPrecision = "auto",
    tensor=1,
):
    """The gradient of log-probabilities and entropies of `tokens` a device, towards hidden states and float32 masters.

    Returns:
      Of a device: `temporaries`, `largest` and `collective` in bytes, the last two those of the largest array of the
      program and of the largest one that a collective gives; `products` of matrices, and `splits` of numbers into
      bfloat16 parts, as written in the program.
    """
    devices = parse_topology(name).devices()
    mesh = sharding.make_mesh(fsdp=len(devices) // tensor, tensor=tensor, devices=devices)
    config = model.ModelConfig(
        vocab_size=vocab,
        embed_dim=embed,
        num_layers=1,
        num_heads=8,
        num_kv_heads=8,
        head_dim=128,
        mlp_dim=embed,
        tied_embeddings=tied,
        rope_theta=1e6,
        norm_eps=1e-6,
        max_positions=tokens,
        dtype=dtype,
        head=head,
    )
    rows = len(devices) // tensor

    def abstract(shape, axes, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding.named_sharding(mesh, shape, axes))

    def loss(hidden, params, targets, weights, temperature):
        scores = model.token_logprobs(
            config, params, hidden, targets, temperature=temperature, chunk_tokens=None, mesh=mesh
        )
        return sum(jnp.sum(weights * x) for x in scores)

    key = "embed" if tied else "head"
    spec = model.param_specs(config)[key]
    params = {key: abstract(spec.shape, spec.axes, "float32")}
    hidden = abstract((rows, tokens, embed), ("batch", None, None), dtype)
    targets = abstract((rows, tokens), ("batch", None), "int32")
    arguments = (
        hidden,
        params,
        targets,
        abstract((rows, tokens), ("batch", None), "float32"),
        abstract((), (), "float32"),
    )
    placed = jax.tree.map(lambda x: x.sharding, (hidden, params))
    program = jax.jit(jax.grad(loss, (0, 1)), out_shardings=placed).lower(*arguments).compile()
    text, memory = program.as_text(), program.memory_analysis()
    assert text is not None and memory is not None
    return {
        "temporaries": memory.temp_size_in_bytes,
        "largest": max(_sizes(text)),
        "collective": max(size for match in _COLLECTIVES.finditer(text) for size in _sizes(match[1])),
        "products": len(_PRODUCTS.findall(text)),
        "splits": len(re.findall(r" reduce-precision\(", text)),
    }


def _sizes(text):
    """Bytes of every array whose shape is written in a text of XLA's."""
    for kind, shape in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", text):
        yield _BYTES.get(kind, 0) * math.prod(int(size) for size in shape.split(",") if size)
