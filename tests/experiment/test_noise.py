"""Noise that a run measures on its own steps: it changes nothing of the run, and does not depend on the layout."""

import dataclasses
import math

import pytest

from isocompute_jax.experiment import loop, noise
from isocompute_jax.experiment.config import PackingConfig
from tests.experiment import builders

pytestmark = pytest.mark.slow
COLUMNS = {f"noise/{metric}{name}" for metric in ("", "adam_") for name in ("gradient2", "between", "within")}


@pytest.fixture(scope="module")
def measured(base_run, tmp_path_factory):
    """(directory of the undisturbed run with the noise of each fourth step; the first measurement in all layouts)."""
    seen = []
    columns_of = loop.noise_columns

    def in_all_layouts(parts, state, groups, *, step):
        columns = columns_of(parts, state, groups, step=step)
        if step == 3:
            packings = [PackingConfig(trees="on"), PackingConfig(trees="off", row_tokens=16)]
            others = [dataclasses.replace(parts, config=dataclasses.replace(parts.config, packing=p)) for p in packings]
            seen.extend([columns, *(noise.noise_columns(part, state, groups, step=step) for part in others)])
        return columns

    workdir = tmp_path_factory.mktemp("runs") / "measured"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "noise_columns", in_all_layouts)
        loop.train(measuring(base_run), workdir)
    return workdir, seen


def measuring(config):
    return dataclasses.replace(config, schedule=dataclasses.replace(config.schedule, noise_every=4))


def test_a_measured_run_is_the_run(measured, undisturbed):
    ours, theirs = (builders.log_lines(path, "metrics.jsonl") for path in (measured[0], undisturbed))
    for step, (line, plain) in enumerate(zip(ours, theirs, strict=True), start=1):
        assert line.keys() - plain.keys() == (COLUMNS if step % 4 == 0 else set())
        assert {name: line[name] for name in plain} == plain
        assert all(math.isfinite(line[name]) for name in line.keys() & COLUMNS)
    [(mine, _), (yours, _)] = [builders.final_checkpoint(path) for path in (measured[0], undisturbed)]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(mine, yours, strict=True))


def test_an_interrupted_run_measures_the_same(base_run, measured, tmp_path):
    """Stopped at the end of a step that is measured, it goes on exactly: what is drawn for it is by seed and step."""
    with builders.interrupted_in_step(8), pytest.raises(KeyboardInterrupt):
        loop.train(measuring(base_run), tmp_path / "run")
    assert len(builders.log_lines(tmp_path / "run", "metrics.jsonl")) == 8
    loop.train(measuring(base_run), tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", measured[0])


def test_every_layout_measures_the_same(measured):
    padded, *others = measured[1]
    assert padded.keys() == COLUMNS and padded["noise/within"] > 0
    for columns in others:
        assert columns == pytest.approx(padded, rel=1e-3)
