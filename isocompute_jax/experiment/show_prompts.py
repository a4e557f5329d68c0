"""Prompts as the model reads them, for a look before anything is sampled."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.data import load_problems
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import PromptConfig, Prompts, Tokenizer, load_tokenizer

ENDS = 8
"""Ids that are shown of either end of a prompt."""


def show_prompts_of_run(config: RunConfig, count: int) -> str:
    """The first prompts of a run's training set.

    Raises:
      InputError: names the file or field at fault.
    """
    config = config.resolved()
    problems = load_problems(config.train_set, config.problem_set_size, grader_name=config.reward.name_for)[:count]
    return show_prompts(problems, config.model, config.prompts, limit=config.sampling.max_prompt_tokens)


def show_prompts(problems: Sequence[Problem], model_directory: str, config: PromptConfig, *, limit: int) -> str:
    """What the model reads of each problem.

    The text is decoded from the very ids that are sampled from, special tokens included; each line stands behind a bar,
    and an arrow marks where it breaks, so that white space at the ends is seen.

    Args:
      problems: the problems.
      model_directory: its tokenizer, and chat template, are used.
      config: how prompts are rendered.
      limit: longest prompt that can be sampled from, in tokens.

    Raises:
      InputError: a prompt cannot be rendered; names the problem and what to do.
    """
    tokenizer = load_tokenizer(model_directory)
    encoded = Prompts(tokenizer, config).encode(problems)
    return "\n".join(_shown(problem, ids, tokenizer, limit) for problem, ids in zip(problems, encoded, strict=True))


def _shown(problem: Problem, ids: np.ndarray, tokenizer: Tokenizer, limit: int) -> str:
    text = tokenizer.backend.decode(ids.tolist(), skip_special_tokens=False)
    too_long = f": too long, max_prompt_tokens is {limit}" if len(ids) > limit else ""
    lines = "\u21b5\n".join(text.split("\n")).split("\n")
    return "\n".join([
        f"problem {problem.id} (task {problem.task}), answer {problem.answer!r}",
        f"{len(ids)} tokens{too_long}; special: {_special(ids, tokenizer)}; ids: {_ends(ids.tolist())}",
        *(f"  \u2502{line}" for line in lines),
        "",
    ])  # fmt: skip


def _special(ids: np.ndarray, tokenizer: Tokenizer) -> str:
    """The special tokens among the ids, with their counts."""
    known = {number: token.content for number, token in tokenizer.backend.get_added_tokens_decoder().items()}
    counts = collections.Counter(known[token] for token in ids.tolist() if token in known)
    return ", ".join(f"{count} {token}" for token, count in counts.items()) or "none"


def _ends(ids: list[int]) -> str:
    if len(ids) <= 2 * ENDS:
        return " ".join(map(str, ids))
    return f"{' '.join(map(str, ids[:ENDS]))} ... {' '.join(map(str, ids[-ENDS:]))}"
