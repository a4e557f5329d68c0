"""Scheduled runs are shown beside the frontier, with known curves, and never mixed with those of a fixed n."""

from __future__ import annotations

import json

import numpy as np
import pytest

from isocompute_jax.fit import analyze
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.comparisons.questions import with_comparisons
from isocompute_jax.fit.comparisons.schedules import sizes_of
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.seeds import group_runs, group_schedules
from isocompute_jax.fit.frontier.schedules import beside_the_frontier
from isocompute_jax.fit.read import ReadOptions, memory_table, read_curves
from isocompute_jax.fit.report.page import interactive_data
from isocompute_jax.fit.report.tables import summary_of
from isocompute_jax.fit.report.terminal import MOST_LINES, headline
from isocompute_jax.laws.analysis import LawOptions, analyse_law
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import CONFIG, METRICS, append_line
from tests.fit.runs import BUDGETS, write_run

CURVES = {4: (0.07, 0.6, 2e4, 1.2), 8: (0.07, 0.8, 4e4, 1.2), 16: (0.07, 0.93, 7e4, 1.2)}
COMPUTE = 2.0 ** np.arange(11, 19)
ENVELOPE = np.max([hill(COMPUTE, *params) for params in CURVES.values()], axis=0)
OPTIONS = AnalysisOptions(form="hill", forecast="form", replicates=20)


def table(schedules, *, seeds=4, noise=0.005, fixed=True, seed=0):
    """A sweep of three n, and schedules that lie so far from their upper envelope."""
    rng, rows = np.random.default_rng(seed), []
    curves = {f"n{n}": (n, "", hill(COMPUTE, *params)) for n, params in CURVES.items()} if fixed else {}
    curves |= {name: (4, name, ENVELOPE + apart) for name, apart in schedules.items()}
    for name, (n, schedule, reward) in curves.items():
        for number in range(seeds):
            for compute, mean in zip([0, *COMPUTE], [0.07, *reward], strict=True):
                value = mean + noise * rng.normal()
                rows.append((f"{name}-{number}", n, 8, number, compute, value, schedule))
    names = ("run", "group_size", "problems_per_batch", "seed", "compute", "avg@4", "schedule")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


@pytest.fixture(scope="module")
def beside():
    return analyze(table({"n auto": 0.0, "n 4@0,8@2048": -0.05}), OPTIONS, compare=False)


@pytest.fixture(scope="module")
def alone():
    return analyze(table({}), OPTIONS, compare=False)


def plain_summary(result):
    """What is written, but for the inputs and the hash that follows from them."""
    return json.loads(json.dumps(summary_of(result))) | {"inputs": None}


def test_one_that_walks_the_envelope_is_level_and_one_below_says_so(beside):
    below, auto = beside.scheduled
    assert (auto.name, auto.kind, auto.seeds, below.kind) == ("n auto", "auto", 4, "n")
    assert [row.compute for row in auto.budgets] == COMPUTE.tolist()
    for level, lower in zip(auto.budgets, below.budgets, strict=True):
        for ends in (level.interval95, level.held_out95):
            assert ends[0] < 0 < ends[1]
        if lower.compute == COMPUTE[0]:  # there the base model is the best so far
            assert lower.reward == pytest.approx(0.07, abs=0.01)
            continue
        for ends in (lower.interval95, lower.held_out95):
            assert ends[0] < -0.05 < ends[1] < 0
        assert abs(lower.difference + 0.05) < 0.01
    assert [row.frontier_run for row in auto.budgets] == ["n = 4"] * 5 + ["n = 8"] * 2 + ["n = 16"]
    assert auto.within == COMPUTE[-1] and below.within is None


def test_the_fixed_n_are_analysed_as_without_it(beside, alone):
    mixed, only = plain_summary(beside), plain_summary(alone)
    assert "scheduled" not in only and len(mixed.pop("scheduled")) == 2
    assert mixed == only
    assert not any("schedule" in row for row in summary_of(alone)["inputs"])
    named = [row["schedule"] for row in summary_of(beside)["inputs"] if "schedule" in row]
    assert sorted(named) == ["n 4@0,8@2048"] * 4 + ["n auto"] * 4


def test_a_table_without_the_column_reads_the_same(alone):
    bare = {name: column for name, column in table({}).items() if name != "schedule"}
    assert plain_summary(analyze(bare, OPTIONS, compare=False)) == plain_summary(alone)


def test_what_is_said(beside):
    told = " ".join(headline(beside).split())
    assert "One run that sets n itself (n auto, 4 seeds): 0.785 at 262,000 rollouts, level with the best" in told
    assert "(n = 16), and nowhere more than 0.005 below it." in told
    assert "One run that changes n (n 4@0,8@2048, 4 seeds): 0.733 at 262,000 rollouts, 0.052 below the" in told
    assert len(headline(beside).splitlines()) <= MOST_LINES + 4
    drawn = json.loads(interactive_data(beside))["metrics"]["avg@4"]
    assert [curve["name"] for curve in drawn["curves"]][3:] == ["n 4@0,8@2048", "n auto"]
    assert all(place < 3 for place, _, _ in drawn["segments"])
    labels = [text.get_text() for legend in beside.plot().legends for text in legend.get_texts()]
    assert labels[-2:] == ["n 4@0,8@2048", "n auto"]


def test_without_a_fixed_n_there_is_an_answer_and_no_frontier():
    found = with_comparisons(analyze(table({"n auto": 0.0}, fixed=False), OPTIONS, compare=False))
    assert [curve.run for curve in found.curves] == ["n auto"] and found.only_scheduled and not found.beside
    assert found.scheduled is not None
    (auto,) = found.scheduled
    assert all(row.difference is None for row in auto.budgets)
    told = " ".join(str(found).split())
    assert "without runs of a fixed n there is no frontier to compare with" in told
    assert "One run that sets n itself (n auto, 4 seeds): 0.7" in told
    assert [each.question for each in found.comparisons] == ["schedules"]
    with pytest.raises(InputError, match="its n changes within it"):
        analyse_law(found.every_run, (), LawOptions(analysis="model_size"))


def compared(schedule, fixed, **options):
    """The budgets of a schedule beside fixed n, each [S, E] rewards at the first doublings of 1,024."""
    rows = []
    curves = [(4, "n auto", schedule), *((n, "", rewards) for n, rewards in fixed.items())]
    for n, text, rewards in curves:
        for seed, curve in enumerate(rewards):
            rows += [(f"{text}{n}-{seed}", n, 8, seed, 1024.0 * 2**i, r, text) for i, r in enumerate(curve)]
    names = ("run", "group_size", "problems_per_batch", "seed", "compute", "avg@4", "schedule")
    given = memory_table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    runs, _ = read_curves(given, ReadOptions())
    (found,) = beside_the_frontier(group_schedules(runs)[0], group_runs(runs)[0], "avg@4", **options)
    return found


def test_by_hand():
    """Best so far on both sides; n = 8 leads by the luck of one seed, which the others do not pay."""
    fixed = {4: [[0.2, 0.1], [0.2, 0.3], [0.2, 0.2]], 8: [[0.1, 0.5], [0.1, 0.2], [0.1, 0.2]]}
    first, last = compared([[0.25, 0.2]] * 3, fixed).budgets
    assert (first.frontier_run, first.frontier, first.reward) == ("n = 4", pytest.approx(0.2), pytest.approx(0.25))
    assert first.difference == first.difference_held_out == pytest.approx(0.05)
    # means at the end: 0.2 and 0.3; without seed 0 n = 4 is chosen at its end, worth 0.1; else n = 8, worth 0.2
    assert (last.frontier_run, last.difference) == ("n = 8", pytest.approx(0.25 - 0.3))
    assert last.difference_held_out == pytest.approx(0.25 - (0.1 + 0.2 + 0.2) / 3)


def test_few_seeds_and_short_runs_say_less():
    one = compared([[0.2, 0.3]], {4: [[0.2, 0.3]]}).last
    assert one.difference == 0 and one.interval95 is None and one.difference_held_out is None
    two = compared([[0.2, 0.3], [0.2, 0.32]], {4: [[0.2, 0.3], [0.2, 0.33]]}).last
    assert two.interval95 is not None and two.difference is not None and two.difference_held_out is None
    assert two.interval95[0] < two.difference < two.interval95[1]
    short = compared([[0.2, 0.3, 0.4]], {4: [[0.2, 0.3]]})
    assert short.last.frontier is None
    assert short.last_compared is not None and short.last_compared.compute == 2048
    assert short.last.reward == pytest.approx(0.4) and short.within == 2048


def test_an_interval_holds_the_difference_of_two_equal_sides():
    rng, inside = np.random.default_rng(0), 0
    for _ in range(200):
        own, other = 0.3 + 0.01 * rng.normal(size=(2, 4, 1))
        ends = compared(own, {8: other}, seed=1).last.interval95
        assert ends is not None
        inside += ends[0] <= 0 <= ends[1]
    assert 180 <= inside <= 199


def test_run_directories_name_their_schedule_and_say_their_n(tmp_path):
    for n, params in CURVES.items():
        write_run(tmp_path / f"n{n}", group_size=n, seed=0, params=params)
    for seed in range(2):
        path = write_run(tmp_path / f"auto{seed}", group_size=4, seed=seed, params=CURVES[8])
        written = json.loads((path / CONFIG).read_text())
        (path / CONFIG).write_text(json.dumps(written | {"schedule": "n auto"}))
        for step, (compute, n) in enumerate([(1024, 4), (2048, 4), (2176, 8), (262144, 16)], 1):
            line = {"step": step, "compute": compute, "tokens": 1, "wall_s": 1.0, "device_hours": 0.1}
            append_line(path / METRICS, line | {"reward": 0.5, "group_size": n})
    runs, _ = read_curves([str(tmp_path)], ReadOptions())
    assert [group.configuration.group_size for group in group_runs(runs)[0]] == [4, 8, 16]
    (auto,) = group_schedules(runs)[0]
    assert (auto.configuration.name, len(auto.runs)) == ("n auto", 2)
    assert auto.runs[0].group_sizes is not None
    assert auto.runs[0].group_sizes.tolist() == [[0, 4], [2048, 8], [2176, 16]]
    x, y = sizes_of(auto.runs[0])
    assert x.tolist() == [2048, 2176, 2176, BUDGETS[-1]] and y.tolist() == [8, 8, 16, 16]


def test_schedules_of_other_settings_stand_apart():
    given: dict[str, list] = {**table({"n auto": 0.0})}
    given["model"] = ["large" if text and run.endswith("3") else "small" for run, text in
                      zip(given["run"], given["schedule"], strict=True)]  # fmt: skip
    runs, _ = read_curves(memory_table(given), ReadOptions())
    large, small = beside_the_frontier(group_schedules(runs)[0], group_runs(runs)[0], "avg@4")
    assert (large.name, large.seeds, small.seeds) == ("n auto, model = large", 1, 3)
    assert large.last.difference is None and small.last.difference is not None
