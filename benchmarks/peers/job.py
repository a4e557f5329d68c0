"""What one process is to run, and what it says of it: read and written by programs that share nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib

PHASES = ("sampling", "grading", "update")


@dataclasses.dataclass(frozen=True)
class Job:
    """A training run of `warmup` + `steps` GRPO steps on a checkpoint."""

    model: str  # Hugging Face directory, tokenizer included
    problems: str  # JSONL with `prompt` and `answer`; a completion that equals the answer earns 1, any other 0
    group_size: int  # n
    problems_per_batch: int  # B_problem
    max_prompt_tokens: int  # longest prompt, in tokens
    max_tokens: int  # longest completion, in tokens
    warmup: int  # steps that are not timed: those that compile
    steps: int  # timed steps
    directory: str  # for what a run writes
    passes: int = 1  # parts in which a peer computes a step's loss and gradient
    dtype: str = "float32"  # of products; weights too in the peers, while ours keeps them in float32
    devices: int = 1  # parts of the CPU that JAX is shown as a device each; torch has one device of as many threads

    @property
    def rollouts(self) -> int:
        return self.problems_per_batch * self.group_size

    def read_problems(self) -> list[dict[str, str]]:
        """The `prompt` and `answer` of each problem."""
        lines = pathlib.Path(self.problems).read_text(encoding="utf-8").splitlines()
        return [{name: row[name] for name in ("prompt", "answer")} for row in map(json.loads, lines)]


@dataclasses.dataclass(frozen=True)
class Timed:
    """The timed steps of a run."""

    step_s: list[float]  # seconds of each whole step
    phase_s: list[dict[str, float]]  # seconds of its PHASES; what is left is neither
    completion_tokens: float  # mean length of a completion, in tokens
    reward: float  # mean reward
    versions: str  # of what ran


def read_job(path: str) -> Job:
    return Job(**json.loads(pathlib.Path(path).read_text()))


def exact(completions: list[str], answers: list[str]) -> list[float]:
    """1 for a completion that is the answer, 0 for any other."""
    return [float(found == wanted) for found, wanted in zip(completions, answers, strict=True)]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
