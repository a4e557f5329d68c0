"""The callback for TRL: its rows, its answer, and a real GRPOTrainer that calls it."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from isocompute_jax.fit.read import Notes, ReadOptions, read_curves
from isocompute_jax.fit.trl_callback import CurveCallback

OPTIONS = ReadOptions(metric="eval_reward")


def trainer_args(**changes) -> SimpleNamespace:
    """What a GRPOConfig says of 8 prompts x 4 completions a step, in 2 micro-batches of 16."""
    given = {
        "run_name": "n4-s0", "output_dir": "runs/n4-s0", "num_generations": 4, "generation_batch_size": 32, "seed": 0,
        "gradient_accumulation_steps": 2, "steps_per_generation": 2, "num_iterations": 1,
    }  # fmt: skip
    return SimpleNamespace(**given | changes)


def state(step: int, main: bool = True) -> SimpleNamespace:
    return SimpleNamespace(global_step=step, is_world_process_zero=main, num_input_tokens_seen=100 * step)


def logged(callback: CurveCallback, args: SimpleNamespace, steps: range) -> None:
    for step in steps:
        callback.on_log(args, state(step), None, logs={"loss": 0.1, "reward": 0.9})
        callback.on_log(args, state(step), None, logs={"eval_reward": 0.8 - 0.7 * math.exp(-step / 8), "epoch": 0.1})


@pytest.fixture
def unfitted(tmp_path, monkeypatch) -> CurveCallback:
    """One that only writes."""
    monkeypatch.setattr(CurveCallback, "_start", lambda self: None)
    return CurveCallback(tmp_path / "curves.csv")


def test_rows_are_curves_of_the_fitter(unfitted, tmp_path):
    logged(unfitted, trainer_args(), range(0, 31, 10))
    logged(unfitted, trainer_args(run_name=None, output_dir="runs/n4-s1", seed=1), range(0, 21, 10))
    unfitted.on_log(trainer_args(), state(40, main=False), None, logs={"eval_reward": 0.9})
    unfitted.on_log(trainer_args(), state(40), None, logs={"eval_reward": None})
    curves, notes = read_curves([str(tmp_path / "curves.csv")], OPTIONS)
    assert notes == Notes()
    assert [curve.run for curve in curves] == ["n4-s0", "n4-s1"]
    assert [curve.compute.tolist() for curve in curves] == [[0, 320, 640, 960], [0, 320, 640]]
    assert [(c.facts.group_size, c.facts.problems_per_batch, c.facts.seed) for c in curves] == [(4, 8, 0), (4, 8, 1)]
    assert curves[0].columns["tokens"].tolist() == [0, 1000, 2000, 3000]


@pytest.mark.parametrize(
    ("changes", "compute"),
    [
        ({"num_iterations": 2}, [0, 32, 64]),  # every batch is used for two steps
        ({"steps_per_generation": 4, "generation_batch_size": 64}, [0, 64, 128]),  # a batch is drawn for two steps
        ({"steps_per_generation": 1, "generation_batch_size": 16}, [0, 64, 128]),  # two are drawn for a step
    ],
)
def test_compute_is_what_was_drawn(unfitted, tmp_path, changes, compute):
    logged(unfitted, trainer_args(**changes), range(0, 5, 2))
    [curve], _ = read_curves([str(tmp_path / "curves.csv")], OPTIONS)
    assert curve.compute.tolist() == compute


def test_other_events_are_let_through(unfitted):
    assert unfitted.on_step_end(None, None, None, model=None) is None
    with pytest.raises(AttributeError):
        unfitted.no_event  # noqa: B018


@pytest.mark.slow
def test_the_answer_is_printed_and_has_every_evaluation_at_the_end(unfitted, tmp_path, monkeypatch, capfd):
    logged(unfitted, trainer_args(), range(0, 41, 4))
    monkeypatch.undo()
    callback = CurveCallback(tmp_path / "curves.csv", "--budget=2e3")
    args = trainer_args(run_name="n8", num_generations=8, generation_batch_size=64)
    logged(callback, args, range(0, 41, 4))  # the first evaluation starts a fit, which the others do not wait for
    callback.on_train_end(args, state(40), None)
    assert "With up to 2,000 rollouts: n =" in capfd.readouterr().out
    with open(tmp_path / "curves.csv.report" / "summary.json") as file:
        assert [run["evaluations"] for run in json.load(file)["inputs"]] == [11, 11]


REAL = """
import math, sys
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from isocompute_jax.fit.trl_callback import CurveCallback

words = {"<pad>": 0, "<eos>": 1} | {str(i): i + 2 for i in range(10)}
raw = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>")
model = Qwen2ForCausalLM(Qwen2Config(
    vocab_size=12, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, pad_token_id=0, eos_token_id=1, bos_token_id=None,
))

def reward(completions, trainer_state, **kwargs):
    return [0.8 - 0.7 * math.exp(-trainer_state.global_step / 3)] * len(completions)

data = Dataset.from_dict({"prompt": ["1 2", "3 4", "5 6", "7 8"]})
args = GRPOConfig(
    output_dir="runs/n2-s7", seed=7, num_generations=2, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    per_device_eval_batch_size=4, max_completion_length=2, max_steps=6, eval_strategy="steps", eval_steps=2,
    eval_on_start=True, logging_steps=1, report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
    save_strategy="no", disable_tqdm=True,
)
GRPOTrainer(
    model=model, reward_funcs=reward, args=args, train_dataset=data, eval_dataset=data, processing_class=tokenizer,
    callbacks=[CurveCallback("curves.csv", "--next=0")],
).train()
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL comes with `make setup-dev`")
def test_a_real_trainer_of_trl_writes_the_curve(tmp_path):
    """Four evaluations of eight rollouts a step; in a process of its own, since TRL brings warnings and threads."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(REAL)],
        cwd=tmp_path, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [curve], notes = read_curves([str(tmp_path / "curves.csv")], OPTIONS)
    assert notes == Notes()
    assert (curve.run, curve.facts.group_size, curve.facts.problems_per_batch, curve.facts.seed) == ("n2-s7", 2, 4, 7)
    assert curve.compute.tolist() == [0, 16, 32, 48]
    expected = [0.8 - 0.7 * math.exp(-step / 3) for step in (0, 2, 4, 6)]
    assert curve.columns["eval_reward"].tolist() == pytest.approx(expected, abs=1e-6)
    assert "eval_reward" in done.stdout and (tmp_path / "curves.csv.report" / "report.html").exists()
