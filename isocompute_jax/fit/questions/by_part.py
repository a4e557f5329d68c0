"""Does the best n depend on the problems, or on the base model?

Parts of a sweep that differ in one of them are modelled apart, for nothing says that their curves are alike; n*(C) and
the reward at the best n are then compared draw by draw, over the n that all parts have and up to the compute that all
of them reach. By set, a part is a set that was trained on and a set that was evaluated on: the other evaluation sets of
run directories and tables are read for it. There best@k and worst@k are asked too, of which the Playbook (arXiv
2603.12151) says that they want other n on Easy than on Hard problems.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from isocompute_jax.fit.configurations import ConfigurationRuns, group_runs, scale
from isocompute_jax.fit.engine import fit_sweep
from isocompute_jax.fit.frontier.answers import CERTAIN, interval
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.questions.answers import (
    DRAWS,
    Question,
    QuestionResult,
    common_budgets,
    line,
    size_ends,
    stopped,
)
from isocompute_jax.fit.read import ReadOptions, RunCurve, read_curves
from isocompute_jax.fit.read.reader import shared_length
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import printable

ALIKE = 0.5
"""Octaves within which two n* are alike."""
MIXTURE, MIXED = "curriculum.train_sets.", " + "
"""The fields that name the sets of a mixture, and what stands between their names."""

Part = tuple[Mapping[str, Any], list[RunCurve]]
"""What a part is called, by the keys of its row, and its runs."""


def by_set(groups: Sequence[ConfigurationRuns], options: AnalysisOptions) -> Iterator[QuestionResult]:
    """Asks runs that were trained, or evaluated, on several sets of problems; those of each base model apart.

    The verdict is `differs` where n* of a set lies above or below that of the first, by the same metric, in 95% of the
    draws (a mean over budgets), `alike` where 95% of the draws have all sets within half an octave, `open` else. The
    first set is that of the analysis. By set, n* of best@k and worst@k is told beside that of the metric too.

    Args:
      groups: the configurations with their runs, which were read on `options.read.eval_set`.
      options: of the analysis.

    Raises:
      InputError: never of another set, which is left out by a note.
    """
    runs = [run for group in groups for run in group.runs]
    evaluated, notes = other_sets(runs, options.read)
    models = _models(runs)
    for model in dict.fromkeys(models.values()):
        parts: dict[tuple[str, str], list[RunCurve]] = {}
        for eval_set, own in {options.read.eval_set: runs, **evaluated}.items():
            of_model = [run for run in own if models.get(run.source + run.run) == model]
            for run, train_set in zip(of_model, train_sets(of_model), strict=True):
                parts.setdefault((train_set, eval_set), []).append(run)
        if len(parts) > 1:
            named = [({"train_set": t, "eval_set": e}, own) for (t, e), own in parts.items()]
            metrics = (options.metric, *_targets(runs, options.metric))
            yield from _compare(
                "by_set", model if len(set(models.values())) > 1 else "", named, metrics, options, notes
            )


def by_model(groups: Sequence[ConfigurationRuns], options: AnalysisOptions) -> Iterator[QuestionResult]:
    """Asks runs of several base models, or sizes of one; verdicts are those of `by_set`.

    Base models begin at different rewards, so the gain is told too: reward minus that of the base model.

    Args:
      groups: the configurations with their runs.
      options: of the analysis.
    """
    runs = [run for group in groups for run in group.runs]
    models = _models(runs)
    parts: dict[str, list[RunCurve]] = {}
    for run in runs:
        parts.setdefault(models[run.source + run.run], []).append(run)
    if len(parts) > 1:
        ordered = sorted(parts.items(), key=lambda part: (part[1][0].facts.model_params, part[0]))
        yield from _compare("by_model", "", [({"model": m}, own) for m, own in ordered], (options.metric,), options)


def of_one_model(runs: Sequence[RunCurve]) -> tuple[list[RunCurve], list[str]]:
    """The runs of the base model that was run at the most n, of several such the most runs; says of the others.

    An n is chosen for a base model: where a stronger one was run at one n alone, its rewards would speak for that n.
    """
    models = _models(runs)
    parts: dict[str, list[RunCurve]] = {}
    for run in runs:
        parts.setdefault(models[run.source + run.run], []).append(run)
    if len(parts) < 2:
        return list(runs), []
    first = max(parts, key=lambda name: (len({run.facts.group_size for run in parts[name]}), len(parts[name])))
    others = len(runs) - len(parts[first])
    left = f"{others} runs of others are" if others > 1 else "1 run of others is"
    name = first or "runs that name no base model"
    return parts[first], [printable(f"The answer is for {name}: an n holds for one base model; {left} left out.")]


def _compare(
    question: Question, part: str, parts: Sequence[Part], metrics: Sequence[str], options: AnalysisOptions,
    notes: Sequence[str] = (),
) -> Iterator[QuestionResult]:  # fmt: skip
    """The answer to one of both, over the n that all parts have."""
    grouped = [(names, group_runs(runs)[0]) for names, runs in parts]
    sizes = set.intersection(*({group.configuration.group_size for group in own} for _, own in grouped)) - {0}
    grouped = [(names, [g for g in own if g.configuration.group_size in sizes]) for names, own in grouped]
    compute = common_budgets([own for _, own in grouped]) if sizes else np.empty(0)
    if not len(compute):
        return
    rows, series, octaves, at_end = [], [], {}, {}
    for (place, (names, own)), metric in itertools.product(enumerate(grouped), metrics):
        model = fit_sweep(own, metric, reward_range=options.read.reward_range)
        if model is None:
            continue
        rewards = stopped(model.curves(compute, draws=DRAWS).mean)
        each = np.log2([group.configuration.group_size for group in own])
        best, lead = rewards.argmax(axis=0), rewards.mean(axis=1).argmax(axis=0)  # [S, P], [P]
        reward = rewards[lead, :, np.arange(len(compute))].T  # [S, P]
        key = {**names, "metric": metric} if len(metrics) > 1 else dict(names)
        rows.append(key | _row(own, metric, rewards, lead, reward))
        octaves[place, metric], at_end[place, metric] = each[best].mean(axis=1), reward[:, -1]
        name = ", ".join(str(value) for value in key.values())
        series += [line(name, "reward", compute, reward)]
        if len(sizes) > 1:
            series.append(line(name, "group_size", compute, 2.0 ** each[best], 2.0 ** each[lead]))
    shifts = []
    for row, (place, metric) in zip(rows, octaves, strict=True):
        if place and (0, metric) in octaves:
            shift, gain = octaves[place, metric] - octaves[0, metric], at_end[place, metric] - at_end[0, metric]
            shifts.append(shift)
            row |= _with_ends("octaves", shift) if len(sizes) > 1 else {}
            row |= _with_ends("difference", gain)
        if metric != metrics[0] and len(sizes) > 1 and (place, metrics[0]) in octaves:
            row |= _with_ends("octaves_of_target", octaves[place, metric] - octaves[place, metrics[0]])
    if not shifts:
        return
    alike = float(np.mean(np.abs(shifts).max(axis=0) <= ALIKE))
    moved = any(low > 0 or high < 0 for low, high in map(interval, shifts))
    verdict = "open" if len(sizes) < 2 else "differs" if moved else "alike" if alike >= CERTAIN else "open"
    numbers = {"compute": float(compute[-1]), "group_sizes": tuple(sorted(sizes)), "alike": alike, "metric": metrics[0]}
    columns = dict.fromkeys(key for row in rows for key in row if not key.endswith("_95") and row[key] != "")
    yield QuestionResult(question, part, verdict, numbers, tuple(columns), tuple(rows), tuple(series), tuple(notes))


def _with_ends(key: str, draws: np.ndarray) -> dict[str, Any]:
    """The mean of some draws [S], and their interval."""
    return {key: float(draws.mean()), f"{key}_95": interval(draws)}


def _row(
    groups: Sequence[ConfigurationRuns], metric: str, rewards: np.ndarray, lead: np.ndarray, reward: np.ndarray
) -> dict[str, Any]:
    """What one part gives at the last budget: n*, its reward, and the gain over the base model where that is known."""
    sizes = np.array([group.configuration.group_size for group in groups])
    best = rewards[:, :, -1].argmax(axis=0)
    row = {
        "group_size": int(sizes[lead[-1]]),
        "group_size_95": size_ends(sizes[best]),
        "reward": float(reward[:, -1].mean()),
        "reward_95": interval(reward[:, -1]),
    }
    starts = [run.columns[metric][run.compute == 0] for group in groups for run in group.runs if metric in run.columns]
    base = np.concatenate([np.empty(0), *starts])
    base = base[np.isfinite(base)]
    if len(base):
        row |= {"base": float(base.mean()), "gain": row["reward"] - float(base.mean())}
    return row


def _targets(runs: Sequence[RunCurve], metric: str) -> list[str]:
    """The columns best@k and worst@k that all runs have, beside the metric."""
    shared = set.intersection(*(set(run.columns) for run in runs)) - {metric}
    return sorted(name for name in shared if name.startswith(("best@", "worst@")))


def other_sets(runs: Sequence[RunCurve], options: ReadOptions) -> tuple[dict[str, list[RunCurve]], list[str]]:
    """The same runs as they fared on their other evaluation sets.

    Args:
      runs: as read from files, on `options.eval_set`.
      options: they were read with.

    Returns:
      Evaluation set -> runs, and sentences on the sets that cannot be read.
    """
    found: dict[str, list[RunCurve]] = {}
    notes: list[str] = []
    known = {(run.source, run.run) for run in runs}
    for name in dict.fromkeys(name for run in runs for name in run.eval_sets if name != options.eval_set):
        sources = dict.fromkeys(run.source for run in runs if name in run.eval_sets and os.path.isfile(run.source))
        try:
            read, _ = read_curves(list(sources), dataclasses.replace(options, eval_set=name)) if sources else ([], [])
        except InputError as error:
            notes.append(f"evaluation set {name}: {error}")
            continue
        own = [run for run in read if (run.source, run.run) in known]
        found |= {name: own} if own else {}
    return found, notes


def train_sets(runs: Sequence[RunCurve]) -> list[str]:
    """What each run was trained on: its set, the names of its mixture, and D where one name has several."""
    names = []
    for run in runs:
        mixed = sorted(name.removeprefix(MIXTURE) for name in run.identity if name.startswith(MIXTURE))
        names.append(MIXED.join(mixed) or str(run.identity.get("train_set") or ""))
    plain = {name for name in names if MIXED not in name and name}
    short = {name: name for name in names} | short_names(sorted(plain))
    sizes = {name: {run.facts.problem_set_size for run, own in zip(runs, names, strict=True) if own == name} - {0}
             for name in names}  # fmt: skip
    return [
        printable(_told(short[name], f"D = {run.facts.problem_set_size:,}" if len(sizes[name]) > 1 else ""))
        for run, name in zip(runs, names, strict=True)
    ]


def _models(runs: Sequence[RunCurve]) -> dict[str, str]:
    """Source and name of a run -> what its base model is called: its field `model`, and its size where they differ."""
    keys = {run.source + run.run: (str(run.identity.get("model") or ""), run.facts.model_params) for run in runs}
    short = short_names(sorted({model for model, _ in keys.values() if model})) | {"": ""}
    several = len({params for _, params in keys.values()}) > 1
    return {
        name: printable(_told(short[model], scale(params) if several and params else ""))
        for name, (model, params) in keys.items()
    }


def _told(name: str, more: str) -> str:
    """A name with what tells it from others of that name."""
    return f"{name} ({more})" if name and more else name or more


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Path -> its parts without those that all paths begin or end with: `hard` of `curated/hard/train.jsonl`.

    One path alone is called by its last part, without the ending of a file of problems. A path that would have no name
    keeps all of its parts.
    """
    parts = {path: path.rstrip("/").split("/") for path in paths}
    if len(parts) == 1:
        return {path: _stem(own[-1]) for path, own in parts.items()}
    start = shared_length(list(parts.values()))
    end = shared_length([own[start:][::-1] for own in parts.values()])
    return {path: _stem("/".join(own[start : len(own) - end])) or path for path, own in parts.items()}


def _stem(name: str) -> str:
    return name.removesuffix(".jsonl").removesuffix(".parquet")
