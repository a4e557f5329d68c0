"""A problem set in a file, split into files: training, held-out, and nested smaller training sets."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib

from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.tasks.graders.registry import check_named_by_file
from isocompute_jax.tasks.problem_sets import read_problems, write_problems
from isocompute_jax.tasks.splitting import stratified_split

SUMMARY = "split.json"


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
    split = stratified_split(problems, validation=options.validation, strata=options.strata or None, seed=options.seed)
    too_large = [size for size in options.nested if size > len(split.train)]
    if too_large:
        raise InputError(
            f"--nested: {max(too_large)} is more than the {len(split.train)} problems that are left for training"
        )
    unwritten = None if _may_be_written(options) else options.task
    sets = {"train": split.train, "validation": split.validation}
    # The order of the training set is stratified: its beginnings are sets of their own.
    sets |= {f"train_{size}": split.train[:size] for size in sorted(set(options.nested))}
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
        "same_question_as_another": split.repeated,
        "strata": {name: {"train": train, "validation": held} for name, (train, held) in split.strata.items()},
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
