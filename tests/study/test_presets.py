"""Every preset plans runs that can start, and its slices ask different things."""

import dataclasses
import json

import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.study import presets
from isocompute_jax.study.presets import PRESETS, from_seed
from isocompute_jax.study.stages import STUDY, open_study, planned_runs, run_study

SLICES = [(name, part) for name, preset in PRESETS.items() for part in preset.slices]


@pytest.mark.parametrize(("name", "part"), SLICES, ids=lambda value: getattr(value, "name", value))
def test_every_slice_plans_valid_runs(name, part, tmp_path):
    """`grid` resolves each config, so a preset whose fields or limits are wrong fails here and not an hour into it."""
    preset = PRESETS[name]
    runs = planned_runs(preset, part, tmp_path)
    assert len({run.name for run in runs}) == len(runs) >= 2
    assert part.problem_set in (*preset.curation.wanted, *preset.curation.mixtures)
    assert len({run.config.group_size for run in runs}) > 1
    for run in runs:
        assert run.config.evaluation.first_compute >= run.config.rollouts_per_step
        assert run.config.train_set.endswith(f"{part.problem_set}/train.jsonl")


def test_slices_of_a_preset_have_directories_of_their_own():
    for preset in PRESETS.values():
        assert len({part.name for part in preset.slices}) == len(preset.slices)


def test_full_holds_the_fixed_batch_at_one_size(tmp_path):
    [part] = [part for part in PRESETS["full"].slices if part.name == "steps_64"]
    assert {run.config.rollouts_per_step for run in planned_runs(PRESETS["full"], part, tmp_path)} == {128}


def test_the_language_model_is_trained_in_what_the_processor_multiplies(monkeypatch):
    for has_tiles, dtype in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(presets, "multiplies_bfloat16", lambda has_tiles=has_tiles: has_tiles)
        assert presets.llm_run(max_compute=1024, points=2).dtype == dtype


def test_the_first_seed_of_the_recorded_study_is_the_short_one(tmp_path):
    """So that one may be compared with the other, bit for bit."""
    short, recorded = (
        {run.name: run.config for run in planned_runs(one, one.slices[0], tmp_path)}
        for one in (PRESETS["llm"], PRESETS["llm_record"])
    )
    assert short.items() <= recorded.items()


def test_other_seeds_are_another_study(tmp_path):
    """Disjoint seeds, all else the same; they do not mix in one directory."""
    quick = PRESETS["quick"]
    other = from_seed(quick, 4)
    seeds = [{run.config.seed for run in planned_runs(one, one.slices[0], tmp_path)} for one in (quick, other)]
    assert seeds == [{0, 1, 2}, {4, 5, 6}]
    open_study(quick, tmp_path)
    with pytest.raises(InputError, match=r"axes\.seed: .* choose another --workdir"):
        open_study(other, tmp_path)


def test_a_study_may_gain_slices_and_not_change_them(tmp_path):
    """Its finished slices stay what they are; what is written is what was asked for last."""
    full = PRESETS["full"]
    first = dataclasses.replace(full, slices=full.slices[:2])
    open_study(first, tmp_path)
    open_study(full, tmp_path)
    written = (tmp_path / STUDY).read_bytes()
    assert [part["name"] for part in json.loads(written)["slices"]] == [part.name for part in full.slices]
    changed = dataclasses.replace(full.slices[1], axes={"group_size": (2, 4), "seed": (0,)})
    with pytest.raises(
        InputError, match=r"another study \(study\.slices\.problems_16\.axes\.group_size: .* there, '\[2, 4\]' here"
    ):
        open_study(dataclasses.replace(full, slices=(full.slices[0], changed)), tmp_path)
    assert (tmp_path / STUDY).read_bytes() == written


def test_slices_of_other_names_are_refused_before_anything_starts(tmp_path):
    with pytest.raises(InputError, match="no slice 'easy_46'; it has hard_b2, problems_16, "):
        run_study(PRESETS["full"], tmp_path / "study", workers=1, only=["hard_b2", "easy_46"])
    assert not (tmp_path / "study").exists()
