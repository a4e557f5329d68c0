"""docs/findings.md from the gallery: each finding's verdict, its effect by a plain loop over rows, and the README's."""

import collections
import functools
import math
import pathlib
import re

import numpy as np
import pytest

from isocompute_jax.fit import held_out_quarter
from research import findings
from research.findings import statistics
from research.findings.chapter import Gallery
from research.findings.closing import OF_ANOTHER_MODEL
from research.findings.rising import analysed, course
from research.record import LARGEST, curves_of, read_sweep

ROOT = pathlib.Path(__file__).parents[2]
GALLERY = ROOT / "gallery"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
VERDICTS = {
    1: "shown", 2: "shown in part", 3: "not settled", 4: "refuted", 5: "shown", 6: "refuted", 7: "shown in part",
    8: "refuted", 9: "not settled", 10: "not settled", 11: "shown in part", 12: "shown", 13: "shown",
}  # fmt: skip
POINTS = 13


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    docs = tmp_path_factory.mktemp("docs")
    (docs / "findings").mkdir()
    return docs


@pytest.fixture(scope="module")
def found(docs):
    return {one.number: one for one in findings.chapters(Gallery(GALLERY), docs)}


@pytest.mark.slow
def test_the_thirteen_and_their_verdicts(found):
    assert {number: one.verdict for number, one in found.items()} == VERDICTS
    for one in found.values():
        assert one.seeds >= 5 and one.effect and one.why and one.overturn and one.paper, one.number
        assert "](findings/" in one.seen or "the picture of finding" in one.seen, one.number


@pytest.mark.slow
def test_the_page_is_what_the_gallery_says(found, docs, monkeypatch):
    """Words are the same; numbers too, but for the last digit that another processor may round otherwise."""
    monkeypatch.setattr(findings, "chapters", lambda *_: list(found.values()))  # they take minutes
    built, kept = findings.build(GALLERY, docs).read_text(), (ROOT / "docs/findings.md").read_text()
    assert NUMBER.sub("#", built) == NUMBER.sub("#", kept)
    numbers = [[float(each.replace(",", "")) for each in NUMBER.findall(text)] for text in (built, kept)]
    np.testing.assert_allclose(*numbers, rtol=0.06)
    assert (docs / "findings/rise.png").stat().st_size > 10_000


@functools.cache
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


@pytest.mark.usefixtures("few_replicates")
@pytest.mark.parametrize(("one", "other"), [("easy_64", "problems_64"), ("problems_64", "problems_256")])
def test_shifts_between_sweeps(one, other):
    assert statistics.size_shift(curves(one), curves(other)).value == pytest.approx(
        shift(mean_curves(one), mean_curves(other)), abs=1e-6
    )


@pytest.mark.usefixtures("few_replicates")
@pytest.mark.parametrize(("name", "metric"), [("easy_64", "worst@4"), ("problems_64", "best@4")])
def test_shifts_between_targets(name, metric):
    assert statistics.target_shift(curves(name, metric, "avg@4")).value == pytest.approx(
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


def level(curve):
    """Highest mean."""
    return max(value for _, value in curve)


def spread(sweeps, sizes, budgets, over):
    """Standard deviation of records over one of (sweep, n), a mean over the other and over budgets."""
    records = np.array([[[record(sweep[n], c) for c in budgets] for n in sizes] for sweep in sweeps])
    return records.std(axis=("sweep", "n").index(over), ddof=1).mean()


@pytest.mark.usefixtures("few_replicates")
def test_b_problem_does_as_much_as_n():
    """Finding 6."""
    names = ("batch_2", "problems_64", "batch_32")
    sweeps, sizes = [mean_curves(name) for name in names], (4, 8, 16, 32, 64)
    budgets = budgets_of(*({n: sweep[n] for n in sizes} for sweep in sweeps))
    by_batch, by_size, _ = statistics.batch_effect({2 ** (2 * i + 1): curves(name) for i, name in enumerate(names)})
    assert by_batch.value == pytest.approx(spread(sweeps, sizes, budgets, "sweep"), abs=1e-9)
    assert by_size.value == pytest.approx(spread(sweeps, sizes, budgets, "n"), abs=1e-9)


@pytest.mark.usefixtures("few_replicates")
def test_n_does_little_at_fixed_b():
    """Finding 9."""
    sweeps, sizes = [mean_curves("steps_64"), mean_curves("problems_64")], (4, 8, 16, 32, 64)
    budgets = budgets_of(*({n: sweep[n] for n in sizes} for sweep in sweeps))
    fixed, free = (spread([sweep], sizes, budgets, "n") for sweep in sweeps)
    assert statistics.size_effect(curves("steps_64"), curves("problems_64")).value == pytest.approx(fixed / free)


@pytest.mark.usefixtures("few_replicates")
def test_rate_rules_at_large_batches():
    """Finding 7."""
    best = {
        name: max(level(mean_curves(name)[n]) for n in (64, 128))
        for name in ("problems_64", "rate_sqrt", "rate_linear")
    }
    for rule in ("problems_64", "rate_linear"):
        found = statistics.level_gain(curves("rate_sqrt"), curves(rule), (64, 128))
        assert found.value == pytest.approx(best["rate_sqrt"] - best[rule])


def test_terms_change_nothing_that_seeds_do_not():
    """Finding 10: every change of the highest mean is within twice the spread of a seed's own highest."""
    for where, plain in (("easy", "easy_64"), ("hard", "problems_64")):
        for name in (f"terms_{where}", f"strong_{where}"):
            for n in (8, 32):
                alone = [values[:, 0].max() for values in curves(plain)[n].values]
                assert abs(level(mean_curves(name)[n]) - level(mean_curves(plain)[n])) < 2 * np.std(alone, ddof=1)


def test_hard_alone_forgets_easy_and_the_mixture_less():
    """Finding 11: in the means at the last budget."""
    rows = read_sweep(GALLERY / "crossed_hard.parquet").table.to_pylist()
    base = np.mean([row["avg@4"] for row in rows if row["eval_set"] == "easy" and row["compute"] == 0])
    hard, mixture = (mean_curves(name, eval_set="easy") for name in ("crossed_hard", "crossed_mixture"))
    changes = {n: (hard[n][-1][1] - base, mixture[n][-1][1] - base) for n in hard}
    assert list(changes) == [4, 16, 64]
    assert all(alone < -0.02 and both > alone + 0.02 for alone, both in changes.values())
    assert [both > 0 for _, both in changes.values()] == [False, False, True]


@pytest.mark.usefixtures("few_replicates")
def test_base_models_reach_other_levels():
    """Finding 13."""
    one, other = ({n: level(curve) for n, curve in mean_curves(name).items()} for name in ("base_600", "problems_64"))
    found = statistics.level_gain(curves("base_600"), curves("problems_64"))
    assert found.value == pytest.approx(max(one.values()) - max(other.values()))


def test_levels_of_large_groups():
    """Finding 2: from n = 32 to 256 the highest mean gains less than a tenth of what it gains up to n = 32."""
    small, large = mean_curves("problems_64"), mean_curves("late")
    gained = level(large[32]) - level(small[4])
    assert gained > 0.05 and level(large[256]) - level(large[32]) < 0.1 * gained


@functools.cache
def curves(name, *columns):
    """As the page reads them."""
    return curves_of(read_sweep(GALLERY / f"{name}.parquet"), *(columns or ("avg@4",)))


@pytest.mark.slow
def test_what_the_readme_says_of_other_seeds_and_of_the_whole():
    """n* of the study with other seeds, its held-out quarter, the number of runs, and the score of the findings."""
    readme = " ".join((ROOT / "README.md").read_text().split())
    again = read_sweep(GALLERY / "again_64.parquet")
    result = analysed(again)
    sizes = [size for _, size in course(result)]
    assert f"say {sizes[0]} to {sizes[-1]}, and each of nine seeds" in readme and sizes[-1] >= 4 * sizes[0]
    both = [analysed(read_sweep(GALLERY / "problems_64.parquet")), result]
    found = [held for each in both if (held := held_out_quarter(each.runs, each.options)) is not None]
    inside, known = (
        sum(int(part.sum()) for part in parts) for parts in zip(*((f.inside, f.known) for f in found), strict=True)
    )
    near = sum(int(np.sum(np.abs(each.octaves) <= 1)) for each in found)
    assert f"for two sets of seeds {inside} of {known} measured rewards" in readme
    assert f"within an octave at {near} of {sum(len(each.octaves) for each in found)} budgets" in readme
    paths = set(GALLERY.glob("*.parquet")) - {GALLERY / f"{OF_ANOTHER_MODEL}.parquet"}
    runs = sum(len(read_sweep(path).facts.runs) for path in paths)
    assert f"{runs} recorded runs say" in readme
    [score] = re.findall(r"Of thirteen findings (.*?)\. What", (ROOT / "docs/findings.md").read_text())
    assert score == "4 are shown, 3 shown in part, 3 refuted, 3 not settled"
    assert "four are shown, three in part, three refuted and three not settled" in readme


def test_the_gallery_is_small():
    assert sum(path.stat().st_size for path in GALLERY.glob("*.parquet")) < LARGEST
