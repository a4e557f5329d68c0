"""The flags spell the options: every one arrives, a bad one is named, and one that left names what to use instead."""

from __future__ import annotations

import dataclasses

import pytest

from isocompute_jax.fit import __main__ as flags
from isocompute_jax.fit.curves.scalerl import Grid
from isocompute_jax.fit.options import LEFT, AnalysisOptions
from isocompute_jax.fit.read import ReadOptions
from isocompute_jax.records.errors import InputError
from tests import mains

MOST_FLAGS = 22
BEFORE = (
    "analysis", "anchors", "base_batch", "base_lr", "bin_width", "bootstrap", "bounds", "budget", "columns",
    "compile_cache", "compute", "constants", "eval_set", "evaluation_samples", "falls", "fix", "flops", "forecast",
    "form", "grid", "held_out_models", "holdout", "huber_delta", "law_loss", "loss", "lr_exponent", "metric",
    "most_reuse", "next", "out", "outliers", "png", "points", "predict_params", "r0", "records", "replicates",
    "reward_range", "run_pattern", "runs", "seed", "smoothing", "stderr_column", "strict", "tables", "targets", "title",
    "tolerance", "weights", "window", "x",
)  # fmt: skip
"""Flags of the analysis that wrote schema 2: each of them still is one, or names its successor."""


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
        "--form=logistic", "--fix=A=0.61", "--window=1500,5e4", "--bin_width=0.03", "--grid=0.45:0.8:0.005",
        "--budget=1e6,4e6", "--next=3", "--title=Which n?",
    )  # fmt: skip
    found = flags.options()
    assert dict(found.read.columns) == {"train/global_step": "step", "val/acc": "reward"}
    assert (found.read.metric, found.read.compute, found.read.eval_set) == ("reward", "tokens", "test")
    assert found.read.constants == {"problems_per_batch": 32} and found.read.strict
    assert found.read.run_pattern == r"n(?P<group_size>\d+)"
    assert found.read.reward_range == found.fit.reward_range == (-1, 1) and found.width == 2
    assert (found.fit.form, found.fit.fix, found.fit.window) == ("logistic", {"A": 0.61}, (1500, 5e4))
    assert (found.bin_width, found.grid) == (0.03, Grid(0.45, 0.8, 0.005))
    assert (found.budgets, found.next, found.title) == ((1e6, 4e6), 3, "Which n?")
    default = AnalysisOptions()
    changed = {f.name for f in dataclasses.fields(found) if getattr(found, f.name) != getattr(default, f.name)}
    assert changed == {f.name for f in dataclasses.fields(found)}
    read = {f.name for f in dataclasses.fields(ReadOptions)}
    assert {name for name in read if getattr(found.read, name) != getattr(default.read, name)} == read


def test_every_flag_of_laws_arrives(parse):
    parse("--analysis=chinchilla", "--metric=val_loss", "--budget=1e21,1e23", "--eval_set=test")
    found, read = flags.law_options(), flags.read_options()
    assert (found.analysis, found.metric, found.eval_set) == ("chinchilla", "val_loss", "test")
    assert found.budgets == (1e21, 1e23) and found.is_loss
    assert read.reward_range == (0.0, float("inf")) and read.compute == "tokens"


@pytest.mark.parametrize("analysis", ["model_size", "model_size_data", "chinchilla"])
def test_the_range_of_rewards_reaches_the_laws(parse, analysis):
    parse(f"--analysis={analysis}", "--reward_range=0,100", "--metric=avg@4")
    assert flags.law_options().reward_range == flags.read_options().reward_range == (0.0, 100.0)
    assert not flags.law_options().is_loss


def test_laws_read_what_they_need(parse):
    parse("--analysis=model_size")
    assert (flags.read_options().compute, flags.read_options().metric) == ("tokens", ReadOptions().metric)
    parse("--analysis=model_size", "--compute=rollouts")
    assert flags.read_options().compute == "rollouts"
    flags.VALUES.unparse_flags()
    parse("--analysis=chinchilla")
    assert flags.read_options().metric == flags.law_options().metric == "loss"
    parse("--analysis=chinchilla", "--metric=avg@4", "--compute=gpu_hours")
    assert flags.read_options().metric == flags.law_options().metric == "avg@4"
    assert flags.read_options().compute == "gpu_hours"


def test_data_of_model_size_may_be_rollouts(parse):
    parse("--analysis=model_size_data")
    assert flags.read_options().compute == "rollouts"


def test_numbers_may_have_suffixes(parse):
    parse("--budget=1.5M,20k,4.35M", "--window=1k,2B")
    found = flags.options()
    assert found.budgets == (1.5e6, 2e4, 4.35e6) and found.fit.window == (1e3, 2e9)
    parse("--analysis=chinchilla", "--budget=1e21,5B")
    assert flags.law_options().budgets == (1e21, 5e9)


def test_steps_are_a_unit(parse):
    parse("--compute=steps")
    assert flags.options().read.compute == "steps"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--fix=A", "--fix: 'A' is not of the form name=value"),
        ("--fix=Q=1", "the hill form has no Q; it has A, R0, C_mid, B"),
        ("--fix=A=high", "--fix: 'high' is not a number"), ("--window=1000", "--window takes two numbers"),
        ("--window=5e4,1e3", "--window=50000,1000"), ("--grid=0.4:0.8", "--grid=0.4:0.8 must be from:to:by"),
        ("--budget=-5", "--budget = (-5.0,) must be above 0"), ("--budget=M", "--budget: 'M' is not a number"),
        ("--budget=1e3kM", "--budget: '1e3kM' is not a number"), ("--budget=inf", "--budget = (inf,) must be finite"),
        ("--budget=much", "--budget: 'much' is not a number"),
        ("--reward_range=0,inf", "--reward_range must be finite"),
        ("--reward_range=1,0", "--reward_range=1,0 must be two numbers, the lower one first"),
        ("--columns=val/acc", "--columns: 'val/acc' is not of the form"),
        ("--constants=n=8", "--constants: n is not one of"), ("--bin_width=1", "--bin_width = 1.0 must be"),
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
    assert len(list(flags.VALUES)) <= MOST_FLAGS
    missing = [name for name in flags.VALUES if f"--{name}:" not in done.stdout.replace("[no]", "")]
    assert missing == []


def test_a_flag_of_before_is_one_still_or_has_a_successor():
    assert set(BEFORE) == set(flags.VALUES) | set(LEFT) and not set(LEFT) & set(flags.VALUES)


@pytest.mark.parametrize("name", LEFT)
def test_a_flag_that_left_names_its_successor(name):
    for argument in (f"--{name}=1", f"-{name}=1", f"--{name}", f"--no{name}"):
        with pytest.raises(InputError) as caught:
            flags.refuse_left(["--runs=a.csv", argument])
        assert str(caught.value) == f"--{name} is no flag any more: {LEFT[name]}"
    flags.refuse_left([f"--runs={name}", f"--title={name}", name])


def test_the_command_ends_with_2_on_a_flag_that_left(tmp_path):
    done = mains.run("isocompute_jax.fit", ["--runs=a.csv", f"--out={tmp_path / 'out'}", "--records=strict"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: --records is no flag any more: {LEFT['records']}\n"
    assert not (tmp_path / "out").exists()


def test_every_successor_that_is_a_flag_exists():
    for text in LEFT.values():
        for word in text.split():
            if word.lstrip("(").startswith("--"):
                name = word.lstrip("(-").split("=")[0].rstrip(".,;:)")
                assert name in flags.VALUES, text
