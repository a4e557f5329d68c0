"""Schedules inside a run: n, B_problem and the learning rate as functions of C, the rollouts spent so far.

A batch has the sizes of the C at which it is begun, so what it is does not depend on when anything finished. C is known
exactly: a run that is killed at a switch, or anywhere else, goes on with the same sizes.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import json
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar

from isocompute_jax.allocation.policies import Policy, check_deal
from isocompute_jax.options import check, described, field_of, nearest_word, option
from isocompute_jax.records.errors import Field, InputError

Number = TypeVar("Number", int, float)
Kind = Literal["fixed", "breakpoints", "frontier", "theory", "auto"]
WORDS: Mapping[str, Kind] = {"": "fixed", "theory": "theory", "auto": "auto"}
PIECE = re.compile(r"([^@\s]+)@(\d+)")
SHAPES = ("constant", "cosine", "linear", "wsd")
SAME_COMPUTE = 1.001
"""A budget that exceeds the end of the data by rounding lies inside of them."""


@dataclasses.dataclass(frozen=True)
class Breakpoints(Generic[Number]):
    """A step function of C: `values[i]` from `starts[i]` rollouts on; starts rise from 0."""

    starts: tuple[int, ...]
    values: tuple[Number, ...]

    def at(self, compute: int) -> Number:
        """Its value once `compute` rollouts are spent."""
        return self.values[bisect.bisect_right(self.starts, compute) - 1]

    @property
    def text(self) -> str:
        """As a flag has it."""
        return ",".join(f"{value}@{start}" for value, start in zip(self.values, self.starts, strict=True))


def parse_breakpoints(where: Field, text: str, number: Callable[[str], Number], *, low: Number) -> Breakpoints[Number]:
    """`4@0,8@2048`: 4 from the beginning, 8 from 2,048 rollouts on.

    Args:
      where: the field, for messages.
      text: what it says.
      number: from the text of a value to the value; ValueError where it is none.
      low: least value.

    Raises:
      InputError: it says something else, does not begin at 0, goes back in C, or a value is below `low`.
    """
    found = [PIECE.fullmatch(piece.strip()) for piece in text.split(",")]
    try:
        pieces = [(number(match[1]), int(match[2])) for match in found if match is not None]
    except ValueError:
        pieces = []
    if len(pieces) != len(found):
        raise InputError(
            where, f" = {text!r} is no list of VALUE@COMPUTE, such as 4@0,8@2048 (from 2,048 rollouts on 8)"
        )
    values, starts = zip(*pieces, strict=True)
    if starts[0] != 0:
        raise InputError(where, f" = {text!r} begins at {starts[0]} rollouts: say what holds from 0 on")
    for before, after in itertools.pairwise(starts):
        if after <= before:
            raise InputError(
                where, f" = {text!r} goes back in C, from {before} to {after}: give rising numbers of rollouts"
            )
    for value in values:
        if not low <= value < math.inf:
            raise InputError(where, f" = {text!r}: {value:g} must be at least {low:g}")
    return Breakpoints(starts, values)


@described
@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """What changes inside a run as C, the rollouts spent, grows (docs/allocation.md)."""

    group_size: str = option(
        "",
        "n as a function of C: empty, config.group_size throughout; 4@0,8@2048, from 2,048 rollouts on 8; "
        "frontier:FILE, n*(C) of a fit's summary.json; theory, n*(C) that is predicted from the problems' measured "
        "pass rates; auto, by what the run itself measures.",
    )
    largest: int = option(256, "Largest n that `auto` comes to.", low=2)
    problems_per_batch: str = option("", "B_problem likewise: empty, or 8@0,32@8192.")
    rate: str = option(
        "constant",
        "What the rate is multiplied by after its warm-up: constant; cosine, linear or wsd (constant, then linear), "
        "which fall to `final_rate` at max_compute; or factors as 1@0,0.3@8192. The rule for B "
        "(optimizer.lr_scaling_exponent) holds at every size.",
    )
    final_rate: float = option(0.1, "Factor at max_compute, of cosine, linear and wsd.", low=0, high=1)
    decay_share: float = option(0.2, "Share of max_compute over which wsd falls.", above=0, high=1)
    per_problem: Policy = option(
        "uniform",
        "Who gets how many of a step's rollouts, n of each problem on average: uniform; by what is known of its rate, "
        "variance or knapsack; in rounds, by this step's rewards too, hit or until_signal (docs/allocation.md).",
    )
    block: int = option(2, "Rollouts that such a policy deals at once, and the least that a problem gets.", low=2)
    most: int = option(0, "Rollouts that it gives a problem at most; 0 for no limit.", low=0)
    noise_every: int = option(
        0,
        "Steps from one measurement of the gradient's noise, between problems and within them, to the next (64 cost "
        "about 2%); 0 for none.",
        low=0,
        identity=False,
    )
    source: str = option("", "What group_size was read from; the run writes it.", flag=None)

    def __post_init__(self) -> None:
        check(self)
        for n in self.sizes(self.block, 8).group_size.values:  # which reads what the fields say, for its faults
            check_deal(self.per_problem, group_size=n, block=self.block, most=self.most)
        if self.rate not in SHAPES:
            nearest = nearest_word(self.rate, list(SHAPES))
            if nearest and "@" not in self.rate:
                raise InputError(
                    field_of(self, "rate"),
                    f" = {self.rate!r}: did you mean {nearest!r}? Known are {', '.join(SHAPES)}, and factors "
                    "as 1@0,0.3@8192",
                )
            assert self._rate_factors is not None  # read now, for its faults

    @property
    def kind(self) -> Kind:
        """Where n comes from."""
        text = self.group_size
        if text in WORDS:
            return WORDS[text]
        return "frontier" if text.startswith("frontier:") else "breakpoints"

    @property
    def is_open(self) -> bool:
        """Whether n*(C) is still to be read, or predicted (`settled`)."""
        return self.kind in ("frontier", "theory")

    @property
    def text(self) -> str:
        """What is scheduled, in a line; empty for a run whose sizes and rate are fixed."""
        found = [f"n {self.source or self.group_size}" if self.group_size else ""]
        found += [f"B {self.problems_per_batch}" if self.problems_per_batch else ""]
        found += [f"rate {self.rate}" if self.rate != "constant" else ""]
        found += [f"per problem {self.per_problem}" if self.per_problem != "uniform" else ""]
        return "; ".join(filter(None, found))

    def sizes(self, group_size: int, problems_per_batch: int) -> Sizes:
        """n and B_problem as functions of C, given those of a run that has no schedule for one of them.

        `auto`, and what is open, has the given n from the start.
        """
        return Sizes(
            self._group_sizes or Breakpoints((0,), (group_size,)),
            self._problems or Breakpoints((0,), (problems_per_batch,)),
        )

    @functools.cached_property
    def _group_sizes(self) -> Breakpoints[int] | None:
        """The breakpoints of group_size; None where it has none."""
        if self.kind != "breakpoints":
            return None
        return parse_breakpoints(field_of(self, "group_size"), self.group_size, int, low=2)

    @functools.cached_property
    def _problems(self) -> Breakpoints[int] | None:
        """The same of problems_per_batch."""
        if not self.problems_per_batch:
            return None
        return parse_breakpoints(field_of(self, "problems_per_batch"), self.problems_per_batch, int, low=1)

    @functools.cached_property
    def _rate_factors(self) -> Breakpoints[float] | None:
        """The same of rate."""
        if self.rate in SHAPES:
            return None
        return parse_breakpoints(field_of(self, "rate"), self.rate, float, low=0.0)

    def rate_factor(self, compute: int, max_compute: int) -> float:
        """What the learning rate is multiplied by once `compute` of `max_compute` rollouts are spent."""
        if self._rate_factors is not None:
            return self._rate_factors.at(compute)
        spent = min(compute / max_compute, 1.0)
        left = {
            "constant": 1.0,
            "cosine": (1 + math.cos(math.pi * spent)) / 2,
            "linear": 1 - spent,
            "wsd": min((1 - spent) / self.decay_share, 1.0),
        }[self.rate]
        return 1.0 if self.rate == "constant" else self.final_rate + (1 - self.final_rate) * left

    def as_recorded(self, recorded: Mapping[str, Any]) -> ScheduleConfig:
        """With n*(C) as the config.json of a run has it, which was read, or predicted, when the run began."""
        if self.is_open and recorded.get("source") == self.group_size:
            return dataclasses.replace(self, group_size=recorded["group_size"], source=recorded["source"])
        return self

    def settled(self, group_sizes: Breakpoints[int]) -> ScheduleConfig:
        """With these in place of where they come from."""
        return dataclasses.replace(self, group_size=group_sizes.text, source=self.group_size)


@dataclasses.dataclass(frozen=True)
class BatchSize:
    """Of one batch: P problems, n rollouts of each, on average where a policy deals them."""

    problems: int
    group_size: int

    @property
    def rollouts(self) -> int:
        """B."""
        return self.problems * self.group_size


@dataclasses.dataclass(frozen=True)
class Sizes:
    """n and B_problem as functions of C."""

    group_size: Breakpoints[int]
    problems_per_batch: Breakpoints[int]

    def at(self, compute: int, group_size: int = 0) -> BatchSize:
        """Of a batch that is begun once `compute` rollouts are asked for; of a `group_size` that is chosen, if any."""
        return BatchSize(self.problems_per_batch.at(compute), group_size or self.group_size.at(compute))

    def segments(self, max_compute: int) -> Iterator[tuple[BatchSize, int]]:
        """The sizes that a run of so many rollouts has, one after the other, and how many steps it makes of each."""
        starts = sorted({*self.group_size.starts, *self.problems_per_batch.starts})
        compute = 0
        for end in (*starts[1:], max_compute):
            size = self.at(compute)
            end = min(end, max_compute)
            room = (max_compute - compute) // size.rollouts
            steps = min(max(-(-(end - compute) // size.rollouts), 0), room)
            if steps:
                compute += steps * size.rollouts
                yield size, steps

    def after(self, compute: int, max_compute: int, group_size: int = 0) -> BatchSize | None:
        """The size that comes after that of `at`; None where none does, or none of its steps can be paid."""
        here, starts = self.at(compute, group_size), sorted({*self.group_size.starts, *self.problems_per_batch.starts})
        later = ((start, self.at(start, group_size)) for start in starts if start > compute)
        found = ((start, size) for start, size in later if size != here)
        return next((size for start, size in found if start + size.rollouts <= max_compute), None)

    def unpaid(self, max_compute: int) -> list[BatchSize]:
        """The sizes that begin before the end of a run of so many rollouts and have no step in it."""
        starts = {*self.group_size.starts, *self.problems_per_batch.starts}
        begun, paid = [self.at(start) for start in sorted(starts) if start < max_compute], self.distinct(max_compute)
        return [size for size in begun if size not in paid]

    def distinct(self, max_compute: int) -> list[BatchSize]:
        """The sizes that a run has, each once, in the order in which they come."""
        return list(dict.fromkeys(size for size, _ in self.segments(max_compute)))


def optimal_group_sizes(path: str | os.PathLike[str], where: Field, *, problem_set_size: int) -> Breakpoints[int]:
    """n*(C) of a fit's summary.json: at each budget inside its data the n that it advises.

    Args:
      path: the file, of schema 3, or of the earlier schema 2, whose budgets are those of a frontier.
      where: the field that names it, for messages.
      problem_set_size: D of the run.

    Raises:
      InputError: there is no such file, it is of another schema or of no sweep over n with compute in rollouts, or its
        runs had another number of problems.
    """
    try:
        summary = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        schema = summary["schema"] if "schema" in summary else summary.get("schema_version", 2)
        known = schema in ADVISED
        found = [(float(budget), int(n)) for budget, n in ADVISED[schema](summary)] if known else []
        sizes = {int(run["problem_set_size"]) for run in summary["inputs"]} - {0}  # which tables may leave out
        unit = summary.get("compute_unit", "rollouts")
    except FileNotFoundError:
        raise InputError(
            where, f": {path} does not exist; `python -m isocompute_jax.fit` writes a summary.json"
        ) from None
    except OSError as error:
        raise InputError(
            where, f": {str(path)!r} cannot be read ({error.strerror}): give the summary.json of a fit, frontier:FILE"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            where, f": {path} is no summary.json of a sweep, as `python -m isocompute_jax.fit` writes it"
        ) from error
    if not known:
        raise InputError(where, f": {path} is of schema {schema!r}, and 2 and 3 are known here: fit the runs again")
    if unit != "rollouts":
        raise InputError(
            where, f": the budgets of {path} are {unit}, and a schedule's are rollouts: fit without --compute"
        )
    if not found or min(n for _, n in found) < 2:
        raise InputError(where, f": {path} advises no fixed n; fit a sweep over group_size")
    if sizes and sizes != {problem_set_size}:
        raise InputError(
            where,
            f": {path} is of runs with {', '.join(map(str, sorted(sizes)))} training problems, and this run has "
            f"{problem_set_size}: n*(C) depends on them; fit a sweep on these problems",
        )
    return from_leaders(found)


def _advised(summary: Mapping[str, Any]) -> list[tuple[float, int]]:
    """Budgets inside the data and the n advised there; of a sweep of one n by its answers, which have no n*(C)."""
    optimal = summary["optimal"]
    if optimal is not None:
        return list(zip(optimal["budgets"], optimal["group_size"], strict=True))
    end = summary["data"]["span"][1] * SAME_COMPUTE
    answers = [each for each in summary["grid"] if each["budget"] <= end]
    return [(each["budget"], each["choices"][0]["group_size"]) for each in answers]


def _led(summary: Mapping[str, Any]) -> list[tuple[float, int]]:
    return [(row["compute"], row["group_size"]) for row in summary["frontier"]["budgets"]]


ADVISED: Mapping[int, Callable[[Mapping[str, Any]], list[tuple[float, int]]]] = {2: _led, 3: _advised}
"""Schema of a summary.json -> how its budgets and their n are read."""


def from_leaders(leaders: list[tuple[float, int]]) -> Breakpoints[int]:
    """The schedule that follows (C, the best n there), rising in C.

    From one budget to the next it changes halfway, in log C, and it never falls: a schedule that went back would
    follow noise between ties.
    """
    starts, values = [0], [max(leaders[0][1], 2)]
    for (before, _), (after, n) in itertools.pairwise(leaders):
        if n > values[-1]:
            starts.append(max(round(math.sqrt(before * after)), starts[-1] + 1))
            values.append(n)
    return Breakpoints(tuple(starts), tuple(values))
