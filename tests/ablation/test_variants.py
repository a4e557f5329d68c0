"""What `--vary` means, and which runs it plans."""

import importlib

import pytest

from isocompute_jax.ablation.variants import KNOWN, RECIPE, Variant, parse_variants, planned, run_name, variant_of
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records.errors import InputError

BASE = RunConfig(model="m", train_set="t.jsonl", max_compute=2**12)


def test_each_kind_of_part():
    text = "both: loss.clip_high=0.28 + recipe.aggregation=prompt_mean; group_size=4,16;"
    assert parse_variants(text, {}) == [
        Variant("both", {"loss.clip_high": 0.28, "recipe.aggregation": "prompt_mean"}),
        Variant("group_size=4", {"group_size": 4}),
        Variant("group_size=16", {"group_size": 16}),
    ]


def test_a_run_for_each_variant_and_seed_and_the_recipe_first():
    runs = planned(BASE, parse_variants("group_size=4; rate: optimizer.base_lr=1e-4", {}), [0, 3])
    assert [(run.name, run.config.group_size, run.config.seed) for run in runs] == [
        ("recipe,seed=0", 8, 0),
        ("recipe,seed=3", 8, 3),
        ("group_size=4,seed=0", 4, 0),
        ("group_size=4,seed=3", 4, 3),
        ("rate,seed=0", 8, 0),
        ("rate,seed=3", 8, 3),
    ]
    assert [variant_of(run.name) for run in runs[::2]] == [RECIPE, "group_size=4", "rate"]
    assert variant_of(run_name("a,seed=1,b", 2)) == "a,seed=1,b"


def test_scalerl_leaves_one_part_out_at_a_time():
    base = importlib.import_module("configs.scalerl_embedded").get_config()
    names = [run.name for run in planned(base, parse_variants("scalerl", KNOWN), [0])]
    assert names[0] == "recipe,seed=0" and len(names) == len(KNOWN["scalerl"])  # nothing is interrupted in it
    assert "no_interruption,seed=0" not in names


@pytest.mark.parametrize("name", [name for name in KNOWN if name != "scalerl"])
def test_known_lists_plan_what_the_recipe_is_not(name):
    [recipe, *others] = planned(BASE, parse_variants(name, KNOWN), [0])
    assert len(others) == len(KNOWN[name]) - 1  # one of them is what the defaults are
    assert recipe.name == "recipe,seed=0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"), ("regularization", "did you mean 'regularisation'"), ("a: loss.clip_hihg=1", "clip_high"),
        ("a: loss.clip_high", "is not FIELD=VALUE"), ("loss=1", "name one of them"),
        ("group_size=four", "must be a whole number"), ("a: group_size=4; a: group_size=16", "stands there twice"),
        ("a: group_size=8", "is the same run as recipe"),
        ("group_size=4; b: group_size=4", "is the same run as group_size=4"),
        ("a b: group_size=4", "letters, digits"), ("recipe: group_size=4", "letters, digits"),
        ("a: recipe.aggregation=median", "aggregation"), ("a: group_size=1", "at least 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_varied_is_named(text, message):
    with pytest.raises(InputError, match=message) as caught:
        planned(BASE, parse_variants(text, KNOWN), [0])
    assert "--vary" in str(caught.value)


def test_seeds_must_differ():
    with pytest.raises(InputError, match="--seeds"):
        planned(BASE, parse_variants("group_size=4", {}), [1, 1])
