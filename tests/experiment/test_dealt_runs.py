"""Runs in which a policy deals rollouts to problems: exact C, exact resume, counts as dealt, credit of rounds."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.allocation.policies import believe, deal
from isocompute_jax.allocation.schedule import ScheduleConfig
from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import EvaluationConfig, RunConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from tests.experiment import builders

POLICIES = ["variance", "until_signal", *(pytest.param(name, marks=pytest.mark.slow) for name in ("knapsack", "hit"))]
STEPS, B, MOST = 5, 64, 20


def dealt(base_run: RunConfig, policy, **changes) -> RunConfig:
    """Steps of 8 x 8 rollouts in blocks of 2, half the problems each, with a credit that every policy takes."""
    recipe = dataclasses.replace(
        base_run.recipe, advantage_scale="none", baseline="leave_one_out", aggregation="constant"
    )
    return dataclasses.replace(
        base_run,
        group_size=8,
        problems_per_batch=8,
        max_compute=B * STEPS,
        recipe=recipe,
        schedule=ScheduleConfig(per_problem=policy, block=2, most=MOST),
        track=dataclasses.replace(base_run.track, rollouts=8, rollouts_every=1),
        evaluation=EvaluationConfig(),
        **changes,
    )


@pytest.fixture(scope="module", params=POLICIES)
def whole(request, base_run, tmp_path_factory):
    """An undisturbed run, and its config."""
    config, path = dealt(base_run, request.param), tmp_path_factory.mktemp("dealt") / "whole"
    loop.train(config, path)
    return config, path


def test_every_rollout_is_booked_and_every_count_is_the_policys(whole):
    """Replayed from what the run kept: the history before a step, and the rewards of its earlier rounds."""
    config, path = whole
    policy, unequal = config.schedule.per_problem, 0
    lines, kept = (builders.log_lines(path, name) for name in (run_files.METRICS, run_files.ROLLOUTS))
    assert [line["compute"] for line in lines] == [B * step for step in range(1, STEPS + 1)]
    attempts, tried, solved = np.zeros(16, int), np.zeros(16, np.float32), np.zeros(16, np.float32)
    for line, step in zip(lines, kept, strict=True):
        places = np.array([int(group["problem_id"][1:]) for group in step["groups"]])
        belief, rewards = believe(tried, solved, places), [np.array(group["rewards"]) for group in step["groups"]]
        counts = deal(policy, belief, total=B, block=2, most=MOST)
        while counts.sum() < B:
            so_far = [seen[:n] for seen, n in zip(rewards, counts, strict=True)]
            counts = counts + deal(policy, belief, so_far, total=B, block=2, most=MOST)
        assert [len(seen) for seen in rewards] == counts.tolist()
        assert (line["group_size"], line["problems_per_batch"]) == (8, 8)
        assert (line["group_size_min"], line["group_size_max"]) == (counts.min(), counts.max())
        unequal += counts.min() < counts.max()
        attempts[places] += counts
        tried[places] = 0.5 * tried[places] + counts
        solved[places] = 0.5 * solved[places] + [np.sum(seen >= 1) for seen in rewards]
    assert unequal >= 2 and np.sum(solved) > 0
    table = builders.history(path).to_pydict()
    assert dict(zip(table["id"], table["attempts"], strict=True)) == {f"p{i}": n for i, n in enumerate(attempts)}
    assert run_files.read_run(path).config["schedule"] == f"per problem {policy}"


def test_interrupted_in_a_step_it_ends_with_the_same_bits(whole, tmp_path):
    config, path = whole
    for step in (2, 4):
        with builders.interrupted_in_step(step), pytest.raises(KeyboardInterrupt):
            loop.train(config, tmp_path / "run")
    loop.train(config, tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", path)


@pytest.mark.slow
def test_phases_deal_their_batches_together_and_resume(base_run, tmp_path):
    config = dealt(base_run, "until_signal", max_staleness=3, asynchrony="phases")
    loop.train(config, tmp_path / "whole")
    with builders.interrupted_in_step(2), pytest.raises(KeyboardInterrupt):
        loop.train(config, tmp_path / "run")
    loop.train(config, tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"advantage_scale": "group_std"}, "set config.recipe.advantage_scale='none'"),
        ({"baseline": "group_mean"}, "is a biased baseline: set config.recipe.baseline='leave_one_out'"),
        ({"aggregation": "token_mean"}, "divides by all tokens that were drawn: set it to 'constant'"),
        ({"minibatches": 2}, "set config.recipe.minibatches=1"),
    ],
)
def test_what_has_no_right_estimator_is_refused(base_run, changes, says):
    config = dealt(base_run, "hit")
    changed = dataclasses.replace(config, recipe=dataclasses.replace(config.recipe, **changes))
    with pytest.raises(InputError, match=says):
        changed.resolved()
    dataclasses.replace(changed, schedule=ScheduleConfig(per_problem="variance")).resolved()
