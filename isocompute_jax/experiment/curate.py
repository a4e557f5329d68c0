"""Curation: measure a model's own solve rate on every problem, and cut problem sets by it.

As in the IsoCompute Playbook (arXiv 2603.12151).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax import model
from isocompute_jax.experiment.config import SamplingConfig
from isocompute_jax.experiment.curation_config import RANGES, CurationConfig
from isocompute_jax.experiment.data import check_vocabulary
from isocompute_jax.experiment.progress import progress
from isocompute_jax.experiment.rollouts import by_id, graded, make_requests
from isocompute_jax.learner import rewards_of
from isocompute_jax.records.rollout import Problem
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.sampling import InProcessSampler
from isocompute_jax.tasks import PromptConfig, Prompts, leakage_key, load_tokenizer, split, write_problems

LOG = logging.getLogger(__name__)

MEASURED = "measured.jsonl"
SUMMARY = "curation.json"
ROUND = 256
"""Problems submitted at once, so that progress can be shown."""


def curate(
    problems: Sequence[Problem],
    out: str | os.PathLike[str],
    *,
    model_directory: str | os.PathLike[str],
    sampling: SamplingConfig,
    config: CurationConfig,
    prompts: PromptConfig | None = None,
) -> dict[str, int]:
    """Measures every problem and writes the sets.

    Writes in `out`: `measured.jsonl` (all problems with their rate), `NAME/train.jsonl` and `NAME/validation.jsonl`
    for every set and mixture, `histogram.png` and `histogram.svg`, and last `curation.json`.

    Returns:
      Number of problems in range, by set.
    """
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    measured = measure(problems, model_directory=model_directory, sampling=sampling, config=config, prompts=prompts)
    write_problems(out / MEASURED, measured)
    column = f"avg@{config.samples}"
    splits = {}
    counts = {}
    for name in config.sets:
        low, high = RANGES[name]
        chosen = [problem for problem in measured if low <= problem.measured[column] <= high]
        counts[name] = len(chosen)
        splits[name] = cut(name, chosen, config)
    for name, shares in config.mixtures.items():
        splits[name] = mix(shares, splits, config)
        counts[name] = sum(len(part) for part in splits[name])
    for name, (train, validation) in splits.items():
        (out / name).mkdir(exist_ok=True)
        if train:
            write_problems(out / name / "train.jsonl", train)
        if validation:
            write_problems(out / name / "validation.jsonl", validation)
    rates = np.array([problem.measured[column] for problem in measured])
    draw_histogram(rates, out, config)
    summary = {
        "model": str(model_directory),
        "samples": config.samples,
        "temperature": sampling.temperature,
        "problems": len(measured),
        "mean": float(rates.mean()),
        "in_range": counts,
        "train": {name: len(train) for name, (train, _) in splits.items()},
        "validation": {name: len(validation) for name, (_, validation) in splits.items()},
        "histogram": np.bincount(np.round(rates * config.samples).astype(int), minlength=config.samples + 1).tolist(),
    }
    write_atomic(out / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return counts


def measure(
    problems: Sequence[Problem],
    *,
    model_directory: str | os.PathLike[str],
    sampling: SamplingConfig,
    config: CurationConfig,
    prompts: PromptConfig | None = None,
) -> list[Problem]:
    """The problems with their measured `avg@k`."""
    model_config = model.load_config(model_directory)
    model.check_length(model_config, sampling.max_prompt_tokens, sampling.max_tokens, prefix="--")
    tokenizer = load_tokenizer(model_directory)
    check_vocabulary(os.fspath(model_directory), tokenizer, model_config.vocab_size)
    encoder = Prompts(tokenizer, prompts or PromptConfig())
    sampler = InProcessSampler(
        model_config,
        model.load_params(model_directory, model_config),
        pad_token=tokenizer.pad_id,
        max_prompt_tokens=sampling.max_prompt_tokens,
        max_rollouts_per_dispatch=sampling.max_rollouts_per_dispatch,
    )
    measured = []
    with progress("curation", len(problems)) as report:
        for start in range(0, len(problems), ROUND):
            asked = by_id(problems[start : start + ROUND])
            requests = make_requests(
                list(asked.values()),
                encoder,
                sampling,
                group_size=config.samples,
                seed=config.seed,
                step=0,
            )
            sampler.submit(requests)
            for group in graded(sampler.completed(), asked, tokenizer):
                problem = asked[group.problem_id]
                rate = float(np.mean(rewards_of(group)))
                known = {**problem.measured, f"avg@{config.samples}": rate}
                measured.append(dataclasses.replace(problem, measured=known))
            report(len(measured))
    return measured


def cut(name: str, chosen: Sequence[Problem], config: CurationConfig) -> tuple[list[Problem], list[Problem]]:
    """Training and validation problems of one set; warns where there are too few."""
    held_out = min(config.validation_size, len(chosen) // 2)
    wanted = config.train_size + config.validation_size
    if len(chosen) < max(wanted, 2):
        LOG.warning(
            "set %r has only %d problems in range %s, %d were asked for: bring more problems, or ask for fewer",
            name,
            len(chosen),
            list(RANGES[name]),
            wanted,
        )
    if not held_out:
        return list(chosen[: config.train_size or None]), []
    train, validation = split(chosen, validation=held_out, seed=config.seed)
    return train[: config.train_size or None], validation


def mix(
    shares: Mapping[str, float],
    splits: Mapping[str, tuple[list[Problem], list[Problem]]],
    config: CurationConfig,
) -> tuple[list[Problem], list[Problem]]:
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


def draw_histogram(rates: np.ndarray, out: pathlib.Path, config: CurationConfig) -> None:
    """How many problems the base model solves how often, with the ranges of the cut sets shaded."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    edges = (np.arange(config.samples + 2) - 0.5) / config.samples
    axes.hist(rates, bins=list(edges), color="#4c6a92", rwidth=0.9)
    for index, name in enumerate(config.sets):
        low, high = RANGES[name]
        half = 0.5 / config.samples
        axes.axvspan(low - half, high + half, alpha=0.18, color=f"C{index + 1}", lw=0, label=name.replace("_", " "))
    axes.set_xlabel(f"solve rate of the base model (avg@{config.samples})")
    axes.set_ylabel("problems")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    for suffix in ("png", "svg"):
        temporary = out / f".histogram.{suffix}"
        figure.savefig(temporary, format=suffix, dpi=150)
        temporary.replace(out / f"histogram.{suffix}")
