"""Problems, streams and graded groups without a model."""

from __future__ import annotations

import grain
import numpy as np

from isocompute_jax.experiment.config import CurriculumConfig
from isocompute_jax.experiment.problem_stream import ProblemStream, TrainSets
from isocompute_jax.records.rollout import Completion, Problem, RolloutGroup


def make_problems(number: int, *, prefix: str = "p", rates=None) -> list[Problem]:
    measured = [{}] * number if rates is None else [{"avg@16": rate} for rate in rates]
    return [Problem(f"{prefix}{i}", f"{i}=", str(i), "numeric", measured[i]) for i in range(number)]


def make_stream(
    number: int = 7, config: CurriculumConfig | None = None, *, size: int = 3, seed: int = 0, rates=None
) -> ProblemStream:
    sets = TrainSets.of(make_problems(number, rates=rates))
    return ProblemStream(sets, config or CurriculumConfig(), problems_per_batch=size, seed=seed)


def make_group(problem: str, step: int, rewards) -> RolloutGroup:
    completion = Completion.drawn(
        np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), finish_reason="stop"
    )
    prompt = np.array([1], np.int32)
    return RolloutGroup(problem, step, prompt, (completion,) * len(rewards), np.array(rewards, np.float32))


def batches_of_grain(number: int, size: int, seed: int):
    """What runs drew before there were curricula: grain's own pipeline, an iterator with `get_state`."""
    dataset = grain.MapDataset.source(range(number)).seed(seed).shuffle()
    batched = dataset.batch(size, drop_remainder=True, batch_fn=list).repeat()
    return iter(batched.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))


def places(stream: ProblemStream, problems) -> list[int]:
    return [stream.places[problem.id] for problem in problems]
