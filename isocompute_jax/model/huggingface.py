"""Hugging Face directories in and out: config.json, safetensors (sharded or not) and the tokenizer's files.

Unknown, missing and mis-shaped tensors are errors that name the key. Nothing is half-written: a directory is filled
under a temporary name and renamed.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.hf_layout import hf_tensor_shapes, hf_tensors, params_from_tensors
from isocompute_jax.model.params import Params, map_specs
from isocompute_jax.records.errors import InputError

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = ("float32", "bfloat16", "float16", "float64")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


def load_config(directory: str | os.PathLike[str], *, dtype: str | None = None) -> ModelConfig:
    """Reads config.json of a Qwen2 / Qwen2.5 checkpoint; `dtype` overrides the checkpoint's.

    Raises:
      InputError: no config.json, another architecture, or a setting this library does not implement.
    """
    from transformers import Qwen2Config

    path = pathlib.Path(directory) / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{directory} is not a Hugging Face checkpoint: it has no config.json") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise InputError(f"{path}: not a JSON object; download the checkpoint again")
    if raw.get("model_type") != "qwen2":
        raise InputError(
            f"{path}: model_type is {raw.get('model_type')!r}; only 'qwen2' (Qwen2, Qwen2.5) is implemented"
        )
    dtype = dtype or str(raw.get("dtype") or raw.get("torch_dtype") or "float32")
    if dtype not in DTYPES:
        raise InputError(f"{path}: dtype = {dtype!r} is not implemented (only {', '.join(DTYPES)})")
    try:
        config: Any = Qwen2Config(**raw)
    except Exception as error:  # transformers checks fields with exceptions of many types
        raise InputError(f"{path}: {error}") from error
    rope: Mapping[str, Any] = config.rope_parameters or {}
    for field, value, wanted in (
        ("hidden_act", config.hidden_act, "silu"),
        ("use_sliding_window", bool(config.use_sliding_window), False),
        ("rope type", rope.get("rope_type", "default"), "default"),
    ):
        if value != wanted:
            raise InputError(f"{path}: {field} = {value!r} is not implemented (only {wanted!r})")
    try:
        return ModelConfig(
            vocab_size=config.vocab_size,
            embed_dim=config.hidden_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=raw.get("head_dim") or config.hidden_size // config.num_attention_heads,
            mlp_dim=config.intermediate_size,
            tied_embeddings=bool(config.tie_word_embeddings),
            rope_theta=float(rope.get("rope_theta", 10_000.0)),
            norm_eps=float(config.rms_norm_eps),
            max_positions=config.max_position_embeddings,
            dtype=dtype,
        )
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def load_params(directory: str | os.PathLike[str], config: ModelConfig, *, shardings: Params | None = None) -> Params:
    """Reads the parameters of a checkpoint in `config.dtype`, one stacked parameter at a time.

    Args:
      directory: a Hugging Face directory.
      config: what `load_config` read.
      shardings: where each parameter goes (`param_shardings`); the default device when None.

    Raises:
      InputError: a file is missing or corrupt, or a key is unknown, missing or mis-shaped.
    """
    directory = pathlib.Path(directory)
    files = _tensor_files(directory)
    _check_keys(directory, config, files)
    shapes = dict(hf_tensor_shapes(config))

    def read(name: str) -> np.ndarray:
        tensor = _read(files[name], name)
        if tensor.shape != shapes[name]:
            raise InputError(f"{files[name]}: {name} has shape {tensor.shape}, config.json asks for {shapes[name]}")
        return tensor

    # Committed to its device, as restored checkpoints are: else a resumed run would compile everything anew.
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0]) if shardings is None else None
    return params_from_tensors(config, read, shardings=shardings or map_specs(lambda _: here, config))


def save_checkpoint(
    directory: str | os.PathLike[str],
    config: ModelConfig,
    params: Params,
    *,
    tokenizer_from: str | os.PathLike[str] | None,
    max_file_bytes: int = 5 * 10**9,
) -> None:
    """Writes a Hugging Face directory that transformers and vLLM load; an older `directory` stays until it is whole.

    Args:
      directory: where to.
      config: model shape.
      params: parameters; saved bit for bit in their own dtype.
      tokenizer_from: directory whose tokenizer files are copied along; None writes none.
      max_file_bytes: start a new safetensors file beyond this size.
    """
    directory = pathlib.Path(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    try:
        _write_tensors(temporary, config, params, max_file_bytes)
        _write_config(temporary, config)
        if tokenizer_from is not None:
            for name in TOKENIZER_FILES:
                source = pathlib.Path(tokenizer_from) / name
                if source.exists():
                    shutil.copyfile(source, temporary / name)
        temporary.chmod(0o755)
        _replace(temporary, directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _replace(new: pathlib.Path, directory: pathlib.Path) -> None:
    """Puts `new` in place of `directory`. The old one is moved aside first and deleted last: nothing is ever lost."""
    if not directory.exists():
        new.rename(directory)
        return
    aside = new.with_name(f"{new.name}.old")
    directory.rename(aside)
    try:
        new.rename(directory)
    except BaseException:
        aside.rename(directory)
        raise
    shutil.rmtree(aside)


def _tensor_files(directory: pathlib.Path) -> dict[str, pathlib.Path]:
    """Tensor name -> file that holds it."""
    index = directory / INDEX
    if index.exists():
        try:
            files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            paths = [directory / name for name in sorted(files)]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(f"{index}: not a safetensors index ({error!r}); download the checkpoint again") from error
    else:
        paths = [directory / SINGLE_FILE]
    found: dict[str, pathlib.Path] = {}
    for path in paths:
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                found.update(dict.fromkeys(file.keys(), path))
        except FileNotFoundError:
            raise InputError(f"{directory}: {path.name} is missing; the checkpoint is incomplete") from None
        except (safetensors.SafetensorError, OSError) as error:
            raise InputError(f"{path}: corrupt safetensors file ({error}); download or save it again") from error
    return found


def _read(path: pathlib.Path, name: str) -> np.ndarray:
    with safetensors.safe_open(path, framework="numpy") as file:
        return file.get_tensor(name)


def _check_keys(directory: pathlib.Path, config: ModelConfig, files: dict[str, pathlib.Path]) -> None:
    wanted = {name for name, _ in hf_tensor_shapes(config)}
    # Some writers store the tied head once more; it is the embedding table, so it is read from there.
    allowed = wanted | ({"lm_head.weight"} if config.tied_embeddings else set())
    missing, unknown = sorted(wanted - set(files)), sorted(set(files) - allowed)
    if missing:
        raise InputError(f"{directory}: the checkpoint lacks {_listed(missing)}, which config.json asks for")
    if unknown:
        raise InputError(f"{directory}: the checkpoint has {_listed(unknown)}, which config.json does not ask for")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _write_tensors(directory: pathlib.Path, config: ModelConfig, params: Params, max_file_bytes: int) -> None:
    files: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for name, tensor in hf_tensors(config, params):
        if files[-1] and size + tensor.nbytes > max_file_bytes:
            files.append({})
            size = 0
        files[-1][name] = tensor
        size += tensor.nbytes
    metadata = {"format": "pt"}  # transformers refuses files without it
    if len(files) == 1:
        safetensors.numpy.save_file(files[0], directory / SINGLE_FILE, metadata)
        return
    weight_map: dict[str, str] = collections.OrderedDict()
    for number, tensors in enumerate(files, 1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        safetensors.numpy.save_file(tensors, directory / name, metadata)
        weight_map.update(dict.fromkeys(tensors, name))
    total = sum(tensor.nbytes for tensors in files for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")


def _write_config(directory: pathlib.Path, config: ModelConfig) -> None:
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
