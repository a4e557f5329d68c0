"""Adapters: what they compute, gradients beside peft's on torch and beside those of merged weights, and files."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from isocompute_jax import model, sharding
from isocompute_jax.model.lora import Adapted, LoraConfig
from isocompute_jax.records.errors import InputError
from tests.model.tiny import LLAMA4, logits_of, random_params, tiny_config

MOE = dict(num_experts=4, experts_per_token=2, attention_bias=False, qk_norm=True)
FAMILIES = {"dense": {}, "moe": MOE, "llama4": LLAMA4}
LORA = LoraConfig(rank=3, alpha=6.0)


def random_adapters(config, lora=LORA, seed=1):
    """B is not zero, so that all of it matters."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype), model.abstract_adapters(config, lora)
    )


def some_tokens(rows=3, length=7):
    tokens = np.random.default_rng(2).integers(0, 12, (rows, length))
    return jnp.asarray(tokens), jnp.ones(tokens.shape, bool)


@pytest.mark.parametrize("family", ["dense", "moe", pytest.param("llama4", marks=pytest.mark.slow)])
def test_adapted_weights_compute_what_merged_ones_do(family):
    layers = 2 if family == "llama4" else 1  # of which one is global
    config = tiny_config(dtype="float64", num_layers=layers, **FAMILIES[family])
    with jax.enable_x64(True):
        base, adapters, tokens = random_params(config), random_adapters(config), some_tokens()
        weights = model.with_adapters(base, adapters)
        assert model.is_adapted(weights) and not model.is_adapted(model.merged(weights))
        found = logits_of(config, weights, *tokens)
        np.testing.assert_allclose(found, logits_of(config, model.merged(weights), *tokens), atol=1e-12)
        assert np.max(np.abs(found - logits_of(config, base, *tokens))) > 0.1

        def loss(adapters, through):
            hidden, _ = model.prefill(config, through(model.with_adapters(base, adapters)), *tokens)
            return jnp.sum(jnp.sin(hidden))

        gradient = functools.partial(jax.jit(jax.grad(loss), static_argnums=1), adapters)
        apart, together = gradient(lambda x: x), gradient(model.merged)
    for one, other in zip(jax.tree.leaves(apart), jax.tree.leaves(together), strict=True):
        assert np.any(np.asarray(one))
        np.testing.assert_allclose(one, other, atol=1e-11)


def test_merging_by_hand():
    """W + alpha / r A B, layer by layer, heads joined and apart."""
    config = tiny_config()
    base, adapters = random_params(config), random_adapters(config)
    layers = model.merged(model.with_adapters(base, adapters))["layers"]
    for name, rows in (("wq", 1), ("wo", 2), ("w_down", 1)):
        pair, whole = adapters["layers"][name], base["layers"][name]
        for layer in range(config.num_layers):
            a, b = np.asarray(pair.a[layer]), np.asarray(pair.b[layer])
            product = 2.0 * a.reshape(-1, 3) @ b.reshape(3, -1)
            expected = np.asarray(whole[layer]) + product.reshape(whole.shape[1:])
            np.testing.assert_allclose(layers[name][layer], expected, atol=1e-6)
        assert pair.a.ndim == 2 + rows


@pytest.mark.parametrize(
    ("family", "axes"),
    [
        ("dense", {"fsdp": 4, "tensor": 2}),
        pytest.param("moe", {"fsdp": 4, "tensor": 2}, marks=pytest.mark.slow),
        pytest.param("moe", {"fsdp": 2, "expert": 2, "tensor": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_mesh_computes_what_one_device_does(family, axes):
    config = tiny_config(num_layers=1, **FAMILIES[family])
    base, adapters, mesh = random_params(config), random_adapters(config), sharding.make_mesh(**axes)
    tokens = some_tokens(rows=4)

    def loss(adapters, base, mesh):
        hidden, _ = model.prefill(config, model.with_adapters(base, adapters), *tokens, mesh=mesh)
        return jnp.sum(jnp.sin(hidden))

    program = jax.jit(jax.value_and_grad(loss), static_argnums=2)
    value, gradients = program(adapters, base, None)
    placed = jax.device_put(adapters, model.adapter_shardings(config, LORA, mesh))
    on_mesh, gradients8 = program(placed, jax.device_put(base, model.param_shardings(config, mesh)), mesh)
    np.testing.assert_allclose(value, on_mesh, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(gradients8), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


def test_training_begins_with_the_base_model_s_policy():
    config = tiny_config()
    adapters, bound = model.init_adapters(config, LORA, jax.random.key(0)), config.embed_dim**-0.5
    pair = adapters["layers"]["wq"]
    assert not np.any(pair.b) and 0.9 * bound < np.max(np.abs(pair.a)) < bound
    base, tokens = random_params(config), some_tokens()
    np.testing.assert_array_equal(
        logits_of(config, model.with_adapters(base, adapters), *tokens), logits_of(config, base, *tokens)
    )


def test_full_rank_with_an_orthogonal_a_steps_as_full_training_does():
    """A A' = 1 and B = 0: the step of plain SGD moves W by -lr (alpha / r)^2 A A' dW, for alpha = r by -lr dW."""
    config = tiny_config(dtype="float64", embed_dim=8, num_heads=1, mlp_dim=8)
    lora, rng = LoraConfig(rank=8, alpha=8.0), np.random.default_rng(0)
    with jax.enable_x64(True):
        base, tokens = random_params(config), some_tokens()

        @jax.jit
        def loss(params):
            hidden, _ = model.prefill(config, params, *tokens)
            return jnp.sum(jnp.sin(hidden))

        adapters = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), model.abstract_adapters(config, lora))
        for name, pair in adapters["layers"].items():
            rows = np.stack([np.linalg.qr(rng.normal(size=(8, 8)))[0] for _ in range(config.num_layers)])
            adapters["layers"][name] = pair.replace(a=jnp.asarray(rows.reshape(pair.a.shape)))
        full = jax.grad(loss)(base)
        gradients = jax.grad(lambda x: loss(model.with_adapters(base, x)))(adapters)
        stepped = jax.tree.map(lambda x, g: x - 0.1 * g, adapters, gradients)
        weights = model.merged(model.with_adapters(base, stepped))["layers"]
        for name in adapters["layers"]:
            assert not np.any(gradients["layers"][name].a)  # B is zero
            expected = base["layers"][name] - 0.1 * full["layers"][name]
            np.testing.assert_allclose(weights[name], expected, atol=1e-12)


def test_only_targets_are_adapted():
    config = tiny_config()
    table = model.adapter_specs(config, dataclasses.replace(LORA, targets="q_proj, down_proj"))
    assert sorted(table["layers"]) == ["w_down", "wq"]
    weights = model.with_adapters(random_params(config), random_adapters(config, LORA))
    assert isinstance(weights["layers"]["wk"], Adapted) and not isinstance(weights["layers"]["mlp_norm"], Adapted)


@pytest.mark.parametrize(
    ("fields", "family", "said"),
    [
        ({"targets": "q_proj,qkv"}, "dense", "targets = 'q_proj,qkv': this qwen2 has no 'qkv'.* it has q_proj, k_proj"),
        ({"targets": "gate"}, "moe", "has no 'gate'"),
        ({"rank": 9}, "dense", r"rank = 9 is above 8, the rank that k_proj \(8, 16\) can have"),
    ],
)
def test_what_cannot_be_adapted_is_named(fields, family, said):
    lora = dataclasses.replace(LORA, **fields)
    with pytest.raises(InputError, match=said):
        model.adapter_specs(tiny_config(**FAMILIES[family]), lora)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"alpha": 0.0}, "alpha = 0.0 must be above 0"),
        ({"rank": -1}, "rank = -1 must be at least 0"),
        ({"rank": 0, "targets": "q_proj"}, "targets = 'q_proj' says something of adapters, and there are none without"),
        ({"rank": 0, "served": True}, "served = True says something of adapters"),
        ({"rank": 0, "start": "somewhere"}, "start = 'somewhere' says something of adapters"),
    ],
)
def test_fields_that_mean_nothing_are_refused(fields, said):
    with pytest.raises(InputError, match=said):
        LoraConfig(**({"rank": 3} | fields))


# --- files


def saved(path, config, lora=LORA):
    base, adapters = random_params(config), random_adapters(config, lora)
    mark = model.fingerprint(base)
    model.save_adapter(path / "adapter", config, lora, adapters, base="base", base_fingerprint=mark)
    return base, adapters, mark


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_come_back_to_the_bit(family, tmp_path):
    config = tiny_config(**FAMILIES[family])
    _, adapters, mark = saved(tmp_path, config)
    found = model.load_adapter(tmp_path / "adapter", config, LORA, base_fingerprint=mark)
    jax.tree.map(np.testing.assert_array_equal, adapters, found)


def test_adapters_of_others_are_taken_and_said_to_be_unknown(tmp_path, caplog):
    config = tiny_config()
    _, adapters, _ = saved(tmp_path, config)
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    safetensors.numpy.save_file(safetensors.numpy.load_file(path), path, {"format": "pt"})  # as peft writes it
    found = model.load_adapter(tmp_path / "adapter", config, LORA, base_fingerprint="any")
    jax.tree.map(np.testing.assert_array_equal, adapters, found)
    assert "does not say on which weights it was trained" in caplog.text


def test_a_copy_in_bfloat16_is_the_same_base(tmp_path):
    config = tiny_config()
    base, _, mark = saved(tmp_path, config)
    assert model.fingerprint(model.cast_params(base, "bfloat16")) == mark
    assert model.fingerprint(random_params(config, seed=5)) != mark


def test_adapters_that_do_not_belong_are_refused(tmp_path):
    config = tiny_config()
    _, _, mark = saved(tmp_path, config)
    load = functools.partial(model.load_adapter, tmp_path / "adapter")
    with pytest.raises(InputError, match="were trained on other weights than those of this run's model"):
        load(config, LORA, base_fingerprint="another")
    with pytest.raises(InputError, match=r"adapter_config.json: r = 3, and the run's lora fields make 2"):
        load(config, dataclasses.replace(LORA, rank=2), base_fingerprint=mark)
    with pytest.raises(InputError, match="target_modules = "):
        load(config, dataclasses.replace(LORA, targets="q_proj"), base_fingerprint=mark)
    with pytest.raises(InputError, match="these are adapters of another model"):
        load(dataclasses.replace(config, mlp_dim=32), LORA, base_fingerprint=mark)
    with pytest.raises(InputError, match=r"adapter_config\.json is missing"):
        model.load_adapter(tmp_path, config, LORA, base_fingerprint=mark)
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"cut")
    with pytest.raises(InputError, match="not a safetensors file that can be read"):
        load(config, LORA, base_fingerprint=mark)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"use_dora": True}, "use_dora is true: only plain LoRA is known here"),
        ({"alpha_pattern": {"q_proj": 32}}, "alpha_pattern is"),
        ({"bias": "all"}, 'bias is "all"'),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
        # These take the principal part out of the model's own weights whenever they are loaded.
        ({"init_lora_weights": "pissa"}, 'init_lora_weights is "pissa"'),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights is"),
        ({"init_lora_weights": "OLoRA"}, "init_lora_weights is"),
        ({"init_lora_weights": "mica"}, "init_lora_weights is"),
        ({"layers_to_transform": 0}, "layers_to_transform is 0"),
        ({"alora_invocation_tokens": [5]}, r"alora_invocation_tokens is \[5\]"),
        ({"kasa_config": {"beta": 1e-4}}, "kasa_config is"),
        ({"a_kind_to_come": 3}, "a_kind_to_come is 3"),
        ({"peft_type": "LOHA", "lora_alpha": None}, 'peft_type is "LOHA"'),
        ({"target_modules": None}, r"target_modules = None, and the run's lora fields make \['down_proj'"),
        ({"target_modules": "all-linear"}, "target_modules = 'all-linear', and"),
        ({"target_modules": ["q_proj", None]}, r"target_modules = \['q_proj', None\]"),
    ],
)
def test_other_kinds_of_adapters_are_refused_by_field(fields, said, tmp_path):
    config = tiny_config()
    _, _, mark = saved(tmp_path, config)
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(InputError, match=said):
        model.load_adapter(tmp_path / "adapter", config, LORA, base_fingerprint=mark)


@pytest.mark.parametrize("init", [True, False, "gaussian", "orthogonal", "eva"])
def test_what_peft_writes_of_plain_adapters_is_taken(init, tmp_path):
    peft = pytest.importorskip("peft")
    config = tiny_config()
    _, adapters, mark = saved(tmp_path, config)
    targets = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["target_modules"]
    theirs = peft.LoraConfig(
        r=LORA.rank, lora_alpha=LORA.alpha, target_modules=targets, init_lora_weights=init, lora_dropout=0.1,
        task_type="CAUSAL_LM", revision="main", exclude_modules=["lm_head"],
        eva_config=peft.EvaConfig() if init == "eva" else None,
    )  # fmt: skip
    theirs.save_pretrained(tmp_path / "adapter")
    found = model.load_adapter(tmp_path / "adapter", config, LORA, base_fingerprint=mark)
    jax.tree.map(np.testing.assert_array_equal, adapters, found)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("family", ["dense", "untied_llama"])
def test_peft_loads_them_and_has_the_same_logits_and_gradients(family, tmp_path):
    """In float64, where nothing but the equations can differ."""
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    fields = {"dense": {}, "untied_llama": dict(attention_bias=False, tied_embeddings=False)}[family]
    config = tiny_config(dtype="float64", **fields)
    with jax.enable_x64(True):
        base, adapters, _ = saved(tmp_path, config)
        model.save_checkpoint(tmp_path / "base", config, base, tokenizer_from=None)
        tokens, mask = some_tokens()
        weights = model.with_adapters(base, adapters)
        logits = np.asarray(logits_of(config, weights, tokens, mask))

        def loss(adapters):
            return jnp.sum(jnp.sin(logits_of(config, model.with_adapters(base, adapters), tokens, mask)))

        gradients = jax.grad(loss)(adapters)
        ours = dict(model.hf_tensors(config, gradients, table=model.adapter_specs(config, LORA)))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float64)
    network = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter", is_trainable=True)
    theirs = network(torch.tensor(np.asarray(tokens))).logits
    # Norms and the rotation are float32 in transformers.
    np.testing.assert_allclose(logits, theirs.detach().numpy(), atol=1e-5)
    torch.sin(theirs).sum().backward()
    found = {
        name.replace(".default", ""): parameter.grad.numpy()
        for name, parameter in network.named_parameters()
        if parameter.grad is not None
    }
    assert ours.keys() == found.keys()
    for name, gradient in ours.items():
        scale = np.max(np.abs(found[name]))
        np.testing.assert_allclose(gradient / scale, found[name] / scale, atol=1e-5, err_msg=name)
