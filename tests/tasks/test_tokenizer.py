"""The embedded tokenizer through transformers, and what loading says about broken directories."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoTokenizer

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import Prompts, load_tokenizer, make_problems, save_arithmetic_tokenizer
from tests.tasks.chat_tokenizers import save_chatml

PAD, EOS, UNKNOWN = 0, 1, 2
QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "eos_token_id": EOS, "vocab_size": 32}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    save_arithmetic_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory):
    return load_tokenizer(directory)


@pytest.mark.parametrize("config", [None, QWEN2])
def test_transformers_loads_it(tmp_path, config):
    save_arithmetic_tokenizer(tmp_path)
    if config is not None:  # as it stands in a checkpoint; Qwen's own pre-tokenizer must not replace ours
        (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = AutoTokenizer.from_pretrained(str(tmp_path))
    assert (loaded.pad_token_id, loaded.eos_token_id, loaded.vocab_size) == (PAD, EOS, 17)
    assert loaded("47+3-2=")["input_ids"] == [7, 10, 13, 6, 14, 5, 15]
    assert loaded.decode([8, 3, 16, 7, 11]) == "50,48"
    assert loaded.decode([8, 3, 16, 7, 11, EOS], skip_special_tokens=True) == "50,48"


def test_transformers_saves_what_it_loads(tmp_path, directory):
    AutoTokenizer.from_pretrained(str(directory)).save_pretrained(str(tmp_path))
    again = load_tokenizer(tmp_path)
    assert (again.pad_id, again.eos_ids) == (PAD, (EOS,))
    assert again.decode([again.encode("47+3-2=").tolist()]) == ["47+3-2="]


@given(text=st.text("0123456789+-=,", max_size=40))
def test_round_trip(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and ids.shape == (len(text),)
    assert tokenizer.decode([ids.tolist()]) == [text]
    assert tokenizer.decode([[*ids.tolist(), EOS]]) == [text]


def test_batches_equal_single_texts(tokenizer):
    texts = [p.prompt for p in make_problems(50, seed=0)]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        np.testing.assert_array_equal(ids, tokenizer.encode(text))
    assert tokenizer.decode([ids.tolist() for ids in tokenizer.encode_batch(texts)]) == texts


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([8, 3, EOS], "50"), ([8, 3], "50"), ([8, PAD, 3, EOS], "5<pad>0"), ([8, EOS, 3], "5<eos>0"),
        ([8, 3, EOS, EOS], "50<eos>"), ([8, UNKNOWN, 3], "5<unk>0"), ([8, 17, 3, 31, EOS], "5\ufffd0\ufffd"),
        ([EOS], ""), ([], ""),
    ],
)  # fmt: skip
def test_decoding_hides_nothing_but_the_end(tokenizer, ids, text):
    assert tokenizer.decode([[4], ids, [5]]) == ["1", text, "2"]


def test_foreign_characters_are_unknown(tokenizer):
    assert tokenizer.encode("1 a\n").tolist() == [4, UNKNOWN, UNKNOWN, UNKNOWN]


def test_saved_padding_and_truncation_are_switched_off(tmp_path, directory):
    loaded = AutoTokenizer.from_pretrained(str(directory))
    loaded.backend_tokenizer.enable_padding(length=9)
    loaded.backend_tokenizer.enable_truncation(max_length=3)
    loaded.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text((directory / "tokenizer_config.json").read_text())
    assert load_tokenizer(tmp_path).encode("47+3-2=").tolist() == [7, 10, 13, 6, 14, 5, 15]


@pytest.mark.parametrize(
    ("generation", "eos_ids"),
    [({"eos_token_id": [5, EOS]}, (EOS, 5)), ({"eos_token_id": 7}, (EOS, 7)), ({}, (EOS,))],
)
def test_further_stop_tokens(tmp_path, generation, eos_ids):
    save_arithmetic_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert load_tokenizer(tmp_path).eos_ids == eos_ids


@pytest.mark.parametrize("content", ["{", "[]", '{"eos_token_id": "x"}', '{"eos_token_id": [[1]]}'])
def test_a_broken_generation_config_is_named(tmp_path, content):
    save_arithmetic_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(InputError, match=r"generation_config\.json: eos_token_id is not"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("ids", [[-1], -1, 999, [EOS, 999], None, True, [1.5], "1", math.inf, {"a": 1}])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_what_is_no_token_of_the_vocabulary_ends_nothing(tmp_path, tokenizer, name, ids):
    save_arithmetic_tokenizer(tmp_path)
    size = tokenizer.vocab_size
    content = {"eos_token_id": size if ids is None else ids}
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(
        InputError, match=rf"/{name}: eos_token_id is not .*, and the tokenizer's are 0 to {size - 1}\)"
    ):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_padding_pads_with_its_end(tmp_path):
    save_arithmetic_tokenizer(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}))
    assert load_tokenizer(tmp_path).pad_id == EOS
    config.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    with pytest.raises(InputError, match=r"tokenizer_config\.json: names no eos_token"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("config", [{"eos_token": "<nowhere>"}, None])
def test_an_end_that_the_file_does_not_have_is_refused(tmp_path, config):
    """transformers makes a new token of it, or of its class's own where tokenizer_config.json is missing."""
    save_chatml(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    path = tmp_path / "tokenizer_config.json"
    path.unlink() if config is None else path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(InputError, match=r"_config\.json: eos_token is '<.*>' \(or .*, which tokenizer\.json does not"):
        load_tokenizer(tmp_path)


def test_what_transformers_adds_is_no_token_of_the_vocabulary(tmp_path):
    path = save_chatml(tmp_path) / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token": "<pud>", "bos_token": "<bis>"}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 260 and tokenizer.eos_ids == (257,) and tokenizer.pad_id == 257
    assert tokenizer.decode([[5, 260, 5, 257]]) == [f"{tokenizer.decode([[5]])[0]}\ufffd{tokenizer.decode([[5]])[0]}"]
    with pytest.raises(InputError, match=r"problem 'p': its prompt has the token '<bis>', which tokenizer_config"):
        Prompts(tokenizer).encode([Problem("p", "<bis>2 + 3", "5", "exact")])


def test_a_published_model_config_that_transformers_refuses_is_no_hindrance(tmp_path):
    save_arithmetic_tokenizer(tmp_path)
    text = {"model_type": "llama4_text", "attn_temperature_tuning": 4}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama4", "text_config": text}))
    with pytest.raises(Exception, match="attn_temperature_tuning"):
        AutoConfig.from_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).decode([[3, 4, EOS]]) == ["01"]


def test_missing_files_are_named(tmp_path):
    for directory in (tmp_path, tmp_path / "nowhere", "Qwen/Qwen2.5-0.5B"):
        with pytest.raises(InputError, match=r"has no tokenizer\.json: give a Hugging Face directory"):
            load_tokenizer(directory)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "{}", "[]", "\xff"])
def test_broken_files_are_input_errors(tmp_path, file, content):
    save_arithmetic_tokenizer(tmp_path)
    (tmp_path / file).write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match="tokenizer"):
        load_tokenizer(tmp_path)
