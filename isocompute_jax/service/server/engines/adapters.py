"""Adapters as a server takes them: their tensors, as PEFT names them, and the directory that vLLM reads them from.

B comes multiplied by alpha / r, so that no scale has to travel with it. Imports nothing heavy.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

import numpy as np
import safetensors.numpy

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.server.engines.base import EngineSettings
from isocompute_jax.service.weights.files import WeightFile

ALL = "all"
PREFIX, MATRIX = "base_model.model.", "_proj.weight"
DTYPE = "float32"


def adapter_tensors(tensors: Sequence[TensorSpec], settings: EngineSettings) -> tuple[TensorSpec, ...]:
    """The tensors of the adapters that a server of a model with these `tensors` takes.

    Raises:
      InputError: a target that the model has not, or a rank above that of a matrix.
    """
    rank, targets = settings.lora_rank, [name.strip() for name in settings.lora_targets.split(",")]
    found: dict[str, list[TensorSpec]] = {}
    for tensor in tensors:
        if tensor.name.endswith(MATRIX):
            found.setdefault(tensor.name.split(".")[-2], []).append(tensor)
    chosen = list(found) if targets == [ALL] else targets
    for name in chosen:
        if name not in found:
            raise InputError(f"--lora_targets: {settings.model} has no {name!r}; it has {', '.join(sorted(found))}")
    made = []
    for matrix in (tensor for name in chosen for tensor in found[name]):
        outputs, inputs = matrix.shape
        if rank > min(matrix.shape):
            raise InputError(f"--lora_rank={rank} is above that of {matrix.name}, {outputs} x {inputs}: lower it")
        stem = PREFIX + matrix.name.removesuffix(".weight")
        made.append(TensorSpec(f"{stem}.lora_A.weight", DTYPE, (rank, inputs)))
        made.append(TensorSpec(f"{stem}.lora_B.weight", DTYPE, (outputs, rank)))
    return tuple(made)


def write_adapter(directory: pathlib.Path, weights: WeightFile, rank: int) -> None:
    """A PEFT directory of what came."""
    data = np.memmap(weights.path, np.uint8, mode="r")
    tensors = {
        tensor.name: data[start : start + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)
        for tensor, start in zip(weights.tensors, weights.starts, strict=True)
    }
    directory.mkdir(parents=True)
    safetensors.numpy.save_file(tensors, directory / "adapter_model.safetensors", {"format": "pt"})
    targets = sorted({name.split(".")[-3] for name in tensors})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": targets,
        "bias": "none",
    }
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
