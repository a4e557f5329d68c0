"""config.json: what is read, and that whatever would be computed otherwise is refused by name."""

import dataclasses
import json

import pytest

from isocompute_jax import model
from isocompute_jax.records.errors import InputError
from tests.model.tiny import random_params, tiny_config


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
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"model_type": None}, "model_type is None"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"is_causal": False}, "is_causal = False"),
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
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"qk_norm": True}, "qk_norm = True"),
        ({"num_key_value_heads": 3}, "num_kv_heads = 3"),
        ({"dtype": "float13"}, "dtype = 'float13'"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"vocab_size": 0}, "vocab_size"),
    ],
)
def test_what_is_not_implemented_is_named(load, changes, complaint):
    with pytest.raises(InputError, match=rf"config\.json: .*{complaint}"):
        load(changes)


@pytest.mark.parametrize("text", ["{half", "[]", "17"])
def test_a_config_that_is_no_object_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json: "):
        model.load_config(tmp_path)


def test_no_config_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere .*no config\.json"):
        model.load_config(tmp_path / "nowhere")


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
