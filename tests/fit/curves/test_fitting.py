"""Curves: exact recovery, parity with SciPy, what each option does, and honesty."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.optimize

from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import FORMS, FormName, expsat, hill, logistic, power
from isocompute_jax.records.errors import InputError

COMPUTE = np.geomspace(1e3, 1e6, 20)
POINT = FitOptions(intervals=False)


TRUTHS: dict[FormName, list[tuple[float, ...]]] = {
    "hill": [(0.2, 0.4, 1e5, 1.0), (0.05, 0.93, 3e4, 0.7), (0.0, 0.61, 5e5, 2.2), (0.3, 0.97, 2e5, 1.3)],
    "logistic": [(0.1, 0.7, 1e5, 2e-5), (0.0, 0.5, 4e5, 1e-5), (0.02, 0.9, 2e4, 1e-4)],
    "expsat": [(0.1, 0.7, 1e-5), (0.0, 0.93, 1e-4), (0.3, 0.5, 3e-6)],
    "power": [(2.0, 0.9, 0.2), (9.0, 0.6, 0.5), (0.5, 0.97, 0.1)],
}


@pytest.mark.parametrize(
    ("form", "base_model"),
    [(form, base) for form in TRUTHS for base in (False, True) if FORMS[form].at_zero or not base],
)
def test_noise_free_curves_are_recovered(form, base_model):
    compute = np.concatenate([[0.0], COMPUTE[1:]]) if base_model else COMPUTE
    rewards = [FORMS[form].curve(compute, *truth) for truth in TRUTHS[form]]
    for fit, truth in zip(
        fit_curves([compute] * len(rewards), rewards, options=FitOptions(form=form)), TRUTHS[form], strict=True
    ):
        np.testing.assert_allclose(tuple(fit.params.values()), truth, rtol=1e-6, atol=1e-9)
        assert fit.status == "ok" or FORMS[form].midpoint(fit.params) > COMPUTE[-1] / 2, fit.doubts
        assert fit.r2 == pytest.approx(1.0, abs=1e-12)


def test_the_base_model_measures_the_floor():
    compute = np.concatenate([[0.0], np.geomspace(1e4, 1e7, 9)])
    reward = np.concatenate([[0.2], hill(compute[1:], 0.2, 0.5, 1e5, 1.5)])
    (fit,) = fit_curves([compute], [reward])
    np.testing.assert_allclose(tuple(fit.params.values()), (0.2, 0.5, 1e5, 1.5), rtol=1e-6)
    assert fit.window == (1e4, 1e7)


def scipy_loss(compute: np.ndarray, reward: np.ndarray, **loss) -> float:
    """Least loss over all parameters by SciPy's trust region, from nine starts: half a sum of squares, or Huber's."""

    def residuals(p: np.ndarray) -> np.ndarray:
        floor, gain, log_mid, log_steep = p
        return floor + gain * (1 - floor) / (1 + np.exp(np.exp(log_steep) * (log_mid - np.log(compute)))) - reward

    low, high = np.log(compute[[0, -1]])
    bounds = ([0, 0, low - np.log(100), np.log(0.1)], [1, 1, high + np.log(100), np.log(10)])
    starts = [(0.1, 0.5, mid, steep) for mid in np.linspace(low, high, 3) for steep in (-0.7, 0.0, 0.7)]
    tight = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 5000}
    return min(scipy.optimize.least_squares(residuals, s, bounds=bounds, **tight, **loss).cost for s in starts)


def test_parity_with_scipy_on_noisy_curves():
    rng = np.random.default_rng(0)
    compute = np.geomspace(2e3, 3e5, 16)
    rewards = []
    for _ in range(12):
        truth = (rng.uniform(0, 0.2), rng.uniform(0.4, 0.95), 10 ** rng.uniform(3.5, 6), rng.uniform(0.5, 2.5))
        rewards.append(np.clip(hill(compute, *truth) + rng.normal(0, 0.02, compute.size), 0, 1))
    for fit, reward in zip(fit_curves([compute] * 12, rewards), rewards, strict=True):
        assert fit.sse <= 2 * scipy_loss(compute, reward) * (1 + 1e-7)
        assert fit.sse == pytest.approx(np.sum((fit.reward(compute) - reward) ** 2), rel=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_curves_are_monotone_and_bounded_whatever_the_data(form):
    rng = np.random.default_rng(1)
    compute = np.geomspace(1e3, 1e6, 7)
    rewards = [rng.uniform(-0.2, 1.2, 7) for _ in range(20)] + [np.linspace(0.9, 0.1, 7), np.zeros(7), np.ones(7)]
    everywhere = np.geomspace(1e2 if FORMS[form].at_zero else 1e3, 1e8, 50)
    options = FitOptions(form=form, reward_range=(0.0, 1.0), intervals=False)
    for fit in fit_curves([compute] * len(rewards), rewards, options=options):
        drawn = fit.reward(everywhere)
        assert np.all(np.diff(drawn) >= -1e-12)
        assert drawn.min() >= -1e-12 and drawn.max() <= 1 + 1e-12
        assert fit.params.get("floor", 0.0) <= fit.asymptote <= 1


def test_flat_short_and_unfinished_curves_say_so():
    compute = np.geomspace(1e3, 1e5, 8)
    flat, short, early, untrained = fit_curves(
        [compute, compute[:3], compute, np.zeros(1)],
        [np.full(8, 0.3), np.array([0.1, 0.2, 0.25]), hill(compute, 0.1, 0.9, 1e6, 1.2), np.array([0.1])],
    )
    assert flat.status == "warning" and "flat" in flat.doubts
    assert flat.asymptote == pytest.approx(0.3)
    assert short.status == "warning" and "few points" in short.doubts
    assert early.status == "warning" and "ends early" in early.doubts
    assert untrained.status == "failed"


def test_the_callers_precision_is_left_alone():
    before = jax.config.read("jax_enable_x64")
    fit_curves([np.geomspace(1e3, 1e5, 8)], [np.linspace(0.1, 0.5, 8)])
    assert jax.config.read("jax_enable_x64") == before
    assert jax.numpy.asarray(1.0).dtype == (np.float64 if before else np.float32)


def test_hubers_loss_is_scipys_and_resists_outliers():
    rng = np.random.default_rng(2)
    rewards = [hill(COMPUTE, 0.1, 0.7, 5e4, b) + rng.normal(0, 0.01, 20) for b in (0.8, 1.2, 2.0)]
    rewards[0][12] += 0.15
    rewards[1][4] -= 0.08
    options = FitOptions(loss="huber", huber_delta=0.01, intervals=False)
    fits = fit_curves([COMPUTE] * 3, rewards, options=options)
    for fit, reward in zip(fits, rewards, strict=True):
        size = np.abs(reward - fit.reward(COMPUTE))
        loss = np.sum(np.where(size <= 0.01, size**2 / 2, 0.01 * (size - 0.005)))
        assert loss == pytest.approx(scipy_loss(COMPUTE, reward, loss="huber", f_scale=0.01), rel=1e-6)
    clean = hill(COMPUTE, 0.1, 0.7, 5e4, 1.2)
    spoilt = clean + np.where(np.arange(20) == 13, -0.2, 0.0)
    (squares,) = fit_curves([COMPUTE], [spoilt], options=POINT)
    (huber,) = fit_curves([COMPUTE], [spoilt], options=FitOptions(loss="huber", huber_delta=1e-3, intervals=False))
    assert abs(huber.asymptote - 0.7) < 2e-3 < abs(squares.asymptote - 0.7)


def test_weights_are_scipys_and_only_their_ratios_matter():
    rng = np.random.default_rng(3)
    sigma = rng.uniform(0.005, 0.05, 20)
    reward = hill(COMPUTE, 0.1, 0.7, 5e4, 1.2) + rng.normal(0, sigma)
    theirs, _ = scipy.optimize.curve_fit(
        hill, COMPUTE, reward, p0=(0.1, 0.7, 5e4, 1.2), sigma=sigma, xtol=1e-14, ftol=1e-14, maxfev=5000
    )
    fits = fit_curves([COMPUTE] * 2, [reward] * 2, standard_error=[sigma, 7 * sigma], options=POINT)
    for fit in fits:
        np.testing.assert_allclose(tuple(fit.params.values()), theirs, rtol=1e-5)
    assert fits[0].sse == pytest.approx(fits[1].sse, rel=1e-9)
    weight = sigma**-2 / np.mean(sigma**-2)
    assert fits[0].sse == pytest.approx(np.sum(weight * (reward - fits[0].reward(COMPUTE)) ** 2), rel=1e-9)


def noisy(seed: int = 4) -> np.ndarray:
    return hill(COMPUTE, 0.1, 0.7, 5e4, 1.2) + np.random.default_rng(seed).normal(0, 0.01, 20)


@pytest.mark.parametrize(
    ("symbol", "name", "value"),
    [("A", "asymptote", 0.75), ("R0", "floor", 0.05), ("C_mid", "midpoint", 7e4), ("B", "steepness", 1.5)],
)
def test_a_fixed_parameter_keeps_its_value_and_the_others_make_the_best_of_it(symbol, name, value):
    reward = noisy()
    by_symbol, by_name = (
        fit_curves([COMPUTE], [reward], options=FitOptions(fix={key: value}, intervals=False))[0]
        for key in (symbol, name)
    )
    assert by_symbol.params == by_name.params
    assert by_symbol.params[name] == pytest.approx(value, rel=1e-12)
    names = list(by_symbol.params)
    free = [key for key in names if key != name]

    def residuals(p: np.ndarray) -> np.ndarray:
        return hill(COMPUTE, **{**dict(zip(free, p, strict=True)), name: value}) - reward

    start = [{"floor": 0.1, "asymptote": 0.7, "midpoint": 5e4, "steepness": 1.2}[key] for key in free]
    theirs = scipy.optimize.least_squares(residuals, start, x_scale=np.abs(start), xtol=1e-15, ftol=1e-15, gtol=1e-15)
    assert by_symbol.sse == pytest.approx(2 * theirs.cost, rel=1e-7)
    assert name not in by_symbol.at_bound


def test_bounds_hold_and_are_named_where_they_bind():
    options = FitOptions(bounds={"A": (0.0, 0.6), "B": (0.5, 1.5), "C_mid": (1e2, 1e9)}, intervals=False)
    (fit,) = fit_curves([COMPUTE], [noisy()], options=options)
    assert fit.asymptote == 0.6 and fit.params["steepness"] == pytest.approx(1.5, rel=1e-12)
    assert set(fit.at_bound) == {"asymptote", "steepness"}
    assert fit.status == "warning" and "at a bound" in fit.doubts


def test_bounds_of_the_other_forms_are_in_their_own_units():
    reward = expsat(COMPUTE, 0.1, 0.7, 1e-5)
    (fit,) = fit_curves([COMPUTE], [reward], options=FitOptions(form="expsat", fix={"k": 2e-5}, intervals=False))
    assert fit.params["rate"] == pytest.approx(2e-5, rel=1e-12)
    (fit,) = fit_curves([COMPUTE], [reward], options=FitOptions(form="power", fix={"B": 0.3}, intervals=False))
    assert fit.params["exponent"] == pytest.approx(0.3, rel=1e-12)


def test_the_floor_is_free_or_the_first_reward_or_a_value():
    reward = noisy()
    free, first, held = (
        fit_curves([COMPUTE], [reward], options=FitOptions(r0=r0, intervals=False))[0] for r0 in ("free", "first", 0.02)
    )
    assert first.params["floor"] == reward[0] and held.params["floor"] == 0.02
    assert free.sse < min(first.sse, held.sse) and free.params["floor"] not in (reward[0], 0.02)


def test_the_window_leaves_points_out_but_not_the_base_model():
    reward = hill(COMPUTE, 0.1, 0.7, 5e4, 1.2)
    reward[:5] = 0.5
    compute, rewards = np.concatenate([[0.0], COMPUTE]), np.concatenate([[0.1], reward])
    fit, everything = (
        fit_curves([compute], [rewards], options=FitOptions(window=window, intervals=False))[0]
        for window in ((COMPUTE[5], 1e6), None)
    )
    np.testing.assert_allclose(tuple(fit.params.values()), (0.1, 0.7, 5e4, 1.2), rtol=1e-6)
    assert fit.window == (COMPUTE[5], COMPUTE[-1]) and fit.num_points == 16
    assert everything.sse > 0.1 and everything.num_points == 21
    (outside,) = fit_curves([COMPUTE], [reward], options=FitOptions(window=(1e7, 1e8)))
    assert outside.status == "failed" and outside.doubts == ("no evaluations",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "tanh"}, "--form = .tanh.: known: .hill., .logistic., .expsat., .power."),
        ({"huber_delta": 0.0}, "--huber_delta=0.0 must be above 0"),
        ({"huber_delta": float("nan")}, "--huber_delta=nan must be above 0"),
        ({"tolerance": -1.0}, "--tolerance=-1.0 must be above 0"),
        ({"window": (5.0, 5.0)}, "--window=5,5 must be two computes"),
        ({"window": (-1.0, 5.0)}, "--window=-1,5 must be two computes"),
        ({"reward_range": (1.0, 0.0)}, "--reward_range=1,0 must be two numbers"),
        ({"fix": {"A": 1.2}}, r"--fix: A=1.2 must lie in 0..1"),
        ({"fix": {"B": 0.0}}, "--fix: B=0 must lie above 0"),
        ({"fix": {"k": 1.0}}, "--fix: the hill form has no k; it has A, R0, C_mid, B"),
        ({"fix": {"D": 1.0}, "form": "power"}, "--fix: D follows from the fit"),
        ({"bounds": {"A": (0.6, 0.5)}}, r"--bounds: A=0.6:0.5 must lie in 0..1"),
        ({"bounds": {"C_mid": (1.0, float("inf"))}}, "--bounds: C_mid=1:inf must lie above 0"),
        ({"bounds": {"C_mid": (float("nan"), 1.0)}}, "--bounds: C_mid=nan:1 must lie above 0"),
        ({"r0": 1.5}, r"--r0: floor=1.5 must lie in 0..1"),
        ({"r0": "first", "form": "power"}, "--r0=first: the power law has no floor"),
    ],
)
def test_bad_options_name_the_flag(options, message):
    with pytest.raises(InputError, match=message):
        FitOptions(**options)


def test_limits():
    assert FitOptions().limits() == {}
    given = FitOptions(fix={"A": 1.0}, bounds={"B": (0.5, 0.5), "C_mid": (1.0, 2.0)}, r0=0.0).limits()
    assert given == {"asymptote": (1.0, 1.0), "steepness": (0.5, 0.5), "midpoint": (1.0, 2.0), "floor": (0.0, 0.0)}


def test_information_criteria_by_hand():
    reward = noisy()
    (fit,) = fit_curves([COMPUTE], [reward], options=POINT)
    deviance = 20 * np.log(np.sum((reward - fit.reward(COMPUTE)) ** 2) / 20)  # four parameters and the noise: five
    assert fit.aicc == pytest.approx(deviance + 2 * 5 + 2 * 5 * 6 / (20 - 5 - 1), rel=1e-9)
    assert fit.noise == pytest.approx(np.sqrt(fit.sse / 16))
    (held,) = fit_curves([COMPUTE], [reward], options=FitOptions(fix={"A": 0.7}, intervals=False))
    assert held.aicc == pytest.approx(20 * np.log(held.sse / 20) + 2 * 4 + 2 * 4 * 5 / (20 - 4 - 1), rel=1e-9)


@pytest.mark.parametrize("true", ["hill", "logistic", "expsat", "power"])
def test_the_true_form_has_the_least_aicc(true):
    curves = {
        "hill": hill(COMPUTE, 0.1, 0.7, 5e4, 1.5), "logistic": logistic(COMPUTE, 0.1, 0.7, 2e5, 2e-5),
        "expsat": expsat(COMPUTE, 0.1, 0.7, 1e-5), "power": power(COMPUTE, 3.0, 0.9, 0.25),
    }  # fmt: skip
    reward = curves[true] + np.random.default_rng(5).normal(0, 1e-3, 20)
    aicc = {
        form: fit_curves([COMPUTE], [reward], options=FitOptions(form=form, intervals=False))[0].aicc for form in FORMS
    }
    assert min(aicc, key=lambda form: aicc[form]) == true


def test_curves_of_a_batch_do_not_touch_each_other():
    rng = np.random.default_rng(6)
    lengths = (20, 7, 13)
    computes = [np.geomspace(1e3, 1e6, p) for p in lengths]
    rewards = [hill(c, 0.1, 0.7, 5e4, 1.2) + rng.normal(0, 0.02, len(c)) for c in computes]
    together = fit_curves(computes, rewards)
    for order in ((2, 0, 1), (1,), (0,), (2,)):
        fits = fit_curves([computes[i] for i in order], [rewards[i] for i in order])
        for fit, i in zip(fits, order, strict=True):
            np.testing.assert_allclose(tuple(fit.params.values()), tuple(together[i].params.values()), rtol=1e-9)
            for name in fit.params:
                np.testing.assert_allclose(fit.interval95[name], together[i].interval95[name], rtol=1e-9)
            assert fit.identified == together[i].identified and fit.doubts == together[i].doubts


EDGES = {
    "base model alone": ([0.0], [0.2]), "base model thrice": ([0.0, 0.0, 0.0], [0.2, 0.2, 0.3]), "nothing": ([], []),
    "one point": ([1e4], [0.3]), "base model and one point": ([0.0, 1e4], [0.1, 0.3]),
    "two points": ([1e3, 1e4], [0.1, 0.3]), "one compute": ([1e4] * 8, np.linspace(0.1, 0.2, 8)),
    "computes twice": (np.repeat(COMPUTE[::2], 2), np.repeat(np.linspace(0.1, 0.5, 10), 2)),
    "all equal": (COMPUTE, np.full(20, 0.4)), "zeros": (COMPUTE, np.zeros(20)), "ones": (COMPUTE, np.ones(20)),
    "falling": (COMPUTE, np.linspace(0.9, 0.1, 20)), "step": (COMPUTE, np.where(COMPUTE > 3e4, 1.0, 0.0)),
    "outside of the range": (COMPUTE, np.linspace(-1.0, 3.0, 20)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("form", "option"),
    [*((form, {}) for form in FORMS), ("hill", {"loss": "huber"}), ("power", {"window": (5e3, 2e5)})],
    ids=str,
)
@pytest.mark.slow
def test_degenerate_data_give_numbers_or_fail_but_never_warn_or_raise(form, option):
    computes, rewards = ([np.asarray(part[i], float) for part in EDGES.values()] for i in (0, 1))
    for name, fit in zip(EDGES, fit_curves(computes, rewards, options=FitOptions(form=form, **option)), strict=True):
        untrained = name in ("base model alone", "base model thrice", "nothing")
        assert (fit.status == "failed") == untrained, name
        if not untrained:
            assert np.all(np.isfinite(tuple(fit.params.values()))), name
            drawn = fit.reward(np.geomspace(fit.window[0], fit.window[1], 30))
            assert np.all(np.diff(drawn) >= -1e-12) and drawn.min() >= -1e-9 and drawn.max() <= 1 + 1e-9, name


def test_fewer_points_than_parameters_claim_nothing():
    (fit,) = fit_curves([COMPUTE[:3]], [np.array([0.1, 0.2, 0.25])])
    assert all(np.isnan(ends).all() for ends in fit.interval95.values())
    assert not any(fit.identified.values())
    assert "few points" in fit.doubts
    assert np.isnan([fit.noise, fit.aicc, *fit.stderr.values()]).all()


def test_what_the_data_do_not_show_is_not_identified():
    early = hill(COMPUTE, 0.1, 0.9, 2e6, 1.2)
    rng = np.random.default_rng(7)
    short = np.geomspace(1e3, 2e5, 7)
    ending, noisy_short, pressed, good = fit_curves(
        [COMPUTE, short, COMPUTE, COMPUTE],
        [
            early,
            hill(short, 0.1, 0.7, 5e4, 1.2) + rng.normal(0, 0.03, 7),
            np.minimum(hill(COMPUTE, 0.1, 0.98, 5e4, 0.8) + rng.normal(0, 0.02, 20), 1),
            hill(COMPUTE, 0.1, 0.7, 1e4, 1.5) + rng.normal(0, 0.003, 20),
        ],
    )
    assert not ending.identified["asymptote"] and "ends early" in ending.doubts
    assert not noisy_short.identified["asymptote"] and "asymptote at a bound" in noisy_short.doubts
    assert not pressed.identified["asymptote"] and "asymptote at a bound" in pressed.doubts
    assert pressed.interval95["asymptote"][1] == 1.0
    assert all(good.identified.values()) and good.status == "ok", good.doubts
    (held,) = fit_curves([COMPUTE], [early], options=FitOptions(fix={"A": 0.9}))
    assert held.identified["asymptote"] and held.interval95["asymptote"] == (0.9, 0.9) and held.stderr["asymptote"] == 0
    assert held.status == "ok", held.doubts


def test_a_wide_interval_is_judged_by_the_tolerance():
    reward = noisy()
    (fit,) = fit_curves([COMPUTE], [reward])
    low, high = fit.interval95["asymptote"]
    for tolerance, identified in (((high - low) / 2 * 1.01, True), ((high - low) / 2 * 0.99, False)):
        (judged,) = fit_curves([COMPUTE], [reward], options=FitOptions(tolerance=tolerance))
        assert judged.identified["asymptote"] is identified
        assert ("asymptote wide" in judged.doubts) is not identified
