"""Curation, in order: look at the problems, draw what the record lacks, cut sets by it, draw pictures.

As in the IsoCompute Playbook (arXiv 2603.12151).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from isocompute_jax.experiment.build import MakeSampler, make_grading
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.measure import measure, open_sampler, read_model
from isocompute_jax.experiment.curation.record import (
    RolloutOrder,
    Store,
    check_same,
    identity_of,
    survey,
)
from isocompute_jax.experiment.samplers import make_sampler
from isocompute_jax.experiment.workdir import locked, remove_unused
from isocompute_jax.records import metrics
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.tasks import Prompts, leakage_key, split, write_problems

LOG = logging.getLogger(__name__)

MEASURED = "measured.jsonl"
SUMMARY = "curation.json"


def curate(
    problems: Iterable[Problem],
    out: str | os.PathLike[str],
    *,
    source: RunConfig,
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
      source: its model, dtype, sampling, prompts, reward, service and mesh say what is measured, and where.
      config: what to measure and which sets to cut.
      make_sampler: makes what draws the rollouts, which by default `source` decides.

    Returns:
      Number of problems in range, by set.

    Raises:
      InputError: bad input, or samples of another measurement in `out`; or a set is empty, which is found when all
        else is written.
      RunError: the sampler has failed, or rewards have; the same call goes on where it ended.
    """
    with measured(problems, pathlib.Path(out), source=source, config=config, make_sampler=make_sampler) as store:
        return publish(problems, store, pathlib.Path(out), source=source, config=config)


@contextlib.contextmanager
def measured(
    problems: Iterable[Problem],
    out: pathlib.Path,
    *,
    source: RunConfig,
    config: CurationConfig,
    make_sampler: MakeSampler,
) -> Iterator[Store]:
    """The record in `out`, with what it lacked drawn; locked while the block runs. Arguments are those of `curate`."""
    shape, tokenizer = read_model(source)
    order = RolloutOrder(Prompts(tokenizer, source.prompts), source.sampling, config.seed)
    identity = identity_of(source.model, order, dtype=source.dtype, reward=source.reward)
    check_same(out, identity)
    found = survey(problems, order)
    with locked_directory(out), contextlib.ExitStack() as opened:
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
            with open_sampler(source, shape, tokenizer, out, make_sampler=make_sampler) as sampler:
                rounds = not source.service.remote
                measure(problems, store, sampler, order, config, grading=grading, rounds=rounds)
        yield store


@contextlib.contextmanager
def locked_directory(out: pathlib.Path) -> Iterator[None]:
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
    store: Store,
    out: pathlib.Path,
    *,
    source: RunConfig,
    config: CurationConfig,
) -> dict[str, int]:
    """Writes everything that follows from a whole record, problems that could not be measured aside; see `curate`."""
    store.check_failures()
    (out / SUMMARY).unlink(missing_ok=True)
    measured, solved = store.measured, store.solved(config.solved_at)
    histogram = np.bincount(solved[measured], minlength=config.samples + 1).tolist()
    chosen: dict[str, list[Problem]] = {name: [] for name in config.wanted}
    write_problems(out / MEASURED, rated(problems, store, config, chosen))
    draw_pictures(histogram, out, config)
    splits = {name: cut(name, inside, config) for name, inside in chosen.items()}
    splits |= {name: mix(shares, splits, config) for name, shares in config.mixtures.items()}
    write_sets(out, splits)
    if others := of_other_cuts(out, splits):
        LOG.warning(
            "%s: sets of an earlier cut in %s, not written now; remove what is not wanted", ", ".join(others), out
        )
    if report := store.failures():
        LOG.warning("%s", report)
    if fault := emptiness(splits, histogram, config):
        raise InputError(
            f"{fault} ({out / 'histogram.png'}). Set thresholds with --set=NAME=LOW:HIGH, or bring other problems; all "
            f"that was drawn is kept in {out}, and the same command with other sets draws nothing again"
        )
    counts = {name: len(inside) for name, inside in chosen.items()}
    counts |= {name: sum(map(len, splits[name])) for name in config.mixtures}
    summary: dict[str, Any] = {
        "model": source.model,
        "samples": config.samples,
        "temperature": source.sampling.temperature,
        "solved_at": config.solved_at,
        "problems": int(measured.sum()),
        "unmeasured": int((~measured).sum()),
        "mean": float(solved[measured].mean() / config.samples),
        "mean_reward": float(store.mean_rewards[measured].mean()),
        "ranges": config.wanted,
        "in_range": counts,
        "train": {name: len(train) for name, (train, _) in splits.items()},
        "validation": {name: len(validation) for name, (_, validation) in splits.items()},
        "sets_of_earlier_cuts": others,
        "histogram": histogram,
        **{f"{name}@k": curve for name, curve in curves(histogram).items()},
        "rollouts": int(store.known.sum()),
        "reward_failures": int(store.failed.sum()),
        "tokens": store.tokens,
        "truncation_rate": store.truncated / int(store.known.sum()),
    }
    write_atomic(out / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return counts


def rated(
    problems: Iterable[Problem],
    store: Store,
    config: CurationConfig,
    chosen: Mapping[str, list[Problem]],
) -> Iterator[Problem]:
    """The measured problems with their rates, each put into the sets of `chosen` whose range holds its rate."""
    measured, rates, rewards = store.measured, store.solved(config.solved_at) / config.samples, store.mean_rewards
    for problem in problems:
        row = store.rows[problem.id]
        if not measured[row]:
            continue
        rate = float(rates[row])
        problem = dataclasses.replace(
            problem,
            measured={**problem.measured, f"avg@{config.samples}": rate},
            extra={**problem.extra, "mean_reward": float(rewards[row])},
        )
        for name, (low, high) in config.wanted.items():
            if low <= rate <= high:
                chosen[name].append(problem)
        yield problem


Halves = tuple[list[Problem], list[Problem]]
"""Training and validation problems."""


def cut(name: str, chosen: Sequence[Problem], config: CurationConfig) -> Halves:
    """Training and validation problems of one set; warns where there are too few."""
    held_out = min(config.validation_size, len(chosen) // 2)
    wanted = config.train_size + config.validation_size
    if 0 < len(chosen) < max(wanted, 2):
        LOG.warning(
            "set %r has only %d problems in range %s, %d were asked for: bring more problems, or ask for fewer",
            name,
            len(chosen),
            list(config.wanted[name]),
            wanted,
        )
    if not held_out:
        return list(chosen[: config.train_size or None]), []
    try:
        train, validation = split(chosen, validation=held_out, seed=config.seed)
    except InputError as error:
        raise InputError(f"set {name!r}: {error}") from None
    return train[: config.train_size or None], validation


def mix(shares: Mapping[str, float], splits: Mapping[str, Halves], config: CurationConfig) -> Halves:
    """A heterogeneous set: as many problems as the scarcest part allows at the given shares, shuffled.

    Ranges share their ends: a problem of two parts counts for the first, and none that is held out is trained on.
    """
    rng = np.random.default_rng(config.seed)
    held_out = {leakage_key(problem) for name in shares for problem in splits[name][1]}
    parts = []
    for half in (0, 1):
        pools: dict[str, list[Problem]] = {}
        taken = set(held_out) if half == 0 else set()
        for name in shares:
            pools[name] = [problem for problem in splits[name][half] if leakage_key(problem) not in taken]
            taken.update(leakage_key(problem) for problem in pools[name])
        total = min(int(len(pools[name]) / share) for name, share in shares.items())
        if half == 0 and config.train_size:
            total = min(total, config.train_size)
        drawn = [problem for name, share in shares.items() for problem in pools[name][: int(total * share)]]
        if not drawn:
            LOG.warning("mixture of %s: no %s problems", ", ".join(shares), ("training", "validation")[half])
        parts.append([drawn[i] for i in rng.permutation(len(drawn))])
    return parts[0], parts[1]


def write_sets(out: pathlib.Path, splits: Mapping[str, Halves]) -> None:
    """Writes `NAME/train.jsonl` and `NAME/validation.jsonl`; those of an earlier cut do not stay where there are none.

    A set without problems gets no directory.
    """
    for name, halves in splits.items():
        for half, problems in zip(("train", "validation"), halves, strict=True):
            path = out / name / f"{half}.jsonl"
            if problems:
                path.parent.mkdir(exist_ok=True)
                write_problems(path, problems)
            else:
                path.unlink(missing_ok=True)


def of_other_cuts(out: pathlib.Path, splits: Mapping[str, Halves]) -> list[str]:
    """Names of the directories in `out` that hold a set, as an earlier cut left it, and are none of `splits`."""
    found = {path.parent.name for half in ("train", "validation") for path in out.glob(f"*/{half}.jsonl")}
    return sorted(found - splits.keys())


def emptiness(splits: Mapping[str, Halves], histogram: Sequence[int], config: CurationConfig) -> str:
    """What is wrong with the sets that hold nothing to train on, and which ranges would; empty where all do."""
    samples, problems = config.samples, sum(histogram)
    empty = [name for name, (train, _) in splits.items() if not train]
    faults = []
    for name, (low, high) in config.wanted.items():
        if name in empty:
            faults.append(
                f"set {name!r} is empty: none of {problems} problems has avg@{samples} in [{low:g}, {high:g}]"
                + _nearest(low, high, histogram)
            )
    for name in config.mixtures:
        if name in empty and not (faults and any(part in empty for part in config.mixtures[name])):
            parts = ", ".join(f"{part} {len(splits[part][0])}" for part in config.mixtures[name])
            faults.append(
                f"mixture {name!r} is empty: its parts have too few training problems for its shares ({parts})"
            )
    if not faults:
        return ""
    counts = ", ".join(f"{solved}: {number}" for solved, number in enumerate(histogram) if number)
    return f"{'; '.join(faults)}. Problems by how many of {samples} samples were right: {counts}"


def _nearest(low: float, high: float, histogram: Sequence[int]) -> str:
    """The rates next to a range at which there are problems, and a range that holds them."""
    samples = len(histogram) - 1
    present = [(solved / samples, number) for solved, number in enumerate(histogram) if number]
    below = [(rate, number) for rate, number in present if rate < low][-1:]
    above = [(rate, number) for rate, number in present if rate > high][:1]
    near = " and ".join(f"at {rate:g} ({number} problems)" for rate, number in below + above)
    # Rounded outwards: a rate is not always a short decimal.
    from_ = math.floor(below[0][0] * 1e4) / 1e4 if below else low
    to = math.ceil(above[0][0] * 1e4) / 1e4 if above else high
    wider = f"{from_:g}:{to:g}"
    return f"; the nearest are {near}, so {wider} would hold some" if near else ""


INK = "#4c6a92"


def draw_pictures(histogram: Sequence[int], out: pathlib.Path, config: CurationConfig) -> None:
    """Writes `histogram` and `pass_at_k`, each as .png and .svg.

    `histogram` [samples + 1] has problems by how many of their samples were solved.
    """
    from matplotlib.figure import Figure

    for name, fill in (
        ("histogram", lambda axes: _histogram(axes, histogram, config)),
        ("pass_at_k", lambda axes: _pass_at_k(axes, curves(histogram))),
    ):
        figure = Figure(figsize=(7, 3.4), layout="constrained")
        axes = figure.subplots()
        fill(axes)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[1]:  # a call that only measures cuts no sets
            axes.legend(frameon=False)
        for suffix in ("png", "svg"):
            temporary = out / f".{name}.{suffix}"
            figure.savefig(temporary, format=suffix, dpi=150)
            temporary.replace(out / f"{name}.{suffix}")


def curves(histogram: Sequence[int]) -> dict[str, dict[int, float]]:
    """best@k (pass@k) and worst@k over all problems, at k = 1, 2, 4, ... and all samples; unbiased."""
    samples, weights = len(histogram) - 1, np.asarray(histogram) / sum(histogram)
    ks = sorted({samples, *(2**i for i in range(samples.bit_length()) if 2**i <= samples)})

    def mean(estimate: Any, k: int) -> float:
        each = [estimate(np.array([solved]), samples, k) for solved in range(samples + 1)]
        return float(weights @ np.array(each))

    estimates = (("best", metrics.best_at_k), ("worst", metrics.worst_at_k))
    return {name: {k: mean(estimate, k) for k in ks} for name, estimate in estimates}


def _histogram(axes: Any, histogram: Sequence[int], config: CurationConfig) -> None:
    """How many problems the base model solves how often, with the ranges of the cut sets shaded."""
    axes.bar(np.arange(len(histogram)) / config.samples, histogram, width=0.9 / config.samples, color=INK)
    for index, (name, (low, high)) in enumerate(config.wanted.items()):
        half = 0.5 / config.samples
        axes.axvspan(low - half, high + half, alpha=0.18, color=f"C{index + 1}", lw=0, label=name.replace("_", " "))
    axes.set_xlabel(f"solve rate of the base model (avg@{config.samples})")
    axes.set_ylabel("problems")


def _pass_at_k(axes: Any, found: Mapping[str, Mapping[int, float]]) -> None:
    """Share of problems that k samples solve at least once, and all k times."""
    labels = {"best": "at least one of k (pass@k)", "worst": "all k"}
    for (name, curve), colour in zip(found.items(), (INK, "C1"), strict=True):
        axes.plot(list(curve), list(curve.values()), marker="o", color=colour, label=labels[name])
    ks = list(found["best"])
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.set_ylim(0, 1)
    axes.set_xlabel("samples per problem, k")
    axes.set_ylabel("share of problems solved")
