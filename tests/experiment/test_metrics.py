"""What a run logs of a step: rollouts to be read, time, throughput and memory, and alarms from made-up lines."""

import dataclasses
import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax.experiment import loop, metrics, workdir
from isocompute_jax.experiment.config import (
    AlarmsConfig,
    EvaluationConfig,
    RunConfig,
    SamplingConfig,
    ThinkingConfig,
    ToolConfig,
    TrackConfig,
    override,
)
from isocompute_jax.experiment.metrics import (
    ADVICE,
    PHASES,
    AlarmState,
    Phases,
    cutting_field,
    is_kept,
    kept_columns,
    next_watch,
    replay,
)
from isocompute_jax.learner import batch_shape
from isocompute_jax.records import run_files
from isocompute_jax.records.rollout import Completion, RolloutGroup
from isocompute_jax.tasks import load_tokenizer
from tests.experiment.builders import MODEL


@pytest.fixture(scope="module")
def tokenizer(base_run):
    return load_tokenizer(base_run.model)


def group(*completions: Completion, failures=None) -> RolloutGroup:
    rewards = np.linspace(0, 1, len(completions), dtype=np.float32)
    return RolloutGroup("p1", 3, np.array([4, 13, 5, 15], np.int32), completions, rewards, failures=failures or {})


def completion(*tokens: int, version: int = 3) -> Completion:
    size = len(tokens)
    return Completion.drawn(
        np.array(tokens, np.int32), -np.arange(size, dtype=np.float32) / 3, np.full(size, version, np.int32), "stop"
    )


def test_a_group_by_hand(base_run, tokenizer):
    second = dataclasses.replace(
        completion(7, 16, 4),
        mask=np.array([True, False, True]),
        policy_versions=np.array([2, 3, 3]),
        finish_reason="length",
    )
    [found] = kept_columns(base_run, [group(completion(8, 1), second, failures={1: "timed out"})], tokenizer)["groups"]
    first, last = found.pop("completions")
    assert found == {
        "problem_id": "p1", "task": "", "prompt": "1+2=", "rewards": [0.0, 1.0], "failures": {"1": "timed out"}
    }  # fmt: skip
    assert first == {
        "text": "5<eos>", "finish_reason": "stop", "num_tokens": 2, "omitted": None, "tokens": [8, 1],
        "pieces": ["5", "<eos>"], "logprobs": [0.0, -0.3333], "policy_versions": [3, 3], "drawn": [1, 1],
    }  # fmt: skip
    assert (last["text"], last["drawn"], last["policy_versions"], last["finish_reason"]) == (
        "4,1",
        [1, 0, 1],
        [2, 3, 3],
        "length",
    )


def test_long_completions_keep_both_ends(base_run, tokenizer, monkeypatch):
    monkeypatch.setattr(metrics, "KEPT_TOKENS", 4)
    [found] = kept_columns(base_run, [group(completion(3, 4, 5, 6, 7, 8, 1))], tokenizer)["groups"]
    [kept] = found["completions"]
    assert kept["omitted"] == {"at": 2, "tokens": 3} and kept["num_tokens"] == 7
    assert kept["tokens"] == [3, 4, 8, 1] and kept["text"] == "015<eos>"
    assert len(kept["logprobs"]) == len(kept["policy_versions"]) == len(kept["pieces"]) == len(kept["drawn"]) == 4


def test_first_groups_and_rollouts_are_kept(base_run, tokenizer):
    two = override(base_run, "track.rollouts", 2)
    groups = kept_columns(two, [group(*[completion(3, 1)] * 20)] * 5, tokenizer)["groups"]
    assert [len(found["completions"]) for found in groups] == [metrics.KEPT_ROLLOUTS] * 2
    assert [len(found["rewards"]) for found in groups] == [20, 20]


@pytest.mark.parametrize(("steps", "every"), [(24, 1), (200, 1), (201, 2), (5000, 25)])
def test_steps_that_keep_are_spread_over_the_run(base_run, steps, every):
    config = override(base_run, "max_compute", steps * base_run.rollouts_per_step)
    kept = [step for step in range(1, steps + 1) if is_kept(config, step)]
    assert kept[0] == 1 and {b - a for a, b in itertools.pairwise(kept)} == {every}
    assert len(kept) <= metrics.KEPT_STEPS


def test_how_often_can_be_said(base_run):
    often = dataclasses.replace(base_run, track=TrackConfig(rollouts_every=10))
    assert [step for step in range(1, 25) if is_kept(often, step)] == [1, 11, 21]
    assert not any(is_kept(override(base_run, "track.rollouts", 0), step) for step in range(1, 25))


def test_a_run_keeps_what_it_trained_on(undisturbed, base_run, tokenizer):
    lines = run_files.read_lines(undisturbed / run_files.ROLLOUTS)
    metrics = run_files.read_lines(undisturbed / run_files.METRICS)
    assert [line["step"] for line in lines] == [line["step"] for line in metrics]
    for line in lines:
        [found] = line["groups"]
        assert len(found["rewards"]) == base_run.group_size and set(found["rewards"]) <= {0.0, 1.0}
        for kept in found["completions"]:
            assert kept["text"] == "".join(kept["pieces"]) and kept["logprobs"][0] < 0
            assert set(kept["policy_versions"]) == {line["step"] - 1}
            assert (kept["pieces"][-1] == "<eos>") == (kept["finish_reason"] == "stop")
    assert {found["problem_id"] for line in lines for found in line["groups"]} <= {f"p{i}" for i in range(16)}


# What one token meets: q and o (16 x 16 each), k and v (16 x 8 each), three MLP matrices; the head beside.
MATRICES = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 32
HEAD = 16 * 32


def sized_group(prompt: int, *lengths: int) -> RolloutGroup:
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
    found = metrics.model_flops(MODEL, [sized_group(4, 2, 6)], prompts_repeated=repeated)
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


def test_what_a_checkpoint_took_is_of_the_step_after_it(often, tmp_path):
    loop.train(dataclasses.replace(often, max_compute=64 * 3, evaluation=EvaluationConfig()), tmp_path)
    took = [line["phase_s"]["checkpoint"] for line in run_files.read_lines(tmp_path / run_files.METRICS)]
    assert took[0] == 0 and min(took[1:]) > 0


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
    batch = shape.lay_out([sized_group(3, 2, 4), sized_group(1, 1, 1)])
    found = batch.metrics()
    assert found["num_rows"] == 2
    assert found["padding"] == pytest.approx(1 - (4 + 8) / (2 * (3 + 2 * 4)))
    inserted = np.array([True, False, True, False])  # what stands between two drawn tokens is no padding
    masks = np.asarray(batch.mask).copy()
    masks[masks.shape[0] - 1, -1, -1] = inserted
    again = dataclasses.replace(batch, mask=masks).metrics()
    assert again["padding"] == pytest.approx(1 - (4 + 7 + 3) / 22)


CONFIG = AlarmsConfig(window=2)
CALM: dict[str, Any] = {"trained_tokens": 9.0, "entropy": 1.0, "kl": 0.0, "ratio_max": 1.0}
CALM |= {"correction_cut": 0.0, "truncation_rate": 0.0}


def walk(lines, config=CONFIG):
    """(alarms that are on, those that were said) after each line; (set, avg) pairs are evaluations."""
    watch, seen = AlarmState(), []
    for line in lines:
        if isinstance(line, tuple):
            watch, new = next_watch(watch, config, run_files.EVAL, {"eval_set": line[0], "avg@4": line[1]})
            assert not new
            continue
        watch, new = next_watch(watch, config, run_files.METRICS, {**CALM, **line})
        seen.append((list(watch.active), list(new)))
    return seen


CASES = {
    # alarm: (column, quiet, loud), of which quiet lies below the bound and loud above
    "entropy_collapse": ("entropy", 0.25, 0.15),  # 4 and 6.7 times less than the 1 at first; the bound is 5
    "entropy_explosion": ("entropy", 2.9, 3.1), "kl": ("kl", 0.49, 0.51), "ratio": ("ratio_max", 19.0, 21.0),
    "correction": ("correction_cut", 0.09, 0.11), "truncation": ("truncation_rate", 0.09, 0.11),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_alarm_crosses_its_bound(name):
    column, quiet, loud = CASES[name]
    lines = [{}, {}, {column: quiet}, {column: quiet}, {column: loud}, {column: loud}, {column: loud}]
    *calm, _, (on, new), (still, nothing_new) = walk(lines)
    assert all(found == ([], []) for found in calm)
    assert on == still == [name] and nothing_new == [] and new in ([name], [])
    assert [name for _, new in walk(lines) for name in new] == [name]  # once
    assert walk(lines, dataclasses.replace(CONFIG, **{name: 0.0}))[-1] == ([], [])


def test_an_alarm_that_hovers_is_said_once_and_again_after_it_was_clear():
    """Bound 0.1, clear below 0.09: 0.12 on; 0.095 and 0.11 still on; 0.08 off; 0.095 stays off; 0.12 on again."""
    rates = (0.0, 0.12, 0.095, 0.11, 0.08, 0.095, 0.12)
    seen = walk([{"truncation_rate": rate} for rate in rates], AlarmsConfig(window=1))
    assert [bool(on) for on, _ in seen] == [False, True, True, True, False, False, True]
    assert [bool(new) for _, new in seen] == [False, True, False, False, False, False, True]


def test_numbers_are_means_over_the_window():
    seen = walk([{"kl": 0.0}, {"kl": 0.9}, {"kl": 0.9}, {"kl": 0.2}, {"kl": 0.6}])  # 0.45, 0.9, 0.55, 0.4
    assert [on for on, _ in seen] == [[], [], ["kl"], ["kl"], []]


def test_nothing_is_said_before_the_window_is_full():
    loud = {"entropy": 1.0, "kl": 9.0, "truncation_rate": 1.0}
    seen = walk([loud] * 4, AlarmsConfig(window=4))
    assert [on for on, _ in seen] == [[], [], [], ["kl", "truncation"]]


def test_steps_without_tokens_to_train_on_say_nothing_of_the_policy():
    """Their entropy is 0, which is no collapse; what they say of completions counts."""
    nothing = {"trained_tokens": 0.0, "entropy": 0.0, "ratio_max": 0.0, "truncation_rate": 0.5}
    assert walk([nothing, {}, {}, nothing, nothing, nothing])[-1][0] == ["truncation"]
    seen = walk([{}, {}, {"entropy": 0.1}, {"entropy": 0.1}, nothing, nothing])
    assert seen[-1][0] == ["entropy_collapse", "truncation"]  # stays as it was


def test_a_column_that_was_not_measured_rings_no_bell():
    assert walk([{"kl": None}] * 4)[-1] == ([], [])


def test_an_evaluation_that_falls_below_the_best_of_its_set():
    """By 0.1 from the best, in any set; the next step's line says so, until the set is within 0.09 of its best."""
    lines = [("v", 0.5), {}, ("v", 0.6), ("w", 0.1), {}, ("v", 0.51), {}, ("v", 0.49), {}, {}, ("v", 0.505), {}]
    seen = walk([*lines, ("v", 0.55), {}])
    assert [on for on, _ in seen] == [[], [], [], ["evaluation"], ["evaluation"], ["evaluation"], []]
    assert [name for _, new in seen for name in new] == ["evaluation"]


def test_what_is_said_has_the_number_and_what_to_do():
    watch = AlarmState()
    for _ in range(2):
        watch, new = next_watch(watch, CONFIG, run_files.METRICS, {**CALM, "truncation_rate": 0.25})
    assert new == {"truncation": "25.0% of completions are cut off: raise sampling.max_tokens, or shorten answers"}
    said = []
    for sampling in (
        SamplingConfig(),
        SamplingConfig(thinking=ThinkingConfig(low=1, high=2)),
        SamplingConfig(tool=ToolConfig("calculator")),
    ):
        line = {**CALM, "truncation_rate": 0.25}
        config, limit = AlarmsConfig(window=1), cutting_field(RunConfig(sampling=sampling))
        said += next_watch(AlarmState(), config, run_files.METRICS, line, limit=limit)[1].values()
    assert [text.split("raise ")[1].split(",")[0] for text in said] == [
        "sampling.max_tokens",
        "sampling.thinking.answer_tokens (and sampling.max_tokens with it)",
        "sampling.tool.call_tokens (and sampling.max_tokens with it)",
    ]
    assert list(ADVICE) == [field.name for field in dataclasses.fields(AlarmsConfig) if field.name != "window"]


NUMBERS = st.floats(0, 4, width=16)
LINES = st.lists(
    st.fixed_dictionaries(
        {"trained_tokens": st.sampled_from([0.0, 5.0]), "entropy": NUMBERS, "kl": st.none() | NUMBERS}
        | {"ratio_max": NUMBERS, "correction_cut": NUMBERS, "truncation_rate": st.floats(0, 0.25, width=16)}
    ),
    max_size=20,
)


@given(lines=LINES, scores=st.dictionaries(st.integers(0, 20), st.floats(0, 1, width=16)))
def test_a_watch_made_from_the_logs_is_the_one_of_the_walk(lines, scores):
    """As a run that resumes makes it, whatever step it resumes from."""
    metrics = [{**line, "step": step} for step, line in enumerate(lines, 1)]
    evaluations = [{"step": step, "eval_set": "v", "avg@2": score} for step, score in sorted(scores.items())]
    watch = AlarmState()
    for step in range(len(lines) + 1):
        if step:
            watch, _ = next_watch(watch, CONFIG, run_files.METRICS, metrics[step - 1])
        for line in evaluations:
            if line["step"] == step:
                watch, _ = next_watch(watch, CONFIG, run_files.EVAL, line)
        so_far = [line for line in evaluations if line["step"] <= step]
        assert replay(CONFIG, metrics[:step], so_far) == watch


@pytest.mark.slow
def test_a_run_says_it_once_and_logs_it_in_every_line(base_run, tmp_path, caplog):
    """Completions of at most two tokens: nearly all are cut off."""
    config = dataclasses.replace(base_run, max_compute=64 * 4, evaluation=EvaluationConfig(), alarms=CONFIG)
    with caplog.at_level("WARNING", logger=workdir.__name__):
        loop.train(config, tmp_path)
    lines = run_files.read_lines(tmp_path / run_files.METRICS)
    assert ["truncation" in line["alarms"] for line in lines] == [False, True, True, True]
    said = [record.message for record in caplog.records if "alarm truncation" in record.message]
    assert len(said) == 1 and re.match(r"step 2: alarm truncation: \d+\.\d% of completions are cut off", said[0])
