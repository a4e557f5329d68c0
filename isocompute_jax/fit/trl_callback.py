"""A callback for TRL: evaluations become rows of one table, and the answer so far is printed as runs go."""

from __future__ import annotations

import csv
import fcntl
import math
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any


class CurveCallback:
    """Appends every evaluation of a run to a CSV that all runs share; prints the answer and which runs to add next.

        GRPOTrainer(..., args=GRPOConfig(..., eval_strategy="steps"), callbacks=[CurveCallback("curves.csv")])

    Compute is what was sampled for training: TRL draws `generation_batch_size` rollouts every `steps_per_generation` x
    `num_iterations` micro-batches. The fit is `python -m isocompute_jax.fit` in a process of its own, on the CPU: it
    neither takes the trainer's memory nor can break it. While one is under way, no other is started.

    Args:
      path: the CSV; its report lies beside it, in PATH.report/.
      *flags: of the fit, such as "--budget=1e6", "--next=0" or "--reward_range=-1,1".
      metric: what TRL calls the reward, such as `eval_rewards/accuracy_reward/mean`.
    """

    def __init__(self, path: str | os.PathLike[str], *flags: str, metric: str = "eval_reward") -> None:
        self._path, self._metric = pathlib.Path(path), metric
        command = [sys.executable, "-m", "isocompute_jax.fit", f"--runs={path}", f"--out={path}.report"]
        self._command = [*command, f"--metric={metric}", "--next=3", *flags]
        self._fit: subprocess.Popen[bytes] | None = None
        self._unfitted = False

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None  # the trainer's other events

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Takes an evaluation; the other logs of a trainer lack the metric."""
        del control, kwargs
        reward = (logs or {}).get(self._metric)
        if reward is None or not state.is_world_process_zero:
            return
        micro_batches = state.global_step * args.gradient_accumulation_steps
        batches = math.ceil(micro_batches / (args.steps_per_generation * args.num_iterations))
        self._append({
            "run": args.run_name or pathlib.Path(args.output_dir).name,
            "group_size": args.num_generations,
            "problems_per_batch": args.generation_batch_size // args.num_generations,
            "seed": args.seed,
            "step": state.global_step,
            "compute": batches * args.generation_batch_size,
            "tokens": state.num_input_tokens_seen,
            self._metric: reward,
        })  # fmt: skip
        self._unfitted = True
        if self._fit is None or self._fit.poll() is not None:
            self._start()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Waits for the answer that all evaluations give."""
        del args, control, kwargs
        if state.is_world_process_zero and self._fit is not None:
            self._fit.wait()
            if self._unfitted:
                self._start().wait()

    def _append(self, row: dict[str, Any]) -> None:
        with open(self._path, "a", newline="", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # runs side by side: one header, whole rows
            file.seek(0, os.SEEK_END)
            writer = csv.DictWriter(file, row)
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)

    def _start(self) -> subprocess.Popen[bytes]:
        self._unfitted = False
        self._fit = subprocess.Popen(self._command, env=os.environ | {"JAX_PLATFORMS": "cpu"})
        return self._fit
