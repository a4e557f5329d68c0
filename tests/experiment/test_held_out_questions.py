"""Evaluation sets whose questions are trained on are named at the start."""

import dataclasses
import shutil

import pytest

from isocompute_jax.experiment.config import EvaluationConfig
from isocompute_jax.experiment.inputs import read_inputs
from tests.experiment.builders import make_inputs


@pytest.mark.parametrize("held_out", [False, True])
def test_what_is_trained_on_is_no_held_out_problem(tmp_path, caplog, held_out):
    config = make_inputs(tmp_path)
    if not held_out:
        copy = shutil.copy(config.train_set, tmp_path / "copy.jsonl")
        config = dataclasses.replace(config, evaluation=EvaluationConfig(sets={"same": str(copy)}))
    read_inputs(config)
    said = [text for text in caplog.messages if "trained on too" in text]
    assert len(said) == (0 if held_out else 1)
    if said:
        count = len(read_inputs(config).evaluation_sets["same"])
        assert said[0].startswith(f"evaluation set 'same': {count} of its {count} problems are trained on too")
