"""Which layout computes less, by tokens counted by hand."""

import dataclasses

import pytest

from isocompute_jax.experiment.config import PackingConfig, PlanConfig, RecipeConfig, SamplingConfig
from isocompute_jax.experiment.layouts import shape_of
from isocompute_jax.learner import LossConfig
from isocompute_jax.model.flops import step_flops
from isocompute_jax.plan.compile import plan_mesh
from isocompute_jax.plan.cost import passes_per_step
from isocompute_jax.plan.topology import parse_topology
from isocompute_jax.plan.work import better_layout, lengths_of, work_of
from tests.model.tiny import tiny_config
from tests.plan.builders import run_config


@pytest.mark.parametrize(
    ("row_tokens", "prompt", "median", "better"),
    [
        (0, 8, 4, 128),  # 24 tokens for 4 on average: padding costs more than repeated prompts
        (0, 64, 24, None),  # all are of the longest length: nothing is padded
        (128, 64, 24, 0),
        (128, 8, 4, None),
    ],
)
def test_the_layout_that_computes_less_is_named(row_tokens, prompt, median, better):
    config = dataclasses.replace(
        run_config("unread"),
        group_size=16,
        problems_per_batch=128,
        max_compute=128 * 16,
        sampling=SamplingConfig(max_prompt_tokens=prompt, max_tokens=24),
        packing=PackingConfig(row_tokens, trees="off"),
        recipe=RecipeConfig(microbatch_tokens=8 * 16 * 24),
        plan=PlanConfig(median_tokens=median, sigma=0.0, prompt_tokens=prompt),
    ).resolved()
    model_config = dataclasses.replace(tiny_config(), mlp_dim=4096)  # so that attention is next to nothing
    lengths = lengths_of(config)
    mesh = plan_mesh(config, parse_topology("fake:8"))
    shape = shape_of(config, model_config, 128, 16, mesh)
    flops = step_flops(model_config, work_of(config, shape, lengths, model_config))
    found = better_layout(config, model_config, mesh, lengths, flops)
    if better is None:
        assert found is None
    else:
        assert found is not None and found[0] == better
        packed, padded = 16 * (prompt + median), prompt + 16 * 24
        fewer, more = sorted((packed, padded))
        assert found[1] == pytest.approx(fewer / more, rel=0.2)  # rows come in whole micro-batches


def test_updates_of_a_step_are_counted():
    """Mini-batches share the tokens out; scores before the updates cost a third of a pass, a reference as much."""
    whole = dataclasses.replace(run_config("unread"), problems_per_batch=128, max_compute=10**6)
    recipe = dataclasses.replace(whole.recipe, epochs=3, minibatches=4)
    several = dataclasses.replace(whole, recipe=recipe).resolved()
    mesh, model_config, lengths = plan_mesh(whole, parse_topology("fake:8")), tiny_config(), lengths_of(whole)
    one, part = (
        work_of(config, shape_of(config, model_config, config.problems_per_update, 8, mesh), lengths, model_config)
        for config in (whole, several)
    )
    assert (one.rollouts, part.rollouts) == (whole.rollouts_per_step, whole.rollouts_per_step / 4)
    assert part.tokens == pytest.approx(one.tokens / 4)
    assert passes_per_step(whole.resolved()) == 1
    assert passes_per_step(several) == 12 + 4 / 3
    in_reward = LossConfig(kl_coef=0.1, kl_in="reward", ratio_from="sampler", correction_mode="off")
    assert passes_per_step(dataclasses.replace(several, loss=in_reward).resolved()) == 12 + 8 / 3
    assert passes_per_step(dataclasses.replace(whole, loss=in_reward).resolved()) == 1 + 2 / 3
