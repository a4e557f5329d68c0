"""A tiny model's config.json, and a run of it on packed rows over eight devices."""

import json
import pathlib

from isocompute_jax.experiment.config import (
    ComputeConfig,
    MeshConfig,
    PackingConfig,
    RecipeConfig,
    RunConfig,
    SamplingConfig,
)

SIZES = {"vocab": 64, "embed": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head": 16, "mlp": 64}


def write_model(directory: pathlib.Path) -> str:
    fields = {
        "model_type": "llama",
        "vocab_size": SIZES["vocab"],
        "hidden_size": SIZES["embed"],
        "num_hidden_layers": SIZES["layers"],
        "num_attention_heads": SIZES["heads"],
        "num_key_value_heads": SIZES["kv_heads"],
        "head_dim": SIZES["head"],
        "intermediate_size": SIZES["mlp"],
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(fields))
    return str(directory)


def run_config(model: str) -> RunConfig:
    return RunConfig(
        model=model,
        train_set="unread.jsonl",
        group_size=4,
        problems_per_batch=8,
        max_compute=320,
        mesh=MeshConfig(fsdp=8),
        sampling=SamplingConfig(max_prompt_tokens=8, max_tokens=24),
        packing=PackingConfig(row_tokens=32),
        compute=ComputeConfig(remat="full"),
        recipe=RecipeConfig(microbatch_tokens=8 * 32),
    )
