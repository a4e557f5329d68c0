"""Data that say little get an answer that says no more, and bad data a sentence; the truth of each sweep is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from isocompute_jax.fit import AnalysisOptions, ReadOptions, SweepResult, analyze
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.report.terminal import headline
from isocompute_jax.records.errors import InputError

COMPUTE = np.geomspace(2e3, 1e6, 16).round()
CURVES = {4: (0.1, 0.5, 1e4, 1.0), 16: (0.1, 0.65, 5e4, 1.0)}
BATCH = 8
NAMES = ("run", "group_size", "problems_per_batch", "seed", "compute", "avg@4")

Table = dict[str, list]


def truth(n: int, compute: float = 1e6) -> float:
    return float(hill(compute, *CURVES[n]))


def table(
    levels=None, *, compute: Sequence[float] | np.ndarray = COMPUTE, seeds=3, seed_sd=0.008, noise=0.005, draw=0
) -> Table:
    """Runs of n = 4 and 16; `levels` are flat curves in place of those that rise."""
    rng = np.random.default_rng(draw)
    columns: Table = {name: [] for name in NAMES}
    for n in levels or CURVES:
        for seed in range(seeds):
            apart = seed_sd * rng.normal()
            for c in map(float, compute):
                reward = truth(n, c) if levels is None else levels[n]
                cells = (f"n{n}-s{seed}", n, BATCH, seed, c, reward + apart + noise * rng.normal())
                for name, cell in zip(NAMES, cells, strict=True):
                    columns[name].append(cell)
    return columns


def kept(columns: Table, keep) -> Table:
    """The rows of which `keep` (run, compute) is true."""
    places = [i for i, row in enumerate(zip(columns["run"], columns["compute"], strict=True)) if keep(*row)]
    return {name: [values[i] for i in places] for name, values in columns.items()}


def found(columns: Table, **options) -> SweepResult:
    return analyze(columns, AnalysisOptions(**options), questions=False)


def said(result: SweepResult) -> str:
    """The first screen on one line, which never shows what a number is not."""
    text = " ".join(headline(result).split())
    assert "nan" not in text.lower().replace("finance", "") and "inf " not in text and "None" not in text
    assert len(headline(result).splitlines()) <= 12
    return text


def test_one_configuration_has_no_rival():
    result = found({name: values[48:] for name, values in table().items()})
    (answer,) = result.asked
    assert (answer.verdict, answer.reason, len(answer.choices)) == ("open", "one configuration", 1)
    low, high = answer.advised.interval95
    assert low < truth(16) < high and result.switches == () and result.data.varies == ()
    assert "only n = 16 was tried" in said(result)


@pytest.mark.parametrize(("seeds", "evaluations"), [(3, 1), (1, 1), (1, 2), (2, 2)])
def test_final_scores_are_the_best_row_with_its_noise_and_no_forecast(seeds, evaluations):
    result = found(table(compute=COMPUTE[-evaluations:], seeds=seeds), budgets=(1e6, 1e8))
    first, far = result.asked
    assert not result.data.curves and result.paper is None and result.next_runs == ()
    assert first.advised.configuration.group_size == 16
    for answer in (first, far):  # nothing is carried on beyond what was measured
        assert answer.advised.stop <= 1e6 * 1.001
        assert answer.advised.reward == pytest.approx(truth(16), abs=0.03)
        assert answer.advised.interval95[0] < truth(16) < answer.advised.interval95[1]
        assert answer.advised.interval95[1] - answer.advised.interval95[0] > (0.03 if seeds == 1 else 0.01)
    alone = found(table(compute=COMPUTE[-evaluations:], seeds=seeds))
    assert "No forecast: runs have " in said(alone) and "Log ten or more along each run" in said(alone)


def test_final_scores_that_are_alike_are_never_clear():
    """With one seed, two scores 0.02 apart are what two seeds of one configuration are."""
    for draw in range(20):
        columns = table({4: 0.5, 8: 0.5, 16: 0.5}, compute=[1e6], seeds=1, seed_sd=0.015, noise=0.0, draw=draw)
        assert found(columns).asked[0].verdict == "open"


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_constant_rewards_rise_nowhere(level):
    result = found(table({4: level, 16: level}, seed_sd=0.0, noise=0.0), budgets=(1e6, 1e7))
    assert result.data.trend == "no rise" and result.data.gain[1] == pytest.approx(0, abs=1e-3)
    assert result.optimal is None or not result.optimal.law
    for answer in result.asked:
        assert answer.verdict == "no matter" and len(answer.named) == 2
        assert answer.cheapest == min(answer.choices, key=lambda each: each.num_steps or 0).configuration
        assert answer.advised.reward == pytest.approx(level, abs=2e-3)
    text = said(found(table({4: level, 16: level}, seed_sd=0.0, noise=0.0)))
    assert "no n is advised, because nothing rose" in text


def test_flat_noise_has_a_bound_on_its_gain_and_no_law():
    rises = 0
    for draw in range(10):
        result = found(table({4: 0.3, 8: 0.3, 16: 0.3}, seeds=1, noise=0.02, draw=draw), budgets=(8e6,))
        rises += result.data.trend == "rise"
        assert result.asked[0].advised.reward == pytest.approx(0.3, abs=0.03)
        assert result.paper is not None
        assert not any(fit.identified["asymptote"] for fit in result.paper.fits)
        if result.data.trend == "no rise":
            assert 0 < result.data.gain[1] < 0.08 and "no n is advised" in said(result)
    assert rises == 0


def test_evaluations_without_a_number_are_left_out():
    columns = table()
    columns["avg@4"] = [math.nan if i % 3 == 0 else value for i, value in enumerate(columns["avg@4"])]
    result = found(columns)
    assert result.data.evaluations == 64 and result.data.span[1] == pytest.approx(1e6)
    assert result.asked[0].budget == pytest.approx(1e6)
    assert result.asked[0].advised.reward == pytest.approx(truth(16), abs=0.02)
    assert "64 evaluations up to 1 million rollouts" in said(result)


def test_runs_without_a_number_are_left_out_and_counted():
    columns = table()
    columns["avg@4"] = [
        math.nan if run.startswith("n4-") else v
        for run, v in zip(*(columns[name] for name in ("run", "avg@4")), strict=True)
    ]
    result = found(columns)
    assert (result.data.runs, result.data.left_out_runs) == (3, 3)
    assert "3 of 6 runs were left out without avg@4" in said(result)
    columns["avg@4"] = [math.nan] * len(columns["run"])
    with pytest.raises(InputError, match=r"no row has avg@4"):
        found(columns)


def test_one_seed_is_clear_of_a_large_gap_alone():
    """A between-seed sd of one or two hundredths is assumed: 0.12 is many of them, 0.03 is not."""
    large = found(table(seeds=1))
    assert (large.asked[0].verdict, large.data.seeds) == ("clear", (1, 1))
    assert "one seed" in said(large)
    small = found(table({4: 0.5, 16: 0.53}, seeds=1, seed_sd=0.0))
    assert small.asked[0].verdict == "open"
    low, high = large.asked[0].advised.interval95
    assert low < truth(16) < high and high - low > 0.02
    several = found(table()).asked[0].advised.interval95
    assert several[1] - several[0] < high - low


def test_equal_steps_are_said():
    """n and compute go together: the smaller n was not run to the budget, and what it gives there is a guess."""
    columns = table()
    columns["step"] = [10.0 * (i % 16 + 1) for i in range(len(columns["run"]))]
    columns["compute"] = [s * n * BATCH for s, n in zip(columns["step"], columns["group_size"], strict=True)]
    rng = np.random.default_rng(0)
    columns["avg@4"] = [
        truth(n, c) + 0.005 * rng.normal() for n, c in zip(columns["group_size"], columns["compute"], strict=True)
    ]
    result = found(columns)
    assert result.data.equal == "steps"
    (answer,) = result.asked
    by_size = {choice.configuration.group_size: choice for choice in answer.choices}
    assert by_size[4].beyond == pytest.approx(4) and by_size[16].beyond == pytest.approx(1)
    widths = {n: choice.interval95[1] - choice.interval95[0] for n, choice in by_size.items()}
    assert widths[4] > 2 * widths[16]
    for n, choice in by_size.items():
        assert choice.interval95[0] < truth(n, answer.budget) < choice.interval95[1]
    assert "All take equally many steps, so n and rollouts go together" in said(result)


def test_a_run_that_ended_early_takes_nothing_from_the_others():
    columns = kept(table(), lambda run, compute: run != "n16-s1" or compute < 1e5)
    result = found(columns)
    (note,) = result.data.notes
    assert note.startswith("1 of 6 runs ended early and may have crashed") and "n16-s1" in note
    advised = result.asked[0].advised
    assert (advised.configuration.group_size, advised.stop) == (16, 1e6)
    assert advised.interval95[0] < truth(16) < advised.interval95[1]
    assert "1 of 6 runs ended early" in said(result)


def test_rewards_in_percent_are_refused_by_name_or_read_by_their_range():
    columns = table()
    one = found(columns)
    columns["avg@4"] = [100 * value for value in columns["avg@4"]]
    with pytest.raises(InputError, match=r"96 of 96 values of avg@4 lie outside .* e\.g\. --reward_range=0,100"):
        found(columns)
    percent = found(columns, read=ReadOptions(reward_range=(0.0, 100.0)))
    assert percent.asked[0].verdict == one.asked[0].verdict
    assert percent.asked[0].advised.reward == pytest.approx(100 * one.asked[0].advised.reward, rel=1e-4)
    assert "%" in said(percent)


def test_compute_in_tokens_is_named_or_counted_in_tokens():
    columns = table()
    rollouts = found(columns)
    columns["tokens"] = [900 * value for value in columns.pop("compute")]
    with pytest.raises(InputError, match=r"no column compute nor step .* It has tokens: --compute=tokens"):
        found(columns)
    tokens = found(columns, read=ReadOptions(compute="tokens"))
    (mine,), (theirs,) = tokens.asked, rollouts.asked
    assert mine.budget == pytest.approx(900 * theirs.budget) and mine.verdict == theirs.verdict
    assert [choice.configuration for choice in mine.choices] == [choice.configuration for choice in theirs.choices]
    assert mine.advised.reward == pytest.approx(theirs.advised.reward, abs=1e-6)
    assert mine.advised.num_steps is None  # nothing says how many tokens a step takes
    assert [switch.compute for switch in tokens.switches] == pytest.approx(
        [900 * switch.compute for switch in rollouts.switches]
    )
    assert "million tokens" in said(tokens)


def test_a_budget_that_pays_no_step_is_a_mistake():
    with pytest.raises(InputError, match="--budget=10 pays no step of any configuration, of which the smallest takes"):
        found(table(), budgets=(10.0,))


def test_clean_data_leave_no_note():
    result = found(table())
    assert result.data.notes == () and (result.data.left_out_rows, result.data.left_out_runs) == (0, 0)


def test_columns_that_vary_are_configurations():
    """Two rates with the same seeds: none is dropped, and the answer is about both."""
    columns = table({4: 0.4, 16: 0.5})
    doubled = {name: values * 2 for name, values in columns.items()}
    half = len(columns["run"])
    doubled["run"] = [f"{run}-{'ab'[i // half]}" for i, run in enumerate(doubled["run"])]
    doubled["learning_rate"] = [1e-4 if i < half else 3e-4 for i in range(2 * half)]
    result = found(doubled)
    assert (result.data.runs, result.data.configurations, result.data.notes) == (12, 4, ())
    assert result.data.varies == ("group_size", "learning_rate")
    assert {choice.configuration.learning_rate for choice in result.asked[0].choices} == {1e-4, 3e-4}
    assert result.asked[0].learning_rate == result.asked[0].advised.configuration.learning_rate
