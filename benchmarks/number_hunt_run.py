"""The base model, the games and the run of `benchmarks.number_hunt`."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from benchmarks.taught import teach
from isocompute_jax.records.rollout import Problem


def prepare(out: pathlib.Path, *, largest: int, guesses: int, base_steps: int, seed: int):
    """Tokenizer, games and base model, unless they are there; returns rollouts -> the config of a run on them."""
    from isocompute_jax.environments.config import EnvironmentConfig
    from isocompute_jax.environments.number_hunt import NumberHunt
    from isocompute_jax.experiment.config import EvaluationConfig, RecipeConfig, RunConfig, SamplingConfig
    from isocompute_jax.learner import OptimizerConfig

    digits = len(str(largest))
    prompt, turn = digits + 3, digits + 1
    longest = guesses * (turn + 1)
    game = NumberHunt(largest, guesses)
    teach(
        out,
        training=game.problems(1000, seed),
        held_out=game.problems(200, seed + 1),
        teacher=BlindPlayer(largest, guesses),
        steps=base_steps,
        prompt=prompt,
        longest=longest,
        seed=seed,
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
