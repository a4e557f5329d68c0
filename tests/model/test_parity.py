"""The model against transformers, an independent implementation: every family, logits and gradients."""

import functools
import importlib.util
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.model import layers, sampling_copy
from isocompute_jax.records.errors import InputError
from tests.model.tiny import LLAMA4, logits_of, random_params

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

SHAPES = {
    "tied": dict(
        embed_dim=64, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=32, mlp_dim=192, tied_embeddings=True
    ),
    "untied": dict(
        embed_dim=48, num_layers=2, num_heads=6, num_kv_heads=3, head_dim=8, mlp_dim=80, tied_embeddings=False
    ),
    "wide_heads": dict(
        embed_dim=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, mlp_dim=64, tied_embeddings=False
    ),
    "llama": dict(
        embed_dim=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, mlp_dim=48, tied_embeddings=True,
        attention_bias=False, rope_scaling=model.RopeScaling(8.0, 1.0, 4.0, 16),
    ),
    "qwen3": dict(
        embed_dim=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, mlp_dim=48, tied_embeddings=True,
        attention_bias=False, qk_norm=True,
    ),
    "qwen3_moe": dict(
        embed_dim=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, mlp_dim=24, tied_embeddings=False,
        attention_bias=False, qk_norm=True, num_experts=6, experts_per_token=2,
    ),
    "moe_not_normalized": dict(
        embed_dim=32, num_layers=9, num_heads=2, num_kv_heads=1, head_dim=16, mlp_dim=16, tied_embeddings=True,
        attention_bias=False, qk_norm=True, num_experts=4, experts_per_token=3, normalized_routing=False,
    ),
    "llama4_text": LLAMA4 | dict(
        embed_dim=32, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=8, mlp_dim=24, tied_embeddings=False,
        rope_scaling=model.RopeScaling(8.0, 1.0, 1.0, 16), global_interval=3,
    ),
    "llama4_tied": LLAMA4 | dict(
        embed_dim=32, num_layers=4, num_heads=4, num_kv_heads=4, head_dim=8, mlp_dim=16, tied_embeddings=True,
        num_experts=3, experts_per_token=2, attention_chunk=3, qk_l2_norm=False, query_scaling=None,
    ),
}  # fmt: skip


def make_config(shape: str, **changes: Any) -> model.ModelConfig:
    fields: dict[str, Any] = (
        dict(vocab_size=61, rope_theta=1e4, norm_eps=1e-6, max_positions=128) | SHAPES[shape] | changes
    )
    return model.ModelConfig(**fields)


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs)))


def transformers_model(directory: pathlib.Path, config: model.ModelConfig, params: model.Params) -> Any:
    """What transformers makes of our checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM

    model.save_checkpoint(directory, config, params, tokenizer_from=None)
    load: Any = AutoModelForCausalLM.from_pretrained
    reference, info = load(directory, dtype=torch.float32, output_loading_info=True)
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert reference.config.model_type == config.architecture
    return reference.eval()


PADDINGS = {
    **{shape: ["none"] for shape in SHAPES},
    **{shape: ["none", "left", "right"] for shape in ("untied", "llama", "qwen3_moe")},
    "llama4_text": ["right"],  # on the left, transformers counts padding in the temperature
    "llama4_tied": ["left"],
}


@pytest.mark.parametrize(
    "shape", [pytest.param(shape, marks=pytest.mark.slow if shape == "llama4_tied" else ()) for shape in PADDINGS]
)
def test_logits_equal_transformers(shape, tmp_path):
    import torch

    config = make_config(shape)
    params = random_params(config)
    reference = transformers_model(tmp_path / "checkpoint", config, params)
    tokens = np.random.default_rng(2).integers(0, config.vocab_size, (3, 11))
    for padding in PADDINGS[shape]:
        mask = np.ones_like(tokens, bool)
        if padding == "left":
            mask[1, :4] = mask[2, :7] = False
        if padding == "right":
            mask[1, -4:] = mask[2, -7:] = False
        with torch.no_grad():
            positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
            theirs = reference(
                torch.tensor(tokens), attention_mask=torch.tensor(mask).long(), position_ids=torch.tensor(positions)
            ).logits.numpy()
        ours = np.asarray(logits_of(config, params, tokens, mask))
        assert relative_error(ours[mask], theirs[mask]) < 1e-4, padding


@pytest.mark.parametrize(
    "shape",
    [
        "llama",
        "qwen3",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3_moe", "untied", "llama4_text")),
    ],
)
def test_gradients_equal_transformers(shape, tmp_path):
    """Of the mean log-probability of a text, for every tensor under its Hugging Face name."""
    import torch

    config = make_config(shape)
    params = random_params(config)
    tokens = np.random.default_rng(5).integers(0, config.vocab_size, (3, 12))

    def loss(params):
        hidden, _ = model.prefill(config, params, jnp.asarray(tokens), jnp.ones(tokens.shape, bool))
        scores = jax.nn.log_softmax(model.logits(config, params, hidden)[:, :-1])
        return -jnp.mean(jnp.take_along_axis(scores, jnp.asarray(tokens)[:, 1:, None], -1))

    ours = dict(model.hf_tensors(config, jax.jit(jax.grad(loss))(params)))
    reference = transformers_model(tmp_path / "checkpoint", config, params)
    reference(torch.tensor(tokens), labels=torch.tensor(tokens)).loss.backward()
    theirs = {name: value.grad.numpy() for name, value in reference.named_parameters()}
    together = () if shape.startswith("llama4") else ("gate_up_proj", "experts.down_proj")
    for name in [name for name in theirs if name.endswith(together)]:
        for expert, value in enumerate(theirs.pop(name)):  # transformers holds experts together
            parts = zip(("gate_proj", "up_proj"), np.split(value, 2), strict=True)
            parts = parts if name.endswith("gate_up_proj") else [("down_proj", value)]
            theirs |= {f"{name.rpartition('.')[0]}.{expert}.{part}.weight": x for part, x in parts}
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert relative_error(ours[name], value) < 1e-4, name


@pytest.mark.parametrize(
    "shape",
    [
        "llama",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("wide_heads", "qwen3_moe", "llama4_text")),
    ],
)
@pytest.mark.parametrize("apart", [True, False], ids=["apart", "stacked"])
def test_prefix_sharing_equals_one_pass(shape, apart, monkeypatch):
    """prefill + extend, and prefill + decode token by token, equal a pass over the joined sequence."""
    monkeypatch.setattr(sampling_copy, "MOST_APART", 8 if apart else 1)  # by the layers together, as larger models
    config = make_config(shape)
    params = random_params(config)
    rng = np.random.default_rng(3)
    problems, rollouts, prompt, length = 3, 4, 7, 5
    tokens = rng.integers(0, config.vocab_size, (problems, prompt))
    mask = np.arange(prompt)[None] >= np.array([[0], [2], [5]])  # left padding
    completions = rng.integers(0, config.vocab_size, (problems, rollouts, length))

    prefill, extend, decode = (
        jax.jit(function, static_argnums=0) for function in (model.prefill, model.extend, model.decode)
    )
    _, prefix = prefill(config, params, jnp.asarray(tokens), jnp.asarray(mask))
    extended, _ = extend(config, params, jnp.asarray(completions), prefix)
    cache = model.init_caches(config, prefix, rollouts, length)
    steps = []
    for t in range(length):
        step, cache, _ = decode(config, params, jnp.asarray(completions[..., t]), jnp.int32(t), prefix, cache)
        steps.append(step)
    decoded = jnp.stack(steps, axis=2)

    joined = np.concatenate([np.repeat(tokens[:, None], rollouts, 1), completions], -1).reshape(-1, prompt + length)
    joined_mask = np.hstack([np.repeat(mask, rollouts, 0), np.ones((len(mask) * rollouts, length), bool)])
    whole, _ = prefill(config, params, jnp.asarray(joined), jnp.asarray(joined_mask))
    expected = np.asarray(whole)[:, prompt:].reshape(problems, rollouts, length, -1)
    np.testing.assert_allclose(extended, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    np.testing.assert_allclose(decoded, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_decoding_in_bfloat16():
    """XLA:CPU has no product of bfloat16 in the layout of prompts that rollouts share: decoding there is wider."""
    config = make_config("llama", num_heads=6, num_kv_heads=3, head_dim=64, dtype="bfloat16")
    params = random_params(config, scale=0.1)
    rng = np.random.default_rng(3)
    prompts, drawn = (jnp.asarray(rng.integers(0, config.vocab_size, size)) for size in ((2, 20), (2, 8, 3)))

    @jax.jit
    def both(params, prompts, drawn):
        _, prefix = model.prefill(config, params, prompts, jnp.ones(prompts.shape, bool))
        cache, steps = model.init_caches(config, prefix, 8, 3), []
        for t in range(3):
            step, cache, _ = model.decode(config, params, drawn[..., t], jnp.int32(t), prefix, cache)
            steps.append(step)
        return jnp.stack(steps, axis=2), model.extend(config, params, drawn, prefix)[0]

    decoded, extended = both(params, prompts, drawn)
    assert decoded.dtype == jnp.bfloat16
    decoded, extended = (np.asarray(x, np.float32) for x in (decoded, extended))
    np.testing.assert_allclose(decoded, extended, rtol=0, atol=0.02 * np.abs(extended).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_written_out_gradients(dtype):
    """Of `project` and `swiglu`, beside those that JAX derives in float64."""
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 5, 12), "w_gate": (12, 20), "w_up": (12, 20), "w_down": (20, 12), "w": (12, 12)}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    seen = rng.normal(size=shapes["x"])

    def derived(x, w_gate, w_up, w_down, w):
        hidden = x @ w
        return jnp.sum(seen * ((jax.nn.silu(hidden @ w_gate) * (hidden @ w_up)) @ w_down))

    def written(x, w_gate, w_up, w_down, w):
        return jnp.sum(seen.astype(np.float32) * layers.swiglu(layers.project(x, w), w_gate, w_up, w_down))

    with jax.enable_x64(True):
        theirs = jax.grad(lambda each: derived(**each))(arrays)
    ours = jax.jit(jax.grad(lambda each: written(**each)))(jax.tree.map(lambda x: jnp.asarray(x, dtype), arrays))
    for name, gradient in theirs.items():
        tolerance = {"float32": 1e-5, "bfloat16": 0.03}[dtype]
        assert relative_error(np.asarray(ours[name], np.float64), np.asarray(gradient)) < tolerance, name


def test_longer_sequences_than_the_model_was_made_for_are_refused():
    """By whatever computes them, while it is traced."""
    config = make_config("tied", max_positions=8)

    def trace(function, *arguments):
        return jax.eval_shape(functools.partial(function, config), model.abstract_params(config), *arguments)

    def tokens(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    def prefill(length):
        return trace(model.prefill, tokens(1, length), jax.ShapeDtypeStruct((1, length), bool))

    def extend(length):
        return trace(model.extend, tokens(1, 2, length), prefill(6)[1])

    def decode(length):
        cache = jax.eval_shape(lambda prefix: model.init_caches(config, prefix, 2, length), prefill(6)[1])
        return trace(model.decode, tokens(1, 2), tokens(), prefill(6)[1], cache)

    for compute, longest in ((prefill, 8), (extend, 2), (decode, 2)):
        compute(longest)
        with pytest.raises(InputError, match="max_position_embeddings = 8"):
            compute(longest + 1)
