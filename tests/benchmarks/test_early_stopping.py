"""Replaying a sweep with early stopping: what counts as saved, as a wrong stop, as lost; a recorded sweep."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.early_stopping import RECORDED, Replay, Sweep, figures, mean_over_seeds, recorded, replay
from isocompute_jax.records.errors import InputError

COMPUTE = np.array([0.0, 100.0, 200.0, 400.0])


def truth(compute: float) -> np.ndarray:
    """n = 8 leads up to 200, n = 16 from there on, and n = 32 nowhere."""
    return np.array([0.5, 0.5 + 0.1 * np.log2(compute / 200), 0.2])


def test_a_stop_is_wrong_where_the_configuration_would_have_led():
    runs = tuple((k, COMPUTE, np.zeros(4)) for k in (0, 1, 1, 2))
    sweep = Sweep((8, 16, 32), (8, 8, 8), runs, {})
    ends = np.full(4, 400.0)
    found = Replay(ends, np.array([np.inf, 100.0, np.inf, 200.0]), chosen=(1, 0))
    assert figures(sweep, found, truth) == pytest.approx([(300 + 200) / 1600, 2, 1, 0.1, 0.0, 0.1])
    kept = Replay(ends, np.full(4, np.inf), chosen=(1, 1))
    assert figures(sweep, kept, truth) == [0.0, 0, 0, 0.0, 0.0, 0.0]


def test_the_mean_over_seeds_lies_between_evaluations_in_log_compute():
    runs = [(COMPUTE, np.array([0.9, 0.1, 0.2, 0.3])), (COMPUTE[:3], np.array([0.9, 0.3, 0.4]))]
    assert mean_over_seeds(runs, 100 * 2**0.5) == pytest.approx(0.25)
    assert mean_over_seeds(runs, 400.0) == pytest.approx((0.3 + 0.4) / 2)  # where a run ends a step sooner


def test_only_what_was_reached_is_told():
    sweep = Sweep((8, 16), (2, 2), ((0, COMPUTE, COMPUTE / 1000), (1, COMPUTE, COMPUTE / 800)), {})
    table = sweep.table(np.array([100.0, 400.0]))
    assert table["run"].tolist() == ["run0"] * 2 + ["run1"] * 4 and sweep.end == 400.0
    assert table["group_size"].tolist() == [8] * 2 + [16] * 4
    np.testing.assert_allclose(table["avg@4"][:2], [0.0, 0.1])


def test_one_configuration_is_no_sweep(tmp_path):
    lines = [f"a,8,8,{100 * step},{0.1 * step}" for step in range(5)]
    path = tmp_path / "one.csv"
    path.write_text("\n".join(["run,group_size,problems_per_batch,compute,avg@4", *lines]))
    with pytest.raises(InputError, match=r"one\.csv: has one configuration, .*8"):
        recorded(str(path))


@pytest.mark.slow
def test_a_recorded_sweep_is_replayed():
    """Two seeds of each n; n = 4 and 16 are stopped, rightly: the truth is that of all five seeds."""
    sweep = recorded(str(RECORDED / "crossed_hard.parquet"), seeds=2)
    assert (sweep.sizes, sweep.batches, [k for k, *_ in sweep.runs]) == ((4, 16, 64), (8, 8, 8), [0, 0, 1, 1, 2, 2])
    found = replay(sweep, level=0.01, looks=2)
    assert np.isfinite(found.stopped).tolist() == [True] * 4 + [False] * 2
    assert found.chosen == (2, 2) and (found.stopped[:4] < 2**17).all()
    assert list(sweep.truths) == ["fitted to all data", "mean over all seeds"]
    for truth_of_it in sweep.truths.values():
        assert truth_of_it(sweep.end).argmax() == 2
        saved, *others = figures(sweep, found, truth_of_it)
        assert 0 < saved < 0.5 and others == [4, 0, 0.0, 0.0, 0.0]
