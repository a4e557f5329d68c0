"""Theory beside measurement: asked about the slice as it is run, and only where it has something to say."""

import dataclasses
import json

import pytest

from isocompute_jax.experiment.config import override
from isocompute_jax.fit import analyze
from isocompute_jax.records.run_files import CONFIG
from isocompute_jax.study.presets import PRESETS, scarce
from isocompute_jax.study.report_sections import question_of, theory_section
from isocompute_jax.study.stages import planned_runs
from tests.fit.runs import CROSSING, write_run

FULL = PRESETS["full"]


def planned(part, tmp_path):
    return planned_runs(FULL, part, tmp_path)


def test_the_question_is_that_of_the_runs(tmp_path):
    fields = {"problems_per_batch": 2, "optimizer.lr_scaling_exponent": 0.5}
    runs = planned(scarce(64, fields=fields), tmp_path)
    question = question_of(runs)
    assert question is not None
    assert (question.group_sizes, question.problems_per_batch) == ((4, 8, 16, 32, 64, 128), 2)
    assert (question.problem_set_size, question.budget, question.first_budget) == (64, 2**17, 2048)
    for n in question.group_sizes:  # the rate of a run, as the learner computes it
        optimizer = runs[0].config.optimizer
        peak = optimizer.base_lr * (n * 2 / optimizer.base_batch) ** optimizer.lr_scaling_exponent
        assert question.rule.rate_at(n) == pytest.approx(peak)


def test_slices_that_differ_in_more_than_n_have_none(tmp_path):
    slices = {part.name: part for part in FULL.slices}
    assert question_of(planned(slices["steps_64"], tmp_path)) is None
    assert question_of(planned(slices["terms_easy"], tmp_path)) is None  # theory knows no KL term
    one = dataclasses.replace(slices["hard_b2"], axes={"group_size": (4,), "seed": (0, 1)})
    assert question_of(planned(one, tmp_path)) is None


@pytest.mark.slow
def test_the_section_lays_both_side_by_side(tmp_path):
    """On made curves, whose best n goes from 4 to 16."""
    rows = [
        {"id": str(i), "prompt": "1=", "answer": "1", "task": "arithmetic", "avg@16": i % 2 / 16} for i in range(90)
    ]
    sets = tmp_path / "curated" / "hard"
    sets.mkdir(parents=True)
    (sets / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    part = dataclasses.replace(scarce(64), axes={"group_size": (4, 8, 16), "seed": (0,)})
    runs = planned(part, tmp_path)
    runs = [dataclasses.replace(run, config=override(run.config, "max_compute", 2**14)) for run in runs]
    for n, params in zip((4, 8, 16), CROSSING.values(), strict=False):
        path = write_run(tmp_path / "runs" / f"n{n}", group_size=n, seed=0, params=params)
        assert (path / CONFIG).exists()
    result = analyze(tmp_path / "runs", questions=False)
    (section,) = theory_section(runs, result, tmp_path / "report")
    assert section.figure is not None and section.figure.read_text().startswith("<?xml")
    assert result.optimal is not None
    assert [row[1] for row in section.rows] == result.optimal.group_size.astype(int).tolist()
    (finding,) = section.findings
    assert finding.startswith("Theory expects n* to go from ") and "within one octave" in finding
