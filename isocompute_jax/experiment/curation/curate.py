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

from isocompute_jax.experiment.build import MakeSampler
from isocompute_jax.experiment.curation import measurement, pictures, samplers, sets
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.measure import measure
from isocompute_jax.experiment.curation.measurement import Question, Survey
from isocompute_jax.experiment.curation.samplers import Source
from isocompute_jax.experiment.curation.store import Store
from isocompute_jax.experiment.samplers import make_sampler
from isocompute_jax.experiment.workdir import locked
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.tasks import Grading, Prompts, write_problems

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
    with their rate), `histogram` and `pass_at_k` (.png, .svg), `NAME/train.jsonl` and `NAME/validation.jsonl` for every
    set and mixture, and last `curation.json`.

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
      RunError: the sampler has failed; the same call goes on where it ended.
    """
    out = pathlib.Path(out)
    shape, tokenizer = source.read()
    question = Question(Prompts(tokenizer, source.prompts), source.sampling, config.seed)
    found = measurement.survey(problems, question)
    out.mkdir(parents=True, exist_ok=True)
    with (
        locked(out, "curation"),
        Store(
            out,
            identity=measurement.identity(
                source.directory, question, dtype=source.dtype, reward=source.reward.function
            ),
            survey=found,
            samples=config.samples,
            keep_completions=config.keep_completions,
        ) as store,
    ):
        if store.known.any():
            LOG.info("%d of %d rollouts are there already", store.known.sum(), store.known.size)
        if not store.known.all():
            with (
                contextlib.closing(Grading(source.reward, tokenizer.decode)) as grading,
                samplers.opened(source, shape, tokenizer, out, make_sampler=make_sampler) as sampler,
            ):
                rounds = not source.service.endpoints
                measure(problems, store, sampler, question, config, grading=grading, rounds=rounds)
        return publish(problems, found, store, out, source=source, config=config)


def publish(
    problems: Iterable[Problem],
    found: Survey,
    store: Store,
    out: pathlib.Path,
    *,
    source: Source,
    config: CurationConfig,
) -> dict[str, int]:
    """Writes everything that follows from a whole record; see `curate`."""
    (out / SUMMARY).unlink(missing_ok=True)
    rates = store.rewards.mean(axis=1, dtype=np.float64)
    chosen: dict[str, list[Problem]] = {name: [] for name in config.wanted}
    write_problems(out / MEASURED, sets.sorted_out(with_rates(problems, found, rates, config), chosen, config))
    histogram = np.bincount(np.round(rates * config.samples).astype(int), minlength=config.samples + 1).tolist()
    solved = np.bincount((store.rewards == 1).sum(axis=1), minlength=config.samples + 1).tolist()
    pictures.draw(rates, solved, out, config)
    splits = sets.cut_all(chosen, config)
    sets.write_sets(out, splits)
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
        "problems": len(rates),
        "mean": float(rates.mean()),
        "ranges": config.wanted,
        "in_range": counts,
        "train": {name: len(train) for name, (train, _) in splits.items()},
        "validation": {name: len(validation) for name, (_, validation) in splits.items()},
        "histogram": histogram,
        **{f"{name}@k": curve for name, curve in pictures.curves(solved).items()},
        "rollouts": store.known.size,
        "tokens": store.tokens,
        "truncation_rate": store.truncated / store.known.size,
    }
    write_atomic(out / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return counts


def with_rates(
    problems: Iterable[Problem], found: Survey, rates: np.ndarray, config: CurationConfig
) -> Iterator[Problem]:
    """The problems with their measured `avg@k`."""
    for problem in problems:
        rate = float(rates[found.rows[problem.id]])
        yield dataclasses.replace(problem, measured={**problem.measured, f"avg@{config.samples}": rate})
