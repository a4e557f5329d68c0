"""config.json of a Hugging Face checkpoint, in and out.

A field that changes what the model computes and is not implemented is refused by name: a model that loads computes what
transformers computes. Fields that nobody has heard of are refused too, unless they are off (null, false, 0 or empty).
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any, cast

from isocompute_jax.model.config import Dtype, ModelConfig
from isocompute_jax.records.errors import InputError

_SHAPE = {
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "tie_word_embeddings",
    "vocab_size",
}
_READ = _SHAPE | {
    "dtype",
    "layer_types",
    "model_type",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "torch_dtype",
}
_ONLY: dict[str, Any] = {"hidden_act": "silu", "is_causal": True, "partial_rotary_factor": 1.0}
"""Fields with one implemented value. Those that must be off need no mention."""
_WITHOUT_EFFECT = {
    "architectures",
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "finetuning_task",
    "id2label",
    "initializer_range",
    "label2id",
    "max_window_layers",  # layer_types and use_sliding_window decide
    "name_or_path",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "sep_token_id",
    "sliding_window",  # a size; layer_types and use_sliding_window decide
    "task_specific_params",
    "tokenizer_class",
    "transformers_version",
    "unk_token_id",
    "use_bfloat16",
    "use_cache",
}
"""Of the log-probabilities of a sequence. transformers' defaults of generation belong to them, and names with a `_`."""


def load_config(directory: str | os.PathLike[str], *, dtype: str | None = None) -> ModelConfig:
    """Reads config.json of a Qwen2 / Qwen2.5 checkpoint; `dtype` overrides the checkpoint's.

    Raises:
      InputError: no config.json, another architecture, or a field this library does not implement; it is named.
    """
    path = pathlib.Path(directory) / "config.json"
    raw = _read(path)
    try:
        _refuse_what_is_not_implemented(raw)
        config = _model_config(raw)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return config if dtype is None else dataclasses.replace(config, dtype=cast(Dtype, dtype))


def _model_config(raw: dict[str, Any]) -> ModelConfig:
    """The shape; defaults and types of fields are transformers'."""
    from transformers import Qwen2Config

    try:
        config: Any = Qwen2Config(**{field: value for field, value in raw.items() if field in _SHAPE})
    except Exception as error:  # transformers checks fields with exceptions of many types
        raise InputError(str(error)) from error
    return ModelConfig(
        vocab_size=config.vocab_size,
        embed_dim=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=raw.get("head_dim") or config.hidden_size // config.num_attention_heads,
        mlp_dim=config.intermediate_size,
        tied_embeddings=bool(config.tie_word_embeddings),
        rope_theta=_rope_theta(raw),
        norm_eps=float(config.rms_norm_eps),
        max_positions=config.max_position_embeddings,
        dtype=cast(Dtype, raw.get("dtype") or raw.get("torch_dtype") or "float32"),
    )


def write_config(directory: pathlib.Path, config: ModelConfig) -> None:
    """Writes config.json as transformers does."""
    from transformers import Qwen2Config

    written = Qwen2Config(
        vocab_size=config.vocab_size,
        hidden_size=config.embed_dim,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        intermediate_size=config.mlp_dim,
        tie_word_embeddings=config.tied_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        rms_norm_eps=config.norm_eps,
        max_position_embeddings=config.max_positions,
        use_sliding_window=False,
        architectures=["Qwen2ForCausalLM"],
        dtype=config.dtype,
    )
    written.head_dim = config.head_dim
    written.save_pretrained(directory)


def _read(path: pathlib.Path) -> dict[str, Any]:
    """The JSON object, of the one architecture."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path.parent} is not a Hugging Face checkpoint: it has no config.json") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise InputError(f"{path}: not a JSON object; download the checkpoint again")
    if raw.get("model_type") != "qwen2":
        raise InputError(
            f"{path}: model_type is {raw.get('model_type')!r}; only 'qwen2' (Qwen2, Qwen2.5) is implemented"
        )
    return raw


def _rope_theta(raw: dict[str, Any]) -> float:
    """The base of a plain rotary embedding: transformers 4 has it in `rope_theta`, 5 in `rope_parameters`."""
    found: dict[str, float] = {} if raw.get("rope_theta") is None else {"rope_theta": raw["rope_theta"]}
    for field in ("rope_parameters", "rope_scaling"):
        rope = raw.get(field) or {}
        if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
            raise InputError(
                f"{field} = {rope!r} is not implemented: one rotary embedding serves all layers, so rope_type and "
                "rope_theta stand directly in it"
            )
        for name, value in rope.items():
            if name == "rope_theta":
                found[f"{field}.rope_theta"] = value
            elif name in ("rope_type", "type"):
                _refuse_unless(f"{field}.{name}", value, "default")
            elif name in _ONLY:
                _refuse_unless(f"{field}.{name}", value, _ONLY[name])
            elif value is not None:
                raise InputError(f"{field}.{name} = {value!r} is not implemented; a plain rotary embedding has none")
    if len(set(found.values())) > 1:
        said = " but ".join(f"{name} = {value!r}" for name, value in found.items())
        raise InputError(f"{said}: keep the one that the model was trained with")
    theta = next(iter(found.values()), 10_000.0)
    if isinstance(theta, bool) or not isinstance(theta, int | float):
        raise InputError(f"{next(iter(found))} = {theta!r} must be a number")
    return float(theta)


def _refuse_what_is_not_implemented(raw: dict[str, Any]) -> None:
    """Raises InputError for the first field whose value changes what the model computes."""
    from transformers import GenerationConfig

    sliding = sorted({str(kind) for kind in raw.get("layer_types") or []} - {"full_attention"})
    if sliding:
        raise InputError(f"layer_types holds {', '.join(map(repr, sliding))}: only 'full_attention' is implemented")
    without_effect = _READ | _WITHOUT_EFFECT | GenerationConfig().to_dict().keys()
    for field, value in raw.items():
        if field in _ONLY:
            if value is not None:
                _refuse_unless(field, value, _ONLY[field])
        elif value and field not in without_effect and not field.startswith("_"):
            raise InputError(
                f"{field} = {value!r} is not implemented; if the weights are those of a plain Qwen2 and the field only "
                "describes them, remove it"
            )


def _refuse_unless(field: str, value: Any, implemented: Any) -> None:
    if value != implemented:
        raise InputError(f"{field} = {value!r} is not implemented (only {implemented!r})")
