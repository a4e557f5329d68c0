"""Hugging Face directories: nothing changes on the way out and back, and whatever is wrong is named."""

import importlib.util
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from isocompute_jax import model, sharding, tasks
from isocompute_jax.model import hf_checkpoint
from isocompute_jax.records.errors import InputError
from tests.model.tiny import logits_of, random_params, tiny_config

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

UNTIED = dict(tied_embeddings=False, num_heads=4, num_kv_heads=2, num_layers=3, vocab_size=19)
LLAMA = dict(attention_bias=False, rope_scaling=model.RopeScaling(8.0, 1.0, 4.0, 16))
QWEN3 = dict(attention_bias=False, qk_norm=True)
MOE = dict(attention_bias=False, qk_norm=True, num_experts=3, experts_per_token=2, tied_embeddings=False)
CHANGES: dict[str, dict[str, Any]] = {"tied": {}, "untied": UNTIED, "llama": LLAMA, "qwen3": QWEN3, "moe": MOE}
CONFIGS = {name: tiny_config(**changes) for name, changes in CHANGES.items()}
TOKENS = np.random.default_rng(0).integers(0, 12, (2, 9))


def our_logits(config, params):
    return np.asarray(logits_of(config, params, TOKENS, np.ones_like(TOKENS, bool)))


def their_logits(reference):
    import torch

    with torch.no_grad():
        return reference(torch.tensor(TOKENS)).logits.float().numpy()


def assert_identical(ours, theirs):
    """Bit for bit, dtype and structure included."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("shape", CONFIGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("max_file_bytes", [10**9, 5000], ids=["one file", "shards"])
def test_round_trip_is_bit_exact(tmp_path, shape, dtype, max_file_bytes):
    config = tiny_config(**CHANGES[shape], dtype=dtype)
    params = random_params(config)
    model.save_checkpoint(tmp_path / "out", config, params, tokenizer_from=None, max_file_bytes=max_file_bytes)
    assert model.load_config(tmp_path / "out") == config
    assert_identical(model.load_params(tmp_path / "out", config), params)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert ("model.safetensors" in names) == (max_file_bytes == 10**9)
    shards = sorted(name for name in names if name.startswith("model-"))
    if shards:
        assert len(shards) > 1 and shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
        sizes = [sum(x.nbytes for x in safetensors.numpy.load_file(tmp_path / "out" / n).values()) for n in shards]
        assert max(sizes) <= 5000
        assert json.loads((tmp_path / "out" / hf_checkpoint.INDEX).read_text())["metadata"]["total_size"] == sum(sizes)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("max_file_bytes", [10**9, 5000], ids=["one file", "shards"])
def test_masters_are_saved_as_if_they_had_been_cast_before(tmp_path, max_file_bytes):
    config = tiny_config(**UNTIED, dtype="bfloat16")
    masters = random_params(CONFIGS["untied"])
    cast = jax.tree.map(lambda x: np.asarray(x).astype(jnp.bfloat16), masters)
    whole: dict[str, Any] = dict(tokenizer_from=None, max_file_bytes=max_file_bytes)
    model.save_checkpoint(tmp_path / "cast", config, cast, **whole)
    model.save_checkpoint(tmp_path / "masters", config, masters, dtype=config.dtype, **whole)
    before, after = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("cast", "masters")
    )
    assert before == after


@pytest.mark.parametrize("shape", ["untied", "moe"])
def test_transformers_loads_shards_that_we_write(tmp_path, shape):
    """One file of every family: `test_parity.test_logits_equal_transformers`."""
    import torch
    from transformers import AutoModelForCausalLM

    config = CONFIGS[shape]
    params = random_params(config)
    model.save_checkpoint(tmp_path, config, params, tokenizer_from=None, max_file_bytes=5000)
    load: Any = AutoModelForCausalLM.from_pretrained
    reference, info = load(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert reference.config.model_type == config.architecture
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert reference.config.max_position_embeddings == config.max_positions
    assert reference.num_parameters() == model.count_params(config)
    theirs = their_logits(reference.eval())
    np.testing.assert_allclose(our_logits(config, params), theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())


@pytest.mark.parametrize(("shape", "max_shard_size"), [("tied", "1GB"), ("untied", "5KB")])
def test_we_load_what_transformers_writes(tmp_path, shape, max_shard_size):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    ours = CONFIGS[shape]
    torch.manual_seed(0)
    reference = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=ours.vocab_size,
            hidden_size=ours.embed_dim * 2,
            num_hidden_layers=ours.num_layers,
            num_attention_heads=ours.num_heads,
            num_key_value_heads=ours.num_kv_heads,
            intermediate_size=ours.mlp_dim,
            tie_word_embeddings=ours.tied_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": 5e5},
            rms_norm_eps=1e-5,
            max_position_embeddings=77,
            initializer_range=0.3,
        )
    ).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # biases and norms start at 0 and 1, which would hide mix-ups
            parameter += 0.1 * torch.randn_like(parameter)
    reference.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert (tmp_path / hf_checkpoint.INDEX).exists() == (max_shard_size == "5KB")
    config = model.load_config(tmp_path)
    assert (config.rope_theta, config.norm_eps, config.max_positions) == (5e5, 1e-5, 77)
    assert (config.embed_dim, config.head_dim) == (32, 32 // ours.num_heads)
    assert model.count_params(config) == reference.num_parameters()
    theirs = their_logits(reference)
    logits = our_logits(config, model.load_params(tmp_path, config))
    np.testing.assert_allclose(logits, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Llama4ForCausalLM"])
def test_we_load_what_transformers_writes_of_other_families(tmp_path, name):
    import torch
    import transformers

    sizes = dict(vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    sizes |= dict(intermediate_size=24, head_dim=8, max_position_embeddings=77, initializer_range=0.3)
    if name == "Qwen3MoeForCausalLM":
        sizes |= dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, norm_topk_prob=True)
    if name == "Llama4ForCausalLM":
        sizes |= dict(num_local_experts=4, attention_chunk_size=3, no_rope_layers=[1, 0], floor_scale=2)
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    reference = kind(kind.config_class(**sizes)).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    reference.save_pretrained(tmp_path)
    config = model.load_config(tmp_path)
    assert config.architecture == reference.config.model_type and config.max_positions == 77
    assert model.count_params(config) == reference.num_parameters()
    theirs = their_logits(reference)
    logits = our_logits(config, model.load_params(tmp_path, config))
    np.testing.assert_allclose(logits, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())


def test_the_language_model_of_one_that_sees_is_read_and_left_bit_exact(tmp_path):
    """A Llama 4 as published: names and fields of the text apart, and beside them a vision model that is not read."""
    import torch
    from transformers import Llama4Config, Llama4ForConditionalGeneration

    text = dict(vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    text |= dict(intermediate_size=24, head_dim=8, num_local_experts=4, attention_chunk_size=3, no_rope_layers=[1, 0])
    text |= dict(eos_token_id=7)
    seen = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, image_size=28)
    seen |= dict(vision_output_dim=16, projector_input_dim=16, projector_output_dim=16)
    torch.manual_seed(0)
    reference = Llama4ForConditionalGeneration(Llama4Config(text_config=text, vision_config=seen)).eval()
    reference.save_pretrained(tmp_path / "seeing")
    config = model.load_config(tmp_path / "seeing")
    params = model.load_params(tmp_path / "seeing", config)
    theirs = their_logits(reference)
    np.testing.assert_allclose(our_logits(config, params), theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())

    before, prefix = read_tensors(tmp_path / "seeing"), hf_checkpoint.LANGUAGE_MODEL
    before = {name.removeprefix(prefix): x for name, x in before.items() if name.startswith(prefix)}
    model.save_checkpoint(tmp_path / "text", config, params, tokenizer_from=tmp_path / "seeing")
    after = read_tensors(tmp_path / "text")
    assert before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)
    written = json.loads((tmp_path / "text" / "config.json").read_text())
    assert (written["model_type"], written["eos_token_id"]) == ("llama4_text", 7)


def test_dtype_can_be_overridden(tmp_path):
    config = tiny_config(dtype="bfloat16")
    params = random_params(config)
    model.save_checkpoint(tmp_path, config, params, tokenizer_from=None)
    wide = model.load_config(tmp_path, dtype="float32")
    assert wide == tiny_config()
    assert_identical(model.load_params(tmp_path, wide), jax.tree.map(lambda x: x.astype(jnp.float32), params))


def test_a_tied_head_stored_once_more_is_allowed(checkpoint):
    tensors = read_tensors(checkpoint)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    write_tensors(checkpoint, tensors)
    assert_identical(model.load_params(checkpoint, tiny_config()), random_params(tiny_config()))


def test_tokenizer_files_come_along(tmp_path):
    (tmp_path / "base").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "README.md", "pytorch_model.bin"):
        (tmp_path / "base" / name).write_text(f'{{"{name}": "ü"}}')
    config = tiny_config()
    model.save_checkpoint(tmp_path / "out", config, random_params(config), tokenizer_from=tmp_path / "base")
    copied = sorted(path.name for path in (tmp_path / "out").iterdir())
    expected = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert copied == expected
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (tmp_path / "base" / "tokenizer.json").read_bytes()


# Whatever is wrong is an InputError that names the key or the file.


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "checkpoint"
    model.save_checkpoint(directory, tiny_config(), random_params(tiny_config()), tokenizer_from=None)
    return directory


@pytest.fixture
def sharded_checkpoint(tmp_path):
    directory = tmp_path / "sharded"
    params = random_params(tiny_config())
    model.save_checkpoint(directory, tiny_config(), params, tokenizer_from=None, max_file_bytes=5000)
    return directory


def read_tensors(directory):
    return safetensors.numpy.load_file(directory / "model.safetensors")


def write_tensors(directory, tensors):
    safetensors.numpy.save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def assert_refused(directory, complaint):
    with pytest.raises(InputError, match=complaint):
        model.load_params(directory, model.load_config(directory))


def test_a_missing_key_is_named(checkpoint):
    tensors = read_tensors(checkpoint)
    del tensors["model.layers.1.self_attn.k_proj.bias"]
    write_tensors(checkpoint, tensors)
    assert_refused(checkpoint, r"lacks model\.layers\.1\.self_attn\.k_proj\.bias,")


@pytest.mark.parametrize("name", ["model.layers.2.input_layernorm.weight", "model.layers.0.self_attn.q_norm.weight"])
def test_an_unknown_key_is_named(checkpoint, name):
    write_tensors(checkpoint, read_tensors(checkpoint) | {name: np.ones(16, np.float32)})
    assert_refused(checkpoint, name.replace(".", r"\."))


def test_an_untied_checkpoint_without_head_is_refused(checkpoint):
    with pytest.raises(InputError, match=r"lacks lm_head\.weight"):
        model.load_params(checkpoint, tiny_config(tied_embeddings=False))


def test_a_tied_head_that_differs_is_refused(checkpoint):
    tensors = read_tensors(checkpoint)
    head = tensors["model.embed_tokens.weight"].copy()
    head[3, 2] += 2.0**-10
    write_tensors(checkpoint, tensors | {"lm_head.weight": head})
    assert_refused(checkpoint, r"lm_head\.weight differs .* tie_word_embeddings")


def test_an_index_beside_a_single_file_is_refused(checkpoint, sharded_checkpoint):
    """Which of the two is stale cannot be known, and transformers reads the other one."""
    (sharded_checkpoint / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes())
    assert_refused(sharded_checkpoint, r"both model\.safetensors and model\.safetensors\.index\.json")


def test_an_index_of_the_single_file_is_read(checkpoint):
    index = {"weight_map": dict.fromkeys(read_tensors(checkpoint), "model.safetensors")}
    (checkpoint / hf_checkpoint.INDEX).write_text(json.dumps(index))
    assert_identical(model.load_params(checkpoint, tiny_config()), random_params(tiny_config()))


def test_a_tensor_in_two_files_is_refused(sharded_checkpoint):
    first, second = sorted(sharded_checkpoint.glob("model-*"))[:2]
    tensors = safetensors.numpy.load_file(first)
    name = sorted(tensors)[0]
    safetensors.numpy.save_file(safetensors.numpy.load_file(second) | {name: tensors[name]}, second)
    assert_refused(sharded_checkpoint, rf"{first.name} and {second.name} both hold {name}")


@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.bias"]
)
def test_a_misshaped_key_is_named(checkpoint, name):
    """Transposed weights as well: [24, 16] holds as many numbers as [16, 24]."""
    tensors = read_tensors(checkpoint)
    tensors[name] = np.ascontiguousarray(tensors[name].T) if tensors[name].ndim == 2 else tensors[name][:-1]
    write_tensors(checkpoint, tensors)
    assert_refused(checkpoint, rf"model\.safetensors: {name} has shape .*, config\.json asks for")


@pytest.mark.parametrize("damage", ["truncated", "headless", "garbage", "empty"])
def test_a_corrupt_file_is_named(checkpoint, damage):
    path = checkpoint / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes({"truncated": data[:-100], "headless": data[:20], "garbage": b"\xff" * 500, "empty": b""}[damage])
    assert_refused(checkpoint, r"model\.safetensors: corrupt")


def test_missing_files_are_named(checkpoint, sharded_checkpoint):
    (checkpoint / "model.safetensors").unlink()
    assert_refused(checkpoint, r"checkpoint: model\.safetensors is missing")
    shard = sorted(sharded_checkpoint.glob("model-00002-*"))[0]
    shard.unlink()
    assert_refused(sharded_checkpoint, shard.name.replace(".", r"\.") + " is missing")


@pytest.mark.parametrize("index", ["{half", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}'])
def test_a_broken_index_is_named(sharded_checkpoint, index):
    (sharded_checkpoint / hf_checkpoint.INDEX).write_text(index)
    assert_refused(sharded_checkpoint, r"index\.json: ")


# Saving.


@pytest.mark.parametrize("fails", ["save_file", "config", "tokenizer", "rename"])
def test_a_failed_save_leaves_the_old_directory(checkpoint, monkeypatch, tmp_path, fails):
    """Disk full while tensors, config or tokenizer are written, or the last rename refused: nothing is lost."""
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "tokenizer.json").write_text("{}")

    def disk_full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    real_rename = hf_checkpoint.pathlib.Path.rename

    def refuse_new(self, target):
        if (self / "tokenizer.json").exists():  # the directory that was just written
            disk_full()
        return real_rename(self, target)

    if fails == "save_file":
        monkeypatch.setattr(hf_checkpoint.safetensors.numpy, "save_file", disk_full)
    elif fails == "config":
        monkeypatch.setattr(hf_checkpoint, "write_config", disk_full)
    elif fails == "tokenizer":
        monkeypatch.setattr(hf_checkpoint.shutil, "copyfile", disk_full)
    else:
        monkeypatch.setattr(hf_checkpoint.pathlib.Path, "rename", refuse_new)
    with pytest.raises(OSError, match="No space"):
        params = random_params(tiny_config(), seed=3)
        model.save_checkpoint(checkpoint, tiny_config(), params, tokenizer_from=tmp_path / "base")
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "checkpoint"]


def test_saving_replaces_the_whole_directory(checkpoint):
    (checkpoint / "model-00001-of-00009.safetensors").write_text("stale")
    params = random_params(tiny_config(), seed=3)
    model.save_checkpoint(checkpoint, tiny_config(), params, tokenizer_from=None)
    assert sorted(path.name for path in checkpoint.iterdir()) == ["config.json", "model.safetensors"]
    assert_identical(model.load_params(checkpoint, tiny_config()), params)
    assert checkpoint.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in checkpoint.parent.iterdir()] == ["checkpoint"]


# Sharding.


def test_parameters_load_straight_onto_a_mesh(checkpoint):
    config = tiny_config()
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    shardings = model.param_shardings(config, mesh)
    params = model.load_params(checkpoint, config, shardings=shardings)
    assert_identical(params, random_params(config))
    jax.tree.map(lambda x, s: _assert_sharding(x, s), params, shardings)
    shard = {name: x.sharding.shard_shape(x.shape) for name, x in params["layers"].items()}
    assert shard["wq"] == (2, 8, 1, 8)  # embed over fsdp, 2 heads over tensor
    assert shard["wk"] == (2, 8, 1, 8)  # the one kv head cannot be divided
    assert shard["wo"] == (2, 1, 8, 8)
    assert shard["w_up"] == (2, 8, 12) and shard["w_down"] == (2, 12, 8)
    assert shard["mlp_norm"] == (2, 16)
    assert params["embed"].sharding.shard_shape((12, 16)) == (6, 8)


def _assert_sharding(array, wanted):
    assert array.sharding.is_equivalent_to(wanted, array.ndim)


def test_counts_of_published_models():
    """Qwen2.5-0.5B has 494,032,768 parameters, Qwen2.5-7B 7,615,616,512; nothing is allocated to count them."""
    shared: dict[str, Any] = dict(rope_theta=1e6, norm_eps=1e-6, max_positions=32768)
    small = model.ModelConfig(151936, 896, 24, 14, 2, 64, 4864, True, **shared)
    large = model.ModelConfig(152064, 3584, 28, 28, 4, 128, 18944, False, **shared)
    assert model.count_params(small) == 494_032_768
    assert model.count_params(large) == 7_615_616_512


@pytest.mark.parametrize("tied", [True, False])
def test_names_and_shapes_without_parameters(tied):
    """What `hf_tensor_shapes` says of a model is what its tensors are, in order."""
    config = tiny_config(tied_embeddings=tied)
    tensors = [(name, tensor.shape) for name, tensor in model.hf_tensors(config, random_params(config))]
    assert model.hf_tensor_shapes(config) == tensors


def test_parameters_from_tensors_do_not_keep_them():
    """The memory that tensors are read from may go away, or be written over."""
    config = tiny_config(tied_embeddings=False)
    params = random_params(config)
    tensors = {name: tensor.copy() for name, tensor in model.hf_tensors(config, params)}
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shardings = jax.tree.map(lambda _: here, params)
    built = model.params_from_tensors(config, lambda name, index: tensors[name][index], shardings=shardings)
    for tensor in tensors.values():
        tensor[...] = np.nan
    assert_identical(built, params)


@pytest.mark.parametrize("family", CHANGES)
def test_each_device_reads_its_own_part(tmp_path, family):
    """Eight devices: nothing is read whole that is sharded, and what is built is what was saved."""
    config = tiny_config(**CHANGES[family])
    params = random_params(config)
    model.save_checkpoint(tmp_path, config, params, tokenizer_from=None)
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    shardings = model.param_shardings(config, mesh)
    assert_identical(model.load_params(tmp_path, config, shardings=shardings), params)
    tensors, read = dict(model.hf_tensors(config, params)), []

    def reading(name, index):
        read.append((name, tensors[name][index].size / tensors[name].size))
        return tensors[name][index]

    built = model.params_from_tensors(config, reading, shardings=shardings)
    assert_identical(built, params)
    jax.tree.map(lambda x, wanted: _same_sharding(x, wanted), built, shardings)
    assert {share for name, share in read if name.endswith("q_proj.weight")} == {0.25}


def _same_sharding(array, wanted):
    assert array.sharding.is_equivalent_to(wanted, array.ndim)


def test_where_sequences_end_is_kept_or_read_off_the_tokenizer(tmp_path):
    tasks.save_arithmetic_tokenizer(tmp_path / "tokenizer")
    config = tiny_config(vocab_size=32)
    params = random_params(config)
    model.save_checkpoint(tmp_path / "first", config, params, tokenizer_from=tmp_path / "tokenizer")
    fields = json.loads((tmp_path / "first" / "config.json").read_text())
    assert fields["eos_token_id"] == tasks.load_tokenizer(tmp_path / "tokenizer").eos_ids[0]

    fields |= {"eos_token_id": [5, 7], "bos_token_id": 3}
    (tmp_path / "first" / "config.json").write_text(json.dumps(fields))
    model.save_checkpoint(tmp_path / "second", config, params, tokenizer_from=tmp_path / "first")
    written = json.loads((tmp_path / "second" / "config.json").read_text())
    assert written["eos_token_id"] == [5, 7] and written["bos_token_id"] == 3
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in (tmp_path / "second").iterdir())
