"""A run of TRL's GRPOTrainer whose n changes: a trainer ends at a switch, the next goes on from its checkpoint.

    def make_trainer(group_size):
        sizes = batch_arguments(group_size, problems_per_batch=8, most_per_device=32)
        args = GRPOConfig(output_dir="runs/a/checkpoints", **sizes, ...)
        return GRPOTrainer(model="Qwen/Qwen3-0.6B", args=args, ...)

    trainer = train_in_segments(make_trainer, "4@0,8@2048", workdir="runs/a")

TRL has one `num_generations` for a trainer's life, so a run is a chain of them. A callback counts C, the rollouts that
training drew, writes metrics.jsonl and eval.jsonl as runs of this package have them, and at a switch has the trainer
save and end. Weights, moments, the learning rate's schedule, the step and the position in the data come back by TRL's
own `resume_from_checkpoint`, with one correction (`_go_on_in_data`). Which n comes next is a pure function of the
logged lines up to a checkpoint: a script that was killed anywhere, and is started again, takes the last checkpoint and
cuts the logs back to it.

Neither TRL nor torch is imported here: the trainer that `make_trainer` returns is all that is needed. Of its methods
`_calculate_rewards` and `_get_eval_sampler` are used for the reward of each held-out problem, of which TRL logs the
mean alone, and `_get_train_sampler` for the order of the problems. Tested with TRL 1.16.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from isocompute_jax.allocation.auto import Controller, replay
from isocompute_jax.allocation.history import SET, evaluation_line
from isocompute_jax.allocation.schedule import ScheduleConfig, Sizes
from isocompute_jax.records.errors import InputError, fields_called
from isocompute_jax.records.identity import IDENTITY, SCHEDULE
from isocompute_jax.records.run_files import (
    CHECKPOINTS,
    CONFIG,
    DONE,
    EVAL,
    METRICS,
    append_line,
    check_links,
    cut_back,
    read_lines,
    write_atomic,
)

STATE = "trainer_state.json"
"""What TRL's Trainer writes last into a checkpoint, moments before it."""
IDENTIFYING = (
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "max_grad_norm", "weight_decay", "num_iterations"),
    *("beta", "epsilon", "epsilon_high", "delta", "loss_type", "scale_rewards", "temperature", "top_p", "top_k"),
    *("max_completion_length", "importance_sampling_level", "mask_truncated_completions"),
)
"""Fields of a GRPOConfig that tell runs apart, where it has them."""
LOGGED = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "entropy": "entropy",
    "kl": "kl",
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "truncation_rate",
}
"""Of TRL's logs -> our columns."""


def batch_arguments(
    group_size: int, *, problems_per_batch: int, most_per_device: int, processes: int = 1
) -> dict[str, int]:
    """Arguments of a GRPOConfig whose step draws n rollouts of each of P problems: P stays as n grows.

    Args:
      group_size: n.
      problems_per_batch: P.
      most_per_device: rollouts that a device holds at once; the largest divisor up to it is taken.
      processes: that train.

    Returns:
      num_generations, per_device_train_batch_size and gradient_accumulation_steps.

    Raises:
      InputError: n x P is no multiple of the processes.
    """
    each, rest = divmod(group_size * problems_per_batch, processes)
    if rest:
        raise InputError(
            f"{problems_per_batch} problems x {group_size} rollouts cannot be shared by {processes} processes: take "
            f"problems_per_batch from the multiples of {processes // math.gcd(group_size, processes)}"
        )
    size = max(size for size in range(1, min(each, most_per_device) + 1) if each % size == 0)
    return {
        "num_generations": group_size,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": each // size,
    }


def train_in_segments(
    make_trainer: Callable[[int], Any],
    schedule: str = "auto",
    *,
    workdir: str | os.PathLike[str],
    group_size: int = 4,
    largest: int = 256,
    max_compute: int | None = None,
) -> Any:
    """Trains, with a new trainer from the last one's checkpoint wherever n changes; goes on where it was interrupted.

    Args:
      make_trainer: n -> a GRPOTrainer with `num_generations=n` and as many problems a batch as before, whose
        output_dir is WORKDIR/checkpoints. Called once for each n, it makes dataset, seed and max_steps the same again.
      schedule: n as a function of C: breakpoints such as `4@0,8@2048`, or `auto` (docs/allocation.md).
      workdir: the run's directory; it gets config.json, metrics.jsonl and eval.jsonl.
      group_size: n that `auto` begins with.
      largest: n that `auto` comes to at most.
      max_compute: C at which the run ends, at the last whole batch; None for the trainer's own `max_steps` or epochs.

    Returns:
      The last trainer; None for a run that was finished before.

    Raises:
      InputError: a schedule that says nothing, a trainer with another n, other batches or other checkpoints than it
        should have, or a workdir of another run.
    """
    run = _Run(pathlib.Path(workdir), schedule, group_size, largest, max_compute)
    run.workdir.mkdir(parents=True, exist_ok=True)
    check_links(run.workdir)
    while not (run.workdir / DONE).exists():
        checkpoint, step = last_checkpoint(run.workdir / CHECKPOINTS)
        segment = _Segment(run, step)
        if segment.is_over():  # killed after its last checkpoint
            write_atomic(run.workdir / DONE, "")
            return None
        trainer = _made(make_trainer, segment)
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.accelerator.wait_for_everyone()  # the main process has written its lines, and the checkpoint
        if segment.is_last:
            if trainer.is_world_process_zero():
                write_atomic(run.workdir / DONE, "")
            return trainer
        trainer.accelerator.free_memory()
        del trainer, segment
        gc.collect()
    return None


def _made(make_trainer: Callable[[int], Any], segment: _Segment) -> Any:
    """The trainer of a segment, watched by it."""
    n = segment.group_size
    try:
        trainer = make_trainer(n)
    except InputError:
        raise
    except ValueError as error:  # a GRPOConfig's, of sizes that do not divide
        raise InputError(f"make_trainer({n}) failed: {error} (`batch_arguments` gives sizes that divide)") from error
    segment.watch(trainer)
    return trainer


def last_checkpoint(folder: pathlib.Path) -> tuple[str | None, int]:
    """The newest whole checkpoint of a trainer and its step; None and 0 where there is none."""
    states = folder.glob(f"checkpoint-[0-9]*/{STATE}")
    found = {int(state.parent.name.rpartition("-")[2]): state.parent for state in states}
    return (str(found[max(found)]), max(found)) if found else (None, 0)


@dataclasses.dataclass(frozen=True)
class _Run:
    """What is asked for."""

    workdir: pathlib.Path
    schedule: str
    first: int  # n that `auto` begins with
    largest: int
    max_compute: int | None

    def __post_init__(self) -> None:
        if self.kind not in ("breakpoints", "auto"):
            raise InputError(
                f"schedule = {self.schedule!r}: give breakpoints such as 4@0,8@2048, or auto; "
                "`allocation.schedule.optimal_group_sizes` reads breakpoints from a fit's summary.json"
            )

    @property
    def _config(self) -> ScheduleConfig:
        with fields_called("", {"group_size": "schedule"}):
            return ScheduleConfig(group_size=self.schedule, largest=self.largest)

    @property
    def kind(self) -> str:
        return self._config.kind

    @property
    def sizes(self) -> Sizes:
        return self._config.sizes(self.first, 1)


class _Segment:
    """The life of one trainer, as its callback: from a checkpoint to the next switch, or to the end.

    Every process decides, from the same numbers, since all have to stop at the same step; the main one writes.
    """

    def __init__(self, run: _Run, step: int):
        """Reads what the logs have up to `step`, and chooses n from it."""
        self._run, self._sizes, self._begun = run, run.sizes, step
        logs = [read_lines(run.workdir / name, partial_last_line=True) for name in (METRICS, EVAL)]
        lines, self._evaluations = ([line for line in log if line["step"] <= step] for log in logs)
        last = lines[-1] if lines else {"step": 0, "compute": 0, "wall_s": 0.0}
        if last["step"] != step:
            raise InputError(
                f"{run.workdir}: its last checkpoint is of step {step}, and {METRICS} ends at step {last['step']}: "
                "remove checkpoints of other runs, or give another workdir"
            )
        self._written = json.loads((run.workdir / CONFIG).read_text(encoding="utf-8")) if step else {}
        self._compute_before, self._wall_s, self._since = int(last["compute"]), float(last["wall_s"]), time.monotonic()
        self._compute = self._compute_before
        self._controller: Controller | None = None
        if run.kind == "auto":
            self._controller = replay(Controller(run.first, run.largest), lines, self._evaluations)
        self.group_size = self._next
        self.is_last = False
        self._whole = True  # whether all that was drawn has been trained on
        self._drawn = {"reward": 0.0, "zero_variance_share": 1.0}  # of the last batch with a reward
        self._rewards: list[float] = []  # of held-out rollouts, since the last evaluation
        self._lines: dict[str, dict[str, Any]] = {}  # of this step's evaluation, until every set has its own

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None  # the trainer's other events

    @property
    def _next(self) -> int:
        """n of a batch that is begun now."""
        return self._controller.group_size if self._controller else self._sizes.at(self._compute).group_size

    def is_over(self) -> bool:
        """Whether the run had made its last step when it was ended."""
        return bool(self._written) and (self._begun >= self._written["num_steps"] or self._is_spent())

    def _is_spent(self) -> bool:
        """Whether no further batch fits into max_compute."""
        problems = self._written["problems_per_batch"]
        most = self._run.max_compute
        return most is not None and self._compute + problems * self._next > most

    def watch(self, trainer: Any) -> None:
        """Takes the trainer of this segment, if it is what it should be."""
        if not hasattr(trainer, "_calculate_rewards"):
            raise InputError(f"make_trainer returned a {type(trainer).__name__}, which is no GRPOTrainer of TRL 1")
        args, checkpoints = trainer.args, self._run.workdir / CHECKPOINTS
        if os.path.realpath(args.output_dir) != os.path.realpath(checkpoints):
            raise InputError(f"make_trainer: output_dir is {args.output_dir!r}; set output_dir={str(checkpoints)!r}")
        if args.num_generations != self.group_size:
            raise InputError(
                f"make_trainer({self.group_size}): num_generations is {args.num_generations}; set it to the n that is "
                "given"
            )
        if args.save_only_model or args.save_strategy == "best":
            raise InputError(
                "make_trainer: with save_only_model a checkpoint lacks Adam's moments, with save_strategy='best' there "
                "is none at a switch; set neither"
            )
        if self._begun:
            args.eval_on_start = False  # that evaluation is logged
        elif self._controller and not (args.eval_on_start and trainer.eval_dataset is not None):
            raise InputError(
                "schedule = 'auto' compares evaluations with the base model's: give the trainer an eval_dataset, and "
                "set eval_on_start=True"
            )
        self._trainer = trainer
        self._record_rewards()
        self._go_on_in_data()
        trainer.add_callback(self)

    def _record_rewards(self) -> None:
        """Notes the rewards of held-out rollouts, which TRL's logs only have the mean of."""
        trainer = self._trainer
        weights, calculate = np.array(trainer.reward_weights.tolist()), trainer._calculate_rewards

        def recorded(*args: Any, **kwargs: Any) -> Any:
            rewards = calculate(*args, **kwargs)  # [rollouts, functions], those of all processes
            if not trainer.model.training:
                values = np.array(rewards.tolist(), dtype=np.float64)  # NaN where a function gives none
                self._rewards += (np.nan_to_num(values) @ weights).tolist()
            return rewards

        trainer._calculate_rewards = recorded

    def _go_on_in_data(self) -> None:
        """Has a later epoch's order of the problems be that of a trainer that was never ended.

        TRL skips what an epoch has used, but its sampler begins again from the seed: a trainer that goes on in the
        second epoch has the first one's order, so that some problems come twice in it and others not at all.
        """
        trainer, sampler_of = self._trainer, self._trainer._get_train_sampler

        def advanced(*args: Any, **kwargs: Any) -> Any:
            sampler = sampler_of(*args, **kwargs)
            batches = len(sampler) // trainer.args.generation_batch_size
            steps_per_epoch = max(-(-batches // trainer.args.gradient_accumulation_steps), 1)
            for _ in range(self._begun // steps_per_epoch):
                next(iter(sampler), None)  # draws one epoch's order
            return sampler

        trainer._get_train_sampler = advanced

    def _facts(self, num_steps: int) -> dict[str, Any]:
        """What config.json says of the run, and all segments share."""
        trainer, args = self._trainer, self._trainer.args
        fields = {name: getattr(args, name) for name in IDENTIFYING if hasattr(args, name)}
        return {
            "group_size": self._sizes.at(0).group_size,
            "problems_per_batch": args.generation_batch_size // args.num_generations,
            "num_steps": num_steps,
            "problem_set_size": len(trainer.train_dataset) if hasattr(trainer.train_dataset, "__len__") else 0,
            "model_params": sum(weights.numel() for weights in trainer.model.parameters()),
            "seed": args.seed,
            SCHEDULE: f"n {self._run.schedule}",
            "updates_per_batch": args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps,
            IDENTITY: {"trainer": "trl", **json.loads(json.dumps(fields))},
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Writes config.json, or holds the segment to it; cuts the logs back to the checkpoint."""
        del args, control, kwargs
        path, facts = self._run.workdir / CONFIG, self._facts(state.max_steps)
        for name, value in facts.items() if self._begun else ():
            if self._written.get(name) != value:
                raise InputError(
                    f"make_trainer({self.group_size}): {name} is {value!r}, and {path} has "
                    f"{self._written.get(name)!r}: a run changes n alone (`batch_arguments` keeps the problems of a "
                    "batch); take another workdir for another run"
                )
        self._written = facts
        if self._is_spent():
            raise InputError(f"max_compute = {self._run.max_compute}: a first batch has more rollouts")
        if state.is_world_process_zero:
            write_atomic(path, json.dumps(facts, indent=2) + "\n")
            for name in (METRICS, EVAL):
                cut_back(self._run.workdir / name, step=self._begun)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Books what was drawn; has every step logged."""
        del kwargs
        micro_batches = (state.global_step - self._begun) * args.gradient_accumulation_steps
        draws, rest = divmod(micro_batches, args.steps_per_generation * args.num_iterations)
        self._whole = rest == 0
        self._compute = self._compute_before + (draws + (rest > 0)) * args.generation_batch_size
        control.should_log = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """The line of a step; what is logged of an evaluation, or at the end, has no `loss`."""
        del kwargs
        logs = {name: value for name, value in (logs or {}).items() if _is_finite(value)}
        if "loss" not in logs:
            return
        if "reward" in logs:  # a batch that serves several steps is logged at its first
            self._drawn = {"reward": logs["reward"], "zero_variance_share": logs["frac_reward_zero_std"]}
        line = self._line(args, state) | self._drawn
        line |= {"group_size": self.group_size, "problems_per_batch": self._written["problems_per_batch"]}
        line |= {ours: logs[theirs] for theirs, ours in LOGGED.items() if theirs in logs}
        if self._controller:
            line |= {"decision": self._controller.decision} if self._controller.decision else {}
            self._controller = self._controller.after_step(line)
        self._write(METRICS, line, state)
        self._end_if_due(args, state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any], **kwargs: Any) -> None:
        """The line of one set's evaluation; when every set has its own, the rule reads them."""
        del kwargs
        rewards, self._rewards = self._rewards, []
        sets = self._trainer.eval_dataset
        sets = sets if isinstance(sets, dict) else {SET: sets}
        [clock] = [key for key in metrics if key.endswith("_runtime")]  # eval_runtime, or eval_SET_runtime
        name = clock.removeprefix("eval_").removesuffix("runtime").removesuffix("_") or SET
        if any((line["step"], line["eval_set"]) == (state.global_step, name) for line in self._evaluations):
            return
        problems = self._by_problem(sets[name], rewards, name)
        found = evaluation_line(step=state.global_step, compute=self._compute, rewards=problems, name=name)
        line = self._line(args, state) | found
        self._write(EVAL, line, state)
        self._evaluations.append(line)
        self._lines[name] = line
        if len(self._lines) < len(sets):
            return
        lines, self._lines = list(self._lines.values()), {}
        self._controller = self._controller and self._controller.after_evaluation(lines)
        if state.global_step > self._begun:
            self._end_if_due(args, state, control)

    def _by_problem(self, dataset: Any, rewards: list[float], name: str) -> list[list[float]]:
        """[P] of [k]: each problem's rewards, in the order of the data set; TRL evaluates in another, which stays."""
        k = self._trainer.num_generations_eval
        before = {line["samples"] for line in self._evaluations if line["eval_set"] == name} - {k}
        if before:
            raise InputError(
                f"evaluations of {name} had {before.pop()} samples of each problem, and now {k}: set "
                "num_generations_eval, which is else the n of training"
            )
        order = list(self._trainer._get_eval_sampler(dataset))[::k]
        if len(rewards) < k * len(order):
            raise InputError(
                f"an evaluation of {name} has {len(rewards)} rewards, and {len(order)} problems have {k} each: leave "
                "dataloader_drop_last unset"
            )
        found = np.array(rewards[: k * len(order)]).reshape(-1, k)  # processes may repeat some to fill their last batch
        return found[np.argsort(order)].tolist()

    def _end_if_due(self, args: Any, state: Any, control: Any) -> None:
        """Has the trainer save and stop where the run ends, or the next batch has another n."""
        spent = self._whole and self._is_spent()
        if spent or state.global_step >= state.max_steps:
            self.is_last = control.should_training_stop = control.should_save = True
            control.should_evaluate = args.eval_strategy != "no" and not self._is_evaluated(state.global_step)
        elif self._whole and self._next != self.group_size:
            control.should_training_stop = control.should_save = True

    def _is_evaluated(self, step: int) -> bool:
        return bool(self._evaluations) and self._evaluations[-1]["step"] == step

    def _line(self, args: Any, state: Any) -> dict[str, Any]:
        """What every line begins with."""
        wall_s = self._wall_s + time.monotonic() - self._since
        return {
            "step": state.global_step,
            "compute": self._compute,
            "tokens": int(state.num_input_tokens_seen),
            "wall_s": wall_s,
            "device_hours": wall_s * args.world_size / 3600,
        }

    def _write(self, name: str, line: dict[str, Any], state: Any) -> None:
        if state.is_world_process_zero:
            append_line(self._run.workdir / name, line)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
