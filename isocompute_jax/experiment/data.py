"""A run's problems: sets, and the stream that is shuffled anew every epoch; checkpointable, no batch with repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import grain

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import Prompts, Tokenizer, read_problems


class ProblemStream(Iterator[list[Problem]]):
    """Batches of B_problem distinct problems, for ever; the order depends on the seed alone.

    Batches do not straddle epochs: a problem twice in one step would be drawn with the same random numbers twice.
    What an epoch leaves over is left out of it, another remainder in every epoch.
    """

    def __init__(self, problems: Sequence[Problem], *, problems_per_batch: int, seed: int):
        if problems_per_batch > len(problems):
            raise InputError(
                f"config.problems_per_batch = {problems_per_batch}, but the training set has only {len(problems)} "
                "problems: lower problems_per_batch or train on more problems"
            )
        dataset = (
            grain.MapDataset.source(list(problems))
            .seed(seed)
            .shuffle()
            .batch(problems_per_batch, drop_remainder=True, batch_fn=list)
            .repeat()
        )
        self._iterator = iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))

    def __next__(self) -> list[Problem]:
        return next(self._iterator)

    def get_state(self) -> dict[str, Any]:
        """JSON-able position."""
        return self._iterator.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a position that `get_state` gave."""
        self._iterator.set_state(state)


def load_problems(path: str, size: int = 0) -> list[Problem]:
    """The first `size` problems of a file (0: all of them)."""
    problems = read_problems(path)
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
