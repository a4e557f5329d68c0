"""Predictions beyond the fitted part: exact without noise, and errors as large as they say with it."""

from __future__ import annotations

import numpy as np
import pytest

from isocompute_jax.fit.curves.diagnostics import for_form, half_width, hold_out, predict
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import FORMS, hill
from isocompute_jax.fit.results import CurveFit

COMPUTE = np.geomspace(1e3, 1e6, 24)
TRUTH = (0.1, 0.7, 3e4, 1.2)
ALL = [np.ones(len(COMPUTE), bool)]


def test_without_noise_the_first_part_gives_the_rest():
    (found,) = hold_out([COMPUTE], [hill(COMPUTE, *TRUTH)], use=ALL, cut=0.5, options=FitOptions())
    own = found["hill"]
    assert own.cut == pytest.approx(1e3 * np.sqrt(1e3)) and own.num_points == 12  # half of three decades
    assert own.mean_abs_error < 1e-7 and own.coverage == 1.0
    assert set(found) == set(FORMS)
    others = {name: h.mean_abs_error for name, h in found.items() if name != "hill"}
    assert min(others.values()) > 1e-3, others


def test_short_curves_keep_enough_to_be_fitted():
    for count, late in ((12, 6), (9, 3), (7, 1)):
        compute = np.geomspace(1e3, 1e6, count)
        (found,) = hold_out(
            [compute], [hill(compute, *TRUTH)], use=[np.ones(count, bool)], cut=0.4, options=FitOptions()
        )
        assert found["hill"].num_points == late


def test_a_cut_from_1_on_is_a_compute_and_nothing_after_it_is_no_result():
    curves = ([COMPUTE], [hill(COMPUTE, *TRUTH)])
    (found,) = hold_out(*curves, use=ALL, cut=2e4, options=FitOptions())
    assert found["hill"].cut == 2e4 and found["hill"].num_points == np.count_nonzero(COMPUTE > 2e4)
    assert hold_out(*curves, use=ALL, cut=1e6, options=FitOptions()) == [{}]


def test_scores_by_hand():
    """Rewards after the cut are moved by known amounts, so the errors are those amounts."""
    reward = hill(COMPUTE, *TRUTH)
    late = COMPUTE > 1e3 * 1e3**0.9
    reward[late] += [0.03, -0.01, 0.02]
    (found,) = hold_out([COMPUTE], [reward], use=ALL, cut=0.9, options=FitOptions())
    assert found["hill"].mean_abs_error == pytest.approx(0.02, abs=1e-6)
    assert found["hill"].bias == pytest.approx(-0.04 / 3, abs=1e-6)
    assert found["hill"].coverage == 0.0


@pytest.mark.slow
def test_the_standard_error_of_a_prediction_is_its_spread_over_repetitions():
    rng = np.random.default_rng(3)
    at = np.array([2e4, 1e6, 4e6])
    rewards = hill(COMPUTE, *TRUTH) + rng.normal(0, 0.004, (300, len(COMPUTE)))
    fits = fit_curves([COMPUTE] * 300, list(rewards))
    means, errors = (np.array(a) for a in zip(*(predict(fit, at) for fit in fits), strict=True))
    spread = means.std(axis=0, ddof=1)
    # Correlation cannot be ruled out on 24 points; its mean rho widens slow errors by sqrt((1 + rho) / (1 - rho)).
    rho = np.mean([fit.correlation for fit in fits])
    assert 0.0 < rho < 0.2
    np.testing.assert_allclose(np.median(errors, axis=0) / spread, np.sqrt((1 + rho) / (1 - rho)), rtol=0.1)
    wide = np.array([half_width(fit, at) for fit in fits])
    again = hill(at, *TRUTH) + rng.normal(0, 0.004, means.shape)
    assert np.all(np.abs(np.mean(np.abs(again - means) <= wide, axis=0) - 0.96) <= 0.03)


def test_a_given_curve_has_nothing_to_predict_with():
    given = CurveFit("hill", dict(zip(FORMS["hill"].params, TRUTH, strict=True)), (1e3, 1e6))
    with pytest.raises(ValueError, match="no covariance"):
        predict(given, COMPUTE)


def test_options_for_another_form_leave_out_what_it_lacks():
    options = FitOptions(fix={"C_mid": 3e4}, r0=0.1)
    other = for_form(options, "power")
    assert other.form == "power" and other.r0 == "free" and not other.fix
    assert for_form(options, "logistic").fix == {"C_mid": 3e4}
