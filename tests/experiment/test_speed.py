"""What a step's line says of time, throughput, MFU and memory."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax import learner
from isocompute_jax.experiment import metrics
from isocompute_jax.experiment.metrics import PHASES, Phases
from isocompute_jax.learner import batch_shape, layout
from isocompute_jax.records import run_files
from isocompute_jax.records.rollout import Completion, RolloutGroup
from tests.experiment.builders import MODEL

# What one token meets: q and o (16 x 16 each), k and v (16 x 8 each), three MLP matrices; the head beside.
MATRICES = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 32
HEAD = 16 * 32


def group(prompt: int, *lengths: int) -> RolloutGroup:
    def completion(length: int) -> Completion:
        tokens = np.ones(length, np.int32)
        return Completion.drawn(tokens, np.zeros(length, np.float32), np.zeros(length, np.int32), "stop")

    return RolloutGroup("p", 0, np.ones(prompt, np.int32), tuple(completion(length) for length in lengths))


@pytest.mark.parametrize(
    ("repeated", "tokens", "pairs"),
    [
        (False, 4 + 2 + 6, 4**2 / 2 + (6**2 - 4**2) / 2 + (10**2 - 4**2) / 2),
        (True, 6 + 10, 6**2 / 2 + 10**2 / 2),
    ],
)
def test_model_flops_are_six_a_parameter_and_token_and_those_of_attention(repeated, tokens, pairs):
    found = metrics.model_flops(MODEL, [group(4, 2, 6)], prompts_repeated=repeated)
    attention = 12 * 1 * 2 * 8  # layers x heads x head size; forward and backward of two products
    assert found == 6 * (MATRICES + HEAD) * tokens + attention * pairs


def test_peaks_add_up_and_are_not_known_of_cpus():
    assert metrics.peak_flops(["NVIDIA H200"] * 8, "bfloat16") == 8 * 989e12
    assert metrics.peak_flops(["TPU v5", "TPU v5"], "float32") == pytest.approx(2 * 459e12 / 6)
    assert metrics.peak_flops(["NVIDIA H200", "cpu"], "bfloat16") is None


def test_a_run_says_its_speed(undisturbed, base_run):
    for line in run_files.read_lines(undisturbed / run_files.METRICS):
        found, phases = line["speed"], line["phase_s"]
        assert found["step_s"] == pytest.approx(sum(phases.values()), abs=1e-5)
        sampled = line["completion_length"] * base_run.rollouts_per_step
        assert found["sampled_tokens_per_s"] == pytest.approx(sampled / found["step_s"], rel=1e-3)
        assert 0 <= found["trained_tokens_per_s"] <= found["sampled_tokens_per_s"]
        assert found["mfu"] is None and found["device_memory"] is None  # of a CPU
        assert 2**26 < found["host_memory"] < 2**40
        assert phases["sampling"] > 0 and phases["update"] > 0 and phases["waiting"] == 0
        assert 0 <= line["padding"] < 1
    lines = run_files.read_lines(undisturbed / run_files.METRICS)
    assert lines[0]["phase_s"]["checkpoint"] == 0  # one is written after every step
    assert all(line["phase_s"]["checkpoint"] > 0 for line in lines[1:])


def test_phases_add_up_what_lies_within_others():
    phases = Phases({"checkpoint": 0.5})
    phases.end("sampling", grading=0.0)
    first = phases.seconds["sampling"]
    phases.end("sampling")
    assert phases.seconds["sampling"] >= first and set(phases.seconds) == set(PHASES)
    assert phases.seconds["checkpoint"] == 0.5


def test_padding_of_the_padded_layout_by_hand():
    """Two groups of two, two rows of them computed: 3 + 1 prompt tokens and 2 + 4 + 1 + 1 completion tokens."""
    shape = batch_shape(
        problems_per_batch=2, group_size=2, max_prompt_tokens=3, max_tokens=4, microbatch_tokens=16, batch_shards=1
    )
    batch = layout([group(3, 2, 4), group(1, 1, 1)], shape)
    found = learner.padding_metrics(batch)
    assert found["num_rows"] == 2
    assert found["padding"] == pytest.approx(1 - (4 + 8) / (2 * (3 + 2 * 4)))
    inserted = np.array([True, False, True, False])  # what stands between two drawn tokens is no padding
    masks = np.asarray(batch.mask).copy()
    masks[masks.shape[0] - 1, -1, -1] = inserted
    again = learner.padding_metrics(dataclasses.replace(batch, mask=masks))
    assert again["padding"] == pytest.approx(1 - (4 + 7 + 3) / 22)
