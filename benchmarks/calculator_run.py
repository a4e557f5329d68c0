"""The base model, the problems and the run of `benchmarks.calculator`."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from benchmarks.taught import teach
from isocompute_jax.records.rollout import Problem


def prepare(out: pathlib.Path, *, digits: int, base_steps: int, calls: float, seed: int):
    """Tokenizer, problems and base model, unless they are there; returns rollouts -> the config of a run on them."""
    from isocompute_jax.experiment.config import EvaluationConfig, RecipeConfig, RunConfig, SamplingConfig, ToolConfig
    from isocompute_jax.learner import OptimizerConfig
    from isocompute_jax.tasks.embedded import LONGEST_ANSWER, make_sums

    prompt = call = 2 * digits + 2
    longest = 2 * call + LONGEST_ANSWER
    problems = make_sums(min(10 ** (2 * digits), 10_000), seed=seed, digits=digits)
    cut = len(problems) * 4 // 5
    teach(
        out,
        training=problems[:cut],
        held_out=problems[cut:][:100],
        teacher=Demonstrator(calls),
        steps=base_steps,
        prompt=prompt,
        longest=longest,
        seed=seed,
    )

    def config(rollouts: int) -> RunConfig:
        return RunConfig(
            model=str(out / "base"),
            train_set=str(out / "train.jsonl"),
            group_size=8,
            problems_per_batch=8,
            max_compute=rollouts,
            seed=seed,
            sampling=SamplingConfig(
                max_prompt_tokens=prompt,
                max_tokens=longest,
                tool=ToolConfig(name="calculator", calls=1, call_tokens=call),
            ),
            recipe=RecipeConfig(healthy="none", microbatch_tokens=1024),
            optimizer=OptimizerConfig(base_lr=2.5e-4, base_batch=64, lr_scaling_exponent=0.0),
            evaluation=EvaluationConfig(
                sets={"validation": str(out / "validation.jsonl")}, samples=4, points=6, first_compute=1024
            ),
        )

    return config


class Demonstrator:
    """Who teaches a base model: sometimes it calls the calculator, else it guesses a number.

    Args:
      calls: share of its demonstrations that call, in [0, 1].
    """

    def __init__(self, calls: float):
        self.calls = calls

    def answers(self, problems: Sequence[Problem], rng: np.random.Generator) -> list[str]:
        """One demonstration per problem, drawn anew at each call; the calculator's answers stand in it."""
        calling = rng.random(len(problems)) < self.calls
        guesses = rng.permutation([problem.answer for problem in problems]).tolist()  # right ones, of others
        return [
            f"{problem.text.removesuffix(',')}={problem.answer},{problem.answer}" if calls else guess
            for problem, calls, guess in zip(problems, calling, guesses, strict=True)
        ]
