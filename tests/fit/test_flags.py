"""The flags spell the options: every one arrives, and a bad one is named."""

from __future__ import annotations

import dataclasses

import pytest

from isocompute_jax.fit import __main__ as flags
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.diagnostics import Grid
from isocompute_jax.fit.frontier.recommendation import LearningRate
from isocompute_jax.fit.read import ReadOptions
from isocompute_jax.records.errors import InputError
from tests import mains


@pytest.fixture
def parse():
    """Parses arguments, from the defaults."""
    yield lambda *arguments: flags.VALUES(["fit", *arguments])
    flags.VALUES.unparse_flags()


def test_defaults_are_those_of_the_options(parse):
    parse()
    assert flags.options() == AnalysisOptions()
    assert flags.read_options() == ReadOptions()


def test_every_flag_of_curves_arrives(parse):
    parse(
        "--metric=reward", "--columns=train/global_step:step,val/acc:reward", "--compute=tokens", "--reward_range=-1,1",
        "--constants=problems_per_batch=32", r"--run_pattern=n(?P<group_size>\d+)", "--strict", "--eval_set=test",
        "--form=logistic", "--loss=huber", "--huber_delta=0.02", "--fix=A=0.61", "--bounds=C_mid=1e3:1e6", "--r0=0.1",
        "--window=1500,5e4", "--tolerance=0.05", "--records=bucketed", "--bin_width=0.03",
        "--falls=keep", "--outliers=keep", "--forecast=form", "--smoothing=5",
        "--evaluation_samples=1200", "--bootstrap=runs", "--replicates=50", "--seed=7", "--holdout=3e4",
        "--grid=0.45:0.8:0.005", "--budget=1e6,4e6", "--base_lr=2e-6", "--base_batch=512", "--lr_exponent=1",
        "--title=Which n?", "--targets=worst@8,length", "--falls=keep", "--outliers=keep",
    )  # fmt: skip
    found = flags.options()
    assert dict(found.read.columns) == {"train/global_step": "step", "val/acc": "reward"}
    assert (found.read.metric, found.read.compute, found.read.eval_set) == ("reward", "tokens", "test")
    assert found.read.constants == {"problems_per_batch": 32} and found.read.strict
    assert found.read.run_pattern == r"n(?P<group_size>\d+)"
    assert found.read.reward_range == found.fit.reward_range == (-1, 1)
    assert (found.fit.form, found.fit.loss, found.fit.huber_delta, found.fit.r0) == ("logistic", "huber", 0.02, 0.1)
    assert found.fit.fix == {"A": 0.61} and found.fit.bounds == {"C_mid": (1e3, 1e6)}
    assert (found.fit.window, found.fit.tolerance) == ((1500, 5e4), 0.05)
    assert (found.records, found.bin_width, found.smoothing, found.evaluation_samples) == ("bucketed", 0.03, 5, 1200)
    assert (found.bootstrap, found.replicates, found.seed, found.holdout) == ("runs", 50, 7, 3e4)
    assert found.grid == Grid(0.45, 0.8, 0.005) and found.budgets == (1e6, 4e6) and found.title == "Which n?"
    assert found.targets == ("worst@8", "length") and (found.falls, found.outliers) == ("keep", "keep")
    assert found.learning_rate == LearningRate(2e-6, 512, 1.0, "that of --base_lr")
    default = AnalysisOptions()
    changed = {f.name for f in dataclasses.fields(found) if getattr(found, f.name) != getattr(default, f.name)}
    excluded = {"stderr_column", "next"}  # by evaluation_samples, by forecast=form
    assert changed == {f.name for f in dataclasses.fields(found)} - excluded


def test_every_flag_of_laws_arrives(parse):
    parse(
        "--analysis=chinchilla", "--metric=loss", "--points=all", "--flops=1e21,1e23", "--replicates=30", "--seed=3",
        "--predict_params=7e9", "--x=data", "--weights=models", "--held_out_models=2", "--anchors=4",
        "--most_reuse=10", "--holdout=0.3",
    )  # fmt: skip
    found, read = flags.law_options(), flags.read_options()
    assert (found.analysis, found.loss, found.points, found.flops) == ("chinchilla", "metric", "all", (1e21, 1e23))
    assert (found.resamples, found.seed, found.predict_params, found.x) == (30, 3, (7e9,), "data")
    assert (found.weights, found.held_out_models, found.anchors) == ("models", 2, 4)
    assert (found.most_reuse, found.holdout) == (10.0, 0.3)
    assert read.reward_range == (0.0, float("inf")) and read.compute == "tokens"


@pytest.mark.parametrize(
    ("given", "reward_range"),
    [
        (("--analysis=model_size", "--reward_range=0,100"), (0.0, 100.0)),
        (("--analysis=chinchilla", "--law_loss=one_minus_metric"), (0.0, 1.0)),
    ],
)
def test_the_range_of_rewards_reaches_the_laws(parse, given, reward_range):
    parse(*given)
    assert flags.law_options().reward_range == flags.read_options().reward_range == reward_range


def test_laws_read_what_they_need(parse):
    parse("--analysis=model_size")
    assert (flags.read_options().compute, flags.read_options().metric) == ("tokens", ReadOptions().metric)
    parse("--analysis=model_size", "--compute=rollouts")
    assert flags.read_options().compute == "rollouts"
    flags.VALUES.unparse_flags()
    parse("--analysis=chinchilla")
    assert flags.read_options().metric == flags.law_options().metric == "loss"
    assert flags.law_options().loss == "metric"
    parse("--analysis=chinchilla", "--metric=avg@4", "--compute=gpu_hours")
    assert flags.read_options().metric == flags.law_options().metric == "avg@4"
    assert flags.read_options().compute == "gpu_hours"


def test_data_of_model_size_may_be_rollouts(parse):
    parse("--analysis=model_size", "--x=data")
    assert flags.read_options().compute == "rollouts"


def test_numbers_may_have_suffixes(parse):
    parse("--budget=1.5M,20k,4.35M", "--window=1k,2B")
    found = flags.options()
    assert found.budgets == (1.5e6, 2e4, 4.35e6) and found.fit.window == (1e3, 2e9)
    parse("--analysis=model_size", "--flops=1e21,5B", "--predict_params=7B,0.6B")
    law = flags.law_options()
    assert law.predict_params == (7e9, 6e8) and law.flops == (1e21, 5e9)


def test_steps_are_a_unit(parse):
    parse("--compute=steps")
    assert flags.options().read.compute == "steps"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--fix=A", "--fix: 'A' is not of the form name=value"),
        ("--fix=Q=1", "the hill form has no Q; it has A, R0, C_mid, B"),
        ("--fix=A=high", "--fix: 'high' is not a number"), ("--bounds=A=0.5", "--bounds takes two numbers, not 1"),
        ("--bounds=A=0.9:0.5", "--bounds: A=0.9:0.5"), ("--window=1000", "--window takes two numbers"),
        ("--window=5e4,1e3", "--window=50000,1000"), ("--r0=low", "--r0: 'low' is not a number"),
        ("--grid=0.4:0.8", "--grid=0.4:0.8 must be from:to:by"), ("--budget=-5", "--budget=-5 must be above 0"),
        ("--budget=M", "--budget: 'M' is not a number"), ("--budget=1e3kM", "--budget: '1e3kM' is not a number"),
        ("--budget=much", "--budget: 'much' is not a number"), ("--smoothing=2", "--smoothing=2 must be odd"),
        ("--replicates=3", "--replicates=3 is too few"), ("--holdout=-1", "--holdout=-1"),
        ("--reward_range=0,inf", "--reward_range must be finite"),
        ("--columns=val/acc", "--columns: 'val/acc' is not of the form"),
        ("--constants=n=8", "--constants: n is not one of"), ("--tolerance=0", "--tolerance=0"),
        ("--records=bucketed", "--records=bucketed needs --bin_width"), ("--bin_width=1.5", "--bin_width"),
    ],
)  # fmt: skip
def test_a_bad_flag_is_named(parse, argument, message):
    parse(argument)
    with pytest.raises(InputError) as caught:
        flags.options()
    assert message in str(caught.value)


def test_help_lists_every_flag():
    done = mains.run("isocompute_jax.fit", ["--help"])
    assert done.returncode == 0 and done.stderr == ""
    assert len(list(flags.VALUES)) > 40
    missing = [name for name in flags.VALUES if f"--{name}:" not in done.stdout.replace("[no]", "")]
    assert missing == []
