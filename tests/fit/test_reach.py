"""Which unfinished runs can still matter."""

import dataclasses

import numpy as np

from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.frontier.forecast import Forecast
from isocompute_jax.fit.further_runs import LEAST_SHARE, chance_of_leading, chances_of_leading
from isocompute_jax.fit.read import memory_table

COMPUTE = np.concatenate([[0.0], np.geomspace(2e3, 2.6e5, 15)])


@dataclasses.dataclass
class Drawn:
    """Two draws of three curves: in one the second overtakes the first at C = 100, in the other never."""

    form = np.zeros(2)
    members = np.array([True, True, False])

    def rewards(self, compute: float) -> np.ndarray:
        return np.array([[0.5, 0.4 + 0.2 * (compute > 100), np.nan], [0.5, 0.4, np.nan]])


def test_a_draw_counts_where_the_configuration_leads_anywhere_in_what_is_left():
    drawn: Forecast = Drawn()  # pyright: ignore[reportAssignmentType]
    assert chance_of_leading(drawn, 1, start=10, end=1000) == 0.5
    assert chance_of_leading(drawn, 1, start=10, end=90) == 0.0
    assert chance_of_leading(drawn, 0, start=10, end=1000) == 1.0
    assert chance_of_leading(drawn, 0, start=200, end=1000) == 0.5
    assert chance_of_leading(drawn, 2, start=10, end=1000) == 1.0  # nothing is known of it


def sweep_table():
    """A hopeless run, another seed of it that has spent less than a quarter, one that leads; of the others one has come
    to the end, and one has three evaluations."""
    rng = np.random.default_rng(0)
    truth = {2: (0.1, 0.3, 1e4, 1.2), 8: (0.1, 0.6, 2e4, 1.2), 32: (0.1, 0.8, 8e4, 1.2), 64: (0.1, 0.8, 9e4, 1.2)}
    columns = {name: [] for name in ("run", "group_size", "problems_per_batch", "seed", "compute", "avg@4")}
    for size, seed, reached in ((2, 0, 12), (2, 1, 11), (8, 0, 15), (32, 0, 12), (64, 0, 3)):
        for compute in COMPUTE[: reached + 1]:
            reward = float(hill(max(compute, 1e-9), *truth[size])) + 0.003 * rng.normal()
            for name, value in zip(columns, (f"n{size}_{seed}", size, 8, seed, compute, reward), strict=True):
                columns[name].append(value)
    return memory_table(columns)


def test_chances_of_a_sweep():
    chances = {each.run: each for each in chances_of_leading(sweep_table(), AnalysisOptions(), end=float(COMPUTE[-1]))}
    assert set(chances) == {"n2_0", "n32_0"} and 0.24 < COMPUTE[11] / COMPUTE[-1] < LEAST_SHARE
    assert chances["n2_0"].chance < 0.01 and chances["n32_0"].chance > 0.1  # by its trend n = 64 may end higher
    assert chances["n2_0"].configuration == "n = 2" and chances["n2_0"].compute == COMPUTE[12]
    assert chances_of_leading(sweep_table(), AnalysisOptions(), end=5 * float(COMPUTE[-1])) == []
