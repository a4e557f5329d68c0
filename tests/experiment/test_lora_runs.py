"""Runs that train adapters: what is trained and kept, what is written, and kills."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from isocompute_jax import app, model
from isocompute_jax.experiment import loop, workdir
from isocompute_jax.experiment.config import override
from isocompute_jax.learner import LossConfig
from isocompute_jax.model import LoraConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from tests.experiment import builders

LORA = LoraConfig(rank=4, alpha=8.0)


def with_adapters(run, steps=6, **fields):
    lora = dataclasses.replace(LORA, **fields)
    return dataclasses.replace(run, lora=lora, max_compute=steps * run.rollouts_per_step, loss=LossConfig())


@pytest.fixture(scope="module")
def adapted(often, tmp_path_factory):
    run = tmp_path_factory.mktemp("lora") / "run"
    loop.train(with_adapters(often), run)
    return run


def test_adapters_alone_are_trained_and_kept(often, adapted):
    arrays, _ = builders.read_checkpoint(adapted, 6)
    size = sum(x.size for x in jax.tree.leaves(model.abstract_adapters(builders.MODEL, LORA)))
    assert sum(x.size for name, x in arrays.items() if name.startswith("params")) == size
    assert sum(x.size for name, x in arrays.items() if "/mu/" in name) == size
    assert not any("embed" in name for name in arrays)
    lines = run_files.read_lines(adapted / run_files.METRICS)
    assert any(line["gradient_norm"] for line in lines)
    # Merged for the sampler, applied in the learner: the same policy.
    assert max(line["logprob_difference_max"] or 0 for line in lines) < 1e-5


def test_the_model_and_the_adapter_of_a_run_belong_together(often, adapted):
    base = model.load_params(often.model, builders.MODEL)
    found = model.load_adapter(
        adapted / "model-adapter", builders.MODEL, LORA, base_fingerprint=model.fingerprint(base)
    )
    assert any(np.any(x.b) for x in found["layers"].values())
    whole = model.load_params(adapted / "model", builders.MODEL)
    jax.tree.map(np.testing.assert_array_equal, whole, model.merged(model.with_adapters(base, found)))
    np.testing.assert_array_equal(whole["embed"], base["embed"])
    written = json.loads((adapted / "model-adapter" / "adapter_config.json").read_text())
    assert (written["r"], written["lora_alpha"], written["base_model_name_or_path"]) == (4, 8.0, often.model)


def test_another_base_model_is_refused_by_resume_and_export(often, tmp_path):
    base, run = shutil.copytree(often.model, tmp_path / "base"), tmp_path / "run"
    config = dataclasses.replace(with_adapters(often), model=str(base))
    with builders.interrupted_in_step(3), pytest.raises(KeyboardInterrupt):
        loop.train(config, run)
    other = model.init_params(builders.MODEL, jax.random.key(7))
    model.save_checkpoint(base, builders.MODEL, other, tokenizer_from=often.model)
    with pytest.raises(InputError, match="base is another model than when this run began"):
        loop.train(config, run)
    with pytest.raises(InputError, match=r"another model than the one that the adapters of .* were trained beside"):
        workdir.export_checkpoint(run)
    assert workdir.export_checkpoint(run, base_model=often.model).is_dir()


def test_interrupted_it_ends_the_same(often, adapted, tmp_path):
    config = with_adapters(often)
    for step in (2, 5):
        with builders.interrupted_in_step(step):
            assert app.exit_code(lambda: loop.train(config, tmp_path / "run")) == app.INTERRUPTED
    loop.train(config, tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", adapted)
    adapters = [
        (run / "model-adapter" / "adapter_model.safetensors").read_bytes() for run in (tmp_path / "run", adapted)
    ]
    assert adapters[0] == adapters[1]


def test_training_goes_on_from_an_adapter(often, adapted, tmp_path):
    start = str(adapted / "model-adapter")
    config = with_adapters(often, steps=1, start=start)
    loop.train(
        dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, base_lr=1e-30)), tmp_path / "a"
    )
    assert (tmp_path / "a" / "model" / "model.safetensors").read_bytes() == (
        adapted / "model" / "model.safetensors"
    ).read_bytes()
    with pytest.raises(InputError, match="r = 4, and the run's lora fields make 2"):
        loop.train(dataclasses.replace(config, lora=dataclasses.replace(config.lora, rank=2)), tmp_path / "b")


def test_a_checkpoint_of_adapters_is_exported_as_the_run_does(often, adapted, tmp_path):
    from isocompute_jax.experiment.workdir import export_checkpoint

    out = export_checkpoint(adapted, out=tmp_path / "model")
    assert (out / "model.safetensors").read_bytes() == (adapted / "model" / "model.safetensors").read_bytes()
    [ours, theirs] = [
        path / "adapter_model.safetensors" for path in (tmp_path / "model-adapter", adapted / "model-adapter")
    ]
    assert ours.read_bytes() == theirs.read_bytes()
    assert export_checkpoint(adapted, out=out) == out  # its own are replaced


def test_an_export_leaves_adapters_of_others_alone(adapted, tmp_path):
    """What is written beside --out is looked at as --out is."""
    from isocompute_jax.experiment.workdir import export_checkpoint

    copy = shutil.copytree(adapted, tmp_path / "copy")
    shutil.rmtree(export_checkpoint(copy, out=tmp_path / "model"))
    beside = tmp_path / "model-adapter" / "adapter_model.safetensors"
    before = beside.stat().st_mtime_ns
    with pytest.raises(InputError, match=r"--out=.*model: .*model-adapter holds a model that is no export of .*/run"):
        export_checkpoint(adapted, out=tmp_path / "model")
    assert beside.stat().st_mtime_ns == before and not (tmp_path / "model").exists()


@pytest.mark.parametrize(("field", "value", "there"), [("rank", 2, "4"), ("rank", 0, "4"), ("alpha", 1.0, "8.0")])
def test_a_fork_keeps_the_adapters_of_the_run_that_it_begins_from(often, adapted, tmp_path, field, value, there):
    config = dataclasses.replace(with_adapters(often, steps=8, **{field: value}), fork=str(adapted))
    with pytest.raises(InputError, match=f"config.lora.{field}: {there} there, .* here: a fork has this in common"):
        loop.train(config, tmp_path / "run")


def test_a_fork_of_adapters_keeps_their_base(often, adapted, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(often.model, other)
    config = dataclasses.replace(with_adapters(often, steps=8), fork=str(adapted), model=str(other))
    with pytest.raises(InputError, match=r"config.model: .* because its adapters were trained on that model's weights"):
        loop.train(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("lora.targets", "qkv_proj", "config.lora.targets = 'qkv_proj': this qwen2 has no 'qkv_proj'"),
        ("lora.rank", 64, "config.lora.rank = 64 is above 8, the rank that k_proj"),
        ("lora.start", "nowhere", "nowhere/adapter_config.json is missing"),
    ],
)
def test_bad_adapters_are_said_before_anything_runs(often, tmp_path, field, value, said):
    with pytest.raises(InputError) as error:
        loop.train(override(with_adapters(often), field, value), tmp_path / "run")
    assert said in str(error.value)
    assert not (tmp_path / "run" / run_files.METRICS).exists()


@pytest.mark.slow
def test_the_reference_of_a_kl_term_is_the_base(often, tmp_path):
    config = with_adapters(often, steps=3)
    config = dataclasses.replace(config, loss=dataclasses.replace(config.loss, kl_coef=0.1))
    loop.train(config, tmp_path / "run")
    distances = [line["kl"] for line in run_files.read_lines(tmp_path / "run" / run_files.METRICS)]
    assert distances[0] == pytest.approx(0.0, abs=1e-6) and max(distances) > 0
