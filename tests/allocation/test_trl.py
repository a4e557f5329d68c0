"""The loop around TRL's trainer: by a trainer that calls its callbacks in the same order, and by TRL's own."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from isocompute_jax.allocation.auto import LEAST_STEPS, Controller, replay
from isocompute_jax.allocation.schedule import ScheduleConfig
from isocompute_jax.allocation.trl import batch_arguments, train_in_segments
from isocompute_jax.fit.read import Notes, ReadOptions, read_curves
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import WALL_CLOCK_KEYS, read_lines
from tests import mains

PROBLEMS = 6
HELD_OUT = list("abcd")


class Killed(Exception):
    pass


class Trainer:
    """One that draws no rollouts: the events of transformers' Trainer, in its order, with scripted rewards.

    `reward(step, n)` -> mean reward and share of groups without a signal; `held_out(step)` -> [P] [k] rewards.
    """

    def __init__(self, args, reward, held_out, *, dies_at=None):
        self.args, self._reward, self._held_out, self._dies_at = args, reward, held_out, dies_at
        self.train_dataset, self.eval_dataset = range(PROBLEMS), HELD_OUT
        self.num_generations_eval = args.num_generations_eval
        self.model = SimpleNamespace(training=True, parameters=lambda: [SimpleNamespace(numel=lambda: 10)])
        self.reward_weights = np.array([1.0, 0.5])
        self.accelerator = SimpleNamespace(wait_for_everyone=lambda: None, free_memory=lambda: None)
        self.callbacks, self.steps = [], []

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def is_world_process_zero(self):
        return True

    def _get_train_sampler(self):
        raise AssertionError("nothing is drawn")

    def _get_eval_sampler(self, dataset):
        return np.repeat([2, 0, 3, 1], self.num_generations_eval)

    def _calculate_rewards(self, rewards):
        """[N, 2]: a function that weighs 1 and one that weighs 1/2, which gives no reward."""
        return np.stack([rewards, np.full(len(rewards), np.nan)], axis=1)

    def _call(self, event, **kwargs):
        for callback in self.callbacks:
            getattr(callback, event)(self.args, self.state, self.control, **kwargs)

    def _evaluate(self):
        for prefix in (
            [f"eval_{name}" for name in self.eval_dataset] if isinstance(self.eval_dataset, dict) else ["eval"]
        ):
            self._evaluate_set(prefix)

    def _evaluate_set(self, prefix):
        self.model.training = False
        rewards = np.array(self._held_out(self.state.global_step))[[2, 0, 3, 1]]
        for half in np.split(rewards.ravel(), 2):  # two batches
            self._calculate_rewards(half)
        self.model.training = True
        self._call("on_log", logs={f"{prefix}_loss": 0.0, f"{prefix}_reward": 0.1})
        self.control.should_evaluate = False
        self._call("on_evaluate", metrics={f"{prefix}_reward": 0.1, f"{prefix}_runtime": 1.0})

    def train(self, resume_from_checkpoint=None):
        args, begun = self.args, int((resume_from_checkpoint or "-0").rpartition("-")[2])
        self.state = SimpleNamespace(
            global_step=begun, max_steps=args.max_steps, is_world_process_zero=True, num_input_tokens_seen=7 * begun
        )
        self.control = SimpleNamespace(should_training_stop=False)
        self._call("on_train_begin")
        if args.eval_on_start:
            self._evaluate()
        micro = 0
        while not self.control.should_training_stop:
            self.control.should_log = self.control.should_evaluate = self.control.should_save = False
            logs = {"loss": 0.5, "grad_norm": 1.0, "learning_rate": 0.1}
            for _ in range(args.gradient_accumulation_steps):
                if micro % (args.steps_per_generation * args.num_iterations) == 0:
                    reward, silent = self._reward(self.state.global_step, args.num_generations)
                    logs |= {"reward": reward, "frac_reward_zero_std": silent}
                micro += 1
            self.state.global_step += 1
            self.steps.append((self.state.global_step, args.num_generations))
            self.state.num_input_tokens_seen += 7
            if self.state.global_step == self._dies_at:
                raise Killed
            self.control.should_evaluate = self.state.global_step % args.eval_steps == 0
            self.control.should_training_stop = self.state.global_step >= args.max_steps
            self._call("on_step_end")
            assert self.control.should_log
            self._call("on_log", logs=logs)
            if self.control.should_evaluate:
                self._evaluate()
            if self.control.should_save or self.state.global_step % args.save_steps == 0:
                folder = pathlib.Path(args.output_dir) / f"checkpoint-{self.state.global_step}"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "trainer_state.json").write_text("{}")
        self._call("on_log", logs={"train_loss": 0.5})


def args_of(workdir, n, *, problems=2, **changes):
    """A GRPOConfig's fields after its own __post_init__."""
    given = {"output_dir": f"{workdir}/checkpoints", "save_only_model": False, "save_strategy": "no", "seed": 3}
    given |= {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 5, "save_steps": 10**9, "max_steps": 12}
    given |= {"num_iterations": 1, "world_size": 2, "num_generations_eval": 4, "learning_rate": 0.1}
    given |= batch_arguments(n, problems_per_batch=problems, most_per_device=4) | changes
    given.setdefault("steps_per_generation", given["gradient_accumulation_steps"])
    given["generation_batch_size"] = given["per_device_train_batch_size"] * given["steps_per_generation"]
    return SimpleNamespace(**given)


def makes(workdir, made, *, reward=lambda step, n: (0.25, 0.5), held_out=None, dies_at=None, **changes):
    """A `make_trainer`; what it made is appended to `made`."""
    held_out = held_out or (lambda step: [[0, 0, 0, 1]] * 4)

    def make_trainer(n):
        made.append(Trainer(args_of(workdir, n, **changes), reward, held_out, dies_at=dies_at))
        return made[-1]

    return make_trainer


def steps_of(made):
    return [step for trainer in made for step in trainer.steps]


def logs_of(workdir, *, clock=False):
    """(metrics, evaluations) without wall-clock fields."""
    kept = frozenset() if clock else WALL_CLOCK_KEYS
    logs = [read_lines(workdir / name) for name in ("metrics.jsonl", "eval.jsonl")]
    return [[{key: value for key, value in line.items() if key not in kept} for line in log] for log in logs]


def test_n_changes_where_the_schedule_says_and_compute_is_what_was_drawn(tmp_path):
    made, run = [], tmp_path / "run"
    trainer = train_in_segments(makes(run, made), "2@0,4@8,8@30", workdir=run)
    # 4 rollouts a step up to 8, then 8 a step up to 32, the first C of at least 30, then 16 a step
    expected = [(1, 2, 4), (2, 2, 8), (3, 4, 16), (4, 4, 24), (5, 4, 32), *((s, 8, 16 * s - 48) for s in range(6, 13))]
    metrics, evaluations = logs_of(run, clock=True)
    assert [(line["step"], line["group_size"], line["compute"]) for line in metrics] == expected
    assert steps_of(made) == [(step, n) for step, n, _ in expected] and trainer is made[-1]
    sizes = ScheduleConfig(group_size="2@0,4@8,8@30").sizes(2, 2)
    assert [(size.group_size, steps) for size, steps in sizes.segments(144)] == [(2, 2), (4, 3), (8, 7)]
    assert [(line["step"], line["compute"]) for line in evaluations] == [(0, 0), (5, 32), (10, 112), (12, 144)]
    assert [trainer.args.eval_on_start for trainer in made] == [True, False, False]
    walls = [line["wall_s"] for line in metrics]
    assert walls == sorted(walls) and metrics[-1]["device_hours"] == pytest.approx(walls[-1] / 1800)
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == [f"checkpoint-{n}" for n in (12, 2, 5)]
    assert train_in_segments(makes(run, made), "2@0,4@8,8@30", workdir=run) is None and len(made) == 3


def test_a_batch_that_serves_several_steps_is_trained_on_before_n_changes(tmp_path):
    """Two draws' worth of updates a batch: C rises every fourth step, and a switch waits for the fourth."""
    made, run = [], tmp_path / "run"
    rewards = {0: 0.1, 4: 0.4, 8: 0.7}
    make = makes(
        run, made, reward=lambda step, n: (rewards[step], 0.0), num_iterations=2,
        gradient_accumulation_steps=1, steps_per_generation=2, per_device_train_batch_size=4,
    )  # fmt: skip

    def grown(n):
        trainer = make(n)
        trainer.args.per_device_train_batch_size = 2 * n
        trainer.args.generation_batch_size = 4 * n
        return trainer

    train_in_segments(grown, "2@0,4@5", workdir=run)
    metrics, _ = logs_of(run)
    assert [line["compute"] for line in metrics] == [8] * 4 + [24] * 4 + [40] * 4
    assert [line["group_size"] for line in metrics] == [2] * 4 + [4] * 8
    assert [line["reward"] for line in metrics] == [0.1] * 4 + [0.4] * 4 + [0.7] * 4
    assert json.loads((run / "config.json").read_text())["updates_per_batch"] == 4


def test_a_run_ends_at_max_compute(tmp_path):
    made, run = [], tmp_path / "run"
    train_in_segments(makes(run, made), "2@0,4@8", workdir=run, max_compute=39)
    metrics, evaluations = logs_of(run)
    assert [line["compute"] for line in metrics] == [4, 8, 16, 24, 32] and evaluations[-1]["compute"] == 32
    assert (run / "DONE").exists()
    with pytest.raises(InputError, match="max_compute = 3: a first batch has more rollouts"):
        train_in_segments(makes(tmp_path / "b", made), "2@0", workdir=tmp_path / "b", max_compute=3)


@pytest.mark.parametrize("schedule", ["2@0,4@8,8@30", "auto"])
def test_killed_anywhere_it_ends_with_the_same_logs(tmp_path, schedule):
    """Killed within steps, between trainers and after the last checkpoint; TRL saves every third step."""
    how = {"max_steps": 12 if schedule != "auto" else 80, "save_steps": 3, "reward": lambda step, n: (0.01 * step, 0.5)}
    options = {"group_size": 2, "largest": 8}
    whole = tmp_path / "whole"
    train_in_segments(makes(whole, [], **how), schedule, workdir=whole, **options)
    assert len({line["group_size"] for line in logs_of(whole)[0]}) >= 2
    run, made = tmp_path / "run", []
    for dies_at in [1, 2, 5, 8, 12, 41, 80]:
        if dies_at <= how["max_steps"]:
            with pytest.raises(Killed):
                train_in_segments(makes(run, made, dies_at=dies_at, **how), schedule, workdir=run, **options)

    def refuses(n):
        raise Killed

    with pytest.raises(Killed):
        train_in_segments(refuses, schedule, workdir=run, **options)
    train_in_segments(makes(run, made, **how), schedule, workdir=run, **options)
    assert logs_of(run) == logs_of(whole)
    assert json.loads((run / "config.json").read_text()) == json.loads((whole / "config.json").read_text())
    (run / "DONE").unlink()  # killed between its last checkpoint and that
    assert train_in_segments(refuses, schedule, workdir=run, **options) is None and (run / "DONE").exists()


def test_held_out_problems_stand_in_the_order_of_their_set(tmp_path):
    run = tmp_path / "run"
    rates = [[0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]]
    train_in_segments(makes(run, [], held_out=lambda step: rates), "2@0", workdir=run)
    line = logs_of(run)[1][0]
    assert (line["solve_counts"], line["samples"], line["avg@4"], line["best@4"]) == ([1, 4, 2, 0], 4, 7 / 16, 0.75)
    parts = tmp_path / "parts"
    train_in_segments(makes(parts, [], held_out=lambda step: [[0.25, 0.5, 0, 0]] * 4), "2@0", workdir=parts)
    line = logs_of(parts)[1][0]  # partial rewards: no sample is right or wrong
    assert line["solve_counts"] == [0.75] * 4 and line["avg@4"] == 0.1875 and "best@4" not in line


def test_auto_reads_all_sets_of_an_evaluation_at_once(tmp_path):
    """Two sets, level both: n doubles once they are both there, and not at each."""
    run, made = tmp_path / "run", []
    make = makes(run, made, max_steps=36)

    def two_sets(n):
        trainer = make(n)
        trainer.eval_dataset = {"aime": HELD_OUT, "math_500": HELD_OUT}
        return trainer

    train_in_segments(two_sets, "auto", workdir=run, group_size=2, largest=8)
    metrics, evaluations = logs_of(run)
    assert [line["group_size"] for line in metrics] == [2] * 35 + [4]
    assert [line["eval_set"] for line in evaluations[:4]] == ["aime", "math_500"] * 2
    assert [line["step"] for line in evaluations] == [step for step in (*range(0, 36, 5), 36) for _ in range(2)]


def auto_run(run, made, **changes):
    """Held-out reward that stays level: n doubles at the first evaluation with 32 steps, whenever C has doubled."""
    how = {"max_steps": 140, **changes}
    train_in_segments(makes(run, made, **how), "auto", workdir=run, group_size=2, largest=8)


def test_auto_doubles_n_by_its_own_logs_and_the_command_says_the_same(tmp_path):
    made, run = [], tmp_path / "run"
    auto_run(run, made)
    metrics, evaluations = logs_of(run)
    changes = [
        (a["step"], b["group_size"]) for a, b in itertools.pairwise(metrics) if a["group_size"] != b["group_size"]
    ]
    assert changes == [(35, 4), (70, 8)] and LEAST_STEPS == 32
    decisions = [(line["step"], line["decision"]) for line in metrics if "decision" in line]
    assert [step for step, _ in decisions] == [36, 71]
    level = "held-out reward gained +0.000 since 60 rollouts (its error 0.000, at most 0.000 in a doubling)"
    assert decisions[0][1] == f"n 2 -> 4 at 140 rollouts: {level}"
    assert replay(Controller(2, 8), metrics, evaluations).group_size == 8
    done = mains.run("isocompute_jax.allocation", [f"--history={run}", "--largest=8"])
    *said, half, last = done.stdout.splitlines()
    assert half.startswith("validation, by the half of its problems that decides nothing: ")
    assert said == [decision for _, decision in decisions]
    assert last == "after step 140, 1,540 rollouts: n = 8 for the next batch, as in the last step"


def test_silent_groups_double_n_between_evaluations(tmp_path):
    made, run = [], tmp_path / "run"
    auto_run(run, made, reward=lambda step, n: (0.01, 0.95), max_steps=36, eval_steps=100)
    metrics, _ = logs_of(run)
    assert [line["group_size"] for line in metrics] == [2] * 32 + [4] * 4
    assert "of groups have a signal" in metrics[32]["decision"]


def test_the_fit_reads_it_as_a_scheduled_run(tmp_path):
    auto_run(tmp_path / "runs" / "auto", [])
    [curve], notes = read_curves([str(tmp_path / "runs")], ReadOptions())
    assert notes == Notes()
    assert (curve.run, curve.schedule, curve.facts.group_size, curve.facts.problem_set_size) == ("auto", "n auto", 2, 6)
    assert curve.group_sizes is not None and curve.group_sizes.tolist() == [[0, 2], [140, 4], [420, 8]]
    assert curve.compute[:2].tolist() == [0, 20] and curve.columns["avg@4"].tolist() == [0.25] * len(curve.compute)


@pytest.mark.parametrize(
    ("schedule", "changes", "message"),
    [
        ("2@0,4@8,8@4", {}, "schedule = '2@0,4@8,8@4' goes back in C"),
        ("1@0", {}, "schedule = '1@0': 1 must be at least 2"),
        ("theory", {}, "schedule = 'theory': give breakpoints such as 4@0,8@2048, or auto"),
        ("2@0", {"output_dir": "elsewhere"}, "output_dir is 'elsewhere'; set output_dir="),
        ("2@0", {"num_generations": 4}, r"make_trainer\(2\): num_generations is 4; set it to the n that is given"),
        ("2@0", {"save_only_model": True}, "lacks Adam's moments"),
        ("auto", {"eval_on_start": False}, "set eval_on_start=True"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, schedule, changes, message):
    with pytest.raises(InputError, match=message) as error:
        train_in_segments(makes(tmp_path, [], **changes), schedule, workdir=tmp_path, group_size=2)
    assert "\n" not in str(error.value)


def test_what_must_stay_from_trainer_to_trainer(tmp_path):
    def fewer_problems(n):
        return makes(tmp_path / "a", [], problems=2 if n == 2 else 1)(n)

    with pytest.raises(InputError, match=r"make_trainer\(4\): problems_per_batch is 1, and .*config.json has 2"):
        train_in_segments(fewer_problems, "2@0,4@8", workdir=tmp_path / "a")

    def more_samples(n):
        return makes(tmp_path / "b", [], num_generations_eval=2 * n, held_out=lambda step: [[0] * 2 * n] * 4)(n)

    with pytest.raises(InputError, match="had 4 samples of each problem, and now 8: set num_generations_eval"):
        train_in_segments(more_samples, "2@0,4@8", workdir=tmp_path / "b")

    def other_rate(n):
        return makes(tmp_path / "c", [], max_steps=12 if n == 2 else 24)(n)

    with pytest.raises(InputError, match=r"num_steps is 24, and .* has 12"):
        train_in_segments(other_rate, "2@0,4@8", workdir=tmp_path / "c")

    def refuses(n):
        raise ValueError(f"generation_batch_size (6) must be divisible by num_generations ({n}).")

    with pytest.raises(InputError, match=r"make_trainer\(4\) failed: .*divisible.*`batch_arguments` gives sizes"):
        train_in_segments(refuses, "4@0", workdir=tmp_path / "d")


def test_sizes_that_divide():
    assert batch_arguments(8, problems_per_batch=6, most_per_device=20) == {
        "num_generations": 8, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 3
    }  # fmt: skip
    found = batch_arguments(4, problems_per_batch=8, most_per_device=5, processes=4)
    assert (found["per_device_train_batch_size"], found["gradient_accumulation_steps"]) == (4, 2)
    with pytest.raises(InputError, match=r"3 problems x 4 rollouts cannot be shared by 8 processes: .* multiples of 2"):
        batch_arguments(4, problems_per_batch=3, most_per_device=5, processes=8)


REAL = """
import functools, json, os, sys
import torch, trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer
from isocompute_jax.allocation.trl import batch_arguments, train_in_segments

words = {"<pad>": 0, "<eos>": 1} | {str(i): i + 2 for i in range(10)}
raw = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>")
problems = Dataset.from_dict({"prompt": [str(i) for i in range(7)]})
drawn, restored = [], []


class Restored(TrainerCallback):
    # What the trainer goes on with, beside the checkpoint's files.
    def on_train_begin(self, args, state, control, model, optimizer, lr_scheduler, **kwargs):
        if not state.global_step:
            return
        folder = f"{args.output_dir}/checkpoint-{state.global_step}"
        saved = torch.load(f"{folder}/optimizer.pt")["state"]
        now = optimizer.state_dict()["state"]
        names = ("exp_avg", "exp_avg_sq", "step")
        moments = [torch.equal(now[i][name], saved[i][name]) for i in saved for name in names]
        moved = any(saved[i]["exp_avg_sq"].any() for i in saved)
        restored.append([state.global_step, args.num_generations, len(moments), all(moments), bool(moved),
                         lr_scheduler.last_epoch])


def model_of():
    set_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(
        vocab_size=12, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    ))


def make(workdir, n, reward, **changes):

    def noted(prompts, trainer_state, **kwargs):
        if trainer.model.training:
            drawn.append([trainer_state.global_step, sorted(set(prompts)), len(prompts)])
        return reward(prompts=prompts, **kwargs)

    args = GRPOConfig(**{
        "output_dir": f"{workdir}/checkpoints", "seed": 7, "max_completion_length": 2, "max_steps": 10,
        "learning_rate": 1e-2, "per_device_eval_batch_size": 14, "num_generations_eval": 2, "eval_strategy": "steps",
        "eval_steps": 4, "eval_on_start": True, "report_to": "none", "use_cpu": True, "bf16": False,
        "save_strategy": "no", "disable_tqdm": True,
        **batch_arguments(n, problems_per_batch=2, most_per_device=4), **changes,
    })
    trainer = GRPOTrainer(model=model_of(), reward_funcs=noted, args=args, processing_class=tokenizer,
                          train_dataset=problems, eval_dataset=problems, callbacks=[Restored()])
    return trainer


def even(completions, **kwargs):
    return [float(text[-1:] in "02468") for text in completions]


found = {}
schedule = "2@0,4@8,8@40"
train_in_segments(lambda n: make("whole", n, even), schedule, workdir="whole")
found["drawn"], found["restored"] = list(drawn), list(restored)

killed = []


def dies(n):
    if n == 4 and not killed:  # at the first switch
        killed.append(n)
        raise KeyboardInterrupt
    return make("killed", n, even)


try:
    train_in_segments(dies, schedule, workdir="killed")
except KeyboardInterrupt:
    train_in_segments(dies, schedule, workdir="killed")
found["killed"] = killed

drawn.clear()
make("plain", 2, even, eval_strategy="no", eval_on_start=False).train()
found["plain"] = list(drawn)

never = lambda completions, **kwargs: [0.0] * len(completions)
make_auto = lambda n: make("auto", n, never, max_steps=34, eval_steps=17)
train_in_segments(make_auto, workdir="auto", group_size=2, largest=4)

# The code of docs/other_trainers.md, on two steps of this model.
page = open(sys.argv[1]).read()
small = {"max_steps": 2, "max_completion_length": 2, "use_cpu": True, "bf16": False, "report_to": "none"}
trl.GRPOConfig = lambda **given: GRPOConfig(**given | small | {"disable_tqdm": True})
trl.GRPOTrainer = functools.partial(GRPOTrainer, processing_class=tokenizer)
names = {"MODEL": model_of(), "reward": even, "problems": problems, "held_out": problems}
exec(page.partition("```python excerpt")[2].partition("```")[0], names)
found["page"] = [names["trainer"].state.global_step, os.path.exists("model/config.json")]
json.dump(found, open("found.json", "w"))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL comes with `make setup-dev`")
def test_a_real_trainer_of_trl_changes_its_n(tmp_path):
    """Two switches in two and a half epochs of seven problems, killed at the first one too; then `auto`."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", REAL, str(mains.ROOT / "docs" / "other_trainers.md")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["page"] == [2, True] and [line["step"] for line in logs_of(tmp_path / "runs" / "grows")[1]] == [0, 2]
    metrics, evaluations = logs_of(tmp_path / "whole")
    assert [line["group_size"] for line in metrics] == [2] * 2 + [4] * 4 + [8] * 4
    # All moments of the checkpoint are back, to the bit, and the learning rate goes on.
    assert [(step, n) for step, n, *_ in found["restored"]] == [(2, 4), (6, 8)]
    for step, _, moments, equal, moved, scheduled in found["restored"]:
        assert moments > 30 and equal and moved and scheduled == step
    assert [line["learning_rate"] for line in metrics] == pytest.approx([0.001 * left for left in range(10, 0, -1)])
    # C is what the reward function was called with, and the problems come as in a run whose n stays.
    spent = np.cumsum([rollouts for _, _, rollouts in found["drawn"]])
    assert [line["compute"] for line in metrics] == spent.tolist()
    assert [(step, names) for step, names, _ in found["drawn"]] == [(step, names) for step, names, _ in found["plain"]]
    # What is logged of held-out problems has TRL's mean.
    state = json.loads((tmp_path / "whole" / "checkpoints" / "checkpoint-10" / "trainer_state.json").read_text())
    means = [line["eval_reward"] for line in state["log_history"] if "eval_reward" in line]
    assert [line["avg@2"] for line in evaluations] == pytest.approx(means)
    assert [line["step"] for line in evaluations] == [0, 4, 8, 10]
    assert found["killed"] == [4] and logs_of(tmp_path / "killed") == [metrics, evaluations]
    metrics, evaluations = logs_of(tmp_path / "auto")
    assert [line["group_size"] for line in metrics] == [2] * 32 + [4] * 2
    done = mains.run("isocompute_jax.allocation", [f"--history={tmp_path / 'auto'}", "--largest=4"])
    assert done.stdout.splitlines()[:-1] == [
        metrics[32]["decision"],
        "validation, by the half of its problems that decides nothing: 0.000 at first, 0.000 now",
    ]
