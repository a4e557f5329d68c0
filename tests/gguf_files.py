"""GGUF files as llama.cpp's converter writes them, from parameters and a tokenizer; written by the gguf package."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import gguf
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from isocompute_jax import model

TEXTS = ["the sum of 12 and 345 is 357", "what is it? it's 42!", "\n\n  naïve 漢字 x1y2\t", "12345678 + 9 = ?"] * 20
CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def trained(pre: str) -> Tokenizer:
    """A byte-level BPE of a few hundred tokens that cuts texts as `pre` says, written as its publishers write it."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = {"qwen2": r"\p{N}", "llama-bpe": r"\p{N}{1,3}"}.get(pre)
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    if digits:
        pattern = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
            rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_alone])
    else:
        apart = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*apart, words])
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=320, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
    )
    return tokenizer


def write(
    path: pathlib.Path,
    config: model.ModelConfig,
    params: model.Params,
    *,
    tokenizer: Tokenizer | None = None,
    quantised: Any = gguf.GGMLQuantizationType.F32,
    fields: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
) -> pathlib.Path:
    """Matrices are stored as `quantised`, vectors as float32; `fields` are added, or stand in place of others."""
    family = config.architecture
    writer = gguf.GGUFWriter(path, family)
    given = {
        f"{family}.block_count": config.num_layers,
        f"{family}.context_length": config.max_positions,
        f"{family}.embedding_length": config.embed_dim,
        f"{family}.feed_forward_length": config.mlp_dim,
        f"{family}.attention.head_count": config.num_heads,
        f"{family}.attention.head_count_kv": config.num_kv_heads,
        f"{family}.attention.key_length": config.head_dim,
        f"{family}.attention.value_length": config.head_dim,
        f"{family}.attention.layer_norm_rms_epsilon": config.norm_eps,
        f"{family}.rope.freq_base": config.rope_theta,
        f"{family}.vocab_size": config.vocab_size,
    }
    if tokenizer is not None:
        given |= _tokenizer_fields(tokenizer, config.vocab_size)
    for name, value in (given | (fields or {})).items():
        _add(writer, name, value)
    arch = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == family)
    names = gguf.get_tensor_name_map(arch, config.num_layers)
    for name, value in model.hf_tensors(config, params):
        rows = {"q_proj.weight": config.num_heads, "k_proj.weight": config.num_kv_heads}
        heads = next((count for ending, count in rows.items() if name.endswith(ending)), 0)
        if heads and family == "llama":
            halves = value.reshape(heads, 2, config.head_dim // 2, -1)
            value = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(value.shape))
        kind = quantised if value.ndim > 1 else gguf.GGMLQuantizationType.F32
        stored = names.get_name(name, (".weight", ".bias"))
        assert stored is not None
        writer.add_tensor(stored, gguf.quantize(value, kind), raw_dtype=kind)
    for name, value in (extra or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tokenizer_fields(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    written = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(written["vocab"], key=written["vocab"].get)
    fill = [f"[PAD{number}]" for number in range(len(tokens), vocab_size)]
    kinds = [3 if token in SPECIAL else 1 for token in tokens] + [5] * len(fill)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens + fill,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in written["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": CHAT,
    }


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)
