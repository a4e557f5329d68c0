"""The base model, the games and the run of `benchmarks.number_hunt`."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from isocompute_jax.records.rollout import Problem


def prepare(out: pathlib.Path, *, largest: int, guesses: int, base_steps: int, seed: int):
    """Tokenizer, games and base model, unless they are there; returns rollouts -> the config of a run on them."""
    from isocompute_jax.environments.config import EnvironmentConfig
    from isocompute_jax.environments.number_hunt import NumberHunt
    from isocompute_jax.experiment.config import EvaluationConfig, RecipeConfig, RunConfig, SamplingConfig
    from isocompute_jax.learner import OptimizerConfig
    from isocompute_jax.study.base_model import BaseModelConfig, train_base_model
    from isocompute_jax.tasks import load_tokenizer, save_arithmetic_tokenizer, write_problems

    digits = len(str(largest))
    prompt, turn = digits + 3, digits + 1
    longest = guesses * (turn + 1)
    game = NumberHunt(largest, guesses)
    if not (out / "base" / "config.json").exists():
        save_arithmetic_tokenizer(out / "tokenizer")
        write_problems(out / "train.jsonl", game.problems(1000, seed))
        write_problems(out / "validation.jsonl", game.problems(200, seed + 1))
        train_base_model(
            out / "base",
            BaseModelConfig(
                steps=base_steps,
                warmup_steps=base_steps // 10,
                max_prompt_tokens=prompt,
                max_tokens=longest,
                seed=seed,
            ),
            problems=game.problems(1000, seed),
            teacher=BlindPlayer(largest, guesses),
            tokenizer=load_tokenizer(out / "tokenizer"),
            tokenizer_directory=out / "tokenizer",
        )

    def config(rollouts: int) -> RunConfig:
        return RunConfig(
            model=str(out / "base"),
            train_set=str(out / "train.jsonl"),
            group_size=16,
            problems_per_batch=16,
            max_compute=rollouts,
            seed=seed,
            sampling=SamplingConfig(max_prompt_tokens=prompt, max_tokens=longest),
            environment=EnvironmentConfig(
                name="number_hunt",
                options={"largest": largest, "guesses": guesses},
                turns=guesses,
                turn_tokens=turn,
                observation_tokens=1,
                stop=("=",),
            ),
            recipe=RecipeConfig(healthy="none", microbatch_tokens=1024),
            optimizer=OptimizerConfig(base_lr=1e-3, base_batch=256, lr_scaling_exponent=0.0),
            evaluation=EvaluationConfig(
                sets={"validation": str(out / "validation.jsonl")}, samples=4, points=8, first_compute=1024
            ),
        )

    return config


class BlindPlayer:
    """Who teaches a base model how the game is written: its guesses heed no answer, and neither do the answers.

    Args:
      largest, guesses: of the game.
    """

    def __init__(self, largest: int, guesses: int):
        self.largest = largest
        self.guesses = guesses

    def answers(self, problems: Sequence[Problem], rng: np.random.Generator) -> list[str]:
        """A game that is played to its end for each problem, drawn anew at each call."""
        return [
            "".join(f"{guess}={rng.choice(['+', '-'])}" for guess in rng.integers(0, self.largest + 1, self.guesses))
            .removesuffix("+")
            .removesuffix("-")
            for _ in problems
        ]
