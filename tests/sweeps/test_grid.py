"""What a grid plans."""

import re

import pytest

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records.errors import InputError
from isocompute_jax.sweeps import executor, grid

BASE = RunConfig(model="m", train_set="t.jsonl", group_size=4, problems_per_batch=8, max_compute=1024)


def test_grid_is_the_product_in_a_stable_order():
    runs = grid.grid(BASE, {"seed": [0, 1], "group_size": [2, 8], "optimizer.base_lr": [1e-4]})
    assert [(run.config.seed, run.config.group_size) for run in runs] == [(0, 2), (0, 8), (1, 2), (1, 8)]
    assert all(run.config.optimizer.base_lr == 1e-4 for run in runs)
    assert runs[1].name == "group_size=8,seed=0,optimizer.base_lr=0.0001"


def test_names_do_not_depend_on_the_order_of_the_axes():
    one = grid.grid(BASE, {"seed": [0, 1], "group_size": [2, 8]})
    other = grid.grid(BASE, {"group_size": [2, 8], "seed": [0, 1]})
    assert {run.name for run in one} == {run.name for run in other}


def test_names_are_safe_and_unique():
    paths = ["data/a b.jsonl", "data/a_b.jsonl", "x" * 300, "x" * 300 + "y"]
    names = [run.name for run in grid.grid(BASE, {"train_set": paths})]
    assert len(set(names)) == 4
    assert all(re.fullmatch(r"[A-Za-z0-9._=,+~-]{1,200}", name) for name in names)


def test_grid_leaves_out_what_is_over_a_limit(caplog):
    with caplog.at_level("INFO"):
        runs = grid.grid(BASE, {"group_size": [2, 16, 256]}, max_rollouts_per_step=64)
        large = grid.grid(BASE, {"group_size": [2, 256]})
    assert [run.config.group_size for run in runs] == [2]
    assert [run.config.group_size for run in large] == [2]
    assert "left out: group_size=16 (B = 128 rollouts per step is above B_max = 64)" in caplog.text
    assert "left out: group_size=256 (C_max = 1024 is less than one step of 2048 rollouts)" in caplog.text


def test_tied_axes_change_together():
    runs = grid.grid(BASE, {**grid.fixed_rollouts_per_step(32, [2, 4]), "seed": [0, 1]})
    assert [(run.config.group_size, run.config.problems_per_batch) for run in runs] == [(2, 16)] * 2 + [(4, 8)] * 2
    assert {run.config.rollouts_per_step for run in runs} == {32}
    assert runs[0].name == "group_size=2,problems_per_batch=16,seed=0"


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"group_sizes": [2]}, "did you mean 'group_size'"),
        ({"optimizer.lr": [2.0]}, "unknown config field config.optimizer.lr"),
        ({"group_size": ["two"]}, "config.group_size = 'two': must be of type int"),
        ({"group_size": [1]}, "config.group_size = 1 must be at least 2"),
        ({"group_size": [2, 2]}, "'group_size' has the value 2 twice"),
        ({"group_size": [2], "group_size+seed": [(2, 0)]}, "stands in another axis"),
        ({"group_size+seed": [(2, 0, 1)]}, "names 2 fields"),
        ({"group_size": []}, "the grid is empty"),
        ({"group_size": [4096]}, "the grid is empty"),
    ],
)
def test_a_bad_grid_is_an_error_that_names_the_field(axes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        grid.grid(BASE, axes)


def test_fixed_rollouts_per_step_must_divide():
    with pytest.raises(InputError, match="groups of 3"):
        grid.fixed_rollouts_per_step(32, [2, 3])


def test_one_seed_of_everything_starts_first_and_the_longest_before_the_rest():
    runs = grid.grid(BASE, {"group_size": [8, 2, 4], "seed": [0, 1]})
    order = [(run.config.seed, run.config.group_size) for run in executor.start_order(runs)]
    assert order == [(0, 2), (0, 4), (0, 8), (1, 2), (1, 4), (1, 8)]


def test_the_flag_is_parsed_to_the_types_of_the_fields():
    axes = grid.parse_grid(
        "group_size+problems_per_batch=2+32,4+16; optimizer.base_lr=1,2.5e-4;recipe.healthy=hard;evaluation.sets.v=p",
        RunConfig,
    )
    assert axes == {
        "group_size+problems_per_batch": [(2, 32), (4, 16)],
        "optimizer.base_lr": [1.0, 2.5e-4],
        "recipe.healthy": ["hard"],
        "evaluation.sets.v": ["p"],
    }
    assert isinstance(axes["optimizer.base_lr"][0], float)
    [first, *_] = grid.grid(BASE, axes)
    assert first.config.evaluation.sets == {"v": "p"}


def test_a_value_in_quotation_marks_may_have_commas():
    axes = grid.parse_grid("train_set='4@0,8@2048','auto',\"a;b+c\"; seed=0,1;model+group_size='x+y'+2", RunConfig)
    assert axes == {
        "train_set": ["4@0,8@2048", "auto", "a;b+c"],
        "seed": [0, 1],
        "model+group_size": [("x+y", 2)],
    }
    names = [run.name for run in grid.grid(BASE, {"train_set": axes["train_set"], "seed": [0]})]
    assert len(set(names)) == 3 and "train_set=auto,seed=0" in names
    assert all(re.fullmatch(r"[A-Za-z0-9._=,+~-]{1,200}", name) for name in names)
    assert any("4_0,8_2048" in name for name in names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group_size", "'group_size' is not FIELD=VALUE"), ("group_size=2;", "'' is not FIELD=VALUE"),
        ("groupsize=2", "did you mean 'group_size'"), ("n=4,8", "did you mean 'group_size'"),
        ("optimizer.lr=1e-6", "did you mean 'base_lr'"), ("group_size=2.5", "group_size=2.5: must be a whole number"),
        ("optimizer.base_lr=fast", "optimizer.base_lr=fast: must be a number"),
        ("optimizer=3", "optimizer is a group of fields"), ("group_size=2;group_size=4", "twice"),
        ("group_size+seed=2", "2 fields need 2 values"), ("train_set='a,b", "' that is not closed"),
    ],
)  # fmt: skip
def test_a_bad_flag_is_an_error_that_names_the_field(text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        grid.parse_grid(text, RunConfig)
