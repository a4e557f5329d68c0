"""The learning rate by hand: how it scales with the batch, and how it warms up."""

import numpy as np
import pytest

from isocompute_jax import learner


def rate(step, *, exponent, rollouts, warmup=10, base_lr=1e-6):
    config = learner.OptimizerConfig(
        base_lr=base_lr, base_batch=1024, lr_scaling_exponent=exponent, warmup_steps=warmup
    )
    return float(np.asarray(learner.make_schedule(config, rollouts_per_step=rollouts)(step)))


@pytest.mark.parametrize(
    ("exponent", "rollouts", "peak"),
    [
        (0.5, 1024, 1e-6),
        (0.5, 4096, 2e-6),  # four times the batch, twice the rate
        (0.5, 256, 0.5e-6),
        (0.0, 4096, 1e-6),
        (0.0, 16, 1e-6),
        (1.0, 4096, 4e-6),
        (1.0, 256, 0.25e-6),
    ],
)
def test_scaling_rule(exponent, rollouts, peak):
    for step in (9, 10, 1000):
        assert rate(step, exponent=exponent, rollouts=rollouts) == pytest.approx(peak, rel=1e-6)


@pytest.mark.parametrize(("step", "share"), [(0, 0.1), (1, 0.2), (4, 0.5), (8, 0.9), (9, 1.0), (10, 1.0), (500, 1.0)])
def test_warmup_is_linear_and_starts_above_zero(step, share):
    """Ten steps: the first update has a tenth of the rate, the tenth all of it."""
    assert rate(step, exponent=0.5, rollouts=1024) == pytest.approx(share * 1e-6, rel=1e-6)


@pytest.mark.parametrize("warmup", [0, 1])
def test_without_warmup_the_first_step_has_the_whole_rate(warmup):
    assert rate(0, exponent=0.0, rollouts=64, warmup=warmup) == pytest.approx(1e-6, rel=1e-6)


def test_two_warmup_steps():
    rates = [rate(step, exponent=0.0, rollouts=64, warmup=2, base_lr=3.0) for step in range(4)]
    assert rates == pytest.approx([1.5, 3.0, 3.0, 3.0])


# --- the weight of the entropy bonus


def test_the_entropy_bonus_follows_its_target_by_hand():
    """Target 1, change 0.1, at most 0.25: up to the bound; at the target down, and on; above it down, and off."""
    config = learner.LossConfig(entropy_coef=0.05, entropy_target=1.0, entropy_coef_change=0.1, entropy_coef_max=0.25)
    coef, seen = config.entropy_coef, []
    for entropy in (0.9, 0.5, 0.99, 1.0, 1.2, 3.0, 0.1):
        coef, used = learner.adapted_entropy_coef(coef, entropy, config)
        seen.append((round(coef, 12), round(used, 12)))
    assert seen == [(0.15, 0.15), (0.25, 0.25), (0.25, 0.25), (0.15, 0.15), (0.05, 0.0), (0.0, 0.0), (0.1, 0.1)]
