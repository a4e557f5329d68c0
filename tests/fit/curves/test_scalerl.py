"""ScaleRL's comparisons: a common asymptote, log F as a line of slope B, and the grid procedure."""

from __future__ import annotations

import numpy as np
import pytest

from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.scalerl import Grid, compare_steepness, grid_fit
from isocompute_jax.records.errors import InputError

COMPUTE = np.geomspace(1e3, 1e6, 20)
TRUTHS = ((0.1, 0.62, 3e4, 0.9), (0.1, 0.66, 5e4, 1.4))
REWARDS = [hill(COMPUTE, *truth) for truth in TRUTHS]
DATA = ([COMPUTE, COMPUTE], REWARDS)
USE = [np.ones(20, bool)] * 2


def test_the_common_asymptote_is_the_mean_and_is_held():
    fits = fit_curves(*DATA)
    found = compare_steepness(*DATA, fits, use=USE, options=FitOptions())
    assert found is not None and [fit.asymptote for fit in found] == pytest.approx([0.64] * 2)
    low, high = (fit.interval95["steepness"] for fit in found)
    assert low[1] < high[0]  # steeper stays steeper


def test_unidentified_asymptotes_do_not_enter_the_mean():
    early = COMPUTE <= 2e4
    use = [USE[0], early]
    fits = fit_curves(*DATA, use=use)
    assert [fit.identified["asymptote"] for fit in fits] == [True, False]
    found = compare_steepness(*DATA, fits, use=use, options=FitOptions())
    assert found is not None and found[0].asymptote == pytest.approx(0.62, rel=1e-6)


def test_one_curve_or_another_form_has_nothing_to_compare():
    one = fit_curves([COMPUTE], REWARDS[:1])
    assert compare_steepness([COMPUTE], REWARDS[:1], one, use=USE[:1], options=FitOptions()) is None
    other = FitOptions(form="power")
    assert compare_steepness(*DATA, fit_curves(*DATA, options=other), use=USE, options=other) is None


@pytest.mark.slow
def test_the_grid_procedure_finds_a_truth_on_its_grid_and_is_never_better_than_the_fit():
    rng = np.random.default_rng(0)
    noisy = [reward + rng.normal(0, 0.01, 20) for reward in REWARDS]
    grid = Grid(0.45, 0.8, 0.005)
    assert len(grid.values()) == 71 and grid.values()[-1] == pytest.approx(0.8)
    for rewards, tolerance in ((REWARDS, 2e-4), (noisy, 1e-2)):
        fits = fit_curves([COMPUTE] * 2, rewards)
        found = grid_fit([COMPUTE] * 2, rewards, use=USE, grid=grid, options=FitOptions())
        for one, fit in zip(found, fits, strict=True):
            assert fit.sse <= one.sse <= fit.sse + tolerance
            assert one.asymptote == pytest.approx(fit.asymptote, abs=0.03) and not one.at_bound
    assert [one.asymptote for one in grid_fit(*DATA, use=USE, grid=grid, options=FitOptions())] == pytest.approx(
        [0.62, 0.66]
    )


def test_a_best_cell_at_the_edge_is_flagged():
    found = grid_fit(*DATA, use=USE, grid=Grid(0.45, 0.6, 0.05), options=FitOptions())
    assert all("asymptote" in one.at_bound and one.asymptote == pytest.approx(0.6) for one in found)


@pytest.mark.parametrize("bad", [(0.8, 0.45, 0.005), (0.4, 0.8, 0.0), (0.0, 1.0, 1e-6)])
def test_a_bad_grid_names_the_flag(bad):
    with pytest.raises(InputError, match="--grid="):
        Grid(*bad)
