"""config.json of a Hugging Face checkpoint, in and out.

A field that changes what the model computes and is not implemented is refused by name: a model that loads computes what
transformers computes. Fields that nobody has heard of are refused too, unless they are off (null, false, 0 or empty).
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, cast

from isocompute_jax.model.config import FAMILIES, Architecture, Dtype, ModelConfig, QueryScaling, RopeScaling
from isocompute_jax.options import unknown_word
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import hide_missing_pytorch

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
_EXPERTS = {"moe_intermediate_size", "norm_topk_prob", "num_experts", "num_experts_per_tok", "num_local_experts"}
_LOCAL = {
    "attention_chunk_size",
    "attn_scale",
    "attn_temperature_tuning",
    "floor_scale",
    "interleave_moe_layer_step",
    "layer_types",
    "moe_layers",
    "no_rope_layer_interval",
    "no_rope_layers",
    "num_experts_per_tok",
    "num_local_experts",
    "use_qk_norm",
}
_CLASSES: dict[Architecture, tuple[str, str, set[str]]] = {
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _SHAPE),
    "llama": ("LlamaConfig", "LlamaForCausalLM", _SHAPE),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", _SHAPE),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", _SHAPE | _EXPERTS),
    "llama4_text": ("Llama4TextConfig", "Llama4ForCausalLM", _SHAPE | _LOCAL),
}
"""model_type -> transformers' classes, and the fields that say the shape."""
_READ = {
    "architectures",
    "dtype",
    "layer_types",
    "model_type",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "torch_dtype",
}
_ONLY: dict[str, Any] = {
    "decoder_sparse_step": 1,
    "hidden_act": "silu",
    "is_causal": True,
    "partial_rotary_factor": 1.0,
    "pretraining_tp": 1,
}
"""Fields with one implemented value. Those that must be off need no mention."""
_WITHOUT_EFFECT = {
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "finetuning_task",
    "id2label",
    "initializer_range",
    "intermediate_size_mlp",  # of dense layers between those of experts, which are refused
    "label2id",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "router_aux_loss_coef",  # of a loss that transformers adds in training
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "transformers_version",
    "unk_token_id",
    "use_bfloat16",
    "use_cache",
}
"""Of the log-probabilities of a sequence. transformers' defaults of generation belong to them, and names with a `_`."""

_WINDOWS = {"max_window_layers", "sliding_window"}
"""Sizes, of families in which layer_types and use_sliding_window decide."""


def load_config(directory: str | os.PathLike[str], *, dtype: str | None = None) -> ModelConfig:
    """Reads config.json of a checkpoint of one of `FAMILIES`; `dtype` overrides the checkpoint's.

    Raises:
      InputError: no config.json, another architecture, or a field this library does not implement; it is named.
    """
    path = pathlib.Path(directory) / "config.json"
    raw = _read(path)
    hide_missing_pytorch()
    try:
        raw = _of_text(raw)
        _refuse_what_is_not_implemented(raw)
        config = _model_config(raw)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return config if dtype is None else dataclasses.replace(config, dtype=cast(Dtype, dtype))


def _model_config(raw: dict[str, Any]) -> ModelConfig:
    """The shape; defaults and types of fields are transformers'."""
    import transformers

    family = FAMILIES[raw["model_type"]]
    class_name, _, fields = _CLASSES[raw["model_type"]]
    saved = {"bos_token_id", "eos_token_id", "pad_token_id"}  # again with what is trained: faults show now
    given = {field: value for field, value in raw.items() if field in fields | saved}
    tuning = given.get("attn_temperature_tuning")
    if isinstance(tuning, int):
        given["attn_temperature_tuning"] = bool(tuning)  # published files say 4
    try:
        config: Any = getattr(transformers, class_name)(**given)
    except Exception as error:  # transformers checks fields with exceptions of many types
        raise InputError(" ".join(str(error).split())) from error  # theirs take several lines
    theta, scaling = _rope(raw, config.default_theta)
    _agreed({name: raw[name] for name in ("num_experts", "num_local_experts") if raw.get(name) is not None}, None)
    special: dict[str, Any] = {}
    if family.local_layers:
        special = _local_layers(config)
    elif family.experts:
        special = {
            "num_experts": config.num_experts,
            "experts_per_token": config.num_experts_per_tok,
            "normalized_routing": bool(config.norm_topk_prob),
        }
    return ModelConfig(
        vocab_size=config.vocab_size,
        embed_dim=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=raw.get("head_dim")
        or getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        mlp_dim=getattr(config, "moe_intermediate_size", config.intermediate_size),
        tied_embeddings=bool(config.tie_word_embeddings),
        rope_theta=theta,
        norm_eps=float(config.rms_norm_eps),
        max_positions=config.max_position_embeddings,
        dtype=cast(Dtype, raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        attention_bias=family.attention_bias,
        qk_norm=family.qk_norm,
        rope_scaling=scaling,
        shared_expert=family.shared_expert,
        sigmoid_routing=family.sigmoid_routing,
        **special,
    )


def _local_layers(config: Any) -> dict[str, Any]:
    """Experts, and layers of two kinds, of a `Llama4TextConfig`."""
    layers = config.num_hidden_layers
    local = [bool(flag) for flag in config.no_rope_layers][:layers]  # it lists those that have RoPE
    every = local.index(False) + 1 if False in local else 0
    if local != [not every or (layer + 1) % every != 0 for layer in range(layers)]:
        raise InputError(
            f"no_rope_layers = {config.no_rope_layers!r} is not implemented: of every so many of the {layers} layers "
            "the last, and no other, may be 0"
        )
    kinds = ["chunked_attention" if flag else "full_attention" for flag in local]
    if config.layer_types != kinds:
        raise InputError(
            f"layer_types = {config.layer_types!r} is not implemented: layers that no_rope_layers marks with 1 are "
            "'chunked_attention', the others 'full_attention'"
        )
    if sorted(config.moe_layers) != list(range(layers)):
        raise InputError(
            f"moe_layers = {config.moe_layers!r} (interleave_moe_layer_step = {config.interleave_moe_layer_step}) is "
            f"not implemented: each of the {layers} layers must have experts"
        )
    if not config.attention_chunk_size:
        raise InputError(f"attention_chunk_size = {config.attention_chunk_size!r} must be 1 or more")
    tuned = config.attn_temperature_tuning
    return {
        "num_experts": config.num_local_experts,
        "experts_per_token": config.num_experts_per_tok,
        "attention_chunk": config.attention_chunk_size,
        "global_interval": every,
        "qk_l2_norm": config.use_qk_norm,
        "query_scaling": QueryScaling(config.floor_scale, float(config.attn_scale)) if tuned else None,
    }


def write_config(directory: pathlib.Path, config: ModelConfig, *, token_ids: Mapping[str, Any]) -> None:
    """Writes config.json as transformers does; `token_ids` are its `bos_token_id`, `eos_token_id`, `pad_token_id`."""
    hide_missing_pytorch()
    import transformers

    class_name, model_class, _ = _CLASSES[config.architecture]
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        scaling = dataclasses.asdict(config.rope_scaling)
        rope |= {"rope_type": "llama3", **{name: scaling[field] for name, field in _LLAMA3.items()}}
    written = getattr(transformers, class_name)(
        vocab_size=config.vocab_size,
        hidden_size=config.embed_dim,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        intermediate_size=config.mlp_dim,
        tie_word_embeddings=config.tied_embeddings,
        rope_parameters=rope,
        rms_norm_eps=config.norm_eps,
        max_position_embeddings=config.max_positions,
        architectures=[model_class],
        dtype=config.dtype,
        **token_ids,
        **_special_fields(config),
    )
    written.head_dim = config.head_dim
    written.save_pretrained(directory)
    if (
        config.architecture == "qwen3_moe"
    ):  # transformers 5 calls the field num_local_experts, earlier ones and the published files so
        path = directory / "config.json"
        fields = json.loads(path.read_text(encoding="utf-8")) | {"num_experts": config.num_experts}
        path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _special_fields(config: ModelConfig) -> dict[str, Any]:
    """Fields that not every family has."""
    if config.local_layers is not None:
        scaling = config.query_scaling
        tuning = {} if scaling is None else {"floor_scale": scaling.floor, "attn_scale": scaling.scale}
        return tuning | {
            "attention_chunk_size": config.attention_chunk,
            "attn_temperature_tuning": scaling is not None,
            "intermediate_size_mlp": config.mlp_dim,
            "no_rope_layers": [int(local) for local in config.local_layers],
            "num_experts_per_tok": config.experts_per_token,
            "num_local_experts": config.num_experts,
            "use_qk_norm": config.qk_l2_norm,
        }
    special: dict[str, Any] = {} if config.architecture == "llama" else {"use_sliding_window": False}
    if config.num_experts:
        special |= {
            "moe_intermediate_size": config.mlp_dim,
            "num_experts": config.num_experts,
            "num_experts_per_tok": config.experts_per_token,
            "norm_topk_prob": config.normalized_routing,
        }
    return special


def _read(path: pathlib.Path) -> dict[str, Any]:
    """The JSON object, of a known family."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path.parent} is not a Hugging Face checkpoint: {_what_it_is(path.parent)}") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise InputError(f"{path}: not a JSON object; download the checkpoint again")
    if "model_type" not in raw and "identity" in raw:
        raise InputError(f"{path.parent} is not a Hugging Face checkpoint: {_OF_A_RUN.format(run=path.parent)}")
    if raw.get("model_type") not in (*FAMILIES, *_INSIDE):
        raise InputError(f"{path}: {unknown_word('model_type', raw.get('model_type'), (*FAMILIES, *_INSIDE))}")
    return raw


_OF_A_RUN = (
    "it is a run. Its trained model is {run}/model once it is done, and `python -m isocompute_jax.export --run={run}` "
    "makes one of its last checkpoint"
)


def _what_it_is(directory: pathlib.Path) -> str:
    """Why a directory has no config.json, and what to do."""
    if (directory / "state").is_dir() and directory.name.isdigit():
        return (
            "it is a checkpoint of a run, moments and all. Make one of it: `python -m isocompute_jax.export "
            f"--run={directory.parent.parent} --checkpoint={directory.name} --out=DIR`"
        )
    if not directory.is_dir():
        return (
            "there is no such directory, and nothing is downloaded here: `hf download NAME --local-dir DIRECTORY` "
            "fetches a model of the Hugging Face Hub"
        )
    return "it has no config.json"


_INSIDE: dict[str, tuple[Architecture, str]] = {"llama4": ("llama4_text", "Llama4ForConditionalGeneration")}
"""Models that see as well: model_type -> that of their text_config, and transformers' class of the whole."""
_BESIDE_TEXT = {
    "boi_token_index",
    "eoi_token_index",
    "image_token_index",
    "model_type",
    "text_config",
    "vision_config",
} | _WITHOUT_EFFECT


def _of_text(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of the language model; those of a model that also sees are in its text_config."""
    if raw["model_type"] in FAMILIES:
        return raw
    kind, whole = _INSIDE[raw["model_type"]]
    text = raw.get("text_config")
    if not isinstance(text, dict) or text.get("model_type") != kind:
        raise InputError(f"text_config must be an object with model_type = {kind!r}")
    if (raw.get("architectures") or [whole]) != [whole]:
        raise InputError(f"architectures = {raw['architectures']!r} is not implemented (only {[whole]!r})")
    for field, value in raw.items():
        read = _BESIDE_TEXT | {"architectures", "dtype", "torch_dtype"}
        if value and field not in read and not field.startswith("_"):
            raise InputError(f"{field} = {value!r} is not implemented")
    dtypes = {name: raw[name] for name in ("dtype", "torch_dtype") if raw.get(name)}
    inside = {"dtype", "torch_dtype"} & {name for name, value in text.items() if value}
    # The class of the whole was checked; that of the text says nothing of its own.
    return {name: value for name, value in text.items() if name != "architectures"} | ({} if inside else dtypes)


_LLAMA3 = {
    "factor": "factor",
    "low_freq_factor": "low_frequency",
    "high_freq_factor": "high_frequency",
    "original_max_position_embeddings": "original_positions",
}
"""Hugging Face's names of the fields of `RopeScaling`."""


def _rope(raw: dict[str, Any], theta: float) -> tuple[float, RopeScaling | None]:
    """Base and stretching of RoPE: transformers 4 has them in rope_theta and rope_scaling, 5 in rope_parameters.

    `theta` is the family's own base, of files that name none.
    """
    bases: dict[str, float] = {} if raw.get("rope_theta") is None else {"rope_theta": raw["rope_theta"]}
    stretched: dict[str, RopeScaling] = {}
    for field in ("rope_parameters", "rope_scaling"):
        rope = raw.get(field) or {}
        if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
            raise InputError(
                f"{field} = {rope!r} is not implemented: one rotary embedding serves all layers, so rope_type and "
                "rope_theta stand directly in it"
            )
        kinds = {f"{field}.{name}": rope[name] for name in ("rope_type", "type") if rope.get(name) is not None}
        for name, kind in kinds.items():
            if kind not in ("default", "llama3"):
                raise InputError(f"{name} = {kind!r} is not implemented (only 'default' and 'llama3')")
        if "llama3" in kinds.values():
            stretched[field] = _llama3(field, rope)
        for name, value in rope.items():
            if name == "rope_theta":
                bases[f"{field}.rope_theta"] = value
            elif name in _ONLY:
                _refuse_unless(f"{field}.{name}", value, _ONLY[name])
            elif (
                value is not None and name not in ("rope_type", "type") and not (field in stretched and name in _LLAMA3)
            ):
                raise InputError(f"{field}.{name} = {value!r} is not implemented for this rope_type")
    return float(_agreed(bases, theta)), _agreed(stretched, None)


def _agreed(values: Mapping[str, Any], default: Any) -> Any:
    """The one value that every field says."""
    if len(set(values.values())) > 1:
        each = " but ".join(f"{name} = {value!r}" for name, value in values.items())
        raise InputError(f"{each}: keep the one that the model was trained with")
    value = next(iter(values.values()), default)
    if isinstance(value, bool | str):
        raise InputError(f"{next(iter(values))} = {value!r} must be a number")
    return value


def _llama3(field: str, rope: Mapping[str, Any]) -> RopeScaling:
    for name in _LLAMA3:
        value = rope.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{field}.{name} = {value!r} must be a number: rope_type 'llama3' needs it")
    return RopeScaling(**{ours: rope[theirs] for theirs, ours in _LLAMA3.items()})


def _refuse_what_is_not_implemented(raw: dict[str, Any]) -> None:
    """Raises InputError for the first field whose value changes what the model computes."""
    from transformers import GenerationConfig

    sliding = sorted({str(kind) for kind in raw.get("layer_types") or []} - {"full_attention"})
    if sliding and not FAMILIES[raw["model_type"]].local_layers:
        raise InputError(f"layer_types holds {', '.join(map(repr, sliding))}: only 'full_attention' is implemented")
    _, causal, shape = _CLASSES[raw["model_type"]]
    classes = raw.get("architectures") or [causal]
    if causal not in classes:
        raise InputError(f"architectures = {classes!r} is not implemented (only {[causal]!r}): another head, perhaps")
    without_effect = shape | _READ | _WITHOUT_EFFECT | GenerationConfig().to_dict().keys()
    if raw["model_type"].startswith("qwen"):
        without_effect |= _WINDOWS
    for field, value in raw.items():
        if field in _ONLY:
            if value is not None:
                _refuse_unless(field, value, _ONLY[field])
        elif value and field not in without_effect and not field.startswith("_"):
            raise InputError(
                f"{field} = {value!r} is not implemented; if the field only describes the weights, which are "
                f"those of a plain {raw['model_type']}, remove it"
            )


def _refuse_unless(field: str, value: Any, implemented: Any) -> None:
    if value != implemented:
        raise InputError(f"{field} = {value!r} is not implemented (only {implemented!r})")
