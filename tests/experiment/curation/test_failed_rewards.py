"""Rewards that fail are no measurements: seen, said, and asked for again; partial ones are solved from a threshold."""

import collections
import dataclasses
import functools
import json
import re
import shutil

import numpy as np
import pytest

from benchmarks.simulated_sampler import SimulatedSampler
from isocompute_jax import model
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.curation import curate as room
from isocompute_jax.experiment.curation import measure
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.curate import curate
from isocompute_jax.experiment.curation.measure import naming_flags, read_model
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import RewardConfig, read_problems
from isocompute_jax.tasks.grading.engine import OnFailure

REWARD = "tests.tasks.rewards:as_the_problem_says"
PROBLEMS = [Problem(f"p{i}", f"{i}+{i}=", "1", "numeric") for i in range(8)]
CONFIG = CurationConfig(sets=(), ranges={"all": (0.0, 1.0)}, validation_size=2)


def curated(
    source, out, fails=(), kind="all", *, policy: OnFailure = "zero", **changes
) -> dict[str, tuple[float, float]]:
    """Curates `PROBLEMS`, some of which fail; returns their rates and mean rewards, by id."""
    problems = [dataclasses.replace(p, extra={"fails": kind}) if p.id in fails else p for p in PROBLEMS]
    source = dataclasses.replace(source, reward=RewardConfig(REWARD, on_failure=policy))
    config = dataclasses.replace(CONFIG, **changes)
    with naming_flags():
        curate(problems, out, source=source, config=config, make_sampler=simulated)
    found = read_problems(out / "measured.jsonl")
    return {p.id: (p.measured[f"avg@{config.samples}"], p.extra["mean_reward"]) for p in found}


def simulated(*_, tokenizer, **__):
    return SimulatedSampler(tokenizer, length=2, tail=0.0)


@pytest.fixture(scope="module")
def source(base_run):
    """Its tokenizer is read once, and its weights never: nothing is computed with them."""
    source = RunConfig(model=base_run.model)
    read = read_model(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "read_model", lambda _: read)
        patch.setattr(room, "draw_pictures", lambda *_: None)
        patch.setattr(model, "load_params", lambda *_, **__: {})
        yield source


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """A directory of which no reward failed, and its rates."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return out, curated(source, out)


@pytest.fixture
def out(whole, tmp_path):
    """A copy of it."""
    return shutil.copytree(whole[0], tmp_path / "copy")


@pytest.fixture
def call(source, tmp_path):
    """Curates into a directory that is new at the first call."""
    return functools.partial(curated, source, tmp_path / "out")


def record(out) -> dict[str, dict]:
    return {line["problem"]: line for line in map(json.loads, (out / "counts.jsonl").read_text().splitlines()[1:])}


def test_a_reward_that_fails_at_once_is_refused_before_anything_is_written(source, tmp_path):
    source = dataclasses.replace(source, reward=RewardConfig("http://127.0.0.1:9/s", deadline_s=0.05))
    with pytest.raises(
        InputError, match=r"http://127.0.0.1:9/s hung when it was tried on problem 'p0' and an empty completion"
    ):
        curate(PROBLEMS, tmp_path / "out", source=source, config=CONFIG)
    assert not (tmp_path / "out").exists()


def test_problems_all_of_whose_rewards_failed_are_measured_by_the_next_call(call, whole, tmp_path, caplog):
    found = call(fails=("p2", "p5"))
    assert found == {id: rates for id, rates in whole[1].items() if id not in ("p2", "p5")}
    assert record(tmp_path / "out").keys() == found.keys()
    assert "2 of 8 problems are in no set (p2, p5), the same command measures them; p" in caplog.text
    assert re.search(r"p\d: raised: \S*rewards.py:\d+: LookupError: no such judge", caplog.messages[-1])
    summary = json.loads((tmp_path / "out" / "curation.json").read_text())
    assert (summary["problems"], summary["unmeasured"], summary["rollouts"]) == (6, 2, 96)
    caplog.clear()
    assert call() == whole[1] and record(tmp_path / "out") == record(whole[0])
    assert "rewards failed" not in caplog.text


def test_a_reward_that_failed_counts_as_wrong_and_as_a_failure(call, whole, tmp_path, caplog):
    found = call(fails=("p4",), kind="wrong", solved_at=0.0)
    before, after = record(whole[0])["p4"], record(tmp_path / "out")["p4"]
    failed = [i for i, reward in enumerate(before["rewards"]) if reward == 0.5]
    assert 0 < len(failed) < 16
    assert after["rewards"] == [None if reward == 0.5 else reward for reward in before["rewards"]]
    assert [*map(int, after["failures"])] == failed
    assert all("LookupError: no such judge" in why for why in after["failures"].values())
    assert {id for id, (rate, _) in found.items() if rate < 1} == {"p4"} and found["p4"] == (1 - len(failed) / 16,) * 2
    caplog.clear()
    assert (
        call(fails=("p4",), kind="wrong", solved_at=0.0) == found
    )  # read again: nothing is asked, and it is said again
    assert f"rewards failed: {len(failed)} of 128 rollouts count as wrong (problems p4); p4: raised: " in caplog.text
    summary = json.loads((tmp_path / "out" / "curation.json").read_text())
    assert summary["reward_failures"] == len(failed) and summary["unmeasured"] == 0


def test_a_group_that_is_dropped_is_not_recorded(call, whole, tmp_path):
    assert call(fails=("p4",), kind="wrong", policy="drop_group").keys() == whole[1].keys() - {"p4"}
    assert "p4" not in record(tmp_path / "out")


def test_a_run_that_a_failure_stops_names_the_flag(call, tmp_path):
    with pytest.raises(RunError, match=r"(?s)raised on problem 'p4' \(--reward_on_failure = 'stop'\).*no such judge"):
        call(fails=("p4",), policy="stop")
    assert not (tmp_path / "out" / "measured.jsonl").exists() and "p4" not in record(tmp_path / "out")


def test_no_set_is_cut_where_most_rewards_failed(call, tmp_path):
    with pytest.raises(
        RunError, match=r"no reward is recorded of 80 of 128 rollouts \(problems p0, p1, p2, p3, p4; .*no such"
    ):
        call(fails=[f"p{i}" for i in range(5)])
    assert record(tmp_path / "out").keys() == {"p5", "p6", "p7"}
    assert not (tmp_path / "out" / "measured.jsonl").exists() and not (tmp_path / "out" / "all").exists()


def test_a_judge_that_has_died_ends_the_measurement(call, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "GIVEN_UP", 3)
    with pytest.raises(RunError, match=r"every reward of 3 groups in a row failed, the last on .*'p\d' \(raised: "):
        call(fails=[p.id for p in PROBLEMS])
    assert not record(tmp_path / "out")


def test_partial_rewards_are_solved_from_a_threshold_and_cut_again_at_another(source, out, whole, monkeypatch):
    rewards = {id: np.array(line["rewards"]) for id, line in record(out).items()}
    assert whole[1] == {id: (np.mean(row == 1), row.mean()) for id, row in rewards.items()}
    solved = collections.Counter(int(sum(row == 1)) for row in rewards.values())
    summary = json.loads((out / "curation.json").read_text())
    assert summary["histogram"] == [solved[i] for i in range(17)]
    assert summary["best@k"]["1"] == pytest.approx(summary["mean"]) and 0 < summary["mean"] < summary["mean_reward"]
    drawn = []
    monkeypatch.setattr(room, "draw_pictures", lambda histogram, *_: drawn.append(histogram))
    with pytest.raises(InputError, match=r"how many of 16 samples were right: 16: 8 "):
        curated(source, out, solved_at=0.5, ranges={"some": (0.1, 0.9)})
    found = read_problems(out / "measured.jsonl")
    assert {p.id: p.extra["mean_reward"] for p in found} == {id: mean for id, (_, mean) in whole[1].items()}
    assert {p.measured["avg@16"] for p in found} == {1}
    assert drawn == [[0] * 16 + [8]]


def test_sets_of_an_earlier_cut_are_named(source, out, caplog):
    curated(source, out, ranges={"some": (0.0, 1.0)})
    assert "all: sets of an earlier cut in" in caplog.text
    assert json.loads((out / "curation.json").read_text())["sets_of_earlier_cuts"] == ["all"]
    caplog.clear()
    curated(source, out, ranges={"some": (0.0, 1.0), "all": (0.0, 1.0)})
    assert "earlier cut" not in caplog.text


def test_a_reward_that_was_left_out_is_said_in_words_and_what_to_pass(source, out):
    with pytest.raises(InputError) as error:
        curate(PROBLEMS, out, source=source, config=CONFIG)
    assert f"(reward: '{REWARD}' there, the problems' own tasks here): its samples" in str(error.value)
    assert f"Pass --reward={REWARD} again, choose another --out" in str(error.value)
