"""The posterior of one curve: against brute force, against the fit, and where the data say nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import FORMS, FormName
from isocompute_jax.fit.curves.posterior import STEEPNESS, log_prior, posterior

NAMES: tuple[FormName, ...] = tuple(FORMS)
X = np.linspace(0.0, math.log(100.0), 12)


def curve(form: FormName, x: np.ndarray, low: float, high: float, theta: tuple[float, ...]) -> np.ndarray:
    return low + (high - low) * FORMS[form].share(np.array([theta]), x)[0]


THETA: dict[FormName, tuple[float, ...]] = {
    "hill": (2.0, 0.2), "logistic": (2.5, -1.0), "expsat": (-2.0,), "power": (-0.5,)
}  # fmt: skip


@pytest.mark.parametrize("correlation", [0.0, 0.5])
@pytest.mark.parametrize("name", ["expsat", "power"])
def test_the_evidence_is_the_integral_over_all_parameters(name, correlation):
    # One shape parameter, so a plain sum over (low, high, theta) is exact enough to be compared with.
    rng = np.random.default_rng(0)
    x, noise = X[::3], 0.1
    y = curve(name, x, 0.2, 0.7, THETA[name]) + noise * rng.normal(size=len(x))
    covariance = noise**2 * correlation ** np.abs(np.subtract.outer(range(len(x)), range(len(x))))
    covariance = covariance / (1 - correlation**2) if correlation else covariance  # innovations of variance noise^2
    precision, (_, volume) = np.linalg.inv(covariance), np.linalg.slogdet(2 * np.pi * covariance)
    least, most = (float(end[0]) for end in FORMS[name].box(x[-1]))
    levels, cells = (np.arange(80) + 0.5) / 80, 240
    thetas = least + (np.arange(cells) + 0.5) / cells * (most - least)
    prior = np.exp(log_prior(name, thetas[:, None]))
    prior /= prior.sum()
    climbed = FORMS[name].share(thetas[:, None], x)
    low, high = (axis.ravel()[:, None, None] for axis in np.meshgrid(levels, levels, indexing="ij"))
    residual = y - (low + (high - low) * climbed)
    likelihood = np.exp(-0.5 * np.einsum("lni,ij,lnj->ln", residual, precision, residual, optimize=True) - 0.5 * volume)
    inside = np.where(low == high, 0.5, low < high)[:, 0, 0]
    total = float(2.0 * (inside @ likelihood @ prior) / 80**2)
    found = posterior(name, x, y, noise=noise, correlation=correlation, box=(0.0, float(x[-1])))
    assert found.evidence == pytest.approx(math.log(total), abs=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_much_data_give_the_fit_and_its_standard_errors(name):
    rng = np.random.default_rng(1)
    x, noise = np.linspace(0.0, math.log(1000.0), 200), 0.01
    theta = {"hill": (3.0, 0.2), "logistic": (3.0, -1.5), "expsat": (-3.0,), "power": (-0.5,)}[name]
    y = curve(name, x, 0.2, 0.7, theta) + noise * rng.normal(size=len(x))
    (fit,) = fit_curves([np.exp(x)], [y], options=FitOptions(form=name))
    draws = posterior(name, x, y, noise=noise, correlation=0.0, box=(0.0, float(x[-1]))).draw(4000, rng)
    assert draws.high.mean() == pytest.approx(fit.params["asymptote"], abs=0.3 * fit.stderr["asymptote"])
    assert draws.high.std() == pytest.approx(fit.stderr["asymptote"], rel=0.25)  # the fit estimates noise and memory
    assert np.all((draws.low >= 0) & (draws.low <= draws.high) & (draws.high <= 1))


def test_a_curve_that_has_not_risen_leaves_everything_open():
    y = np.full(len(X), 0.2)
    draws = posterior("hill", X, y, noise=0.01, correlation=0.0, box=(0.0, float(X[-1]))).draw(
        4000, np.random.default_rng(2)
    )
    assert np.median(draws.low) == pytest.approx(0.2, abs=0.02)
    low, high = np.percentile(draws.high, (5, 95))
    assert low < 0.3 and high > 0.8
    late = draws.theta[draws.high > 0.4, 0]
    assert np.all(late > X[-1] / 2)  # where it would rise at all, it rises after the data


def test_steepness_has_a_proper_prior_where_a_form_has_one():
    for name, (mean, error) in STEEPNESS.items():
        theta = np.zeros((3, len(FORMS[name].shape)))
        theta[:, -1] = mean + error * np.array([-1.0, 0.0, 1.0])
        values = log_prior(name, theta)
        assert values[1] - values[0] == pytest.approx(0.5) and values[1] - values[2] == pytest.approx(0.5)
    assert not log_prior("expsat", np.zeros((2, 1))).any()
