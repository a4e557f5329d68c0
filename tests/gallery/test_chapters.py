"""Each finding of docs/findings.md, from the gallery: its verdict, and its effect by a plain loop over rows."""

import collections
import math
import pathlib

import numpy as np
import pytest

from isocompute_jax.gallery import findings, read_sweep
from isocompute_jax.gallery.curves import curves_of
from isocompute_jax.gallery.page import chapters
from isocompute_jax.gallery.page.chapter import Gallery

GALLERY = pathlib.Path(__file__).parents[2] / "gallery"
VERDICTS = {1: "shown", 3: "shown", 4: "refuted", 5: "shown", 6: "refuted", 7: "refuted", 8: "refuted", 12: "shown"}
POINTS = 13


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    docs = tmp_path_factory.mktemp("docs")
    (docs / "findings").mkdir()
    return {one.number: one for one in chapters(Gallery(GALLERY), docs)}


@pytest.mark.slow
def test_there_are_thirteen(found):
    assert list(found) == list(range(1, 14))
    for one in found.values():
        assert one.verdict == "not run" or (one.seeds >= 5 and one.effect and one.overturn and one.paper), one.number


@pytest.mark.slow
@pytest.mark.parametrize("number", VERDICTS)
def test_verdicts(found, number):
    assert found[number].verdict == VERDICTS[number]


def mean_curves(name, column="avg@4", eval_set="validation"):
    """n -> [(C, mean over seeds)], by hand."""
    values = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in read_sweep(GALLERY / f"{name}.parquet").table.to_pylist():
        if row["eval_set"] == eval_set and row["compute"] > 0:
            values[row["group_size"]][row["compute"]].append(row[column])
    return {n: [(c, sum(v) / len(v)) for c, v in sorted(each.items())] for n, each in sorted(values.items())}


def record(curve, budget):
    """Highest mean up to a budget; between two evaluations on a line in log C."""
    best, before = -math.inf, None
    for compute, value in curve:
        if compute > budget * (1 + 1e-9):
            if before is None or value <= best:
                return best
            share = math.log(budget / before) / math.log(compute / before)
            return best + share * (value - best)
        best, before = max(best, value), compute
    return best


def best_size(curves, budget):
    """log2 n*(C): the vertex of the parabola of least squares through the records over log2 n."""
    points = {math.log2(n): record(curve, budget) for n, curve in curves.items() if curve[0][0] <= budget * (1 + 1e-9)}
    x, y = np.array(list(points)), np.array(list(points.values()))
    curvature, slope, _ = np.linalg.lstsq(np.stack([x**2, x, np.ones_like(x)], axis=1), y)[0]
    if curvature >= 0:
        return x[-1] if slope + curvature * (x[0] + x[-1]) > 0 else x[0]
    return min(max(-slope / (2 * curvature), x[0]), x[-1])


def budgets_of(*sweeps):
    """Those that every n of every sweep has."""
    each = [curve for curves in sweeps for curve in curves.values()]
    return np.geomspace(max(curve[0][0] for curve in each), min(curve[-1][0] for curve in each), POINTS)


def shift(one, other):
    """Mean octaves between the two n*."""
    return np.mean([best_size(one, c) - best_size(other, c) for c in budgets_of(one, other)])


@pytest.mark.parametrize(("one", "other"), [("easy_64", "problems_64"), ("problems_64", "problems_256")])
def test_shifts_between_sweeps(one, other):
    assert findings.size_shift(curves(one), curves(other)).value == pytest.approx(
        shift(mean_curves(one), mean_curves(other)), abs=1e-6
    )


@pytest.mark.parametrize(("name", "metric"), [("easy_64", "worst@4"), ("problems_64", "best@4")])
def test_shifts_between_targets(name, metric):
    assert findings.target_shift(curves(name, metric, "avg@4")).value == pytest.approx(
        shift(mean_curves(name, metric), mean_curves(name)), abs=1e-6
    )


def test_levels_of_data_sets_do_not_touch():
    """Finding 12: not even the best seed of fewer problems reaches the worst of more."""
    levels = {}
    for size in (16, 64, 256):
        rows = read_sweep(GALLERY / f"problems_{size}.parquet").table.to_pylist()
        by_run = collections.defaultdict(float)
        for row in rows:
            by_run[row["run"]] = max(by_run[row["run"]], row["avg@4"])
        best_n = max(
            mean_curves(f"problems_{size}").items(), key=lambda item: max(value for _, value in item[1])
        )[0]  # fmt: skip
        levels[size] = [value for run, value in by_run.items() if run.startswith(f"group_size={best_n},")]
    assert max(levels[16]) < min(levels[64]) and max(levels[64]) < min(levels[256])


def curves(name, *columns):
    """As the page reads them."""
    return curves_of(read_sweep(GALLERY / f"{name}.parquet"), *(columns or ("avg@4",)))
