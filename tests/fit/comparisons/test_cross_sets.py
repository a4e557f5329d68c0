"""Training sets against evaluation sets: cells by hand, run directories with several sets, and the section."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from isocompute_jax.fit import AnalysisOptions, ReadOptions, analyze
from isocompute_jax.fit.comparisons.sets import by_training_set, compare_sets, cross_sets, other_eval_sets
from isocompute_jax.fit.read import memory_table, read_curves
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import CONFIG, DONE, EVAL
from tests.fit.comparisons.sweeps import drawn

BUDGETS = (0, 1000, 2000, 4000, 8000)
QUICK = AnalysisOptions(bootstrap="none", holdout=0.0, forecast="form")


def write(path, *, train, sets, n=4, seed=0, mixture=None):
    """A run directory; `sets`: evaluation set -> (file, reward at each budget)."""
    path.mkdir(parents=True)
    facts = {"group_size": n, "problems_per_batch": 4, "num_steps": 500, "problem_set_size": 50, "model_params": 9}
    identity = {"train_set": train, **{f"evaluation.sets.{name}": file for name, (file, _) in sets.items()}}
    identity |= {f"curriculum.train_sets.{name}": "f" for name in mixture or ()}
    (path / CONFIG).write_text(json.dumps(facts | {"seed": seed, "identity": identity}))
    lines = [
        {"step": c // (4 * n), "compute": c, "eval_set": name, "avg@4": rewards[i]}
        for i, c in enumerate(BUDGETS)
        for name, (_, rewards) in sets.items()
    ]
    (path / EVAL).write_text("\n".join(map(json.dumps, lines)) + "\n")
    (path / DONE).touch()


def read_eval_sets(path, options):
    """Evaluation set -> the runs below a folder, and the warnings."""
    runs, warnings = read_curves([str(path)], options)
    others, more = other_eval_sets(runs, options)
    return {options.eval_set: runs, **others}, [*warnings, *more]


RISES, FALLS = (0.1, 0.3, 0.5, 0.6, 0.7), (0.5, 0.6, 0.4, 0.3, 0.2)


@pytest.fixture
def sweeps(tmp_path):
    """Easy and Hard, each with two seeds and two n; Hard makes Easy fall, by 0.3 at n = 4 and 0.2 at n = 16."""
    for n in (4, 16):
        for seed in (0, 1):
            up = [r + 0.01 * seed * (i > 0) for i, r in enumerate(RISES)]
            down = [r + (0.1 * (n == 16) + 0.01 * seed) * (i > 0) for i, r in enumerate(FALLS)]
            names = {"easy": ("sets/easy/validation.jsonl", down), "hard": ("sets/hard/validation.jsonl", up)}
            write(tmp_path / f"hard-{n}-{seed}", train="sets/hard/train.jsonl", sets=names, n=n, seed=seed)
            names = {"easy": ("sets/easy/validation.jsonl", up), "hard": ("sets/hard/validation.jsonl", up)}
            write(tmp_path / f"easy-{n}-{seed}", train="sets/easy/train.jsonl", sets=names, n=n, seed=seed)
    return tmp_path


def test_every_pair_of_sets(sweeps):
    evaluated, warnings = read_eval_sets(sweeps, ReadOptions(eval_set="easy"))
    assert list(evaluated) == ["easy", "hard"] and warnings == []
    found = cross_sets(by_training_set(evaluated), "avg@4")
    assert (found.train_sets, found.eval_sets, found.crossed) == (["easy", "hard"], ["easy", "hard"], True)
    small, large = found.pairs["hard", "easy"]
    assert (small.group_size, large.group_size) == (4, 16)
    np.testing.assert_array_equal(small.compute, BUDGETS)
    np.testing.assert_allclose(small.reward, [FALLS, [0.5, 0.61, 0.41, 0.31, 0.21]])
    # Means of two seeds that differ by 0.01; Student's t of one degree of freedom is 12.7062.
    half = 12.7062 * 0.01 / 2
    assert small.change is not None
    np.testing.assert_allclose([small.change.value, small.change.low], [-0.295, -0.295 - half], rtol=1e-5)
    assert small.change.sign == -1 and len(small.reward) == 2
    np.testing.assert_allclose([small.final.value, small.best.value, small.fall.value], [0.205, 0.605, 0.4])
    assert small.compute[small.peak] == 1000
    np.testing.assert_array_equal(small.drawn.x, BUDGETS[1:])
    np.testing.assert_allclose(small.drawn.y, [0.105, -0.095, -0.195, -0.295])
    assert [cell.group_size for cell in found.at_best_n if (cell.train_set, cell.eval_set) == ("hard", "easy")] == [16]


def test_the_answer_names_what_is_forgotten(sweeps, tmp_path):
    result = analyze(str(sweeps), dataclasses.replace(QUICK, read=ReadOptions(eval_set="easy")), compare=False)
    (found,) = compare_sets(result)
    assert any("Trained on hard, easy ends below the base model in 2 of 2 configurations" in t for t in found.findings)
    assert any("most with n = 4, where it changes by -0.295 (-0.359 to -0.231)" in text for text in found.findings)
    assert any("falls from its best" in text and "n = 4: by 0.400" in text for text in found.findings)
    assert not any("Trained on easy" in text for text in found.findings)
    assert [(row["train_set"], row["eval_set"]) for row in found.rows] == [
        ("easy", "easy"), ("easy", "hard"), ("hard", "easy"), ("hard", "hard"),
    ]  # fmt: skip
    assert found.verdict == "forgets" and len(drawn(result, found, tmp_path)) > 5000


def test_sets_of_one_name_and_two_files_are_two(tmp_path):
    """What every slice of a study calls `validation` is another file for each."""
    for name in ("easy", "hard"):
        sets = {"validation": (f"sets/{name}/validation.jsonl", RISES)}
        write(tmp_path / name, train=f"sets/{name}/train.jsonl", sets=sets)
    evaluated, _ = read_eval_sets(tmp_path, ReadOptions())
    found = cross_sets(by_training_set(evaluated), "avg@4")
    pairs = [(cell.train_set, cell.eval_set) for cell in found.cells]
    assert pairs == [("easy", "validation (easy)"), ("hard", "validation (hard)")] and not found.crossed


def test_a_mixture_is_called_by_its_parts(tmp_path):
    write(tmp_path / "a", train="", sets={"v": ("v.jsonl", RISES)}, mixture=("hard", "easy"))
    write(tmp_path / "b", train="sets/hard/train.jsonl", sets={"v": ("v.jsonl", RISES)})
    trained = by_training_set(read_eval_sets(tmp_path, ReadOptions(eval_set="v"))[0])
    assert list(trained) == ["easy + hard", "train"]


def test_one_set_is_no_matrix(tmp_path):
    write(tmp_path / "runs" / "a", train="t", sets={"validation": ("v.jsonl", RISES)})
    assert list(compare_sets(analyze(str(tmp_path / "runs"), QUICK, compare=False))) == []


def test_a_set_that_cannot_be_read_is_named(tmp_path):
    sets = {"validation": ("v.jsonl", RISES), "percent": ("p.jsonl", (10, 20, 30, 40, 50))}
    write(tmp_path / "a", train="t", sets=sets)
    evaluated, warnings = read_eval_sets(tmp_path, ReadOptions())
    assert list(evaluated) == ["validation"]
    assert any("evaluation set percent" in text and "--reward_range" in text for text in warnings)
    with pytest.raises(InputError, match="no usable run"):
        read_eval_sets(tmp_path, ReadOptions(eval_set="other"))


def test_a_table_names_its_training_sets():
    """Runs that differ in `train_set` alone are two configurations, with a run column and without."""
    rows = [(t, 4, 8, 0, c, 0.1 + c / 1e5) for t in ("easy", "hard") for c in BUDGETS]
    names = ("train_set", "group_size", "problems_per_batch", "seed", "compute", "avg@4")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    for more in ({}, {"run": [row[0] for row in rows]}):
        runs, _ = read_curves(memory_table(columns | more), ReadOptions())
        assert [run.identity["train_set"] for run in runs] == ["easy", "hard"]
        assert list(by_training_set({"validation": runs})) == ["easy", "hard"]


def test_a_row_that_contradicts_its_run_is_reported():
    columns = {"run": ["a"] * 3, "compute": [1, 2, 3], "avg@4": [0.1, 0.2, 0.3], "model": ["m", "m", "other"]}
    (run,), warnings = read_curves(memory_table(columns), ReadOptions())
    assert run.identity["model"] == "m" and len(run.compute) == 2
    assert any("row 3: row left out: model is 'other', but the run began with 'm'" in text for text in warnings)
