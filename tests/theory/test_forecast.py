"""n*(C) that is forecast: what moves it moves it as it should, and the command says it."""

import dataclasses
import json

import numpy as np
import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.theory import ExpectedCurves, Question, forecast
from isocompute_jax.theory.forecast import (
    EMBEDDED,
    WITHIN_AN_OCTAVE,
    Filed,
    measured_error,
    read_forecast,
    standing,
    untried,
    write_forecast,
)
from tests import mains

RATES = np.full(50, 0.05)
SMALL = Question(budget=2**14, first_budget=512, group_sizes=(4, 32), points=6, runs=6)


def made(reward, error=0.0):
    """A forecast of n = 4, 8, 16 from rows of rewards."""
    reward = np.asarray(reward)
    flat = np.full(reward.shape, error)
    return ExpectedCurves(2.0 ** np.arange(10, 10 + reward.shape[1]), np.array([4, 8, 16]), reward, flat, flat, reward)


def test_the_best_is_read_off_by_hand():
    found = made([[0.3, 0.3, 0.3], [0.2, 0.4, 0.4], [np.nan, 0.1, 0.5]])
    assert found.best.tolist() == [4, 8, 16]
    assert found.slope == pytest.approx(1.0) and not found.saturated
    assert made([[0.3, 0.5], [0.2, 0.6], [0.1, 0.4]]).saturated


def test_ties_are_what_errors_cannot_tell_apart():
    found = made([[0.30, 0.30], [0.31, 0.30], [0.20, 0.50]], error=0.01)
    assert found.tied.tolist() == [[4, 8], [16, 16]]


def test_a_curve_that_falls_keeps_its_record():
    found = made([[0.3, 0.4, 0.1], [0.2, 0.2, 0.3], [np.nan, 0.1, 0.2]])
    assert found.best.tolist() == [4, 4, 4]
    part = found.of([8, 16])
    assert part.group_sizes.tolist() == [8, 16] and part.best.tolist() == [8, 8, 8]
    np.testing.assert_array_equal(part.reward, found.reward[1:])


def test_a_forecast_on_disk_is_the_forecast(tmp_path):
    filed = Filed(SMALL, EMBEDDED, made([[0.3, 0.4], [np.nan, 0.25], [np.nan, np.nan]]))
    write_forecast(tmp_path / "found.json", filed)
    back = read_forecast(tmp_path / "found.json")
    assert (back.question, back.constants) == (SMALL, EMBEDDED)
    for name, value in vars(filed.forecast).items():
        np.testing.assert_array_equal(getattr(back.forecast, name), value)
    assert back.forecast.best.tolist() == [4, 4]


def test_forecasts_that_name_no_optimizer_are_of_adam(tmp_path):
    """As those are that were written before there was a choice."""
    path = tmp_path / "found.json"
    write_forecast(path, Filed(dataclasses.replace(SMALL, optimizer="sgd"), EMBEDDED, made([[0.3], [0.2], [0.1]])))
    assert read_forecast(path).question.optimizer == "sgd"
    written = json.loads(path.read_text())
    del written["question"]["optimizer"]
    path.write_text(json.dumps(written))
    assert read_forecast(path).question == SMALL


def test_other_files_are_no_forecasts(tmp_path):
    with pytest.raises(InputError, match=r"does not exist: `python -m isocompute_jax.theory --out"):
        read_forecast(tmp_path / "none.json")
    for text in ("{", "{}", '{"question": {}}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InputError, match=r"bad\.json is no forecast"):
            read_forecast(tmp_path / "bad.json")


@pytest.mark.slow
def test_few_problems_want_larger_groups_sooner():
    """They are learned by heart: the lead of the small group is gone with 12 problems, and grows with their number."""
    lead = []
    for problems in (12, 64, 400):
        found = forecast(RATES, dataclasses.replace(SMALL, problem_set_size=problems, base_lr=6e-5))
        assert found.reward[0, 1] > found.reward[1, 1]  # at first the small one leads: it takes more steps
        lead.append(found.reward[0, -1] - found.reward[1, -1])
    assert lead[0] < 0.04 and lead == sorted(lead) and lead[2] > 0.1


@pytest.mark.slow
def test_a_rate_of_zero_learns_nothing_and_budgets_below_a_step_are_none():
    question = dataclasses.replace(SMALL, base_lr=0.0, first_budget=128)
    found = forecast(RATES, question)
    np.testing.assert_allclose(found.reward[0], 0.05, rtol=1e-4)
    assert np.isnan(found.reward[1, 0]) and not np.isnan(found.reward[0, 0])
    # 100 rollouts are 1.6 steps of 16 x 4, and the nearest whole ones, 2, lie above: that is no reason to say nothing.
    early = forecast(RATES, dataclasses.replace(question, first_budget=100, problems_per_batch=16))
    assert early.best[0] == 4 and np.isnan(early.reward[1, 0])


def test_questions_that_make_no_sense():
    with pytest.raises(InputError, match="must be below --budget=100"):
        Question(budget=100)
    with pytest.raises(InputError, match="two or more different ones"):
        Question(group_sizes=(4, 4))
    with pytest.raises(InputError, match="more than the 5 problems"):
        forecast(RATES, Question(problem_set_size=5))


def test_the_command(tmp_path):
    (tmp_path / "rates.csv").write_text("pass_rate\n" + "0.05\n" * 20)
    arguments = [f"--pass_rates={tmp_path / 'rates.csv'}", "--budget=4096", "--first_budget=1024", "--points=3"]
    arguments += ["--group_sizes=4,16", "--runs=2", f"--out={tmp_path / 'found.json'}"]
    done = mains.run("isocompute_jax.theory", arguments)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "pass@1 of 20 problems: mean 0.050, from 0.05 to 0.05"
    assert lines[1] == "Constants: those of the embedded study's model of 0.1 M parameters."
    assert lines[5].split() == ["rollouts", "n=4", "n=16", "best", "n", "tied"]
    assert [line.split()[0] for line in lines[6:9]] == ["1,024", "2,048", "4,096"]
    assert lines[-2].startswith("n* goes from 4 to ")
    assert f"n* was within one octave at {WITHIN_AN_OCTAVE:.0%} of budgets (docs/findings.md)." in lines[-1]
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["question"]["group_sizes"] == written["group_sizes"] == [4, 16]
    assert [f"{reward:.3f}" for reward in (row[0] for row in written["reward"])] == lines[6].split()[1:3]
    done = mains.run("isocompute_jax.theory", [])
    assert done.returncode == 2 and "--pass_rates is missing" in done.stderr


def test_what_the_constants_were_never_tried_on_is_said_before_anything_is_computed(tmp_path):
    """A rate of 1e-6 at 1,024 rollouts is that of a model of billions, of which n* = 4 throughout says nothing."""
    (tmp_path / "rates.csv").write_text("pass_rate\n" + "0.05\n" * 20)
    arguments = [f"--pass_rates={tmp_path / 'rates.csv'}", "--base_lr=1e-6", "--base_batch=1024"]
    arguments += ["--group_sizes=4,16", "--runs=2", "--budget=4096", "--first_budget=1024", "--points=2"]
    done = mains.run("isocompute_jax.theory", arguments)
    assert done.returncode == 0, done.stderr
    before, _, after = done.stdout.partition("rollouts")
    assert (
        "model of 0.1 M parameters" in before
        and "not tried on learning rate 1e-06 (tried: 0.000125 to 0.004)" in before
    )
    assert "gallery calibrate --sweeps=NAME" in before
    assert "%" not in after and "is not known" in after


def test_each_thing_that_was_not_tried_is_named():
    question = Question(problems_per_batch=64, group_sizes=(2, 512), budget=2**20, optimizer="sgd", metric="worst")
    found = untried(question, problems=5000)
    for said in ("B_problem 64 (tried: 2 to 32)", "D 5e+03 (", "n 2 to 512 (", "budget 1.05e+06 (", "sgd", "worst"):
        assert sum(said in phrase for phrase in found) == 1, said
    assert untried(Question(), problems=64) == untried(Question(rate_rule="linear"), problems=64) == []


def test_the_measured_error_is_that_of_the_default_constants_alone():
    own = dataclasses.replace(EMBEDDED, gain=1e4)
    assert "87%" in measured_error(EMBEDDED, []) and "0.1 M" in standing(EMBEDDED, [])
    for text in (measured_error(own, []), standing(own, [])):
        assert "87%" not in text and "0.1 M" not in text
