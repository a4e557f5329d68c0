"""The measurements of `benchmarks.h200` that this library makes, each for a process of its own.

They need what the model, the learner and the sampler import, and no configs, checkpoints or problem sets: JAX, numpy,
flax, optax, jaxtyping, absl and safetensors.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from benchmarks.h200_cases import Case, shape_of
from benchmarks.shared import median_seconds
from isocompute_jax import learner, model
from isocompute_jax.accelerators import known_device
from isocompute_jax.model.flops import Work, step_flops
from isocompute_jax.model.packed_attention import choose_kernel, packed_attention
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.sampling.slot_sampler import SlotSampler

GROUP = 8
"""Rollouts of a problem, in decoding."""
CHUNK_STEPS = 64
"""Tokens that slots draw in one call."""
AS_IT_IS: dict[str, Any] = {}
NOT_TUNED: dict[str, Any] = {"xla_gpu_autotune_level": 0}
"""Compiler options, as programs are compiled for GPUs that are not there. Some XLA's have no untuned tiles for their
Triton products: then `WITHOUT_TRITON` too."""
WITHOUT_TRITON: dict[str, Any] = {"xla_gpu_enable_triton_gemm": False}


def measure(case: Case) -> dict[str, Any]:
    """The figures of one case, as plain data."""
    found = {"rate": rate_of, "attention": attention_of, "learner": learner_of, "decode": decode_of}[case.kind](case)
    return found | {"peak_bytes": peak_bytes()}


def model_config(case: Case) -> model.ModelConfig:
    """The shape of a case, in bfloat16."""
    longest = max(case.row_tokens, case.prompt + case.completion)
    return model.ModelConfig(
        **shape_of(case),
        rope_theta=1e6,
        norm_eps=1e-6,
        max_positions=longest,
        dtype="bfloat16",
        remat=case.remat,  # pyright: ignore[reportArgumentType]
        attention=case.attention,  # pyright: ignore[reportArgumentType]
    )


def step_seconds(step: Callable[[], Any], repeats: int) -> float:
    """The median of calls that are waited for, after two that are not timed."""
    return median_seconds(lambda: jax.block_until_ready(step()), repeats)


def product_rate(size: int) -> float:
    """FLOP/s of the product of two bfloat16 matrices, 16 one after the other in one program."""
    a, b = (jax.random.normal(jax.random.key(i), (size, size), jnp.bfloat16) for i in range(2))

    @jax.jit
    def products(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 16, lambda _, x: (x @ b * (1 / size**0.5)).astype(x.dtype), a)

    return 16 * 2 * size**3 / step_seconds(lambda: products(a, b), 5)


def _product_size(case: Case) -> int:
    return 256 if case.model == "small" else 8192


def rate_of(case: Case) -> dict[str, Any]:
    """The rate of bfloat16 products, which MFU divides by."""
    return {"product_rate": product_rate(_product_size(case))}


def peak_bytes() -> int | None:
    """The most that this process has had on its device, by the allocator's account; None where there is none."""
    statistics_of = jax.local_devices()[0].memory_stats()
    return None if statistics_of is None else statistics_of["peak_bytes_in_use"]


def firsts(rows: int, row_tokens: int, sequence: int) -> np.ndarray:
    """[N, T] where each token's sequence begins, of sequences of `sequence` tokens (0: one a row)."""
    first = np.arange(row_tokens) // (sequence or row_tokens) * (sequence or row_tokens)
    return np.tile(first.astype(np.int32), (rows, 1))


def pairs_of(first: np.ndarray) -> float:
    """Pairs of a query and a key that it sees."""
    return float((np.arange(first.shape[1]) - first + 1).sum(dtype=np.float64))


def attention_of(case: Case) -> dict[str, Any]:
    """One layer's attention, forward and backward; refused kernels raise InputError with the reason."""
    config = model_config(case)
    first = firsts(case.rows, case.row_tokens, case.sequence)
    heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (
        jax.random.normal(key, (case.rows, case.row_tokens, n, config.head_dim), jnp.bfloat16)
        for key, n in zip(keys, heads, strict=True)
    )

    @jax.jit
    def gradients(q: jax.Array, k: jax.Array, v: jax.Array, first: jax.Array) -> Any:
        def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            out = packed_attention(q, k, v, first, kernel=config.attention, mesh=None)
            return jnp.sum(out.astype(jnp.float32) ** 2)

        return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)

    rate = product_rate(_product_size(case))
    started = time.perf_counter()
    compiled: Any = gradients.lower(q, k, v, first).compile()
    compile_s = time.perf_counter() - started
    seconds = step_seconds(lambda: compiled(q, k, v, first), case.repeats)
    flops = 12.0 * config.num_heads * config.head_dim * pairs_of(first)
    return {"seconds": seconds, "flops": flops, "product_rate": rate, "compile_s": compile_s}


@dataclasses.dataclass(frozen=True)
class Step:
    """The learner's step of a case: what to lower, and shapes of what it takes."""

    config: model.ModelConfig
    optimizer: Any
    step: Any
    arguments: tuple[Any, ...]


def learner_step(case: Case, mesh: Mesh | None = None) -> Step:
    """The step, of a mesh of one device that may not be there, or of this process's."""
    config = model_config(case)
    optimizer = learner.make_optimizer(
        learner.OptimizerConfig(moments=case.moments)  # pyright: ignore[reportArgumentType]
    )
    shardings = None
    if mesh is not None:
        shardings = learner.state_shardings(config, mesh, optimizer)
    score = learner.make_score(config, temperature=1.0, chunk_tokens=None, mesh=mesh)
    step = learner.make_train_step(score, learner.LossConfig(), optimizer, shardings=shardings, donate=True)
    params = model.abstract_params(config, jnp.float32)
    state = learner.TrainState(jax.ShapeDtypeStruct((), jnp.int32), params, jax.eval_shape(optimizer.init, params))
    arguments = (state, *jax.eval_shape(lambda: _on_device(batch_of(case, config))), jnp.float32(0))
    if mesh is not None:
        place = SingleDeviceSharding(mesh.devices.flat[0])
        arguments = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), arguments)
    return Step(config, optimizer, step, arguments)


def batch_of(case: Case, config: model.ModelConfig) -> tuple[learner.PackedBatch, learner.Credit]:
    """One micro-batch of random tokens, of which an eighth of each sequence is its prompt; advantages of 1 and -1."""
    rng = np.random.default_rng(0)
    first = firsts(case.rows, case.row_tokens, case.sequence)
    sequence = case.sequence or case.row_tokens
    starts = first + np.arange(case.rows, dtype=np.int32)[:, None] * case.row_tokens
    shape = (1, *first.shape)
    mask = np.arange(case.row_tokens) - first >= sequence // 8
    batch = learner.PackedBatch(
        tokens=rng.integers(0, config.vocab_size, shape, np.int32),
        first=first[None],
        mask=mask[None],
        sampler_logprobs=np.where(mask, -np.log(config.vocab_size), 0.0).astype(np.float32)[None],
        rollout=(starts // sequence)[None],
        num_microbatches=np.int32(1),
    )
    advantages = np.where(np.arange(case.rows * case.row_tokens // sequence) % 2, 1.0, -1.0).astype(np.float32)[None]
    weights = np.full_like(advantages, 1 / mask.sum())
    return batch, learner.Credit(advantages, weights, weights)


def _on_device(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


def learner_of(case: Case) -> dict[str, Any]:
    """A whole update: log-probabilities, loss, gradients and AdamW.

    MFU is (6 x parameters x tokens + attention + head) / time over the rate of products that was measured in this
    process; `model.flops` counts them. The program is compiled twice: as it runs, and without autotuning.
    """
    made = learner_step(case)
    config = made.config
    kernel = choose_kernel(
        config.attention, jax.local_devices()[0], head_dim=config.head_dim, dtype=jnp.dtype(config.dtype)
    )
    rate = product_rate(_product_size(case))
    tuned = compiled(made, AS_IT_IS)
    plain = compiled(made, NOT_TUNED, NOT_TUNED | WITHOUT_TRITON)
    params = model.init_params(config, jax.random.key(0))
    state = learner.init_state(params, made.optimizer)
    del params
    batch, credited = _on_device(batch_of(case, config))
    held = [state]

    def update() -> Any:
        held[0], metrics = tuned["program"](held[0], batch, credited, jnp.float32(1e-6))
        return metrics

    seconds = step_seconds(update, case.repeats)
    tokens, pairs = float(case.rows * case.row_tokens), pairs_of(firsts(case.rows, case.row_tokens, case.sequence))
    flops = step_flops(config, Work(case.rows, tokens, tokens, pairs, pairs, 1))
    metrics = {name: float(value) for name, value in update().items() if name in ("loss", "gradient_norm")}
    return {
        "parameters": model.count_params(config),
        "attention": kernel,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "flops": flops.model,
        "product_rate": rate,
        "mfu": flops.model / seconds / rate,
        "compile_s": tuned["seconds"],
        "compile_not_tuned_s": plain["seconds"],
        "predicted_bytes": tuned["bytes"],
        "predicted_not_tuned_bytes": plain["bytes"],
        **metrics,
    }


def compiled(made: Step, *ways: dict[str, Any]) -> dict[str, Any]:
    """The program, seconds to trace and compile it, and what it says that it needs; by the first options that work."""
    started = time.perf_counter()
    lowered = made.step.lower(*made.arguments)
    for options in ways:
        try:
            program: Any = lowered.compile(compiler_options=options or None)
            break
        except jax.errors.JaxRuntimeError:
            if options == ways[-1]:
                raise
    seconds = time.perf_counter() - started
    stats = program.memory_analysis()
    outputs = stats.output_size_in_bytes - stats.alias_size_in_bytes
    needed = stats.argument_size_in_bytes + outputs + stats.temp_size_in_bytes
    return {"program": program, "seconds": seconds, "bytes": needed}


def decode_of(case: Case) -> dict[str, Any]:
    """The slots engine: all slots filled with groups of 8, completions of one length.

    `tokens_per_s` is of whole rounds, prompts included; `chunk_tokens_per_s` of calls that only draw. The limit is what
    reading the weights once a token, and each slot's keys at their mean length, takes at the device's bandwidth.
    """
    config = model_config(case)
    params = model.init_params(config, jax.random.key(0))
    length = case.prompt + case.completion
    sampler = SlotSampler(config, params, slots=case.slots, length=length, chunk_steps=CHUNK_STEPS)
    started = time.perf_counter()
    sampler.compile()
    compile_s = time.perf_counter() - started
    rng = np.random.default_rng(0)
    rounds, chunks = [], []
    for number in range(case.repeats + 1):
        for group in range(case.slots // GROUP):
            prompt = rng.integers(0, config.vocab_size, case.prompt).astype(np.int32)
            params_of = SamplingParams(1.0, 1.0, case.completion)
            sampler.submit(group, SampleRequest(f"{number}-{group}", prompt, GROUP, 0, 0, (), params_of))
        begun = last = time.perf_counter()
        while sampler.busy:
            before = sampler.tokens_generated
            sampler.step()
            now = time.perf_counter()
            chunks.append((sampler.tokens_generated - before) / (now - last))
            last = now
        rounds.append(last - begun)
    drawn = case.slots * case.completion
    weights = 2.0 * model.count_params(config)
    keys = 4.0 * config.num_layers * config.num_kv_heads * config.head_dim * (case.prompt + case.completion / 2)
    kind = jax.local_devices()[0].device_kind
    device = known_device(kind)
    limit = None if device is None else case.slots * device.memory_bandwidth / (weights + case.slots * keys)
    return {
        "seconds": statistics.median(rounds[1:]),
        "tokens_per_s": drawn / statistics.median(rounds[1:]),
        "chunk_tokens_per_s": statistics.median(chunks),
        "limit_tokens_per_s": limit,
        "compile_s": compile_s,
    }
