"""GGUF files (llama.cpp's): the shape and the weights of a Llama, Qwen2 or Qwen3, dequantised.

The `gguf` package reads the file, knows its names and undoes its quantisation, as it does for transformers: the same
numbers, to the bit. What is done here is what the converters of llama.cpp did, backwards.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from isocompute_jax.model.config import Architecture, Dtype, ModelConfig, RopeScaling
from isocompute_jax.model.hf_layout import hf_tensor_shapes
from isocompute_jax.model.layers import stretched
from isocompute_jax.records.errors import InputError

GGUF_FAMILIES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3")
"""Families that are read; GGUF calls them as Hugging Face does."""

MAGIC = b"GGUF"
ROPE_FACTORS = "rope_freqs.weight"
STRETCHES = tuple(RopeScaling(factor, 1.0, 4.0, 8192) for factor in (8.0, 32.0))
"""How Llama 3.1 and 3.3, and Llama 3.2, stretch RoPE: a GGUF holds what comes of it, not the fields."""


class GgufFile:
    """An opened GGUF.

    Args:
      path: the file.

    Raises:
      InputError: it is no GGUF, is cut short, or the package that reads it is missing.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = pathlib.Path(path)
        try:
            with self.path.open("rb") as file:
                magic = file.read(len(MAGIC))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); give a GGUF file") from error
        if magic != MAGIC:
            raise InputError(f"{path}: is no GGUF, which begins with the letters GGUF; give a GGUF file")
        import gguf

        try:
            reader = gguf.GGUFReader(self.path)
            self.fields: Mapping[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
            self.tensors: Mapping[str, Any] = {tensor.name: tensor for tensor in reader.tensors}
        except Exception as error:  # what NumPy says of a memory map that ends early, or of an unknown type
            raise InputError(f"{path}: cut short or broken ({error}); download it again") from error

    def field(self, name: str, default: Any = None) -> Any:
        """A field of the file; `*` stands for the family. Raises InputError where it is missing and has no default."""
        name = name.replace("*", str(self.fields.get("general.architecture")))
        found = self.fields.get(name, default)
        if found is None:
            raise InputError(f"{self.path}: has no {name}, which a language model needs; download or convert it again")
        return found

    def number(self, name: str, default: Any = None, *, kind: Any = int) -> Any:
        """As `field`, of one that is a number above 0, the same for all layers where it has one for each."""
        found = self.field(name, default)
        each: list[Any] = found if isinstance(found, list) and found else [found]
        if any(other != each[0] for other in each) or not (isinstance(each[0], kind) and each[0] > 0):
            name = name.replace("*", self.field("general.architecture"))
            what = "a whole number" if kind is int else "a number"
            raise InputError(f"{self.path}: {name} is {found!r}; it must be {what} above 0, the same for all layers")
        return each[0]

    def config(self, dtype: Dtype) -> ModelConfig:
        """The shape.

        Raises:
          InputError: the family, or something of it, is not known.
        """
        family = self.field("general.architecture")
        if family not in GGUF_FAMILIES:
            listed = ", ".join(GGUF_FAMILIES)
            raise InputError(f"{self.path}: holds a {family!r}; GGUF files of {listed} are read, so give one of those")
        if experts := self.field("*.expert_count", 0):
            raise InputError(f"{self.path}: has {experts} experts a layer; give a dense model's GGUF")
        stretched = self.field("*.rope.scaling.type", "none")
        if stretched != "none":
            raise InputError(f"{self.path}: stretches RoPE by {stretched!r}, which is not implemented")
        heads, width = self.number("*.attention.head_count"), self.number("*.embedding_length")
        head_dim = self.number("*.attention.key_length", width // heads)
        rotated = self.number("*.rope.dimension_count", head_dim)
        if rotated != head_dim or self.number("*.attention.value_length", head_dim) != head_dim:
            raise InputError(f"{self.path}: its heads are not rotated whole, or have values of another size than keys")
        theta = float(np.float32(self.number("*.rope.freq_base", 10_000.0, kind=int | float)))
        return ModelConfig(
            vocab_size=int(self._tensor("token_embd.weight").shape[-1]),  # GGUF names the fastest dimension first
            embed_dim=width,
            num_layers=self.number("*.block_count"),
            num_heads=heads,
            num_kv_heads=self.number("*.attention.head_count_kv", heads),
            head_dim=head_dim,
            mlp_dim=self.number("*.feed_forward_length"),
            tied_embeddings="output.weight" not in self.tensors,
            rope_theta=theta,
            # A float32 of the file: 1e-5 is what its writer read.
            norm_eps=float(str(np.float32(self.number("*.attention.layer_norm_rms_epsilon", kind=float)))),
            max_positions=self.number("*.context_length"),
            dtype=dtype,
            attention_bias=family == "qwen2",
            qk_norm=family == "qwen3",
            rope_scaling=self._rope_scaling(theta, head_dim),
        )

    def hf_tensors(self, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
        """Every tensor under its Hugging Face name and in its layout, in `config.dtype`, one at a time.

        Raises:
          InputError: one is missing, has another shape, is quantised in a way that is not known, or one too many.
        """
        import gguf

        family = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == config.architecture)
        names = gguf.get_tensor_name_map(family, config.num_layers)
        wanted = {name: names.get_name(name, (".weight", ".bias")) or name for name, _ in hf_tensor_shapes(config)}
        if more := sorted(self.tensors.keys() - wanted.values() - {ROPE_FACTORS}):
            raise InputError(f"{self.path}: has {more[0]}, which a {config.architecture} has not; download it again")
        for name, shape in hf_tensor_shapes(config):
            tensor = self._tensor(wanted[name])
            try:
                value = gguf.dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError as error:
                raise InputError(
                    f"{self.path}: {tensor.name} is quantised as {tensor.tensor_type.name}, which the gguf package "
                    "does not undo; take a file with Q4_0, Q4_1, Q8_0, K-quants or F16"
                ) from error
            if value.shape != shape:
                raise InputError(f"{self.path}: {tensor.name} has shape {value.shape}, its fields ask for {shape}")
            if config.architecture == "llama":
                value = _halves_apart(name, value, config)
            yield name, np.ascontiguousarray(value.astype(jnp.dtype(config.dtype)))

    def _tensor(self, name: str) -> Any:
        if name not in self.tensors:
            raise InputError(f"{self.path}: has no tensor {name}; it is a part of a model, or cut short")
        return self.tensors[name]

    def _rope_scaling(self, theta: float, head_dim: int) -> RopeScaling | None:
        """The fields behind the factors of a Llama 3.1's RoPE; None where there are none."""
        if ROPE_FACTORS not in self.tensors:
            return None
        found = self.tensors[ROPE_FACTORS].data
        for scaling in STRETCHES:
            if len(found) == head_dim // 2 and np.allclose(found, stretched_by(scaling, theta, head_dim), rtol=1e-5):
                return scaling
        raise InputError(f"{self.path}: stretches RoPE by {ROPE_FACTORS} in another way than Llama 3.1 to 3.3")


def stretched_by(scaling: RopeScaling, theta: float, head_dim: int) -> np.ndarray:
    """[H / 2] what each wavelength is multiplied by: 1 where it is short, `factor` where it is long."""
    plain = jnp.asarray(theta ** (-np.arange(0, head_dim, 2) / head_dim), jnp.float32)
    return np.asarray(plain / stretched(plain, scaling))


def _halves_apart(name: str, value: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Query and key rows in the order of Hugging Face, RoPE's pairs in halves: llama.cpp has them side by side."""
    heads = {"self_attn.q_proj.weight": config.num_heads, "self_attn.k_proj.weight": config.num_kv_heads}
    for ending, count in heads.items():
        if name.endswith(ending):
            pairs = value.reshape(count, config.head_dim // 2, 2, value.shape[-1])
            return pairs.swapaxes(1, 2).reshape(value.shape)
    return value
