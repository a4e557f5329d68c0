"""Every preset plans runs that can start, and its slices ask different things."""

import pytest

from isocompute_jax.study.presets import PRESETS
from isocompute_jax.study.stages import planned_runs

SLICES = [(name, part) for name, preset in PRESETS.items() for part in preset.slices]


@pytest.mark.parametrize(("name", "part"), SLICES, ids=lambda value: getattr(value, "name", value))
def test_every_slice_plans_valid_runs(name, part, tmp_path):
    """`grid` resolves each config, so a preset whose fields or limits are wrong fails here and not an hour into it."""
    preset = PRESETS[name]
    runs = planned_runs(preset, part, tmp_path)
    assert len({run.name for run in runs}) == len(runs) >= 2
    assert part.problem_set in (*preset.curation.sets, *preset.curation.mixtures)
    assert len({run.config.group_size for run in runs}) > 1
    for run in runs:
        assert run.config.evaluation.first_compute >= run.config.rollouts_per_step
        assert run.config.train_set.endswith(f"{part.problem_set}/train.jsonl")


def test_slices_of_a_preset_have_directories_of_their_own():
    for preset in PRESETS.values():
        assert len({part.name for part in preset.slices}) == len(preset.slices)


def test_full_holds_the_fixed_batch_at_one_size(tmp_path):
    [part] = [part for part in PRESETS["full"].slices if part.name == "fixed_batch"]
    assert {run.config.rollouts_per_step for run in planned_runs(PRESETS["full"], part, tmp_path)} == {256}
