"""A run's problems: read from their files, and checked against its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import Prompts, Tokenizer, read_problems


def load_problems(path: str, size: int = 0, *, grader_name: Callable[[str], str]) -> list[Problem]:
    """The first `size` problems of a file (0: all of them); `grader_name` as in `tasks.read_problems`."""
    problems = read_problems(path, grader_name=grader_name)
    if size > len(problems):
        raise InputError(f"config.problem_set_size = {size}, but {path} has only {len(problems)} problems")
    return problems[:size] if size else problems


def check_vocabulary(model_directory: str, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raises InputError for a tokenizer with ids that the model has no embedding for: they would be read as others."""
    if tokenizer.vocab_size > vocab_size:
        raise InputError(
            f"{model_directory}: the tokenizer has token ids up to {tokenizer.vocab_size - 1}, and the model embeds "
            f"vocab_size = {vocab_size} of them: take the tokenizer that the model was trained with"
        )


def check_prompts(sets: Sequence[Sequence[Problem]], prompts: Prompts, config: RunConfig) -> None:
    """Renders and encodes all prompts, once for the run.

    Raises:
      InputError: a prompt cannot be rendered, or not be sampled from; now, and not in the step that meets it.
    """
    limit = config.sampling.max_prompt_tokens
    for problems in sets:
        for problem, prompt in zip(problems, prompts.remember(problems), strict=True):
            if not 1 <= len(prompt) <= limit:
                raise InputError(
                    f"problem {problem.id!r}: its prompt has {len(prompt)} tokens, and between 1 and "
                    f"config.sampling.max_prompt_tokens = {limit} are possible: raise it, or leave the problem out"
                )
