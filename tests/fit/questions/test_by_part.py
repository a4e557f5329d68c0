"""Whether the best n depends on the problems or the model, in simulated sweeps whose truth is known."""

import csv

import pytest

from isocompute_jax.fit.configurations import group_runs
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.questions import ask, by_model, by_set
from isocompute_jax.fit.questions.by_part import short_names, train_sets
from isocompute_jax.fit.read import ReadOptions, read_curves
from tests.fit.questions.sweeps import COMPUTE, grouped, made, rising


@pytest.fixture(scope="module")
def models():
    small = made(lambda n, b, c: rising(n, c, best=4), model="m", params=100_000)
    large = made(lambda n, b, c: rising(n, c, best=64) + 0.1, model="m", params=7_000_000_000, start=1)
    return grouped([*large, *small])


def test_models_whose_best_n_differs(models, sentences):
    (found,) = by_model(models, AnalysisOptions())
    assert (found.question, found.verdict) == ("by_model", "differs")
    assert [(row["model"], row["group_size"]) for row in found.rows] == [("m (100k)", 4), ("m (7B)", 64)]
    assert found.rows[1]["octaves"] == pytest.approx(4, abs=0.5) and found.rows[1]["octaves_95"][0] > 2
    assert found.rows[1]["difference"] == pytest.approx(0.1, abs=0.03)
    assert found.columns == ("model", "group_size", "reward", "octaves", "difference")
    said = sentences.said(found)
    assert said.startswith("The best n depends on the base model. With m (7B) it lies ")
    assert said.endswith(" octaves above that with m (100k).")
    assert {each["panel"] for each in found.series} == {"reward", "group_size"}
    assert sentences.title(found) == "By base model" and "n = 4, 16, 64" in sentences.about(found)
    assert list(by_set(models, AnalysisOptions())) == []


def test_sets_with_one_best_n_do_not_differ(sentences):
    one, other = (
        made(lambda n, b, c: rising(n, c, best=16), train_set=f"sets/{name}/train.jsonl", start=start)
        for start, name in enumerate(("easy", "hard"))
    )
    (found,) = ask(grouped([*one, *other]), AnalysisOptions())
    assert found.question == "by_set" and found.verdict in ("alike", "open")
    assert [row["train_set"] for row in found.rows] == ["easy", "hard"]
    assert all(row["group_size"] == 16 for row in found.rows)
    low, high = found.rows[1]["octaves_95"]
    assert low <= 0 <= high and "above" not in sentences.said(found)


def test_other_evaluation_sets_are_read_from_the_file(tmp_path, sentences):
    """On the set `easy` a small n is best, on that of the analysis a large one; best@4 wants another n than avg@4."""
    path = tmp_path / "curves.csv"
    best = {"validation": (64, 4), "easy": (4, 4)}
    runs = {
        name: [made(lambda n, b, c, at=at: rising(n, c, best=at), seeds=2) for at in each]
        for name, each in best.items()
    }
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["run", "group_size", "problems_per_batch", "seed", "eval_set", "compute", "avg@4", "best@4"])
        for name, (average, coverage) in runs.items():
            for one, other in zip(average, coverage, strict=True):
                facts = one.facts
                for c, a, b in zip(COMPUTE, one.columns["avg@4"], other.columns["avg@4"], strict=True):
                    out.writerow([one.run, facts.group_size, 8, facts.seed, name, f"{c:.0f}", f"{a:.4f}", f"{b:.4f}"])
    options = AnalysisOptions(read=ReadOptions())
    (found,) = by_set(group_runs(read_curves([str(path)], options.read)[0])[0], options)
    assert [(row["eval_set"], row["metric"], row["group_size"]) for row in found.rows] == [
        ("validation", "avg@4", 64), ("validation", "best@4", 4), ("easy", "avg@4", 4), ("easy", "best@4", 4),
    ]  # fmt: skip
    assert found.verdict == "differs" and found.notes == ()
    shifts = [(row.get("octaves"), row.get("octaves_of_target")) for row in found.rows]
    assert shifts[0] == (None, None) and shifts[1] == (None, pytest.approx(-4, abs=0.5))
    assert shifts[2] == (pytest.approx(-4, abs=0.5), None) and shifts[3] == (pytest.approx(0, abs=0.5),) * 2
    said = sentences.said(found)
    assert "The best n depends on the problems. By avg@4, with easy it lies " in said
    assert " below that with validation. With validation, n* of best@4 lies " in said


def test_names_are_as_short_as_tells_them_apart():
    assert short_names(["a/easy/train.jsonl", "a/hard/train.jsonl"]) == {
        "a/easy/train.jsonl": "easy", "a/hard/train.jsonl": "hard",
    }  # fmt: skip
    assert short_names(["a/easy.jsonl"]) == {"a/easy.jsonl": "easy"} and short_names([]) == {}
    runs = [*made(lambda n, b, c: c * 0, seeds=1, size=64, train_set="x"),
            *made(lambda n, b, c: c * 0, seeds=1, size=256, train_set="x")]  # fmt: skip
    assert list(dict.fromkeys(train_sets(runs))) == ["x (D = 64)", "x (D = 256)"]
