"""What of a run's rollouts can be read afterwards."""

import dataclasses
import itertools

import numpy as np
import pytest

from isocompute_jax.experiment import loop, metrics
from isocompute_jax.experiment.config import TrackConfig, override
from isocompute_jax.experiment.metrics import is_kept, kept_columns
from isocompute_jax.records import run_files
from isocompute_jax.records.rollout import Completion, RolloutGroup
from isocompute_jax.tasks import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(base_run):
    return load_tokenizer(base_run.model)


def group(*completions: Completion, failures=None) -> RolloutGroup:
    rewards = np.linspace(0, 1, len(completions), dtype=np.float32)
    return RolloutGroup("p1", 3, np.array([4, 13, 5, 15], np.int32), completions, rewards, failures=failures or {})


def completion(*tokens: int, version: int = 3) -> Completion:
    size = len(tokens)
    return Completion.drawn(
        np.array(tokens, np.int32), -np.arange(size, dtype=np.float32) / 3, np.full(size, version, np.int32), "stop"
    )


def test_a_group_by_hand(base_run, tokenizer):
    second = dataclasses.replace(
        completion(7, 16, 4),
        mask=np.array([True, False, True]),
        policy_versions=np.array([2, 3, 3]),
        finish_reason="length",
    )
    [found] = kept_columns(base_run, [group(completion(8, 1), second, failures={1: "timed out"})], tokenizer)["groups"]
    first, last = found.pop("completions")
    assert found == {
        "problem_id": "p1", "task": "", "prompt": "1+2=", "rewards": [0.0, 1.0], "failures": {"1": "timed out"}
    }  # fmt: skip
    assert first == {
        "text": "5<eos>", "finish_reason": "stop", "num_tokens": 2, "omitted": None, "tokens": [8, 1],
        "pieces": ["5", "<eos>"], "logprobs": [0.0, -0.3333], "policy_versions": [3, 3], "drawn": [1, 1],
    }  # fmt: skip
    assert (last["text"], last["drawn"], last["policy_versions"], last["finish_reason"]) == (
        "4,1",
        [1, 0, 1],
        [2, 3, 3],
        "length",
    )


def test_long_completions_keep_both_ends(base_run, tokenizer, monkeypatch):
    monkeypatch.setattr(metrics, "KEPT_TOKENS", 4)
    [found] = kept_columns(base_run, [group(completion(3, 4, 5, 6, 7, 8, 1))], tokenizer)["groups"]
    [kept] = found["completions"]
    assert kept["omitted"] == {"at": 2, "tokens": 3} and kept["num_tokens"] == 7
    assert kept["tokens"] == [3, 4, 8, 1] and kept["text"] == "015<eos>"
    assert len(kept["logprobs"]) == len(kept["policy_versions"]) == len(kept["pieces"]) == len(kept["drawn"]) == 4


def test_first_groups_and_rollouts_are_kept(base_run, tokenizer):
    two = override(base_run, "track.rollouts", 2)
    groups = kept_columns(two, [group(*[completion(3, 1)] * 20)] * 5, tokenizer)["groups"]
    assert [len(found["completions"]) for found in groups] == [metrics.KEPT_ROLLOUTS] * 2
    assert [len(found["rewards"]) for found in groups] == [20, 20]


@pytest.mark.parametrize(("steps", "every"), [(24, 1), (200, 1), (201, 2), (5000, 25)])
def test_steps_that_keep_are_spread_over_the_run(base_run, steps, every):
    config = override(base_run, "max_compute", steps * base_run.rollouts_per_step)
    kept = [step for step in range(1, steps + 1) if is_kept(config, step)]
    assert kept[0] == 1 and {b - a for a, b in itertools.pairwise(kept)} == {every}
    assert len(kept) <= metrics.KEPT_STEPS


def test_how_often_can_be_said(base_run):
    often = dataclasses.replace(base_run, track=TrackConfig(rollouts_every=10))
    assert [step for step in range(1, 25) if is_kept(often, step)] == [1, 11, 21]
    assert not any(is_kept(override(base_run, "track.rollouts", 0), step) for step in range(1, 25))


def test_a_run_keeps_what_it_trained_on(undisturbed, base_run, tokenizer):
    lines = run_files.read_lines(undisturbed / run_files.ROLLOUTS)
    metrics = run_files.read_lines(undisturbed / run_files.METRICS)
    assert [line["step"] for line in lines] == [line["step"] for line in metrics]
    for line in lines:
        [found] = line["groups"]
        assert len(found["rewards"]) == base_run.group_size and set(found["rewards"]) <= {0.0, 1.0}
        for kept in found["completions"]:
            assert kept["text"] == "".join(kept["pieces"]) and kept["logprobs"][0] < 0
            assert set(kept["policy_versions"]) == {line["step"] - 1}
            assert (kept["pieces"][-1] == "<eos>") == (kept["finish_reason"] == "stop")
    assert {found["problem_id"] for line in lines for found in line["groups"]} <= {f"p{i}" for i in range(16)}


@pytest.mark.slow
def test_none_are_kept_where_none_are_wanted(base_run, tmp_path):
    config = override(override(base_run, "track.rollouts", 0), "max_compute", base_run.rollouts_per_step)
    loop.train(config, tmp_path / "run")
    assert not (tmp_path / "run" / run_files.ROLLOUTS).exists()
