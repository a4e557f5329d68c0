"""Grading groups, finding tasks, and what importing the room costs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Completion, Problem, RolloutGroup
from isocompute_jax.tasks import get_task, grade, load_tokenizer, make_problems, save_arithmetic_tokenizer


def completion(tokens: list[int]) -> Completion:
    count = len(tokens)
    return Completion(
        tokens=np.array(tokens, dtype=np.int32),
        logprobs=np.zeros(count, dtype=np.float32),
        mask=np.ones(count, dtype=bool),
        policy_versions=np.zeros(count, dtype=np.int32),
        finish_reason="stop",
    )


def group(problem: Problem, *tokens: list[int]) -> RolloutGroup:
    return RolloutGroup(problem.id, 3, np.zeros(1, dtype=np.int32), tuple(completion(ids) for ids in tokens))


def test_rewards_of_a_group(tmp_path):
    save_arithmetic_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    problem = Problem("a", "4+1=", "5", "arithmetic")
    ungraded = group(problem, [8, 1], [7, 1], [8], [8, 0, 1], [8, 1])
    graded = grade(ungraded, problem, tokenizer.decode)
    assert graded.rewards is not None and graded.rewards.dtype == np.float32
    assert graded.rewards.tolist() == [1, 0, 1, 0, 1]
    assert ungraded.rewards is None
    assert graded.completions is ungraded.completions and graded.step == 3


def test_equal_completions_are_decoded_once():
    seen = []

    def decode(batch):
        seen.extend(list(ids) for ids in batch)
        return [str(sum(ids)) for ids in batch]

    problem = Problem("a", "p", "3", "numeric")
    graded = grade(group(problem, [1, 2], [3], [1, 2], [4], [3]), problem, decode)
    assert seen == [[1, 2], [3], [4]]
    assert graded.rewards is not None and graded.rewards.tolist() == [1, 1, 1, 0, 1]


def test_right_answers_are_right_for_every_problem(tmp_path):
    save_arithmetic_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    for problem in make_problems(100, seed=0):
        right = [*tokenizer.encode(problem.answer).tolist(), *tokenizer.eos_ids]
        answers = group(problem, right, right[1:], [*right[:-1], 16, 1])
        rewards = grade(answers, problem, tokenizer.decode).rewards
        assert rewards is not None and rewards.tolist() == [1, 0, 0]


@pytest.mark.parametrize("name", ["arithmetic", "exact", "numeric"])
def test_known_tasks(name):
    assert get_task(name).name == name


def test_an_unknown_task_is_named_with_its_nearest():
    with pytest.raises(InputError, match=r"task = 'arithmetics': .*'arithmetic'"):
        get_task("arithmetics")
    with pytest.raises(InputError, match=r"task = '\?'.*'arithmetic', 'calculator', 'exact', 'numeric'"):
        get_task("?")


def test_importing_the_room_is_light():
    program = (
        "import isocompute_jax.tasks, sys\n"
        "heavy = {'jax', 'transformers', 'tokenizers', 'pyarrow', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
