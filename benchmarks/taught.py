"""What `benchmarks.calculator` and `benchmarks.number_hunt` have in common: a tiny base model that is shown a task."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from isocompute_jax.records.rollout import Problem


def teach(
    out: pathlib.Path,
    *,
    training: Sequence[Problem],
    held_out: Sequence[Problem],
    teacher: Any,
    steps: int,
    prompt: int,
    longest: int,
    seed: int,
) -> None:
    """Tokenizer, problems and a base model that was shown a teacher's answers, unless they are there.

    `prompt` and `longest` are the longest prompt and answer, in tokens.
    """
    from isocompute_jax.study.base_model import BaseModelConfig, train_base_model
    from isocompute_jax.tasks import load_tokenizer, save_arithmetic_tokenizer, write_problems

    if (out / "base" / "config.json").exists():
        return
    save_arithmetic_tokenizer(out / "tokenizer")
    write_problems(out / "train.jsonl", training)
    write_problems(out / "validation.jsonl", held_out)
    train_base_model(
        out / "base",
        BaseModelConfig(steps=steps, warmup_steps=steps // 10, max_prompt_tokens=prompt, max_tokens=longest, seed=seed),
        problems=training,
        teacher=teacher,
        tokenizer=load_tokenizer(out / "tokenizer"),
        tokenizer_directory=out / "tokenizer",
    )
