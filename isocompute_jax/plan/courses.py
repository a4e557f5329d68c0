"""Which batches a scheduled run makes, and what all of them cost together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isocompute_jax.allocation.schedule import BatchSize
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.inputs import model_config_of
from isocompute_jax.model import ModelConfig
from isocompute_jax.plan.cost import Part, RunCost, price
from isocompute_jax.plan.roofline import Range
from isocompute_jax.plan.topology import Topology, parse_topology
from isocompute_jax.plan.unit import UnitFacts

Course = list[tuple[BatchSize, int]]
"""Sizes of batches, one after the other, and how many steps are made of each."""


def courses_of(config: RunConfig) -> list[Course]:
    """What is planned: the one course of a run whose sizes are known.

    Of a run that chooses n itself two, between which it lies: n that never changes, and the largest from the start. n
    that is read or predicted when the run begins (`frontier`, `theory`) is taken to stay as config.group_size has it.
    """
    if config.schedule.kind != "auto":
        return [list(config.sizes.segments(config.max_compute))]
    largest = config.group_size
    while 2 * largest <= config.schedule.largest:
        largest *= 2
    courses = []
    for n in dict.fromkeys((config.group_size, largest)):
        fixed = dataclasses.replace(config.schedule, group_size="").sizes(n, config.problems_per_batch)
        courses.append(list(fixed.segments(config.max_compute)))
    return [course for course in courses if course]


def sizes_of(config: RunConfig) -> list[BatchSize]:
    """The sizes that these courses have, each once: as many programs are compiled for each."""
    return list(dict.fromkeys(size for course in courses_of(config) for size, _ in course))


def price_sizes(
    config: RunConfig,
    topology: Topology,
    model_config: ModelConfig,
    found: Mapping[tuple[int, int], tuple[Range, UnitFacts | None]],
) -> RunCost:
    """What a scheduled run costs.

    Args:
      config: of the run, resolved.
      topology: of the learner.
      model_config: the model.
      found: (problems, group size) -> seconds of an update, and the sampler's unit, of batches of every size.
    """

    def priced(own: RunConfig) -> RunCost:
        update, unit = found[own.problems_per_batch, own.group_size]
        return price(own, topology, model_config, update=update, unit=unit, whole=config)[1]

    return cost_of(config, priced)


def price_again(config: RunConfig, figures: Mapping[str, Any]) -> RunCost:
    """What a run costs whose programs are those of a dry run (`report.figures`), compiling nothing.

    Args:
      config: of the run, resolved.
      figures: of a plan that fits, of a run whose batches have the same sizes.
    """
    topology, model_config = parse_topology(figures["topology"]), model_config_of(config)
    if sizes := figures.get("sizes"):
        found = {(size["problems"], size["group_size"]): _compiled(size) for size in sizes}
        return price_sizes(config, topology, model_config, found)
    update, unit = _compiled(figures)
    return price(config, topology, model_config, update=update, unit=unit)[1]


def _compiled(figures: Mapping[str, Any]) -> tuple[Range, UnitFacts | None]:
    return Range(*figures["step_s"]), UnitFacts(**figures["unit"]) if figures.get("unit") else None


def cost_of(config: RunConfig, price: Callable[[RunConfig], RunCost]) -> RunCost:
    """What a run costs, its steps summed over their sizes; the whole range where two courses are planned.

    Args:
      config: of the run, resolved.
      price: of the run whose batches all have one size, and of what lies between the steps of any.
    """
    return _hull([_along(course, config, price) for course in courses_of(config)])


def _along(course: Course, config: RunConfig, price: Callable[[RunConfig], RunCost]) -> RunCost:
    costs = [price(config.of_size(size)) for size, _ in course]
    counts = [steps for _, steps in course]
    seconds = [cost.step.times(steps) for cost, steps in zip(costs, counts, strict=True)]
    whole = _sum(seconds)
    parts = tuple(
        dataclasses.replace(part, seconds=whole) if part.name == "steps" else part for part in costs[-1].parts
    )
    shares = [each.low + each.high for each in seconds]
    return dataclasses.replace(
        _with(costs[-1], parts),
        step=whole.times(1 / sum(counts)),
        weights=_sum([cost.weights.times(n / sum(counts)) for cost, n in zip(costs, counts, strict=True)]),
        learner=_mean([cost.learner for cost in costs], shares),
        sampler=_mean([cost.sampler for cost in costs], shares),
    )


def _with(cost: RunCost, parts: tuple[Part, ...]) -> RunCost:
    return dataclasses.replace(
        cost,
        parts=parts,
        wall_hours=_sum([part.seconds.times(1 / 3600) for part in parts]),
        device_hours=_sum([part.device_hours for part in parts]),
    )


def _hull(costs: Sequence[RunCost]) -> RunCost:
    """From the lowest to the highest of every figure."""
    if len(costs) == 1:
        return costs[0]
    names = {part.name: part for cost in costs for part in cost.parts}
    parts = tuple(
        dataclasses.replace(
            part, seconds=_ends([own.seconds for cost in costs for own in cost.parts if own.name == name])
        )
        for name, part in names.items()
    )
    fields = ("step", "weights", "learner", "sampler", "wall_hours", "device_hours")
    return RunCost(parts=parts, **{name: _ends([getattr(cost, name) for cost in costs]) for name in fields})


def _sum(found: Sequence[Range]) -> Range:
    return Range(sum(each.low for each in found), sum(each.high for each in found))


def _mean(found: Sequence[Range], weights: Sequence[float]) -> Range:
    return _sum([each.times(weight / sum(weights)) for each, weight in zip(found, weights, strict=True)])


def _ends(found: Sequence[Range]) -> Range:
    return Range(min(each.low for each in found), max(each.high for each in found))
