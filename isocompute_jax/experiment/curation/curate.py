"""Curation, in order: look at the problems, draw what the record lacks, cut sets by it, draw pictures.

As in the IsoCompute Playbook (arXiv 2603.12151).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from isocompute_jax.experiment.build import MakeSampler, make_grading
from isocompute_jax.experiment.curation import failed, measurement, pictures, samplers, sets
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.measure import measure
from isocompute_jax.experiment.curation.measurement import Question, Survey
from isocompute_jax.experiment.curation.samplers import Source
from isocompute_jax.experiment.curation.store import Store, check_same
from isocompute_jax.experiment.samplers import make_sampler
from isocompute_jax.experiment.workdir import locked, remove_unused
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.tasks import Prompts, write_problems

LOG = logging.getLogger(__name__)

MEASURED = "measured.jsonl"
SUMMARY = "curation.json"


def curate(
    problems: Iterable[Problem],
    out: str | os.PathLike[str],
    *,
    source: Source,
    config: CurationConfig,
    make_sampler: MakeSampler = make_sampler,
) -> dict[str, int]:
    """Measures every problem and writes the sets; started again, it draws only what `counts.jsonl` in `out` lacks.

    Writes in `out`: `counts.jsonl` (every rollout's reward and length, as it comes), `measured.jsonl` (all problems
    with their rates), `histogram` and `pass_at_k` (.png, .svg), `NAME/train.jsonl` and `NAME/validation.jsonl` for
    every set and mixture, and last `curation.json`.

    Args:
      problems: iterated over several times; `tasks.ProblemFile` never holds more than one of them.
      out: made if absent.
      source: the model, and where its rollouts are drawn.
      config: what to measure and which sets to cut.
      make_sampler: makes what draws the rollouts, which by default `source` decides.

    Returns:
      Number of problems in range, by set.

    Raises:
      InputError: bad input, or samples of another measurement in `out`; or a set is empty, which is found when all
        else is written.
      RunError: the sampler has failed, or rewards have; the same call goes on where it ended.
    """
    out = pathlib.Path(out)
    shape, tokenizer = source.read()
    question = Question(Prompts(tokenizer, source.prompts), source.sampling, config.seed)
    identity = measurement.identity(source.directory, question, dtype=source.dtype, reward=source.reward.function)
    check_same(out, identity)
    found = measurement.survey(problems, question)
    with held(out), contextlib.ExitStack() as opened:
        store = Store(
            out, identity=identity, survey=found, samples=config.samples, keep_completions=config.keep_completions
        )
        if store.known.any():
            LOG.info("%d of %d rollouts are there already", store.known.sum(), store.known.size)
        grading = None
        if not store.known.all():  # what gives rewards is tried before anything is written
            grading = opened.enter_context(contextlib.closing(make_grading(source.reward, tokenizer, problems)))
        opened.enter_context(store)
        if grading is not None:
            with samplers.opened(source, shape, tokenizer, out, make_sampler=make_sampler) as sampler:
                rounds = not source.service.remote
                measure(problems, store, sampler, question, config, grading=grading, rounds=rounds)
        return publish(problems, found, store, out, source=source, config=config)


@contextlib.contextmanager
def held(out: pathlib.Path) -> Iterator[None]:
    """Makes the directory and locks it; a new one in which nothing was written is removed after an error."""
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, "curation"):
        try:
            yield
        except (InputError, RunError):
            if new:
                remove_unused(out)
            raise


def publish(
    problems: Iterable[Problem],
    found: Survey,
    store: Store,
    out: pathlib.Path,
    *,
    source: Source,
    config: CurationConfig,
) -> dict[str, int]:
    """Writes everything that follows from a whole record, problems that could not be measured aside; see `curate`."""
    failed.check(found, store)
    (out / SUMMARY).unlink(missing_ok=True)
    measured = store.measured
    solved = ((store.rewards >= config.solved_at) & ~store.failed).sum(axis=1)  # [P]
    rewards = store.rewards.mean(axis=1, dtype=np.float64)
    histogram = np.bincount(solved[measured], minlength=config.samples + 1).tolist()
    chosen: dict[str, list[Problem]] = {name: [] for name in config.wanted}
    rated = with_rates(problems, found, measured, solved / config.samples, rewards, config)
    write_problems(out / MEASURED, sets.sorted_out(rated, chosen, config))
    pictures.draw(histogram, out, config)
    splits = sets.cut_all(chosen, config)
    sets.write_sets(out, splits)
    if others := sets.of_other_cuts(out, splits):
        LOG.warning(
            "%s: sets of an earlier cut in %s, not written now; remove what is not wanted", ", ".join(others), out
        )
    if said := failed.said(found, store):
        LOG.warning("%s", said)
    if fault := sets.emptiness(splits, histogram, config):
        raise InputError(
            f"{fault} ({out / 'histogram.png'}). Set thresholds with --set=NAME=LOW:HIGH, or bring other problems; all "
            f"that was drawn is kept in {out}, and the same command with other sets draws nothing again"
        )
    counts = {name: len(inside) for name, inside in chosen.items()}
    counts |= {name: sum(map(len, splits[name])) for name in config.mixtures}
    summary: dict[str, Any] = {
        "model": source.directory,
        "samples": config.samples,
        "temperature": source.sampling.temperature,
        "solved_at": config.solved_at,
        "problems": int(measured.sum()),
        "unmeasured": int((~measured).sum()),
        "mean": float(solved[measured].mean() / config.samples),
        "mean_reward": float(rewards[measured].mean()),
        "ranges": config.wanted,
        "in_range": counts,
        "train": {name: len(train) for name, (train, _) in splits.items()},
        "validation": {name: len(validation) for name, (_, validation) in splits.items()},
        "sets_of_earlier_cuts": others,
        "histogram": histogram,
        **{f"{name}@k": curve for name, curve in pictures.curves(histogram).items()},
        "rollouts": int(store.known.sum()),
        "reward_failures": int(store.failed.sum()),
        "tokens": store.tokens,
        "truncation_rate": store.truncated / int(store.known.sum()),
    }
    write_atomic(out / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return counts


def with_rates(
    problems: Iterable[Problem],
    found: Survey,
    measured: np.ndarray,
    rates: np.ndarray,
    rewards: np.ndarray,
    config: CurationConfig,
) -> Iterator[Problem]:
    """The problems that are `measured` [P], with their `avg@k` of `rates` [P] and `mean_reward` of `rewards` [P]."""
    for problem in problems:
        row = found.rows[problem.id]
        if measured[row]:
            yield dataclasses.replace(
                problem,
                measured={**problem.measured, f"avg@{config.samples}": float(rates[row])},
                extra={**problem.extra, "mean_reward": float(rewards[row])},
            )
