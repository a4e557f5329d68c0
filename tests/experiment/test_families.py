"""A small model of a family, from the helper command through training to transformers."""

from __future__ import annotations

import dataclasses
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import EvaluationConfig
from isocompute_jax.learner import LossConfig
from tests import mains
from tests.experiment.builders import make_inputs

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

MAKE_MODEL = "isocompute_jax.make_model"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "llama4_text"])
def test_a_small_model_trains_and_transformers_loads_the_result(tmp_path, family):
    import torch
    from transformers import AutoModelForCausalLM

    sizes = ["--embed_dim=16", "--head_dim=8", "--mlp_dim=32", "--num_layers=1"]
    done = mains.run(MAKE_MODEL, [f"--family={family}", f"--out={tmp_path / 'small'}", *sizes])
    assert done.returncode == 0, done.stderr
    config = model.load_config(tmp_path / "small")
    assert f"{model.count_params(config):,} parameters" in done.stdout and config.architecture == family

    run = dataclasses.replace(make_inputs(tmp_path), model=str(tmp_path / "small"), max_compute=64 * 2)
    run = dataclasses.replace(run, loss=LossConfig(), evaluation=EvaluationConfig())
    loop.train(run, tmp_path / "run")
    trained = tmp_path / "run" / "model"
    before, after = (model.load_params(path, config) for path in (tmp_path / "small", trained))
    moved = jax.tree.map(lambda a, b: bool((np.asarray(a) != np.asarray(b)).any()), before, after)
    assert all(jax.tree.leaves(moved)), moved

    reference = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32).eval()
    tokens = np.arange(12)[None]
    with torch.no_grad():
        theirs = reference(torch.tensor(tokens)).logits.numpy()
    hidden, _ = model.prefill(config, after, jnp.asarray(tokens), jnp.ones(tokens.shape, bool))
    ours = np.asarray(model.logits(config, after, hidden))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())


def test_a_directory_that_is_no_checkpoint_is_not_replaced(tmp_path):
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    (tmp_path / "file").write_text("mine")
    for out in ("mine", "file"):
        done = mains.run(MAKE_MODEL, [f"--out={tmp_path / out}"])
        assert done.returncode == 2 and f"--out={tmp_path / out} exists and is no checkpoint" in done.stderr
    assert (tmp_path / "mine" / "deep").is_dir() and (tmp_path / "file").read_text() == "mine"


def test_flags_of_experts_are_refused_for_dense_models(tmp_path):
    done = mains.run(MAKE_MODEL, [f"--out={tmp_path / 'out'}", "--num_experts=4"])
    assert (
        done.returncode == 2
        and "--num_experts is for families with experts (qwen3_moe, llama4_text); a qwen2 has none" in done.stderr
    )
