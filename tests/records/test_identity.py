"""What makes two runs the same configuration, and a directory the same run."""

import dataclasses
import json

import pytest

from isocompute_jax.experiment.config import CurriculumConfig, EvaluationConfig, RunConfig, override
from isocompute_jax.options import option
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import (
    LATER,
    NOT_IDENTIFYING,
    curve_identity_of,
    differences,
    flatten,
    identity,
    identity_of,
)

RUN = RunConfig(model="m", train_set="t.jsonl", evaluation=EvaluationConfig(sets={"v": "v.jsonl"}))
FACTS = dict(group_size=8, problems_per_batch=8, num_steps=3, problem_set_size=100, model_params=12, seed=7)


def written(config) -> dict:
    return json.loads(json.dumps(dataclasses.asdict(config)))


def written_before(config) -> dict:
    """Without the fields that came later."""
    there = [field for field in dataclasses.fields(config) if not field.metadata.get(LATER) and field.name != "plan"]
    values = {field.name: getattr(config, field.name) for field in there}
    return {name: written_before(v) if dataclasses.is_dataclass(v) else v for name, v in values.items()}


@pytest.mark.parametrize(
    ("field", "value", "same_configuration", "same_run"),
    [
        ("group_size", 16, False, False), ("optimizer.base_lr", 0.5, False, False),
        ("evaluation.sets.v", "w.jsonl", False, False), ("packing.row_tokens", 64, False, False),
        ("optimizer.moments", "bfloat16", False, False), ("curriculum.retire_rate", 0.9, False, False),
        ("length.truncated", "mask", False, False), ("compute.remat", "full", True, True),
        ("service.recompute_cache", True, False, False), ("seed", 1, True, False),
        ("agreement.every", 3, True, False), ("checkpoint_every_s", 1.0, True, True),
        ("export_every", 10, True, True), ("checkpoints.keep_last", 5, True, True), ("mesh.fsdp", 8, True, True),
        ("service.endpoints", "h:1", True, True), ("service.wait_s", 3.0, True, True),
    ],
)  # fmt: skip
def test_a_field_says_what_it_tells_apart(field, value, same_configuration, same_run):
    other = override(RUN, field, value)
    assert (identity(other) == identity(RUN)) == same_configuration
    found = differences(RUN, written(other))
    assert (found == []) == same_run
    assert same_run or found[0].startswith(f"config.{field}: {value!r} there")


def test_a_field_that_was_not_there_yet_has_its_default():
    theirs = written(RUN)
    del theirs["mesh"], theirs["loss"]["kl_coef"], theirs["curriculum"]  # which has lists and mappings
    assert differences(RUN, theirs) == []
    cut = dataclasses.replace(RUN, curriculum=CurriculumConfig(order="easy_to_hard", pools=(0.5,)))
    assert differences(cut, theirs) == [
        "config.curriculum.order: 'shuffled' there, 'easy_to_hard' here",
        "config.curriculum.pools: '[]' there, '[0.5]' here",
    ]
    assert identity(cut).items() - identity(RUN).items() == {
        ("curriculum.order", "easy_to_hard"),
        ("curriculum.pools", "[0.5]"),
    }
    assert differences(override(RUN, "loss.kl_coef", 2.0), theirs) == ["config.loss.kl_coef: 0.0 there, 2.0 here"]


def test_a_field_that_is_unknown_now_differs():
    assert differences(RUN, {**written(RUN), "unheard": {"of": 8}}) == ["config.unheard.of: 8 there, None here"]


def test_a_block_and_a_file_without_one_say_the_same():
    """So that runs of before and after the block was introduced are replicates of each other."""
    content = {**FACTS, "config": written_before(RUN), "versions": {"jax": "1"}, "commit": "c", "devices": ["cpu:0"]}
    assert identity_of(content) == identity_of({**content, "identity": identity(RUN)})
    assert identity_of(content) == identity_of({**content, "seed": 8, "num_steps": 4, "commit": "d"})
    assert identity_of(content) != identity_of({**content, "problem_set_size": 64})
    assert not {"seed", "agreement.every", "service.endpoints"} & identity_of(content).keys()


def test_what_identified_once_and_no_longer_does_is_left_out_of_old_blocks():
    """Bounds on memory, and the mesh: releases before had them among the fields that tell configurations apart."""
    block = identity(RUN)
    once = {"loss.chunk_tokens": 4096, "sampling.max_rollouts_per_dispatch": 512, "mesh.fsdp": 8, "mesh.context": 2}
    assert not once.keys() & block.keys()
    old = {**FACTS, "identity": {**block, **once}}
    assert identity_of(old) == identity_of({**FACTS, "identity": block})


def test_a_run_that_goes_further_has_the_same_curve_but_where_pools_are_shares_of_it():
    def of(config):
        return {**FACTS, "identity": identity(config)}

    further = override(RUN, "max_compute", 4 * RUN.max_compute)
    assert identity_of(of(further)) != identity_of(of(RUN))
    assert curve_identity_of(of(further)) == curve_identity_of(of(RUN))
    one, other = ({**of(RUN), "contents": {"train_set": digest}} for digest in ("a", "b"))  # one file, edited
    assert curve_identity_of(one) != curve_identity_of(other) and identity_of(one) == identity_of(other)
    assert curve_identity_of(of(override(further, "optimizer.base_lr", 0.5))) != curve_identity_of(of(RUN))
    pools = CurriculumConfig(order="easy_to_hard", pools=(0.5,), stages=(0.5, 0.5))
    staged, longer = (dataclasses.replace(run, curriculum=pools) for run in (RUN, further))
    assert curve_identity_of(of(staged)) != curve_identity_of(of(longer))


def test_the_config_json_of_another_program_is_flattened():
    content = {**FACTS, "lr": 1e-3, "optim": {"betas": [0.9, 0.95]}, "host": "a", "config": "base.yaml"}
    assert identity_of(content) == {
        "group_size": 8,
        "problems_per_batch": 8,
        "problem_set_size": 100,
        "model_params": 12,
        "lr": 1e-3,
        "optim.betas": "[0.9, 0.95]",
        "config": "base.yaml",
    }


def test_what_did_not_identify_before_the_block_is_what_does_not_identify_now():
    fields = dict(flatten(written_before(RUN)))
    assert set(identity(RUN)) == {name for name in fields if not NOT_IDENTIFYING & set(name.split("."))}


def test_a_group_passes_on_what_it_is_declared_as():
    @dataclasses.dataclass(frozen=True)
    class Inner:
        a: int = 1
        b: tuple[int, ...] = (1, 2)

    @dataclasses.dataclass(frozen=True)
    class Outer:
        kept: Inner = option(default_factory=Inner)
        repeated: Inner = option(default_factory=Inner, replicate=True)
        executed: Inner = option(default_factory=Inner, identity=False)

    assert identity(Outer()) == {"kept.a": 1, "kept.b": "[1, 2]"}
    changed = Outer(Inner(2), Inner(3), Inner(4))
    assert differences(Outer(), written(changed), "it") == [
        "it.kept.a: 2 there, 1 here",
        "it.repeated.a: 3 there, 1 here",
    ]


def test_seeds_of_a_schedule_are_replicates_and_a_fixed_run_is_none_of_them():
    def content(seed, schedule=None, **fields):
        block = {"model": "m", "max_compute": 1024, **fields}
        return {"seed": seed, "group_size": 4, "identity": block} | ({} if schedule is None else {"schedule": schedule})

    one, two = (curve_identity_of(content(seed, "n auto", **{"schedule.group_size": "auto"})) for seed in (0, 1))
    assert one == two and one["schedule"] == "n auto"
    assert one["max_compute"] == 1024  # a schedule may know where it ends
    fixed = [curve_identity_of(content(0, schedule)) for schedule in (None, "")]
    assert fixed[0] == fixed[1] == {"model": "m", "group_size": 4}
    with pytest.raises(InputError, match="schedule is 3, not a text"):
        identity_of(content(0, 3))
