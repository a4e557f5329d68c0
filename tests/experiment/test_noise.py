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
    """(directory of the undisturbed run again, measured before each fourth step; those columns in all layouts)."""
    seen = []
    make_updates = loop.make_updates

    def with_noise(parts, state, batch, *rest):
        columns = {}
        if (int(state.step) + 1) % 4 == 0:
            columns = noise.noise_columns(parts, state, batch.sampled.groups, step=int(state.step))
            packings = [PackingConfig(trees="on"), PackingConfig(trees="off", row_tokens=16)]
            others = [dataclasses.replace(parts, config=dataclasses.replace(parts.config, packing=p)) for p in packings]
            if int(state.step) == 3:
                same = [noise.noise_columns(part, state, batch.sampled.groups, step=3) for part in others]
                seen.extend([columns, *same])
        updated, metrics = make_updates(parts, state, batch, *rest)
        return updated, metrics | columns

    workdir = tmp_path_factory.mktemp("runs") / "measured"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "make_updates", with_noise)
        loop.train(base_run, workdir)
    return workdir, seen


def test_a_measured_run_is_the_run(measured, undisturbed):
    ours, theirs = (builders.log_lines(path, "metrics.jsonl") for path in (measured[0], undisturbed))
    for step, (line, plain) in enumerate(zip(ours, theirs, strict=True), start=1):
        assert line.keys() - plain.keys() == (COLUMNS if step % 4 == 0 else set())
        assert {name: line[name] for name in plain} == plain
        assert all(math.isfinite(line[name]) for name in line.keys() & COLUMNS)
    [(mine, _), (yours, _)] = [builders.final_checkpoint(path) for path in (measured[0], undisturbed)]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(mine, yours, strict=True))


def test_every_layout_measures_the_same(measured):
    padded, *others = measured[1]
    assert padded.keys() == COLUMNS and padded["noise/within"] > 0
    for columns in others:
        assert columns == pytest.approx(padded, rel=1e-3)
