"""A run on packed rows is the run on padded ones, up to rounding, and says how full its rows are."""

import dataclasses
import logging

import numpy as np
import pytest

from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import ComputeConfig, PackingConfig
from isocompute_jax.experiment.layouts import log_larger_microbatch
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from tests.experiment import builders


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
    ours = run_files.read_lines(tmp_path / "run" / run_files.METRICS)
    theirs = run_files.read_lines(undisturbed / run_files.METRICS)
    for line, padded in zip(ours, theirs, strict=False):
        for name in ("reward", "trained_tokens", "loss", "gradient_norm", "entropy", "kl", "logprob_difference"):
            np.testing.assert_allclose(line[name], padded[name], rtol=1e-3, atol=1e-5, err_msg=name)
        # At most 8 of 64 tokens a rollout, 64 rollouts of which groups without signal are left out.
        assert 0 <= line["padding"] < 1 and line["attention_imbalance"] == 1 and 1 <= line["num_rows"] <= 8
        assert "padding" not in padded
    compiled = [record.message for record in caplog.records if "compiled for" in record.message]
    assert 1 <= len(compiled) <= 2 and "rows of 64 tokens" in compiled[0]
    assert "microbatch_tokens" not in caplog.text


def test_a_micro_batch_of_less_than_a_row_is_said_to_be_raised(base_run, caplog):
    def logged(row_tokens, microbatch_tokens):
        recipe = dataclasses.replace(base_run.recipe, microbatch_tokens=microbatch_tokens)
        config = dataclasses.replace(base_run, packing=PackingConfig(row_tokens), recipe=recipe)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            log_larger_microbatch(config, builders.MODEL, None)
        return [record.message for record in caplog.records]

    said = "config.recipe.microbatch_tokens = {} is raised to {}: {} on each of 1 shards of the batch"
    assert logged(64, 63) == [said.format(63, 64, "a row")]
    assert logged(64, 64) == logged(0, base_run.sampling.max_tokens) == []
    assert logged(0, 1) == [said.format(1, base_run.sampling.max_tokens, "a completion")]


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
