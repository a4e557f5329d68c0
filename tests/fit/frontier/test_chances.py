"""The chance that an unfinished run can still matter, on curves whose truth is known."""

import numpy as np
import pytest

from isocompute_jax.fit import AnalysisOptions
from isocompute_jax.fit.frontier.chances import LEAST_EVALUATIONS, LEAST_SHARE, chances_of_leading
from tests.fit.runs import write_run

END = 2**18
WORSE, BETTER, LATER = (0.07, 0.4, 2e4, 1.2), (0.07, 0.8, 2e4, 1.2), (0.07, 0.95, 8e4, 1.5)


def grid(share):
    return np.unique(np.geomspace(2048, share * END, 12).astype(int))


def sweep(root, curves, share=0.5, points=12):
    """Runs of two seeds that have come so far, and the chance of each configuration."""
    for n, params in curves.items():
        for seed in (0, 1):
            budgets = grid(share)[-points:]
            write_run(root / f"n{n}-s{seed}", group_size=n, seed=seed, params=params, noise=0.004, budgets=budgets)
    found = chances_of_leading([str(root)], AnalysisOptions(), end=END)
    assert all(each.compute == grid(share)[-1] for each in found)
    return {each.configuration: each.chance for each in found}


@pytest.mark.slow
def test_what_stays_below_is_hopeless_and_what_is_to_cross_is_not(tmp_path):
    chances = sweep(tmp_path / "apart", {2: WORSE, 8: BETTER})
    assert chances["n = 2"] < 0.01 and chances["n = 8"] > 0.99
    chances = sweep(tmp_path / "crossing", {4: BETTER, 16: LATER})
    assert chances["n = 16"] > 0.05  # it is about to lead at the end


@pytest.mark.slow
def test_of_curves_alike_none_is_hopeless(tmp_path):
    assert min(sweep(tmp_path, {4: BETTER, 8: BETTER, 16: BETTER}).values()) > 0.05


def test_nothing_is_said_of_one_configuration_of_the_beginning_of_the_end_and_of_few_evaluations(tmp_path):
    assert sweep(tmp_path / "one", {4: BETTER}) == {}
    assert sweep(tmp_path / "early", {4: BETTER, 8: WORSE}, share=0.9 * LEAST_SHARE) == {}
    assert sweep(tmp_path / "done", {4: BETTER, 8: WORSE}, share=1.0) == {}
    assert sweep(tmp_path / "few", {4: BETTER, 8: WORSE}, points=LEAST_EVALUATIONS - 1) == {}
