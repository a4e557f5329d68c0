"""Small arithmetic in words: every answer is that of the numbers in the text, and no question is asked twice."""

import re
from typing import Any

import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.tasks import get_grader, read_problems
from isocompute_jax.tasks.graders.gym import gym_problems
from isocompute_jax.tasks.word_problems import CLOSING, NAMES, word_problems

ALL = word_problems(1433, seed=0)
SOLVED = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "larger": max,
    "next": lambda *numbers: numbers[-1] + 1,
}


def question(problem):
    kind = problem.id.split("-")[0]
    numbers = tuple(map(int, re.findall(r"\d+", problem.text)))
    return kind, numbers[-1:] if kind == "next" else tuple(sorted(numbers))


def test_answers_are_those_of_the_numbers():
    for problem in ALL:
        numbers = map(int, re.findall(r"\d+", problem.text))
        assert int(problem.answer) == SOLVED[problem.id.split("-")[0]](*numbers), problem.text
        assert problem.text.endswith(CLOSING) and "{" not in problem.text
        told = re.findall("|".join(NAMES), problem.text)
        assert len(set(told)) <= 2


def test_a_question_is_asked_once():
    assert len({question(problem) for problem in ALL}) == len({problem.id for problem in ALL}) == len(ALL)
    with pytest.raises(InputError, match="words:1434: there are 1433 such problems"):
        word_problems(1434, seed=0)


def test_they_stand_where_a_file_may_and_are_the_same_every_time():
    assert read_problems("words:20:3") == word_problems(20, seed=3) == word_problems(40, seed=3)[:20]
    assert read_problems("words:20") == word_problems(20, seed=0) != word_problems(20, seed=3)
    for wrong in ("words:", "words:many", "words:0", "words:3:1:2"):
        with pytest.raises(InputError, match=f"{wrong}: write words:COUNT or words:COUNT:SEED"):
            read_problems(wrong)


def test_they_are_graded_by_the_number_in_an_answer():
    [problem] = [each for each in ALL if question(each) == ("sum", (7, 12))]
    texts = ["19", "The answer is 19.", f"{NAMES[0]} has 19 apples now.", "7 + 12 = 19", "20", "nineteen"]
    grades: Any = get_grader("numeric").grade_batch([problem] * 6, texts)
    assert [grade.reward for grade in grades] == [1, 1, 1, 1, 0, 0]


def test_several_generators_are_joined_by_commas():
    drawn = gym_problems("chain_sum", 5, seed=0) + gym_problems("letter_counting", 5, seed=1)
    assert read_problems("words:20,gym:chain_sum:5,gym:letter_counting:5:1") == word_problems(20, seed=0) + drawn
    for wrong in ("words:20,problems.jsonl", "words:20,", "gym:chain_sum:5,gsm8k:5"):
        with pytest.raises(InputError, match="only these are joined by commas"):
            read_problems(wrong)
    with pytest.raises(InputError, match="comes twice; name what makes it once"):
        read_problems("words:20,words:20")
