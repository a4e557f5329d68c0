"""Rollouts of every problem, through any sampler, into the record: a window of them, and no more in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable

from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.measurement import BLOCK, Question, first_rollout
from isocompute_jax.experiment.curation.store import Store
from isocompute_jax.experiment.graded_stream import GradedStream
from isocompute_jax.experiment.progress import progress
from isocompute_jax.experiment.rollouts import check_versions
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.sampling import Sampler
from isocompute_jax.tasks import grade

VERSION = 0
"""Of the weights, of which there is one."""


def measure(
    problems: Iterable[Problem], store: Store, sampler: Sampler, question: Question, config: CurationConfig
) -> None:
    """Draws what the record lacks, problem by problem.

    `config.groups_in_flight` groups are out at a time: with each that comes back the next one is submitted, so that
    servers always have work, and only the problems of these are held.

    Raises:
      InputError: a server refuses a group, or the token.
      RunError: the sampler has failed, or has broken its word. What was recorded is kept.
    """
    out: dict[tuple[str, int], Problem] = {}  # by problem and step, the name of a group

    def graded(group: RolloutGroup) -> RolloutGroup:
        problem = out.get((group.problem_id, group.step))
        if problem is None:
            raise RunError(f"the sampler returned problem {group.problem_id!r} of step {group.step} twice, or unasked")
        check_versions([group], oldest=VERSION, newest=VERSION)
        return grade(group, problem, question.tokenizer.decode)

    rollouts = GradedStream(sampler, graded)

    def receive() -> None:
        nonlocal done, tokens
        group = rollouts.take()
        del out[group.problem_id, group.step]
        texts = ()
        if config.keep_completions:
            texts = question.tokenizer.decode([completion.tokens.tolist() for completion in group.completions])
        done += store.add(group, first_rollout(group), texts)
        tokens += group.num_tokens
        report(done, f"{tokens / max(time.monotonic() - start, 1e-9):,.0f} tokens/s")

    done, tokens, start = int(store.known.sum()), 0, time.monotonic()
    with progress("curation", store.known.size, done=done, unit="rollouts") as report:
        # Whole blocks before what is left of the last ones: groups of one size are decoded together.
        for size in sorted({min(config.samples, BLOCK), config.samples % BLOCK} - {0}, reverse=True):
            for problem in problems:
                for first, count in store.missing(problem.id):
                    if count != size:
                        continue
                    while len(out) >= config.groups_in_flight:
                        receive()
                    request = question.request(problem, first=first, count=count)
                    out[problem.id, request.step] = problem
                    rollouts.submit([request])
        while out:
            receive()
