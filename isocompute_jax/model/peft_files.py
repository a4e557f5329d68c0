"""Adapters as PEFT's directories, which peft and vLLM load: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pathlib
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

from isocompute_jax import sharding
from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.hf_checkpoint import whole_directory
from isocompute_jax.model.hf_layout import hf_tensors, params_from_tensors
from isocompute_jax.model.lora import LoraConfig, adapter_specs
from isocompute_jax.model.params import Params, map_table, spec_leaves
from isocompute_jax.records.errors import InputError

LOG = logging.getLogger(__name__)

CONFIG_FILE, TENSOR_FILE = "adapter_config.json", "adapter_model.safetensors"
BASE = "isocompute_base"
"""In the metadata of the tensors: a checksum of the model that they were trained on."""


UNSET = ("null", "false", '""', "[]", "{}")
PLAIN = {
    "peft_type": ('"LORA"',),
    "bias": ('"none"',),
    "init_lora_weights": ("true", '"gaussian"', '"orthogonal"', '"eva"'),
}
"""What fields of peft's configs may say; other initialisations change the model's own weights, or freeze B."""
OF_NO_MATTER = (
    "r", "lora_alpha", "target_modules", "lora_dropout", "task_type", "inference_mode", "base_model_name_or_path",
    "revision", "auto_mapping", "peft_version", "runtime_config", "exclude_modules", "layers_pattern", "megatron_core",
    "qalora_group_size", "ensure_weight_tying", "eva_config", "corda_config", "loftq_config", "lora_ga_config",
)  # fmt: skip
"""Those that are read elsewhere, or do not change by themselves what adapters compute or what of them is trained."""


def fingerprint(params: Params) -> str:
    """Of a model's weights: a few numbers of each parameter, rounded to bfloat16, in which copies of a model agree.

    Every process that holds parts of them must ask.
    """
    found = hashlib.blake2b(digest_size=8)
    for leaf in jax.tree.leaves(params):
        found.update(np.asarray(sharding.to_host(leaf[(0,) * (leaf.ndim - 1)].astype(jax.numpy.bfloat16))).tobytes())
    return found.hexdigest()


def save_adapter(
    directory: str | os.PathLike[str],
    config: ModelConfig,
    lora: LoraConfig,
    adapters: Params,
    *,
    base: str,
    base_fingerprint: str,
    writes: bool = True,
) -> None:
    """Writes adapters in float32; an older `directory` stays until it is whole.

    Where several processes hold the adapters, each of them must call it, and one of them writes.

    Args:
      directory: where to.
      config: model shape.
      lora: what the adapters are.
      adapters: A and B.
      base: directory or name of the model that they belong to.
      base_fingerprint: of its weights.
      writes: whether this process does.
    """
    table = adapter_specs(config, lora)
    tensors = dict(hf_tensors(config, adapters, table=table))
    if not writes:
        return
    with whole_directory(directory) as temporary:
        # One entry: of several the order, and so the bytes of the file, would be anything.
        safetensors.numpy.save_file(tensors, temporary / TENSOR_FILE, {BASE: base_fingerprint})
        written = json.dumps(_peft_config(lora, targets_of(table), base), indent=2) + "\n"
        (temporary / CONFIG_FILE).write_text(written, encoding="utf-8")


def targets_of(table: Any) -> list[str]:
    """The modules that a table has adapters for."""
    return sorted({spec.hf_name.split(".")[-3] for spec in spec_leaves(table)})


def _peft_config(lora: LoraConfig, targets: list[str], base: str) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": targets,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "use_rslora": False,
        "use_dora": False,
    }


def load_adapter(
    directory: str | os.PathLike[str],
    config: ModelConfig,
    lora: LoraConfig,
    *,
    base_fingerprint: str,
    shardings: Params | None = None,
) -> Params:
    """Adapters of a directory that this library or peft wrote, in float32.

    Args:
      directory: a PEFT directory.
      config: model shape.
      lora: what they are to be; rank, alpha and targets are the directory's, or it is refused.
      base_fingerprint: of the model's weights.
      shardings: where each goes (`adapter_shardings`); the default device when None.

    Raises:
      InputError: no such directory, other adapters than `lora` says, or those of another model; it says which.
    """
    directory, table = pathlib.Path(directory), adapter_specs(config, lora)
    _check_config(directory, lora, targets_of(table))
    path = directory / TENSOR_FILE
    shapes = {name: spec.hf_shape for spec in spec_leaves(table) for name in spec.hf_names}
    try:
        with safetensors.safe_open(path, "numpy") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            known = (file.metadata() or {}).get(BASE)
            wrong = sorted(name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name))
            if wrong:
                raise InputError(
                    f"{path}: {wrong[0]} is {found.get(wrong[0], 'missing')}, where the model has "
                    f"{shapes.get(wrong[0], 'none')}: these are adapters of another model"
                )
            if known is None:
                LOG.warning("%s does not say on which weights it was trained: nothing holds it to this model's", path)
            elif known != base_fingerprint:
                raise InputError(
                    f"{path}: these adapters were trained on other weights than those of this run's model; give "
                    "`model` the directory that adapter_config.json names"
                )
            here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            return params_from_tensors(
                config,
                lambda name, index: file.get_slice(name)[index],
                shardings=shardings or map_table(lambda _: here, table),
                table=table,
                dtype=config.float_dtype,
            )
    except (safetensors.SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a safetensors file that can be read ({error})") from error


def _check_config(directory: pathlib.Path, lora: LoraConfig, targets: list[str]) -> None:
    """Holds a directory's adapter_config.json to the run's config."""
    path = directory / CONFIG_FILE
    try:
        written = dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InputError(f"{path} is missing: lora.start is a directory that peft's save_pretrained wrote") from None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: not an adapter's config ({error!r})") from error
    for name, value in written.items():
        if name not in OF_NO_MATTER and json.dumps(value) not in (*UNSET, *PLAIN.get(name, ())):
            raise InputError(
                f"{path}: {name} is {json.dumps(value)}: only plain LoRA is known here; make a model of it with peft's "
                "merge_and_unload, and begin with that"
            )
    wanted = {"r": lora.rank, "lora_alpha": lora.alpha, "target_modules": targets}
    for name, value in wanted.items():
        has = written.get(name)
        if (sorted(has, key=str) if isinstance(has, list) else has) != value:
            raise InputError(f"{path}: {name} = {has!r}, and the run's lora fields make {value!r}; set them alike")
