"""What docs/findings.md states, computed anew from the gallery."""

import pathlib
import re

import numpy as np
import pytest

from isocompute_jax.fit.comparisons.held_out import held_out_quarter
from isocompute_jax.gallery import read_sweep, recording
from isocompute_jax.gallery.findings import analysed, course, seeds_of

ROOT = pathlib.Path(__file__).parents[2]
GALLERY = ROOT / "gallery"


@pytest.fixture(scope="module")
def few_problems():
    return read_sweep(GALLERY / "problems_64.parquet")


@pytest.mark.slow
def test_group_sizes_rise_with_compute(few_problems):
    found = course(few_problems)
    sizes = [size for _, size in found.budgets]
    assert sizes == sorted(sizes) and found.octaves >= 4


@pytest.mark.slow
def test_they_rise_by_two_octaves_in_every_seed(few_problems):
    assert len(seeds_of(few_problems)) == 5
    assert min(course(few_problems, [seed]).octaves for seed in seeds_of(few_problems)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(0, 1), (2, 3, 4)])
def test_disjoint_seeds_say_the_same(few_problems, seeds):
    assert course(few_problems, seeds).octaves >= 2


@pytest.mark.slow
def test_switches_fall_at_one_number_of_epochs_and_their_intervals_exclude_each_other(few_problems):
    switches = course(few_problems, bootstrap=True).switches
    epochs = np.array([switch.epochs for switch in switches])
    assert len(switches) == 5 and epochs.max() / epochs.min() < 1.6
    ends = [switch.interval95 or (np.nan, np.nan) for switch in switches]
    for (_, before), (after, _) in zip(ends, ends[2:], strict=False):  # two octaves apart
        assert before < after


@pytest.mark.slow
def test_what_the_readme_says_of_other_seeds_and_of_the_whole():
    """n* of the study with other seeds, its held-out quarter, the number of runs, and the score of the findings."""
    readme = " ".join((ROOT / "README.md").read_text().split())
    again = read_sweep(GALLERY / "again_64.parquet")
    sizes = [size for _, size in course(again).budgets]
    assert f"say {sizes[0]} to {sizes[-1]}, and each of nine seeds" in readme and sizes[-1] >= 4 * sizes[0]
    result = analysed(again)
    found = held_out_quarter(result.runs, result.options)
    assert found is not None
    assert f"for either set of seeds {found.inside.sum()} of {found.known.sum()} measured rewards" in readme
    assert (
        f"within an octave at 4 and at {np.sum(np.abs(found.octaves) <= 1)} of {len(found.octaves)} budgets" in readme
    )
    runs = sum(len(read_sweep(path).facts.runs) for path in GALLERY.glob("*.parquet"))
    assert f"{runs} recorded runs say" in readme
    [score] = re.findall(r"Of thirteen findings (.*?)\. What", (ROOT / "docs/findings.md").read_text())
    assert score == "4 are shown, 3 shown in part, 3 refuted, 3 not settled"
    assert "four are shown, three in part, three refuted and three not settled" in readme


def test_the_gallery_is_small():
    assert sum(path.stat().st_size for path in GALLERY.glob("*.parquet")) < recording.LARGEST
