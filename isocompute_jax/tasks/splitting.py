"""Cutting a problem set without leakage: the same question is never on both sides.

Two prompts are the same question where `normalised` makes the same text of them. That catches copies that differ in
typography, case, punctuation or LaTeX spacing, and nothing else: a problem in other words, or with other numbers, is
another one. `split_files` writes what a set is split into: training, held-out, and nested smaller training sets.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.tasks.graders.registry import check_named_by_file
from isocompute_jax.tasks.problem_sets import read_problems, write_problems

SUMMARY = "split.json"
QUANTILES = 10
"""Strata of a column of numbers that has more distinct ones."""

# What LaTeX spaces and delimits with, none of which is read out: \, \; \: \! \quad \left \( \[ $ ~ and the like.
_TYPOGRAPHY = re.compile(r"\\(?:[,;:!() \[\]]|(?:quad|qquad|left|right|displaystyle|limits)(?![a-z]))|\$|(?<!\\)~")
_DASHES = re.compile("[\N{HYPHEN}-\N{HORIZONTAL BAR}\N{MINUS SIGN}]")
# Signs of mathematics are kept, and points and commas within numbers: 1.5 is not 15.
_PUNCTUATION = re.compile(r"[?!;:\"'`\u2018-\u201f\u00ab\u00bb\u3001\u3002]|(?<!\d)[.,]|[.,](?!\d)")
_NOT_BETWEEN_WORDS = re.compile(r"(?<!\w) | (?!\w)")


def normalised(text: str) -> str:
    """What two copies of one question have in common.

    Unicode NFKC, case-folded; without LaTeX's spacing and `$`, sentence punctuation, and white space but that between
    two words or numbers, which is one space; all dashes are `-`.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    bare = _PUNCTUATION.sub(" ", _DASHES.sub("-", _TYPOGRAPHY.sub(" ", folded)))
    return _NOT_BETWEEN_WORDS.sub("", " ".join(bare.split())) or folded


def leakage_key(problem: Problem) -> bytes:
    """16 bytes that are the same for problems that ask the same question."""
    return hashlib.blake2b(normalised(problem.text).encode(), digest_size=16).digest()


def split(problems: Sequence[Problem], *, validation: int, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Splits into (train, validation), disjoint by question; both keep the order of `problems`.

    Which questions go where depends on the set of prompts and the seed, not on their order. Where questions repeat,
    validation may hold up to one question's repetitions more than asked for.

    Raises:
      InputError: nothing would be left on one side.
    """
    groups = _by_question(problems)
    # By a question's own text: a split of prompts that are no copies of each other is that of earlier releases.
    questions = sorted(groups.values(), key=lambda group: min(problem.text for problem in group))
    held_out: set[int] = set()
    rows = 0
    for index in np.random.default_rng(seed).permutation(len(questions)):
        if rows >= validation:
            break
        held_out.add(index)
        rows += len(questions[index])
    if not 0 < len(held_out) < len(questions):
        raise InputError(
            f"validation = {validation}: cannot split {len(problems)} problems ({len(questions)} distinct prompts) so "
            "that both sides have some; ask for fewer, and at least 1"
        )
    chosen = {id(problem) for index in held_out for problem in questions[index]}
    train = [problem for problem in problems if id(problem) not in chosen]
    return train, [problem for problem in problems if id(problem) in chosen]


def stratified_split(
    problems: Sequence[Problem], *, validation: int, strata: str | None, seed: int
) -> tuple[list[Problem], list[Problem], dict[str, tuple[int, int]]]:
    """Splits so that both sides, and every beginning of `train`, are as difficult as the whole.

    Each stratum's questions, in random order, get evenly spaced places between 0 and 1; the order by place has every
    stratum in every beginning in proportion, within about one question. The first questions are held out.

    Args:
      problems: the whole set.
      validation: problems to hold out: so many, unless only repeated questions are left that would be too many.
      strata: a measured rate, such as `avg@16`, or an extra column. Numbers of more than `QUANTILES` kinds are cut at
        their quantiles; a question that several problems ask counts as the first of them. None for one stratum.
      seed: of the order. Which problems go where does not depend on the order of `problems`.

    Returns:
      The training set, every beginning of which is stratified as the whole is; the problems that are held out; and
      label of a stratum -> (training problems, held-out problems).

    Raises:
      InputError: no problem has the column, or nothing would be left on one side.
    """
    ordered = sorted(problems, key=lambda problem: (problem.text, problem.id))
    questions = list(_by_question(ordered).values())
    label = _labels(questions, strata)
    rng = np.random.default_rng(seed)
    placed: list[tuple[float, int]] = []
    for name in sorted(set(label)):
        members = [index for index, own in enumerate(label) if own == name]
        places = (np.arange(len(members)) + rng.random()) / len(members)
        placed += zip(places.tolist(), rng.permutation(members).tolist(), strict=True)
    held_out: list[int] = []
    left: list[int] = []
    room = validation
    for _, index in sorted(placed):
        fits = len(questions[index]) <= room
        (held_out if fits else left).append(index)
        room -= len(questions[index]) if fits else 0
    if validation < 1 or not held_out or not left:
        raise InputError(
            f"--validation={validation}: cannot split {len(problems)} problems ({len(questions)} distinct questions) "
            "so that both sides have some; ask for fewer, and at least 1"
        )
    counts = {
        name: (_count(left, questions, label, name), _count(held_out, questions, label, name))
        for name in sorted(set(label))
    }
    train, apart = ([problem for index in part for problem in questions[index]] for part in (left, held_out))
    return train, apart, counts


def _by_question(problems: Sequence[Problem]) -> dict[bytes, list[Problem]]:
    groups: dict[bytes, list[Problem]] = {}
    for problem in problems:
        groups.setdefault(leakage_key(problem), []).append(problem)
    return groups


def _count(chosen: Sequence[int], questions: Sequence[list[Problem]], label: Sequence[str], name: str) -> int:
    return sum(len(questions[index]) for index in chosen if label[index] == name)


def _labels(questions: Sequence[list[Problem]], strata: str | None) -> list[str]:
    """The stratum of each question."""
    if strata is None:
        return ["all"] * len(questions)
    values = [_value(group[0], strata) for group in questions]
    known = [value for value in values if value is not None]
    if not known:
        columns = sorted({name for group in questions for name in (*group[0].measured, *group[0].extra)})
        raise InputError(f"--strata={strata}: no problem has this column; there are {', '.join(columns) or 'none'}")
    label = _quantile_label(known) if all(_is_number(value) for value in known) else str
    return ["unknown" if value is None else label(value) for value in values]


def _quantile_label(values: Sequence[Any]) -> Callable[[Any], str]:
    """Value -> name of its stratum; the names sort as the values do."""
    distinct = sorted({float(value) for value in values})
    if len(distinct) <= QUANTILES:
        return lambda value: f"{distinct.index(float(value)):02d}: {float(value):g}"
    edges = np.quantile([float(value) for value in values], np.arange(1, QUANTILES) / QUANTILES)
    bounds = [distinct[0], *edges.tolist(), distinct[-1]]

    def label(value: Any) -> str:
        number = int(np.searchsorted(edges, float(value), side="right"))
        return f"{number:02d}: {bounds[number]:g} to {bounds[number + 1]:g}"

    return label


def _value(problem: Problem, column: str) -> Any:
    return problem.measured.get(column, problem.extra.get(column))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- files


@described
@dataclasses.dataclass(frozen=True)
class SplitOptions:
    """How a problem set is split."""

    validation: int = option(300, "Problems to hold out.", low=1)
    strata: str = option(
        "",
        "Column to stratify by, so that every set is as difficult as the whole: a measured rate such as avg@16, or "
        "another column. Numbers of many kinds are cut at their deciles.",
    )
    nested: tuple[int, ...] = option(
        (), "Sizes of smaller training sets, each of which holds the smaller ones, such as 500,1000,2000.", low=1
    )
    task: str = option(
        "",
        "Task of the rows that name none, such as numeric; it is written with them, but for a function and an address, "
        "which no file may name: such rows stay without a task, for --config.reward to grade.",
    )
    seed: int = option(0, "Seed of what goes where.", low=0, high=2**32 - 1)
    allow: tuple[str, ...] = option((), "Functions and addresses that problems may name in `task`; see docs/trust.md.")

    def __post_init__(self) -> None:
        check(self, "--")


def split_files(source: pathlib.Path, out: pathlib.Path, options: SplitOptions) -> dict[str, int]:
    """Writes `train.jsonl`, `validation.jsonl`, `train_SIZE.jsonl` for every nested size, and last `split.json`.

    Returns:
      Problems of each set, by name.

    Raises:
      InputError: the file is at fault, or too small for these sizes.
    """
    may_name = functools.partial(
        check_named_by_file, allowed=(*options.allow, options.task), remedy="name it in --allow"
    )
    problems = read_problems(source, default_task=options.task or None, grader_name=may_name)
    train, validation, strata = stratified_split(
        problems, validation=options.validation, strata=options.strata or None, seed=options.seed
    )
    too_large = [size for size in options.nested if size > len(train)]
    if too_large:
        raise InputError(
            f"--nested: {max(too_large)} is more than the {len(train)} problems that are left for training"
        )
    unwritten = None if _may_be_written(options) else options.task
    sets = {"train": train, "validation": validation}
    # The order of the training set is stratified: its beginnings are sets of their own.
    sets |= {f"train_{size}": train[:size] for size in sorted(set(options.nested))}
    out.mkdir(parents=True, exist_ok=True)
    for name, chosen in sets.items():
        kept = [dataclasses.replace(each, task="") if each.task == unwritten else each for each in chosen]
        write_problems(out / f"{name}.jsonl", kept)
    sizes = {name: len(chosen) for name, chosen in sets.items()}
    summary = {
        "source": str(source),
        "seed": options.seed,
        "strata_by": options.strata or None,
        "problems": sizes,
        "same_question_as_another": len(problems) - len(_by_question(problems)),
        "strata": {name: {"train": train, "validation": held} for name, (train, held) in strata.items()},
    }
    write_atomic(out / SUMMARY, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return sizes


def _may_be_written(options: SplitOptions) -> bool:
    """Whether files may name the task of the rows that name none."""
    try:
        check_named_by_file(options.task, options.allow)
    except InputError:
        return False
    return True
