"""What advice keeps to whatever the data (docs/fitter.md, "What advice keeps to"), on simulated and recorded sweeps."""

from __future__ import annotations

import csv
import functools
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from benchmarks import families
from isocompute_jax.fit import AnalysisOptions, ReadOptions, SweepResult, analyze
from isocompute_jax.fit.advice import BudgetAnswer
from isocompute_jax.fit.frontier.standings import NEAR
from isocompute_jax.fit.read import read_curves

Table = Mapping[str, np.ndarray]

METRIC = "accuracy"
QUICK = {"bootstrap": "none", "holdout": 0.0}
BUDGETS = tuple((families.LAST * np.array([0.01, 0.05, 0.125, 0.3, 1.0, 1.5, 4.0, 16.0])).tolist())
GALLERY = pathlib.Path(__file__).parents[2] / "gallery"

FEW = [("equal steps", 2)]
MANY = [("collapse", 3), *((name, 0) for name in families.FAMILIES)]
MANY += [(name, number) for name in families.RAGGED for number in range(2)]
RECORDED = ["problems_64", "strong_hard", "batch_32"]

each_study = pytest.mark.parametrize(
    ("family", "number"),
    [*FEW, *(pytest.param(*each, marks=pytest.mark.slow) for each in MANY)],
)


def ask(table: Table, budgets: Sequence[float] = BUDGETS, **more: object) -> SweepResult:
    read = ReadOptions(metric=METRIC, **more)  # pyright: ignore[reportArgumentType]
    return analyze(dict(table), AnalysisOptions(read=read, budgets=tuple(budgets), **QUICK), compare=False)


@functools.cache
def studied(family: str, number: int) -> tuple[Table, SweepResult]:
    table = families.simulate(family, "test", number).table(METRIC)
    return table, ask(table)


def rows(table: Table, where: np.ndarray) -> Table:
    return {name: column[where] for name, column in table.items()}


def joined(*tables: Table) -> Table:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def worth_more(answers: Sequence[BudgetAnswer]) -> None:
    """A larger budget is never worth less: what is left of it may stay unspent."""
    rewards = [each.recommendation.reward for each in answers if np.isfinite(each.recommendation.reward)]
    assert len(rewards) > 10
    assert np.all(np.diff(rewards) >= -1e-12), np.diff(rewards).min()


def nobody_is_missing(result: SweepResult, answers: Sequence[BudgetAnswer]) -> None:
    """Everybody has evaluations near a budget, or is named: unseen, left out, fallen before it, or too dear."""
    for each in answers:
        found = each.recommendation
        if found.run == "none":  # the budget pays nobody's step
            continue
        named = {found.run, *(unseen.run for unseen in found.unseen), *found.left_out}
        told = " ".join(found.reasons)
        for curve in result.curves:
            first, last = curve.fit.window
            near = first / NEAR <= found.budget <= last * NEAR
            assert near or curve.run in named or f"{curve.run} falls" in told or curve.run in told, (found, curve.run)


@each_study
def test_nobody_is_dropped_and_a_larger_budget_is_never_worth_less(family, number):
    _, result = studied(family, number)
    assert len(result.answers) > 40
    worth_more(result.answers)
    nobody_is_missing(result, result.answers)
    for each in result.answers:
        found = each.recommendation
        if found.run == "none":
            continue
        assert not (each.confidence == "sure" and (found.place != "inside" or any(u.open for u in found.unseen)))
        assert found.reward >= found.interval95[0] - 1e-9 and found.reward <= found.interval95[1] + 1e-9
        kinds = {objection.kind for objection in each.objections}
        assert bool(found.unseen) == ("unseen" in kinds) and bool(found.left_out) == ("left_out" in kinds)


@pytest.mark.parametrize("ends", ["whole", "ragged"])
@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_sweeps_keep_to_it_too(name, ends):
    """Whole, and with every run cut at an end of its own."""
    path = str(GALLERY / f"{name}.parquet")
    options = AnalysisOptions(**QUICK)
    table = path
    if ends == "ragged":
        rng = np.random.default_rng(0)
        runs, _ = read_curves([path], ReadOptions())
        cuts = {run.run: run.compute.max() / 2 ** rng.uniform(0, 4) for run in runs}
        kept = [(run, run.compute <= cuts[run.run]) for run in runs]
        table = {
            "group_size": np.concatenate([np.full(k.sum(), run.facts.group_size) for run, k in kept]),
            "problems_per_batch": np.concatenate([np.full(k.sum(), run.facts.problems_per_batch) for run, k in kept]),
            "seed": np.concatenate([np.full(k.sum(), run.facts.seed) for run, k in kept]),
            "compute": np.concatenate([run.compute[k] for run, k in kept]),
            options.metric: np.concatenate([run.columns[options.metric][k] for run, k in kept]),
        }
    result = analyze(table, options, compare=False)
    worth_more(result.answers)
    nobody_is_missing(result, result.answers)


def test_the_number_of_steps_makes_no_n_the_best():
    """Every n for 200 steps, all alike in steps: n = 4 is the best at every budget, and its n* does not rise."""
    rng = np.random.default_rng(0)
    step = np.arange(0, 201, 10)
    grid = [(n, seed, s) for n in (4, 8, 16, 32, 64) for seed in (0, 1) for s in step]
    n, seed, steps = np.array(grid).T
    reward = 0.2 + 0.4 * (1 - np.exp(-steps / 60)) + 0.006 * rng.normal(size=len(steps))
    table = {"group_size": n, "problems_per_batch": np.full(len(n), 64), "seed": seed, "compute": 64 * n * steps}
    budgets = (3_600, 6_500, 99_000, 110_000, 210_000, 450_000, 3.2e6)
    result = ask({**table, METRIC: reward}, budgets)
    assert [each.recommendation.run for each in result.asked] == ["n = 4"] * len(budgets)
    worth_more(result.answers)
    far = result.asked[5]
    assert far.confidence in ("tied", "open", "likely") and "unseen" in {each.kind for each in far.objections}
    for each in result.asked:
        truth = 0.2 + 0.4 * (1 - np.exp(-each.budget / 256 / 60))
        low, high = each.recommendation.interval95
        assert low - 0.002 <= truth <= high + 0.002


def test_who_begins_late_is_not_dropped_for_it():
    """At 6,500 n = 32 has its first evaluation, at 6,144, and n = 4 none before 7,936: n = 4 is at 0.356 there."""
    rng = np.random.default_rng(1)
    starts, rise = {4: 7_936, 32: 6_144}, {4: 1.5e4, 32: 1e5}
    grid = [(n, s, c) for n in starts for s in (0, 1, 2) for c in (0.0, *np.geomspace(starts[n], 1e5, 14))]
    n, seed, compute = np.array(grid).T
    truth = 0.2 + 0.44 * (1 - np.exp(-compute / np.where(n == 4, rise[4], rise[32])))
    measured = truth + 0.005 * rng.normal(size=len(n))
    table = {"group_size": n.astype(int), "problems_per_batch": np.full(len(n), 2), "seed": seed.astype(int)}
    result = ask({**table, "compute": compute, METRIC: measured}, (6_500.0,))
    found = result.asked[0]
    assert found.recommendation.run == "n = 4" and found.recommendation.place == "before"
    assert found.recommendation.reward == pytest.approx(0.356, abs=0.01)
    assert found.confidence == "likely"


@each_study
def test_who_is_nowhere_better_is_never_advised_above(family, number):
    """A copy of the smallest n, 0.02 lower, as another n: neither chosen, nor does it move another answer."""
    table, result = studied(family, number)
    sizes = np.unique(table["group_size"])
    copy = dict(rows(table, table["group_size"] == sizes[0]))
    copy["group_size"] = np.full(len(copy["group_size"]), sizes[-1] * 2)
    copy[METRIC] = np.maximum(copy[METRIC] - 0.02 * (copy["compute"] > 0), 0.0)
    more = ask(joined(table, copy))
    added = f"n = {sizes[-1] * 2}"
    for before, after in zip(result.asked, more.asked, strict=True):
        old, new = before.recommendation, after.recommendation
        assert new.run != added or old.place == "beyond"
        assert not (after.confidence == "sure" and new.run != old.run)
        if before.confidence in ("sure", "likely") and old.place == "inside":
            assert new.run == old.run or old.run in new.tied
            assert old.interval95[0] - 0.01 <= new.reward <= old.interval95[1] + 0.01


@pytest.mark.slow
def test_names_order_and_files_change_nothing(tmp_path):
    """Runs of other names, in two files, their rows shuffled."""
    table, result = studied("equal steps", 2)
    facts = [tuple(row) for row in zip(*table.values(), strict=True)]
    order = np.random.default_rng(0).permutation(len(facts)).tolist()
    names = {key: f"run {i:03d}" for i, key in enumerate(sorted({row[:3] for row in facts}, key=str))}
    for number in (0, 1):
        with (tmp_path / f"part{number}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["run", *table])
            own = [facts[i] for i in order if int(names[facts[i][:3]][4:]) % 2 == number]
            out.writerows([names[row[:3]], *row] for row in own)
    read = ReadOptions(metric=METRIC)
    other = analyze(str(tmp_path), AnalysisOptions(read=read, budgets=BUDGETS, **QUICK), compare=False)
    for one, two in zip(result.asked, other.asked, strict=True):
        assert (one.recommendation.run, one.confidence) == (two.recommendation.run, two.confidence)
        assert one.recommendation.reward == pytest.approx(two.recommendation.reward, rel=1e-9)
        assert one.share == two.share


@pytest.mark.slow
def test_units_of_compute_and_reward_change_nothing():
    table, result = studied("equal steps", 2)
    scaled = {**table, "compute": 8.0 * table["compute"], METRIC: 100 * table[METRIC]}
    other = ask(scaled, [8 * budget for budget in BUDGETS], reward_range=(0.0, 100.0))
    for one, two in zip(result.asked, other.asked, strict=True):
        assert (one.recommendation.run, one.confidence) == (two.recommendation.run, two.confidence)
        assert two.recommendation.reward == pytest.approx(100 * one.recommendation.reward, rel=1e-6)
        assert one.share == two.share


@pytest.mark.slow
def test_more_seeds_of_a_kind_never_make_a_contradiction_sure():
    """Of two seeds each has another leader; the same runs again, as seeds of their own, say nothing new."""
    rng = np.random.default_rng(3)
    step = np.geomspace(2e3, 1e6, 25)
    tables = []
    for copies in (1, 3):
        grid = [(n, s, c) for n in (8, 32) for s in range(2 * copies) for c in (0.0, *step)]
        n, seed, compute = np.array(grid).T
        top = 0.6 + 0.05 * np.where(n == 8, 1, -1) * np.where(seed % 2 == 0, 1, -1)
        reward = 0.1 + (top - 0.1) / (1 + 5e4 / np.maximum(compute, 1e-9))
        tables.append(
            {
                "group_size": n.astype(int), "problems_per_batch": np.full(len(n), 16), "seed": seed.astype(int),
                "compute": compute, METRIC: reward + 0.002 * rng.normal(size=len(n)),
            }
        )  # fmt: skip
    for table in tables:
        for each in ask(table, (1e5, 1e6)).asked:
            assert each.confidence in ("tied", "contradicted", "open"), each
