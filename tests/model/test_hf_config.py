"""config.json: what is read, and that whatever would be computed otherwise is refused by name."""

import dataclasses
import json

import pytest

from isocompute_jax import model
from isocompute_jax.model.hf_config import write_config
from isocompute_jax.records.errors import InputError, fields_called
from tests.model.tiny import LLAMA4, random_params, tiny_config


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """config.json as this library writes it."""
    directory = tmp_path_factory.mktemp("checkpoint")
    model.save_checkpoint(directory, tiny_config(), random_params(tiny_config()), tokenizer_from=None)
    return json.loads((directory / "config.json").read_text())


@pytest.fixture
def load(written, tmp_path):
    """Loads that config.json with some fields changed; None leaves one out."""

    def load_changed(changes, **keywords):
        fields = {field: value for field, value in (written | changes).items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        return model.load_config(tmp_path, **keywords)

    return load_changed


TRANSFORMERS_4 = {"rope_parameters": None, "dtype": None, "head_dim": None, "layer_types": None, "is_causal": None}
PLAIN = {"rope_type": "default", "rope_theta": 5e5}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        # transformers 5
        ({"rope_parameters": {"rope_theta": 5e5}}, {"rope_theta": 5e5}),
        ({"rope_parameters": PLAIN, "rope_theta": 5e5}, {"rope_theta": 5e5}),
        ({"rope_parameters": PLAIN | {"partial_rotary_factor": 1.0}}, {"rope_theta": 5e5}),
        ({"layer_types": ["full_attention"] * 2, "sliding_window": 32, "max_window_layers": 1}, {}),
        # transformers 4, as Qwen2.5's own checkpoints have it
        (
            TRANSFORMERS_4 | {"rope_theta": 1e6, "torch_dtype": "bfloat16", "sliding_window": 32, "use_mrope": False},
            {"rope_theta": 1e6, "dtype": "bfloat16"},
        ),
        (TRANSFORMERS_4 | {"rope_theta": 1e6, "rope_scaling": {"type": "default"}}, {"rope_theta": 1e6}),
        (TRANSFORMERS_4, {}),  # 10,000 is the architecture's default
        # said although it changes nothing
        ({"is_causal": True, "attention_dropout": 0.0, "quantization_config": None, "per_layer_config": {}}, {}),
        ({"temperature": 0.7, "_name_or_path": "elsewhere", "id2label": {"0": "a"}, "eos_token_id": [1, 2]}, {}),
    ],
)
def test_equivalent_configs_are_read_alike(load, changes, expected):
    assert load(changes) == tiny_config(**expected)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"model_type": "gemma"},
            "model_type = 'gemma': known: 'qwen2', 'llama', 'qwen3', 'qwen3_moe', 'llama4_text', 'llama4'",
        ),
        ({"model_type": "qwen3moe"}, "model_type = 'qwen3moe': did you mean 'qwen3_moe'"),
        ({"model_type": None}, "model_type = None"), ({"num_experts": 4}, "num_experts = 4"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"), ({"is_causal": False}, "is_causal = False"),
        ({"attention_dropout": 0.1}, "attention_dropout = 0.1"),
        ({"use_sliding_window": True}, "use_sliding_window = True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types holds 'sliding_attention'"),
        ({"rope_parameters": PLAIN | {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters.rope_type = 'yarn'"),
        ({"rope_parameters": {"full_attention": PLAIN, "sliding_attention": PLAIN}}, "rope_parameters = "),
        ({"rope_parameters": PLAIN | {"mrope_section": [4, 2, 2]}}, "rope_parameters.mrope_section"),
        ({"rope_parameters": PLAIN, "rope_theta": 1e6}, "rope_theta = 1000000.0 but rope_parameters.rope_theta"),
        ({"rope_parameters": {"rope_theta": "large"}}, "rope_parameters.rope_theta = 'large'"),
        # as Qwen2.5's model card tells users to write it, for transformers 4
        (
            TRANSFORMERS_4 | {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
            "rope_scaling.type = 'yarn'",
        ),
        (TRANSFORMERS_4 | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"), ({"qk_norm": True}, "qk_norm = True"),
        ({"num_key_value_heads": 3}, "num_kv_heads = 3"), ({"dtype": "float13"}, "dtype = 'float13'"),
        ({"hidden_size": "wide"}, "hidden_size"), ({"vocab_size": 0}, "vocab_size"),
        ({"eos_token_id": "2"}, "eos_token_id"), ({"bos_token_id": 1.5}, "bos_token_id"),
        ({"pad_token_id": [[0]]}, "pad_token_id"),
    ],
)  # fmt: skip
def test_what_is_not_implemented_is_named(load, changes, complaint):
    with pytest.raises(InputError, match=rf"config\.json: .*{complaint}"):
        load(changes)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
PUBLISHED = {
    "Llama-3.1-8B": dict(
        model_type="llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, max_position_embeddings=131072, rope_theta=500000.0,
        rms_norm_eps=1e-5, rope_scaling=LLAMA3, tie_word_embeddings=False, attention_bias=False, mlp_bias=False,
        pretraining_tp=1, hidden_act="silu", torch_dtype="bfloat16", attention_dropout=0.0,
    ),
    "Qwen3-4B": dict(
        model_type="qwen3", hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=151936, max_position_embeddings=40960, rope_theta=1000000,
        rms_norm_eps=1e-6, rope_scaling=None, tie_word_embeddings=True, attention_bias=False, sliding_window=None,
        use_sliding_window=False, max_window_layers=36, torch_dtype="bfloat16",
    ),
    "Qwen3-30B-A3B": dict(
        model_type="qwen3_moe", hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_experts=128,
        num_experts_per_tok=8, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], num_hidden_layers=48,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128, vocab_size=151936, max_position_embeddings=40960,
        rope_theta=1e6, rms_norm_eps=1e-6, tie_word_embeddings=False, router_aux_loss_coef=0.001,
        output_router_logits=False, attention_bias=False, torch_dtype="bfloat16",
    ),
    "Llama-4-Scout": dict(
        architectures=["Llama4ForConditionalGeneration"], model_type="llama4", boi_token_index=200080,
        eoi_token_index=200081, image_token_index=200092, tie_word_embeddings=False, torch_dtype="bfloat16",
        vision_config=dict(model_type="llama4_vision_model", hidden_size=1408),
        text_config=dict(
            model_type="llama4_text", hidden_size=5120, intermediate_size=8192, intermediate_size_mlp=16384,
            num_hidden_layers=48, num_attention_heads=40, num_key_value_heads=8, head_dim=128, vocab_size=202048,
            max_position_embeddings=10485760, rope_theta=500000.0, rms_norm_eps=1e-5, hidden_act="silu",
            rope_scaling=LLAMA3 | {"factor": 16.0, "high_freq_factor": 1.0}, attention_bias=False,
            attention_chunk_size=8192, attention_dropout=0.0, attn_temperature_tuning=4, interleave_moe_layer_step=1,
            no_rope_layers=[], num_experts_per_tok=1, num_local_experts=16, use_qk_norm=True,
            output_router_logits=False, router_aux_loss_coef=0.001, router_jitter_noise=0.0,
            for_llm_compressor=False, torch_dtype="bfloat16",
        ),
    ),
}  # fmt: skip
"""The fields of config.json that these models were published with, as far as they say anything."""


def published(tmp_path, name, **changes):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name] | changes))
    return model.load_config(tmp_path)


def published_text(tmp_path, **changes):
    """Scout, some fields of its text changed."""
    return published(tmp_path, "Llama-4-Scout", text_config=PUBLISHED["Llama-4-Scout"]["text_config"] | changes)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Llama-3.1-8B", 8_030_261_248),
        ("Qwen3-4B", 4_022_468_096),
        ("Qwen3-30B-A3B", 30_532_122_624),
        ("Llama-4-Scout", 107_769_861_120),  # of 109 B, the rest sees
    ],
)
def test_published_models_have_their_published_size(tmp_path, name, parameters):
    config = published(tmp_path, name)
    assert config.architecture == PUBLISHED[name].get("text_config", PUBLISHED[name])["model_type"]
    assert config.head_dim == 128 and model.count_params(config) == parameters
    assert (config.rope_scaling is None) == name.startswith("Qwen")


def test_llama_4_is_read_whole(tmp_path):
    config = published(tmp_path, "Llama-4-Scout")
    assert config.local_layers == (True, True, True, False) * 12 and config.attention_chunk == 8192
    assert (config.qk_l2_norm, config.query_scaling) == (True, model.QueryScaling(8192, 0.1))
    assert (config.num_experts, config.experts_per_token, config.mlp_dim) == (16, 1, 8192)
    assert (config.dtype, config.rope_theta, config.norm_eps) == ("bfloat16", 5e5, 1e-5)
    assert published_text(tmp_path, attn_temperature_tuning=False, no_rope_layers=[1] * 48) == dataclasses.replace(
        config, query_scaling=None, global_interval=0
    )
    # In a file of its own, as this library writes it.
    write_config(tmp_path, config, token_ids={})
    assert model.load_config(tmp_path) == config


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        ("Llama-3.1-8B", {"attention_bias": True}, "attention_bias = True"),
        ("Llama-3.1-8B", {"mlp_bias": True}, "mlp_bias = True"),
        ("Llama-3.1-8B", {"pretraining_tp": 2}, "pretraining_tp = 2"),
        ("Llama-3.1-8B", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("Llama-3.1-8B", {"rope_scaling": LLAMA3 | {"factor": None}}, "rope_scaling.factor = None must be a number"),
        ("Llama-3.1-8B", {"rope_scaling": LLAMA3 | {"factor": 0.5}}, "factor = 0.5"),
        ("Llama-3.1-8B", {"rope_scaling": LLAMA3 | {"low_freq_factor": 5}}, "high_freq_factor = 4.0 is below"),
        ("Llama-3.1-8B", {"rope_scaling": LLAMA3 | {"attention_factor": 2}}, "rope_scaling.attention_factor = 2"),
        ("Llama-3.1-8B", {"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.rope_type = 'longrope'"),
        ("Llama-3.1-8B", {"sliding_window": 4096}, "sliding_window = 4096"),
        ("Qwen3-4B", {"attention_bias": True}, "attention_bias = True"),
        ("Qwen3-4B", {"use_sliding_window": True}, "use_sliding_window = True"),
        ("Qwen3-30B-A3B", {"decoder_sparse_step": 2}, "decoder_sparse_step = 2"),
        ("Qwen3-30B-A3B", {"mlp_only_layers": [0]}, r"mlp_only_layers = \[0\]"),
        ("Qwen3-30B-A3B", {"num_local_experts": 64}, "num_experts = 128 but num_local_experts = 64"),
        ("Qwen3-30B-A3B", {"num_experts_per_tok": 129}, "experts_per_token = 129"),
        ("Qwen3-30B-A3B", {"shared_expert_intermediate_size": 512}, "shared_expert_intermediate_size = 512"),
    ],
)
def test_half_understood_families_are_refused(tmp_path, name, changes, complaint):
    with pytest.raises(InputError, match=rf"config\.json: .*{complaint}"):
        published(tmp_path, name, **changes)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"interleave_moe_layer_step": 2}, r"moe_layers = \[1, 3, .* \(interleave_moe_layer_step = 2\) is not"),
        ({"moe_layers": [0]}, r"moe_layers = \[0\]"),
        ({"no_rope_layers": [1, 0, 0, 1] * 12}, r"no_rope_layers = \[1, 0, 0, 1, .* is not implemented"),
        ({"no_rope_layers": [1, 0]}, "validator 'validate_layer_type'"),
        ({"layer_types": ["full_attention"] * 48}, r"layer_types = \['full_attention', .* 'chunked_attention'"),
        ({"attention_chunk_size": None}, "attention_chunk_size = None must be 1 or more"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"router_jitter_noise": 0.1}, "router_jitter_noise = 0.1"),
        ({"num_experts_per_tok": 17}, "experts_per_token = 17"),
        ({"floor_scale": 0}, "floor = 0"),
        ({"model_type": "llama"}, "text_config must be an object with model_type = 'llama4_text'"),
    ],
)
def test_other_llama_4s_are_refused(tmp_path, changes, complaint):
    """Maverick's dense layers between those of experts first of all."""
    with pytest.raises(InputError, match=rf"config\.json: .*{complaint}"):
        published_text(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"text_config": None}, "text_config must be an object"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings = True is not implemented"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"architectures": ["Other"]}, r"architectures = \['Other'\]"),
    ],
)
def test_what_stands_beside_the_text_is_read_with_the_same_care(tmp_path, changes, complaint):
    with pytest.raises(InputError, match=rf"config\.json: .*{complaint}"):
        published(tmp_path, "Llama-4-Scout", **changes)


@pytest.mark.parametrize("text", ["{half", "[]", "17"])
def test_a_config_that_is_no_object_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json: "):
        model.load_config(tmp_path)


def test_no_config_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere is not a Hugging Face checkpoint: there is no such directory"):
        model.load_config(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"it has no config\.json"):
        model.load_config(tmp_path)


def test_dtype_can_be_overridden(load):
    assert load({"dtype": "bfloat16"}, dtype="float32") == tiny_config()
    with pytest.raises(InputError, match="did you mean 'bfloat16'"):
        load({}, dtype="bfloat17")


# ModelConfig itself.


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"dtype": "flaot32"}, "dtype = 'flaot32': did you mean 'float32'"),
        ({"num_layers": 0}, "num_layers = 0"),
        ({"num_heads": 3, "num_kv_heads": 2}, "num_kv_heads = 2"),
        ({"head_dim": 7}, "head_dim = 7"),
        ({"norm_eps": float("nan")}, "norm_eps = nan"),
        (
            {"qk_norm": True},
            "qk_norm = True, num_experts = 0, shared_expert = False and sigmoid_routing = False are no",
        ),
        ({"shared_expert": True}, "shared_expert = True and sigmoid_routing = False are no family together"),
        ({"attention_chunk": 4}, "attention_chunk = 4: a qwen2 has no local layers"),
        (LLAMA4 | {"attention_chunk": 0}, "attention_chunk = 0: local layers of llama4_text"),
        ({"num_experts": 4}, "experts_per_token = 0 must be between 1 and num_experts = 4"),
        ({"experts_per_token": 1}, "experts_per_token = 1 must be between 1 and num_experts = 0"),
    ],
)
def test_impossible_shapes_are_refused(changes, complaint):
    with pytest.raises(InputError, match=complaint):
        tiny_config(**changes)


def test_sequences_fit_the_model():
    config = dataclasses.replace(tiny_config(), max_positions=20)
    model.check_length(config, 12, 8)
    with pytest.raises(InputError, match=r"max_prompt_tokens = 12 .*max_tokens = 9 .*max_position_embeddings = 20"):
        model.check_length(config, 12, 9)
    with (
        pytest.raises(InputError, match=r"^--max_prompt_tokens = 12 and --max_tokens = 9 make"),
        fields_called("--"),
    ):
        model.check_length(config, 12, 9)


def test_the_class_of_another_head_is_refused(load):
    with pytest.raises(InputError, match=r"architectures = \['Qwen2ForSequenceClassification'\]"):
        load({"architectures": ["Qwen2ForSequenceClassification"]})
