"""The tokenizer of a GGUF file as the files of a Hugging Face directory: byte-level BPE, chat template, stop tokens."""

from __future__ import annotations

import json
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.tasks.tokenizer import GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, end_of_answers

LOG = logging.getLogger(__name__)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = range(1, 6)
"""Kinds of tokens, as GGUF numbers them."""

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {"qwen2": rf"{_WORDS}\p{{N}}{_REST}", "llama-bpe": rf"{_WORDS}\p{{N}}{{1,3}}{_REST}"}
"""What cuts texts before pairs are merged, by `tokenizer.ggml.pre`: digits one by one in Qwen, in threes in Llama 3."""
SMOLLM, GPT2 = "smollm", "gpt-2"
DEFAULT, FAMILY_CUTS = "default", {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2"}
"""What a file says that does not say how texts are cut, and how its family cuts them."""

_REMEDY = "give --tokenizer_from=DIR, the Hugging Face directory of the model or of one with its tokenizer"
_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def write_gguf_tokenizer(fields: Mapping[str, Any], directory: pathlib.Path, *, source: str) -> str:
    """Writes tokenizer.json, tokenizer_config.json and generation_config.json; returns what to say of stop tokens.

    Where the chat template ends answers with another token than the one that the file says ends a text, both stop.

    Args:
      fields: of the GGUF.
      directory: where to, which exists.
      source: the file, for messages.

    Raises:
      InputError: the tokenizer is of a kind that is not known, or no token ends a text.
    """
    ids = {name: fields.get(f"tokenizer.ggml.{each}_token_id") for name, each in _NAMES.items()}
    tokens: Sequence[str] = fields.get("tokenizer.ggml.tokens", ())
    if ids["eos_token"] is None:
        raise InputError(f"{source}: names no eos_token_id, so completions would never end; {_REMEDY}")
    for name in (*_NAMES.values(), "eot"):
        found = fields.get(key := f"tokenizer.ggml.{name}_token_id")
        if found is not None and not (isinstance(found, int) and 0 <= found < len(tokens)):
            raise InputError(f"{source}: {key} is {found!r}, which is none of its {len(tokens):,} tokens; {_REMEDY}")
    backend = _backend(fields, tokens, ids["bos_token"], source)
    named = {name: tokens[number] for name, number in ids.items() if number is not None}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # the generic one: others put their own beside what is read
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields.get(f"{fields['general.architecture']}.context_length"),
        **named,
        **({"chat_template": template} if (template := fields.get("tokenizer.chat_template")) else {}),
    }
    also = fields.get("tokenizer.ggml.eot_token_id")
    stops: list[int] = [number for number in dict.fromkeys([ids["eos_token"], also]) if number is not None]
    said = f"answers end with {named['eos_token']}"
    if template:
        from transformers import PreTrainedTokenizerFast

        given = {name: value for name, value in config.items() if name != "tokenizer_class"}
        after = end_of_answers(PreTrainedTokenizerFast(tokenizer_object=backend, **given))
        if after and not any(tokens[stop] in after for stop in stops):
            stops = [_first_token(backend, after, source), *stops]
            config["eos_token"] = tokens[stops[0]]
            said = (
                f"the file says that {named['eos_token']} ends a text, which its chat template never writes after an "
                f"answer: {config['eos_token']} does; both stop"
            )
    generation = {"eos_token_id": stops, **{f"{name}_id": ids[name] for name in ("bos_token", "pad_token")}}
    generation = {name: value for name, value in generation.items() if value is not None}
    write_atomic(directory / TOKENIZER, backend.to_str(pretty=True) + "\n")
    write_atomic(directory / TOKENIZER_CONFIG, json.dumps(config, indent=2) + "\n")
    write_atomic(directory / GENERATION_CONFIG, json.dumps(generation, indent=2) + "\n")
    return said


def _backend(fields: Mapping[str, Any], tokens: Sequence[str], bos: int | None, source: str) -> Any:
    """The `tokenizers.Tokenizer`."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    model, cut = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", DEFAULT)
    if model != "gpt2":
        raise InputError(f"{source}: has a tokenizer of kind {model!r}, and byte-level BPE is read; {_REMEDY}")
    if cut == DEFAULT and (family := fields["general.architecture"]) in FAMILY_CUTS:
        cut = FAMILY_CUTS[family]
        unsaid = "does not say how texts are cut (tokenizer.ggml.pre), which"
        LOG.warning("%s: %s is done as %r, as in %s models; if that is wrong, %s", source, unsaid, cut, family, _REMEDY)
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if cut in SPLITS:
        split = pre_tokenizers.Split(Regex(SPLITS[cut]), behavior="isolated")
        before = pre_tokenizers.Sequence([split, whole])
    elif cut == SMOLLM:
        before = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    elif cut == GPT2:
        before = words
    else:
        raise InputError(f"{source}: cuts texts as {cut!r} (tokenizer.ggml.pre), which is not known; {_REMEDY}")
    kinds = fields.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if len(kinds) != len(tokens):
        raise InputError(f"{source}: tokenizer.ggml.token_type has {len(kinds):,} kinds of {len(tokens):,} tokens")
    # Models round their vocabulary up: what fills it has no text.
    vocabulary = {token: number for number, token in enumerate(tokens) if kinds[number] != UNUSED}
    merges: list[tuple[str, str]] = []
    for number, pair in enumerate(fields.get("tokenizer.ggml.merges", ())):
        one, _, other = str(pair).partition(" ")
        if not {one, other, one + other} <= vocabulary.keys():
            key = f"tokenizer.ggml.merges[{number}]"
            raise InputError(f"{source}: {key} is {pair!r}, no two of its tokens that make a third; {_REMEDY}")
        merges.append((one, other))
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut == "llama-bpe"))
    backend.normalizer = normalizers.NFC() if cut == "qwen2" else None
    backend.pre_tokenizer = before
    backend.decoder = decoders.ByteLevel()
    for number, token in enumerate(tokens):
        if kinds[number] in (UNKNOWN, CONTROL, USER_DEFINED):
            special = kinds[number] != USER_DEFINED
            backend.add_tokens([AddedToken(token, special=special, normalized=False)])
    if bos is not None and fields.get("tokenizer.ggml.add_bos_token", cut == "llama-bpe"):
        begins = tokens[bos]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{begins} $A", pair=f"{begins} $A {begins} $B", special_tokens=[(begins, bos)]
        )
    return backend


def _first_token(backend: Any, text: str, source: str) -> int:
    """The token that a text begins with."""
    ids = backend.encode(text, add_special_tokens=False).ids
    if not ids or not backend.id_to_token(ids[0]) == text[: len(backend.id_to_token(ids[0]))]:
        raise InputError(f"{source}: its chat template ends answers with {text!r}, which no token does; {_REMEDY}")
    return ids[0]
