"""What one process is to run, and what it says of it: read and written by programs that share nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib

PHASES = ("sampling", "grading", "update")


@dataclasses.dataclass(frozen=True)
class Job:
    """A training run of `warmup` + `steps` GRPO steps on a checkpoint.

    Attributes:
      model: Hugging Face directory, tokenizer included.
      problems: JSONL with `prompt` and `answer`; a completion that equals the answer earns 1, any other 0.
      group_size: n.
      problems_per_batch: B_problem.
      max_prompt_tokens: longest prompt, in tokens.
      max_tokens: longest completion, in tokens.
      warmup: steps that are not timed: those that compile.
      steps: timed steps.
      directory: for what a run writes.
      passes: parts in which a peer computes a step's loss and gradient.
      devices: parts of the CPU that JAX is shown as a device each; torch has one device of as many threads.
    """

    model: str
    problems: str
    group_size: int
    problems_per_batch: int
    max_prompt_tokens: int
    max_tokens: int
    warmup: int
    steps: int
    directory: str
    passes: int = 1
    devices: int = 1

    @property
    def rollouts(self) -> int:
        return self.problems_per_batch * self.group_size

    def read_problems(self) -> list[dict[str, str]]:
        """The `prompt` and `answer` of each problem."""
        lines = pathlib.Path(self.problems).read_text(encoding="utf-8").splitlines()
        return [{name: row[name] for name in ("prompt", "answer")} for row in map(json.loads, lines)]


@dataclasses.dataclass(frozen=True)
class Timed:
    """The timed steps of a run.

    Attributes:
      step_s: seconds of each whole step.
      phase_s: seconds of its PHASES; what is left is neither.
      completion_tokens: mean length of a completion, in tokens.
      reward: mean reward.
      versions: of what ran.
    """

    step_s: list[float]
    phase_s: list[dict[str, float]]
    completion_tokens: float
    reward: float
    versions: str


def read_job(path: str) -> Job:
    return Job(**json.loads(pathlib.Path(path).read_text()))


def exact(completions: list[str], answers: list[str]) -> list[float]:
    """1 for a completion that is the answer, 0 for any other."""
    return [float(found == wanted) for found, wanted in zip(completions, answers, strict=True)]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
