"""Alarms, from lines that are made up: each when its number crosses its bound, and again only after it was clear."""

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax.experiment import loop, workdir
from isocompute_jax.experiment.config import (
    AlarmsConfig,
    EvaluationConfig,
    SamplingConfig,
    ThinkingConfig,
    ToolConfig,
)
from isocompute_jax.experiment.metrics import ADVICE, AlarmState, cutting_field, next_watch, replay
from isocompute_jax.records import run_files

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
    "entropy_explosion": ("entropy", 2.9, 3.1),
    "kl": ("kl", 0.49, 0.51),
    "ratio": ("ratio_max", 19.0, 21.0),
    "correction": ("correction_cut", 0.09, 0.11),
    "truncation": ("truncation_rate", 0.09, 0.11),
}


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
        config, limit = AlarmsConfig(window=1), cutting_field(sampling)
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
