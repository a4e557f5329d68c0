"""What a reader says about the inputs: which columns, which unit of compute, which facts a table leaves out."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from isocompute_jax.options import check, described, named_numbers, option, pair, parse_renames
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import RunFacts

FACTS = tuple(field.name for field in dataclasses.fields(RunFacts))
"""Names of the facts about a run that a table's columns, --run_pattern or --constants may give."""

METRIC = "avg@4"
"""The metric where none is named: our own evaluations have it. Of tables without it `rewards` chooses one."""
RATE = "learning_rate"
GIVEN = (*FACTS, RATE)
"""What --run_pattern and --constants may give."""

SUFFIXES = {"k": 1e3, "K": 1e3, "m": 1e6, "M": 1e6, "b": 1e9, "B": 1e9}
"""Multipliers in a run's name, as in `1.5B`."""

Unit = Literal["rollouts", "tokens", "gpu_hours", "steps"]


def parse_columns(items: Sequence[str]) -> dict[str, str]:
    """The items of --columns=theirs:ours,... as a mapping; split at the last colon, since their names may have some.

    Several of theirs may be one of ours, for tables of several kinds; of those that one table has, the first counts.

    Raises:
      InputError: an item is not of that form, or one of theirs is given twice.
    """
    return parse_renames("--columns", items, example="e.g. --columns=val/acc:avg@4")


@described
@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """How inputs are read; checked on construction, errors name the flag."""

    metric: str = option(
        METRIC,
        "Column to optimise; best@k and worst@k come along with avg@k. A table without avg@4 that has one column which "
        "is clearly a held-out reward, or else one of training, needs no flag. chinchilla: loss.",
    )
    eval_set: str = option(
        "validation",
        "Evaluation set whose rows are used, where rows name one; rows that name none belong to every set.",
    )
    columns: Mapping[str, str] = option(
        help="theirs:ours,... renames columns, e.g. --columns=train/global_step:step,val/acc:avg@4. Ours are run, "
        "step, compute, tokens, gpu_hours, group_size, problems_per_batch, seed, problem_set_size, model_params, "
        "model, train_set, schedule and metrics; theirs may be *, every other column of a wide table.",
        default_factory=dict,
        parse=lambda _, items: parse_columns(items),
    )
    compute: Unit = option(
        "rollouts",
        "Unit of compute. Rollouts are taken from the column compute, else from step x problems_per_batch x "
        "group_size; steps need neither. Laws over compute read tokens unless this is given.",
    )
    reward_range: tuple[float, float] = option(
        (0.0, 1.0),
        "Least and largest possible reward, e.g. -1,1; a reward outside is reported and left out, and a file with more "
        "than 5% of them is refused. The upper end may be infinite for a loss.",
        finite=False,
        parse=pair,
    )
    run_pattern: str = option(
        "",
        r"Regular expression that finds facts in run names: --run_pattern='n(?P<group_size>\d+)-s(?P<seed>\d+)'.",
    )
    constants: Mapping[str, float] = option(
        help="Facts that the tables leave out: --constants=problems_per_batch=32. They never override.",
        default_factory=dict,
        parse=named_numbers,
    )
    strict: bool = option(False, "Any finding about the input (a bad row, a duplicate) ends the program.")

    def __post_init__(self) -> None:
        if not self.metric:
            raise InputError("--metric is empty; name the column that holds the reward")
        check(self, "--")
        low, high = self.reward_range
        if not -math.inf < low < high:
            raise InputError(f"--reward_range={low:g},{high:g} must be two numbers, the lower one first")
        self._check_pattern()
        for name, value in self.constants.items():
            if name not in GIVEN:
                raise InputError(f"--constants: {name} is not one of {', '.join(GIVEN)}")
            if not is_fact(name, value):
                kind = "a number above 0" if name == RATE else "a whole number"
                raise InputError(f"--constants: {name} is {value!r}, not {kind}")

    def _check_pattern(self) -> None:
        try:
            groups = re.compile(self.run_pattern).groupindex
        except (re.error, OverflowError, RecursionError) as error:
            raise InputError(f"--run_pattern={self.run_pattern} is not a regular expression: {error}") from None
        unknown = [name for name in groups if name not in GIVEN]
        if unknown or (self.run_pattern and not groups):
            wrong = f"group {unknown[0]} is unknown" if unknown else "it has no named group"
            example = "n(?P<group_size>\\d+)-s(?P<seed>\\d+)"
            raise InputError(f"--run_pattern: {wrong}; groups are named {', '.join(GIVEN)}, as in {example}")


def is_whole(value: float) -> bool:
    """Whether a value is a whole number of at least 0 that an int can hold."""
    return 0 <= value < 2**63 and value == int(value)


def is_fact(name: str, value: float) -> bool:
    """Whether the fact of this name can have the value."""
    return 0 < value < math.inf if name == RATE else is_whole(value)


def facts_of_name(run: str, pattern: str) -> dict[str, float] | None:
    """The facts in a run's name; None when the pattern is nowhere in it or a group is not a number that can be."""
    found = re.search(pattern, run)
    if found is None:
        return None
    facts = {}
    for name, text in found.groupdict().items():
        if text is None:
            continue
        scale = SUFFIXES.get(text[-1:], 1.0)
        try:
            value = round(float(text[:-1]) * scale, 3) if scale != 1.0 else float(text)
        except ValueError:
            return None
        if not is_fact(name, value):
            return None
        facts[name] = value
    return facts
