"""The tensors of a Hugging Face directory, without reading them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import safetensors

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.tensors import DTYPE_BYTES, TensorSpec

TIED_HEAD = "lm_head.weight"


def read_config(model: str) -> dict[str, Any]:
    """config.json of a checkpoint.

    Raises:
      InputError: there is none, or it is no JSON object.
    """
    path = pathlib.Path(model) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--model={model}: {path} cannot be read ({error.strerror}): give a checkpoint") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}): download the checkpoint again") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object: download the checkpoint again")
    return config


def resolve_dtype(model: str, dtype: str) -> str:
    """The dtype to serve: `auto` is the checkpoint's, float32 where it does not say.

    Raises:
      InputError: updates cannot carry it.
    """
    if dtype == "auto":
        config = read_config(model)
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if dtype not in DTYPE_BYTES:
        raise InputError(f"--dtype: weights are served as {', '.join(DTYPE_BYTES)}, not as {dtype}: choose one of them")
    return dtype


def tensor_specs(model: str, *, dtype: str, load: bool) -> tuple[TensorSpec, ...]:
    """Every tensor of the checkpoint by name, in `dtype`; a tied head is the embedding table and not named again.

    Shapes come from the headers of the safetensors files; where only config.json is there (`load` False), from the
    model that transformers builds of it without memory.

    Raises:
      InputError: the files are missing or damaged.
    """
    files = sorted(pathlib.Path(model).glob("*.safetensors"))
    if not files and load:
        raise InputError(f"--model={model}: no *.safetensors file there: give a checkpoint in that format")
    shapes = _file_shapes(files) if files else _config_shapes(model)
    if read_config(model).get("tie_word_embeddings"):
        shapes.pop(TIED_HEAD, None)
    return tuple(TensorSpec(name, dtype, shape) for name, shape in sorted(shapes.items()))


def _file_shapes(files: list[pathlib.Path]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for path in files:
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                shapes.update({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
        except (safetensors.SafetensorError, OSError) as error:
            raise InputError(f"{path}: corrupt safetensors file ({error}): download or save it again") from error
    return shapes


def _config_shapes(model: str) -> dict[str, tuple[int, ...]]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(config)
    except (ValueError, OSError) as error:
        raise InputError(f"--model={model}: transformers knows no model of this config.json ({error})") from error
    return {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()}
