"""Problem sets by solve rate: who lies in which range, what is held out, mixtures; and what to do where one is empty.

Ranges as in the IsoCompute Playbook (arXiv 2603.12151), or one's own.
"""

from __future__ import annotations

import logging
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import leakage_key, split, write_problems

LOG = logging.getLogger(__name__)

Halves = tuple[list[Problem], list[Problem]]
"""Training and validation problems."""


def sorted_out(
    measured: Iterable[Problem], chosen: Mapping[str, list[Problem]], config: CurationConfig
) -> Iterator[Problem]:
    """Passes measured problems on, and puts each of them into the sets of `chosen` whose range holds its rate."""
    column = f"avg@{config.samples}"
    for problem in measured:
        for name, (low, high) in config.wanted.items():
            if low <= problem.measured[column] <= high:
                chosen[name].append(problem)
        yield problem


def cut_all(chosen: Mapping[str, Sequence[Problem]], config: CurationConfig) -> dict[str, Halves]:
    """Every set, then every mixture, as its training and validation problems."""
    splits = {name: cut(name, problems, config) for name, problems in chosen.items()}
    return splits | {name: mix(shares, splits, config) for name, shares in config.mixtures.items()}


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
    """What is wrong with the sets that hold nothing to train on, and which ranges would; empty where all do.

    Args:
      splits: training and validation problems of every set and mixture.
      histogram: [samples + 1] problems by how many of their samples were solved.
      config: which ranges were asked for.
    """
    samples, problems = config.samples, sum(histogram)
    empty = [name for name, (train, _) in splits.items() if not train]
    said = []
    for name, (low, high) in config.wanted.items():
        if name in empty:
            said.append(
                f"set {name!r} is empty: none of {problems} problems has avg@{samples} in [{low:g}, {high:g}]"
                + _nearest(low, high, histogram)
            )
    for name in config.mixtures:
        if name in empty and not (said and any(part in empty for part in config.mixtures[name])):
            parts = ", ".join(f"{part} {len(splits[part][0])}" for part in config.mixtures[name])
            said.append(f"mixture {name!r} is empty: its parts have too few training problems for its shares ({parts})")
    if not said:
        return ""
    counts = ", ".join(f"{solved}: {number}" for solved, number in enumerate(histogram) if number)
    return f"{'; '.join(said)}. Problems by how many of {samples} samples were right: {counts}"


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
