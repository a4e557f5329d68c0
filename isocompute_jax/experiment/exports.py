"""The weights of any checkpoint of a run as a Hugging Face directory, without the run."""

from __future__ import annotations

import os
import pathlib

import jax.numpy as jnp

from isocompute_jax import model
from isocompute_jax.learner import checkpoint_files
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError


def export_checkpoint(
    run: str | os.PathLike[str],
    *,
    name: int | None = None,
    out: str | os.PathLike[str] | None = None,
    base_model: str | os.PathLike[str] | None = None,
) -> pathlib.Path:
    """Writes the weights of a checkpoint as the run itself would have: same bytes, same dtype, same tokenizer.

    The run may go on meanwhile. Only the weights are read, to the host's memory.

    Args:
      run: run directory.
      name: of the checkpoint; None for the last whole one.
      out: directory to write; None for exports/step-N of the run.
      base_model: Hugging Face directory of the run's model, where it is not where config.json says.

    Returns:
      the directory.

    Raises:
      InputError: there is no such run, checkpoint or model, or it is damaged, or `out` is in use for something else.
    """
    run = pathlib.Path(run)
    run_files.check_links(run)
    config = run_files.read_run(run).config.get("config", {})
    directory = run / run_files.CHECKPOINTS
    known = sorted(checkpoint_files.names(directory))
    if name is None:
        name = next((step for step in reversed(known) if checkpoint_files.damage(directory / str(step)) is None), None)
        if name is None:
            raise InputError(f"{directory} holds no whole checkpoint")
    if name not in known:
        raise InputError(f"{directory} holds no checkpoint {name}; there are: {', '.join(map(str, known)) or 'none'}")
    path = directory / str(name)
    damage = checkpoint_files.damage(path)
    if damage is not None:
        raise InputError(f"{path} is damaged: {damage}. Export another one")
    source = base_model or config.get("model", "")
    shape = model.load_config(source, dtype=config.get("dtype"))
    out = run / run_files.EXPORTS / f"step-{step_of(path)}" if out is None else pathlib.Path(out)
    if (
        out.exists()
        and not (out / "model.safetensors").exists()
        and not (out / "model.safetensors.index.json").exists()
    ):
        raise InputError(f"--out={out} exists and holds no model: it would be replaced; name another directory")
    masters = model.abstract_params(shape, jnp.promote_types(jnp.dtype(shape.dtype), jnp.float32))
    params = checkpoint_files.read_params(path, masters)
    model.save_checkpoint(out, shape, params, tokenizer_from=source, dtype=shape.dtype)
    return out


def step_of(path: pathlib.Path) -> int:
    """The step of the logs after which a checkpoint was written."""
    return int(checkpoint_files.read_loop(path)["ledger"]["step"])
