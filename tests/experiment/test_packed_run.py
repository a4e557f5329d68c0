"""A run on packed rows, or on trees, is the run on padded ones, up to rounding, and says how full its rows are."""

import dataclasses
import logging
from typing import Literal

import numpy as np
import pytest

from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import ComputeConfig, MeshConfig, PackingConfig, SamplingConfig
from isocompute_jax.experiment.layouts import log_larger_microbatch, make_lay_out, shape_of
from isocompute_jax.learner import BatchShape, PackShape, TreeShape
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from tests.experiment import builders
from tests.learner.builders import LENGTH, PROMPT, make_groups
from tests.model.tiny import tiny_config

NUMBERS = ("reward", "trained_tokens", "loss", "gradient_norm", "entropy", "kl")


def assert_repeats(run, other, name=run_files.METRICS, numbers=(*NUMBERS, "logprob_difference")):
    """One run's lines have the other's numbers, up to rounding; returns both of each line."""
    pairs = list(zip(*(run_files.read_lines(path / name) for path in (run, other)), strict=False))
    assert pairs
    for ours, theirs in pairs:
        for number in numbers:
            np.testing.assert_allclose(ours[number], theirs[number], rtol=1e-3, atol=1e-5, err_msg=number)
    return pairs


@pytest.mark.slow
def test_a_packed_run_repeats_the_padded_one(undisturbed, base_run, tmp_path, caplog):
    config = dataclasses.replace(
        base_run,
        max_compute=64 * 2,
        packing=PackingConfig(row_tokens=64),
        compute=ComputeConfig(remat="full", attention="chunked"),
        recipe=dataclasses.replace(base_run.recipe, microbatch_tokens=256),
    )
    with caplog.at_level(logging.INFO):
        loop.train(config, tmp_path / "run")
    for line, padded in assert_repeats(tmp_path / "run", undisturbed):
        # At most 8 of 64 tokens a rollout, 64 rollouts of which groups without signal are left out.
        assert 0 <= line["padding"] < 1 and line["attention_imbalance"] == 1 and 1 <= line["num_rows"] <= 8
        assert "attention_imbalance" not in padded
    compiled = [record.message for record in caplog.records if "compiled for" in record.message]
    assert 1 <= len(compiled) <= 2 and "rows of 64 tokens" in compiled[0]
    assert "microbatch_tokens" not in caplog.text


def test_a_micro_batch_of_less_than_a_row_is_said_to_be_raised(base_run, caplog):
    def logged(row_tokens, microbatch_tokens, trees: Literal["auto", "off"] = "off"):
        recipe = dataclasses.replace(base_run.recipe, microbatch_tokens=microbatch_tokens)
        config = dataclasses.replace(base_run, packing=PackingConfig(row_tokens, trees=trees), recipe=recipe)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            log_larger_microbatch(config, builders.MODEL, None)
        return [record.message for record in caplog.records]

    said = "config.recipe.microbatch_tokens = {} is raised to {}: {} on each of 1 shards of the batch"
    assert logged(64, 63) == [said.format(63, 64, "a row")]
    assert logged(64, 64) == logged(0, base_run.sampling.max_tokens) == []
    assert logged(0, 1, trees="auto") == [said.format(1, 64, "a row")]
    assert logged(0, 1) == [said.format(1, base_run.sampling.max_tokens, "a completion")]


def test_a_run_of_fifty_steps_compiles_one_shape_of_its_update(base_run):
    """Whatever its steps have in common; four where it is long, and fewer checks than updates have fewer shapes."""

    def shapes(steps: int, batches: int | None = None) -> set[tuple[int, ...]]:
        config = dataclasses.replace(base_run, max_compute=steps * base_run.rollouts_per_step)
        config = dataclasses.replace(config, recipe=dataclasses.replace(config.recipe, microbatch_tokens=2048))
        sampling = dataclasses.replace(config.sampling, max_tokens=LENGTH, max_prompt_tokens=PROMPT)
        config = dataclasses.replace(config, sampling=sampling)
        lay_out = make_lay_out(config, builders.MODEL, 32, 16, None, batches=batches)
        groups = make_groups(np.zeros((32, 16)))
        kept = [np.arange(32) < most for most in range(33)]
        return {np.shape(lay_out(groups, part).tokens) for part in kept}

    assert [len(shapes(steps)) for steps in (50, 128, 1000)] == [1, 2, 4]
    assert len(shapes(1000, batches=21)) == 1


@pytest.mark.slow
def test_a_run_on_cut_rows_repeats_the_padded_one(undisturbed, base_run, tmp_path):
    """Sampling, agreement of both sides and evaluation too, on devices that share rows of two sequences or less."""
    config = dataclasses.replace(
        base_run,
        max_compute=64 * 2,
        packing=PackingConfig(row_tokens=16),
        mesh=MeshConfig(fsdp=4, context=2),
        recipe=dataclasses.replace(base_run.recipe, microbatch_tokens=64),
    )
    loop.train(config, tmp_path / "run")
    assert_repeats(tmp_path / "run", undisturbed, numbers=NUMBERS)
    assert_repeats(tmp_path / "run", undisturbed, run_files.EVAL, ("avg@2",))


def test_a_row_that_holds_no_sequence_is_refused_by_name(base_run, tmp_path):
    config = dataclasses.replace(base_run, packing=PackingConfig(row_tokens=7))
    with pytest.raises(InputError, match=r"config\.packing\.row_tokens = 7.*raise config\.packing\.row_tokens to 8"):
        loop.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_kernel_that_the_device_does_not_have_is_refused_by_name(base_run, tmp_path):
    config = dataclasses.replace(base_run, compute=ComputeConfig(attention="mosaic"))
    with pytest.raises(InputError, match=r"config\.compute\.attention = mosaic: made for GPUs, and this is a CPU"):
        loop.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_on_trees_repeats_the_padded_one(undisturbed, base_run, tmp_path):
    """`undisturbed` is on trees: its sequences are short."""
    config = dataclasses.replace(base_run, max_compute=64 * 2, packing=PackingConfig(trees="off"))
    loop.train(config, tmp_path / "run")
    for line, padded in assert_repeats(undisturbed, tmp_path / "run"):
        assert "tree_nodes" in line and "tree_nodes" not in padded
        # Of 64 prompts and completions of 8 tokens or fewer: less than if each were read for itself.
        assert 0 < line["tree_nodes"] < 64 * 8 and 0 <= line["padding"] < 1


@pytest.mark.parametrize(
    ("packing", "tokens", "experts", "kind"),
    [
        ({}, 60, 0, TreeShape), ({}, 61, 0, BatchShape), ({}, 60, 4, BatchShape),
        ({"trees": "off"}, 60, 0, BatchShape), ({"trees": "on"}, 200, 0, TreeShape),
        ({"row_tokens": 128}, 60, 0, PackShape), ({"row_tokens": 128, "trees": "on"}, 60, 0, TreeShape),
    ],
)  # fmt: skip
def test_short_sequences_of_dense_models_become_trees(base_run, packing, tokens, experts, kind):
    sampling = SamplingConfig(max_prompt_tokens=4, max_tokens=tokens)
    config = dataclasses.replace(base_run, sampling=sampling, packing=PackingConfig(**packing))
    mixture = {"num_experts": experts, "experts_per_token": 1, "qk_norm": True, "attention_bias": False}
    shape = shape_of(config, tiny_config(**mixture if experts else {}), 4, 8, None)
    assert isinstance(shape, kind)
    if isinstance(shape, TreeShape):
        assert shape.nodes == (packing.get("row_tokens") or (128 if tokens == 60 else 416))


def test_few_rollouts_do_not(base_run):
    assert isinstance(shape_of(base_run, tiny_config(), 4, 7, None), BatchShape)
    assert isinstance(shape_of(base_run, tiny_config(), 4, 8, None), TreeShape)


def test_trees_of_a_mixture_are_refused(base_run):
    mixture = tiny_config(num_experts=4, experts_per_token=1, qk_norm=True, attention_bias=False)
    config = dataclasses.replace(base_run, packing=PackingConfig(trees="on"))
    with pytest.raises(InputError, match=r"config\.packing\.trees = 'on', but the model is a mixture of experts"):
        shape_of(config, mixture, 2, 4, None)
