"""Splits: no question on both sides, every set as difficult as the whole, and what counts as one question."""

from __future__ import annotations

import collections
import dataclasses
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import leakage_key, make_problems, read_problems, split, write_problems
from isocompute_jax.tasks.splitting import SplitOptions, normalised, split_files, stratified_split

# --- one question


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 2+2?", "what is  2 + 2 ?\n"), ("Find $x$, if $x\\,+\\,1 = 3$.", "Find x if x+1=3"),
        ("Compute \\(a\\quad b\\).", "compute a b"),
        ("\uff12 + \uff12", "2 + 2"),  # full-width digits
        ("5 \u2013 3", "5 - 3"),  # en dash
        ("\u201cWhy?\u201d", '"why"'), ("Stra\u00dfe", "STRASSE"), ("caf\u00e9", "cafe\u0301"),
        ("\\left( x \\right)", "(x)"),
    ],
)  # fmt: skip
def test_copies_are_one_question(one, other):
    assert normalised(one) == normalised(other)
    asked = {"role": "user", "content": other}
    chats = [({"role": "system", "content": system}, asked) for system in ("Be brief.", "Think.")]
    prompts = [one, other, (asked,), *chats]
    assert len({leakage_key(Problem("a", prompt, "1", "exact")) for prompt in prompts}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1.5", "15"), ("1.5", "1 5"), ("2+2", "2-2"), ("2*2", "2/2"), ("1 2 3", "12 3"), ("a b", "ab"),
        ("x < 1", "x > 1"), ("\\frac{1}{2}", "\\frac{2}{1}"), ("x_1", "x^1"),
        ("???", "!!!"),  # nothing but punctuation is left as it is
    ],
)  # fmt: skip
def test_other_questions_stay_apart(one, other):
    assert normalised(one) != normalised(other)


@settings(max_examples=60)
@given(st.text())
def test_normalising_again_changes_nothing(text):
    once = normalised(text)
    assert normalised(once) == once or not any(map(str.isalnum, text))


def test_token_ids_are_their_own_question():
    one, same, other = (Problem("a", "", "1", "exact", prompt_tokens=ids) for ids in ((1, 2), (1, 2), (12,)))
    assert leakage_key(one) == leakage_key(same) != leakage_key(other)


# --- the split of curation


@settings(max_examples=30)
@given(st.integers(2, 60), st.data(), st.integers(0, 1000))
def test_split(count, data, seed):
    problems = make_problems(count, seed=seed)
    validation = data.draw(st.integers(1, count - 1))
    train, held_out = split(problems, validation=validation, seed=seed)
    assert len(held_out) == validation and len(train) + validation == count
    assert not {p.prompt for p in train} & {p.prompt for p in held_out}
    assert sorted(train + held_out, key=problems.index) == problems
    assert train == sorted(train, key=problems.index)
    again = split(problems[::-1], validation=validation, seed=seed)
    assert (again[0][::-1], again[1][::-1]) == (train, held_out)


def test_repeated_prompts_stay_together():
    problems = [Problem(f"{i}", f"prompt {i // 3}", "1", "exact") for i in range(12)]
    train, held_out = split(problems, validation=4, seed=0)
    assert (len(train), len(held_out)) == (6, 6)
    assert not {p.prompt for p in train} & {p.prompt for p in held_out}


@pytest.mark.parametrize("validation", [-1, 0, 4, 5])
def test_a_split_leaves_something_on_both_sides(validation):
    with pytest.raises(InputError, match=f"validation = {validation}: cannot split 4 problems"):
        split(make_problems(4, seed=0), validation=validation, seed=0)


def test_copies_stay_together_and_others_are_split_as_before():
    """Held out are the first of a permutation of the sorted prompts, as in earlier releases."""
    problems = make_problems(40, seed=3)
    prompts = sorted(one.text for one in problems)
    expected = {prompts[index] for index in np.random.default_rng(5).permutation(40)[:7]}
    assert {one.text for one in split(problems, validation=7, seed=5)[1]} == expected
    copies = [Problem(f"copy of {one.id}", f" {one.text} ", "1", "exact") for one in problems]
    train, held_out = split([*problems, *copies], validation=14, seed=5)
    assert {one.text for one in held_out if one in problems} == expected
    assert len(held_out) == 14 and not keys(train) & keys(held_out)


# --- the stratified split


def keys(problems) -> set[bytes]:
    return {leakage_key(problem) for problem in problems}


@st.composite
def problem_sets(draw):
    """Up to 60 problems of up to five rates, of which some ask the same question with other punctuation."""
    count = draw(st.integers(3, 60))
    rates = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=count, max_size=count))
    asked = draw(st.lists(st.integers(0, count - 1), min_size=count, max_size=count))
    problems = [
        Problem(f"p{i}", f"Question {number}{'.' * (i % 3)}", "1", "exact", {"avg@4": rate})
        for i, (rate, number) in enumerate(zip(rates, asked, strict=True))
    ]
    return problems


@settings(max_examples=60)
@given(problem_sets(), st.data(), st.integers(0, 2**32 - 1))
def test_nothing_is_lost_doubled_or_on_both_sides(problems, data, seed):
    questions = len(keys(problems))
    validation = data.draw(st.integers(1, len(problems)))
    try:
        train, held, strata = stratified_split(problems, validation=validation, strata="avg@4", seed=seed)
    except InputError:
        sizes = collections.Counter(map(leakage_key, problems)).values()
        assert questions == 1 or validation >= len(problems) or validation < max(sizes)
        return
    assert sorted(p.id for p in train + held) == sorted(p.id for p in problems)
    assert not keys(train) & keys(held)
    assert 1 <= len(held) <= validation
    assert len(held) == validation or questions < len(problems)
    assert [sum(counts) for counts in zip(*strata.values(), strict=True)] == [len(train), len(held)]
    shuffled = random.Random(seed).sample(problems, len(problems))
    assert stratified_split(shuffled, validation=validation, strata="avg@4", seed=seed) == (train, held, strata)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(0, 1000), st.data())
def test_every_beginning_is_stratified(sizes, seed, data):
    """Of each stratum its share, within one for its own rounding and one for that of the others."""
    problems = [
        Problem(f"{level}-{i}", f"{level} of {i}", "1", "exact", extra={"level": f"level {level}"})
        for level, size in enumerate(sizes)
        for i in range(size)
    ]
    total = len(problems)
    if total < 2:
        return
    validation = data.draw(st.integers(1, total - 1))
    train, held, _ = stratified_split(problems, validation=validation, strata="level", seed=seed)
    order = held + train
    for end in {validation, data.draw(st.integers(1, total))}:
        found = collections.Counter(problem.extra["level"] for problem in order[:end])
        for level, size in enumerate(sizes):
            assert abs(found[f"level {level}"] - end * size / total) <= 1 + len(sizes) * size / total


def test_strata_of_numbers_are_deciles_and_of_few_kinds_each_its_own():
    problems = [Problem(f"{i}", f"q{i}", "1", "exact", {"avg@16": i % 3 / 2}, extra={"x": i}) for i in range(100)]
    names = list(stratified_split(problems, validation=10, strata="avg@16", seed=0)[2])
    assert names == ["00: 0", "01: 0.5", "02: 1"]
    by_decile = stratified_split(problems, validation=10, strata="x", seed=0)[2]
    assert list(by_decile.values()) == [(9, 1)] * 10  # evenly spaced: one of each ten
    some = [dataclasses.replace(problems[0], extra={}), *problems[1:]]
    assert stratified_split(some, validation=10, strata="x", seed=0)[2]["unknown"] in ((1, 0), (0, 1))


def test_the_seed_decides_what_is_held_out():
    problems = make_problems(200, seed=0)
    held = [stratified_split(problems, validation=50, strata=None, seed=seed)[1] for seed in (0, 0, 1)]
    assert held[0] == held[1]
    assert 0 < len(keys(held[0]) & keys(held[2])) < 30  # 12.5 of 50 expected


def test_an_unknown_column_and_too_many_are_named():
    problems = [Problem(f"{i}", f"q{i}", "1", "exact", {"avg@16": 0.5}, extra={"level": 1}) for i in range(4)]
    with pytest.raises(InputError, match="--strata=avg@8: no problem has this column; there are avg@16, level"):
        stratified_split(problems, validation=1, strata="avg@8", seed=0)
    with pytest.raises(InputError, match="--validation=4: cannot split 4 problems"):
        stratified_split(problems, validation=4, strata=None, seed=0)


# --- files


def test_files_are_nested_and_say_what_is_in_them(tmp_path):
    problems = [Problem(f"{i}", f"q{i}", "1", "exact", {"avg@16": i % 4 / 4}, extra={"i": i}) for i in range(100)]
    write_problems(tmp_path / "all.jsonl", problems)
    options = SplitOptions(validation=20, strata="avg@16", nested=(40, 8, 16), seed=3)
    sizes = split_files(tmp_path / "all.jsonl", tmp_path / "sets", options)
    assert sizes == {"train": 80, "validation": 20, "train_8": 8, "train_16": 16, "train_40": 40}
    sets = {name: read_problems(tmp_path / "sets" / f"{name}.jsonl") for name in sizes}
    train = sets["train"]
    assert all(sets[f"train_{size}"] == train[:size] for size in (8, 16, 40))
    for name, size in sizes.items():
        assert set(collections.Counter(p.measured["avg@16"] for p in sets[name]).values()) == {size / 4}, name
    summary = json.loads((tmp_path / "sets" / "split.json").read_text())
    assert summary["problems"] == sizes and summary["same_question_as_another"] == 0
    assert summary["strata"]["03: 0.75"] == {"train": 20, "validation": 5}
    with pytest.raises(InputError, match="--nested: 81 is more than the 80 problems that are left for training"):
        split_files(tmp_path / "all.jsonl", tmp_path / "none", dataclasses.replace(options, nested=(81, 5)))
    assert not (tmp_path / "none").exists()
    with pytest.raises(InputError, match="--validation = 0 must be at least 1"):
        SplitOptions(validation=0)


def test_a_function_that_grades_is_not_written_into_the_files(tmp_path, monkeypatch):
    """No file of problems may name one: the rows stay without a task, and training names it again."""
    (tmp_path / "half.py").write_text("def marks(problem, completion):\n    return 0.5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    source = tmp_path / "mine.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"{i} + 1", "answer": str(i + 1)}) + "\n" for i in range(9)))
    split_files(source, tmp_path / "out", SplitOptions(validation=3, task="half:marks"))
    rows = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 6 and not any("task" in row for row in rows)
    graded = read_problems(tmp_path / "out" / "train.jsonl", grader_name=lambda task: task or "half:marks")
    assert [problem.task for problem in graded] == ["half:marks"] * 6
    split_files(source, tmp_path / "named", SplitOptions(validation=3, task="numeric"))
    assert '"task":' in (tmp_path / "named" / "train.jsonl").read_text()
