"""The alignment of gradients at the weights of a run: as the training step has them, written, and refused by name."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from isocompute_jax import learner, model
from isocompute_jax.experiment import interference
from isocompute_jax.experiment.config import RecipeConfig
from isocompute_jax.experiment.interference import InterferenceConfig, measure_interference
from isocompute_jax.learner.noise import part_of
from isocompute_jax.learner.objective import make_loss
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.interference_files import read_summary

SMALL = InterferenceConfig(num_problems=6, rollouts=32)


@pytest.fixture(scope="module")
def measured(base_run, tmp_path_factory):
    """(what was found, its directory, arguments of the gradients)."""
    seen = {}
    original = interference._gradients

    def watched(*arguments):
        seen["arguments"], seen["gradients"] = arguments, original(*arguments)
        return seen["gradients"]

    out = tmp_path_factory.mktemp("run") / "interference"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interference, "_gradients", watched)
        found = measure_interference(base_run, base_run.model, base_run.train_set, out, SMALL)
    return found, out, seen


def test_gradients_are_those_of_the_training_loss(measured, base_run):
    """The gradient of the whole batch, laid out as training does, is the sum over problems and halves."""
    _, _, seen = measured
    config, shape, params, reference, groups, _ = seen["arguments"]
    halves = [part_of(group, rows) for rows in (slice(0, 16), slice(16, 32)) for group in groups]
    rewards, lengths = learner.group_rewards(halves), learner.trained_lengths(halves)
    credited = learner.credit(rewards, lengths, config.recipe, max_tokens=config.sampling.max_tokens)
    laid_out = learner.batch_shape(
        problems_per_batch=len(halves), group_size=16, max_prompt_tokens=config.sampling.max_prompt_tokens,
        max_tokens=config.sampling.max_tokens, microbatch_tokens=10_000,
    )  # fmt: skip
    batch = jax.tree.map(lambda x: x if np.ndim(x) == 0 else x[0], laid_out.lay_out(halves))
    score = learner.make_score(shape, temperature=config.temperature, chunk_tokens=None)
    loss = make_loss(score, config.loss, credited, reference)
    whole = jax.jit(jax.grad(lambda p: loss(p, batch)[0]))(params)
    expected = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(whole)])
    assert np.linalg.norm(expected) > 0 and expected.size == model.count_params(shape)
    np.testing.assert_allclose(seen["gradients"].sum(axis=0), expected, rtol=1e-3, atol=1e-6)


def test_what_is_written(measured):
    found, out, seen = measured
    summary = json.loads((out / "interference.json").read_text())
    back = read_summary(out.parent)  # as the report of a sweep has it
    assert back is not None and back.with_signal == found.with_signal.sum()
    for name, mean in found.means.items():
        np.testing.assert_equal(back.cosines[name], tuple(mean))
    assert summary["rollouts"] == 32 and set(summary["cosines"]) == {"all", "solved", "unsolved", "between"}
    arrays = np.load(out / "interference.npz")
    assert arrays["problems"].tolist() == list(found.problems) and arrays["cosines"].shape == (6, 6)
    groups = seen["arguments"][4]
    np.testing.assert_allclose(arrays["solve_rates"], [group.rewards.mean() for group in groups])
    np.testing.assert_allclose(arrays["inner"], arrays["inner"].T)
    assert summary["cosines"]["all"]["pairs"] == 15
    assert (out / "interference.png").stat().st_size > 5_000 and (out / "interference.svg").exists()


def test_what_is_not_measured_is_refused(base_run, tmp_path):
    for loss, message in (
        (dataclasses.replace(base_run.loss, kl_in="reward"), "kl_in"),
        (dataclasses.replace(base_run.loss, routing="replay"), "routing"),
    ):
        config = dataclasses.replace(base_run, loss=loss, recipe=RecipeConfig())
        with pytest.raises(InputError, match=message):
            measure_interference(config, base_run.model, base_run.train_set, tmp_path / "out", SMALL)
    with pytest.raises(InputError, match=r"config.teacher = 't' is not measured here: set it to ''"):
        measure_interference(
            dataclasses.replace(base_run, teacher="t"), base_run.model, base_run.train_set, tmp_path / "out", SMALL
        )
    with pytest.raises(InputError, match="--rollouts=7 must be even"):
        InterferenceConfig(rollouts=7)
    assert not (tmp_path / "out").exists()
