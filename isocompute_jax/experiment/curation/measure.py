"""Rollouts of every problem, through any sampler, into the record: a window of them, and no more in memory."""

from __future__ import annotations

import concurrent.futures
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
from isocompute_jax.tasks import Grading

VERSION = 0
"""Of the weights, of which there is one."""
GIVEN_UP = 64
"""So many groups in a row, of which every reward failed, end the measurement."""


def measure(
    problems: Iterable[Problem],
    store: Store,
    sampler: Sampler,
    question: Question,
    config: CurationConfig,
    *,
    grading: Grading,
    rounds: bool,
) -> None:
    """Draws what the record lacks, problem by problem; `config.groups_in_flight` groups are out at a time.

    Args:
      problems: in the order in which they are drawn. Only those of which a group is out are held.
      store: the record.
      sampler: serves the model.
      question: how rollouts are asked for.
      config: how many.
      grading: what they are worth.
      rounds: whether the next groups are submitted when all that were out are back, so that a sampler in this process,
        which draws what is out in one go, always has one compiled shape. Otherwise with each that comes back the next
        one is submitted, so that servers never wait.

    Raises:
      InputError: a server refuses a group, or the token.
      RunError: the sampler has failed, or has broken its word; a reward failed and the policy is `stop`, or all those
        of `GIVEN_UP` groups in a row did. What was recorded is kept.
    """
    out: dict[tuple[str, int], Problem] = {}  # by problem and first rollout, the name of a group

    def graded(group: RolloutGroup) -> concurrent.futures.Future[RolloutGroup]:
        first = first_rollout(group)
        problem = out.get((group.problem_id, first))
        if problem is None:
            raise RunError(f"the sampler returned rollout {first} of problem {group.problem_id!r} twice, or unasked")
        check_versions([group], oldest=VERSION, newest=VERSION)
        return grading.submit(group, problem)

    rollouts = GradedStream(sampler, graded)

    def receive(left: int) -> None:
        """Until so many groups are out."""
        nonlocal done, drawn, tokens, lost
        while len(out) > left:
            group = rollouts.take()
            first = first_rollout(group)
            del out[group.problem_id, first]
            texts = ()
            if config.keep_completions:
                ids = [completion.tokens.tolist() for completion in group.completions]
                texts = question.prompts.tokenizer.decode(ids)
            done += store.add(group, first, texts)
            drawn, tokens = drawn + len(group.completions), tokens + group.num_tokens
            report(done, f"{tokens / drawn:,.1f} tokens each")
            lost = lost + 1 if len(group.failures) == len(group.completions) else 0
            if lost == GIVEN_UP:
                raise RunError(
                    f"every reward of {lost} groups in a row failed, the last on problem {group.problem_id!r} "
                    f"({group.failures[0]}): nothing of these groups is recorded. See to what gives rewards; the same "
                    "command goes on from there"
                )

    done, drawn, tokens, lost = int(store.known.sum()), 0, 0, 0
    with progress("curation", store.known.size, done=done, unit="rollouts") as report:
        # Whole blocks before what is left of the last ones: groups of one size are decoded together.
        for size in sorted({min(config.samples, BLOCK), config.samples % BLOCK} - {0}, reverse=True):
            for problem in problems:
                for first, count in store.missing(problem.id):
                    if count != size:
                        continue
                    if len(out) == config.groups_in_flight:
                        receive(0 if rounds else config.groups_in_flight - 1)
                    out[problem.id, first] = problem
                    rollouts.submit([question.request(problem, first=first, count=count)])
        receive(0)
    rollouts.close()  # nothing is out: the thread that reads a fleet waits for more
