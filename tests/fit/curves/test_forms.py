"""The four forms of curve: hand-worked values, and the search's coordinates against the parameters' own units."""

from __future__ import annotations

import numpy as np
import pytest

from isocompute_jax.fit.curves.forms import FORMS, POWER, expsat, hill, logistic, parameter, power


@pytest.mark.parametrize(
    ("curve", "params", "points"),
    [
        (hill, (0.1, 0.7, 100.0, 2.0), {0: 0.1, 50: 0.22, 100: 0.4, 200: 0.58}),  # shares 0, 1/5, 1/2, 4/5
        (logistic, (0.1, 0.7, 100.0, np.log(3) / 100), {0: 0.25, 100: 0.4, 200: 0.55}),  # shares 1/4, 1/2, 3/4
        (expsat, (0.1, 0.7, np.log(2) / 100), {0: 0.1, 100: 0.4, 200: 0.55}),  # half of what is left every 100
        (power, (2.0, 0.9, 0.5), {100: 0.7, 400: 0.8}),  # 2 / 10 and 2 / 20 short of A
    ],
)
def test_hand_worked_values(curve, params, points):
    np.testing.assert_allclose(curve(np.array(list(points), float), *params), list(points.values()), rtol=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_coordinates_of_the_search_and_parameters_describe_the_same_curve(name):
    form = FORMS[name]
    rng = np.random.default_rng(0)
    for reference in (1.0, 250.0, 3e6):
        lower, upper = form.box(np.log(1e3))
        theta = rng.uniform(np.maximum(lower, -4), np.minimum(upper, 4))
        x = np.linspace(0.0, 5.0, 9)
        share, _ = form.share(theta, x)
        params = form.values(np.array([0.2, 0.8, *theta]), reference)
        assert tuple(params) == form.params
        np.testing.assert_allclose(form.curve(reference * np.exp(x), **params), 0.2 + 0.6 * share, rtol=1e-11)
        assert np.all(np.diff(share) >= 0) and share.max() <= 1


@pytest.mark.parametrize("name", ["hill", "logistic", "expsat"])
def test_the_share_at_zero_compute_is_that_of_the_curve(name):
    form = FORMS[name]
    theta = np.zeros(len(form.shape))
    share = float(form.share(theta, np.array([-np.inf]))[0][0])
    assert share == pytest.approx(float(form.curve(0.0, **form.values(np.array([0.0, 1.0, *theta]), 1.0))), abs=1e-15)


@pytest.mark.parametrize("name", FORMS)
def test_slopes_are_the_derivatives_of_the_share(name):
    form = FORMS[name]
    theta, x, step = np.array([0.8, 0.3])[-len(form.shape) :], np.linspace(0.1, 4.0, 7), 1e-6
    slopes = form.share(theta, x)[1]
    for i, along in enumerate(np.eye(len(theta)) * step):
        secant = (form.share(theta + along, x)[0] - form.share(theta - along, x)[0]) / (2 * step)
        np.testing.assert_allclose(slopes[:, i], secant, rtol=1e-7, atol=1e-10)


def test_compute_at_half_the_gain():
    assert FORMS["hill"].midpoint({"midpoint": 30.0}) == 30.0
    assert FORMS["expsat"].midpoint({"rate": np.log(2) / 50}) == pytest.approx(50.0)
    assert np.isnan(POWER.midpoint({"exponent": 1.0}))


@pytest.mark.parametrize(
    ("form", "name", "own"),
    [
        ("hill", "A", "asymptote"), ("hill", "R0", "floor"), ("hill", "C_mid", "midpoint"), ("hill", "B", "steepness"),
        ("logistic", "k", "rate"), ("expsat", "rate", "rate"), ("power", "B", "exponent"), ("power", "D", "scale"),
    ],
)  # fmt: skip
def test_names_and_symbols(form, name, own):
    assert parameter(FORMS[form], name) == own


@pytest.mark.parametrize(("form", "name"), [("hill", "k"), ("expsat", "C_mid"), ("power", "R0"), ("hill", "q")])
def test_unknown_parameters(form, name):
    with pytest.raises(KeyError, match=name):
        parameter(FORMS[form], name)
