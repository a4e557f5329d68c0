"""A plan for a terminal, and its figures as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from isocompute_jax import model
from isocompute_jax.accelerators import GIB
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.plan.cost import push_path
from isocompute_jax.plan.courses import courses_of, sizes_of
from isocompute_jax.plan.dry_run import Plan
from isocompute_jax.plan.hlo import KINDS
from isocompute_jax.plan.roofline import BANDWIDTH, PRODUCTS, Range
from isocompute_jax.plan.unit import keys_bytes

COMPILERS = ("jax", "jaxlib", "jax-cuda13-plugin", "tokamax", "libtpu")
"""Packages whose versions a plan depends on."""


def report(plan: Plan) -> str:
    """The plan, in lines of text."""
    parts = _head(plan), _memory(plan), _sampler_memory(plan), _verdict(plan), _program(plan), _estimates(plan)
    return "\n".join([*(line for part in parts for line in part), ""])


def figures(plan: Plan) -> dict[str, Any]:
    """What a table of plans needs; bytes, seconds and FLOPs."""
    found: dict[str, Any] = {
        "topology": plan.topology.name,
        "devices": plan.topology.size,
        "versions": versions(),
        "fits": plan.fits,
        "needed": plan.needed,
    }
    if plan.memory is None or plan.time is None or plan.compiled is None:
        return found
    if plan.cost is None or plan.sampling is None or plan.together is None:
        return found
    memory, work = plan.memory, plan.work
    return found | {
        "mesh": {name: size for name, size in plan.config.mesh.__dict__.items() if size > 1},
        "rollouts": plan.config.rollouts_per_step,
        "steps": (plan.scheduled or plan.config).num_steps,
        "sizes": [_size_figures(size) for size in plan.sizes],
        "sampler_devices": plan.config.plan.sampler_devices,
        "asynchronous": plan.config.overlapped,
        "updates_per_step": plan.config.updates_per_step,
        "row_tokens": plan.config.packing.row_tokens,
        "remat": plan.config.compute.remat,
        "compile_s": plan.compiled.lower_s + plan.compiled.compile_s,
        "memory": {name: getattr(memory, name) for name in memory.__dataclass_fields__},
        "free": plan.topology.device.usable - plan.needed,
        "together": dataclasses.asdict(plan.together),
        "unit": None if plan.unit is None else dataclasses.asdict(plan.unit),
        "collectives": {kind: sent for kind, _, sent in _by_kind(plan)},
        "tokens": None if work is None else work.tokens,
        "microbatches": None if work is None else work.microbatches,
        "flops": None if plan.flops is None else plan.flops.model,
        "step_s": _ends(plan.time.total),
        "mfu": _ends(plan.time.mfu),
        "sampling_s": _ends(plan.sampling.seconds),
        "device_hours": _ends(plan.cost.device_hours),
        "wall_hours": _ends(plan.cost.wall_hours),
        "learner": _ends(plan.cost.learner),
        "weights_s": _ends(plan.cost.weights),
        "parts": {part.name: _ends(part.device_hours) for part in plan.cost.parts},
        "run_step_s": _ends(plan.cost.step),
    }


def _size_figures(plan: Plan) -> dict[str, Any]:
    """Of one size of a scheduled run's batches: what the run's cost is summed from."""
    return {
        "problems": plan.config.problems_per_batch,
        "group_size": plan.config.group_size,
        "needed": plan.needed,
        "unit": None if plan.unit is None else dataclasses.asdict(plan.unit),
        "step_s": None if plan.time is None else _ends(plan.time.total),
    }


def versions() -> dict[str, str]:
    """Of the packages that compile, as far as they are installed."""
    found = {}
    for name in COMPILERS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _head(plan: Plan) -> Iterator[str]:
    shape, config = plan.model_config, plan.config
    mesh = " x ".join(f"{name} {size}" for name, size in config.mesh.__dict__.items() if size > 1) or "one device"
    device = plan.topology.device
    yield f"Plan of {config.model} on {plan.topology.name}: {plan.topology.size} devices, {mesh}"
    size = model.count_params(shape) / 1e9
    yield f"  model       {shape.architecture}, {size:.2f} B parameters, computed in {shape.dtype}"
    yield (
        f"  step        {config.rollouts_per_step:,} rollouts = {config.problems_per_batch} problems x "
        f"{config.group_size}; {(plan.scheduled or config).num_steps:,} steps"
    )
    if plan.scheduled is not None:
        yield from _schedule(plan.scheduled)
    if config.schedule.noise_every:
        yield (
            f"  noise       measured on one step in {config.schedule.noise_every:,}, which goes over its rollouts once "
            "more; memory for three more gradients"
        )
    if config.updates_per_step > 1:
        yield (
            f"  updates     {config.updates_per_step:,} a step = {config.recipe.epochs} epochs x "
            f"{config.recipe.minibatches} mini-batches of {config.problems_per_update} problems"
        )
    if config.teacher:
        yield "  teacher     not in this plan: neither its weights nor its scores"
    if config.supervised:
        yield "  texts       nothing is sampled but evaluations: leave out what this plan says of sampling for training"
    yield f"  compilers   {', '.join(f'{name} {version}' for name, version in versions().items())}"
    if plan.compiled is not None:
        yield f"  compiled in {plan.compiled.lower_s + plan.compiled.compile_s:.0f} s; no weights were read"
    yield f"  peaks       {device.source}"
    yield ""


def _schedule(config: RunConfig) -> Iterator[str]:
    """The courses that are planned."""
    first, *others = courses_of(config)
    made = "; ".join(f"{steps:,} of {size.problems} x {size.group_size}" for size, steps in first)
    yield f"  schedule    {config.schedule.text}; steps: {made}"
    if others:
        made = "; ".join(f"{steps:,} of {size.problems} x {size.group_size}" for size, steps in others[0])
        yield f"              n is chosen by the run: that is if it never changes, and at most {made}; costs span both"
    if config.schedule.is_open:
        yield "              n*(C) is known when the run begins; planned is the n that config.group_size says"
    count = len(sizes_of(config))
    yield f"              {count} sizes, each compiled; what follows is of the one that needs most memory"


def _memory(plan: Plan) -> Iterator[str]:
    memory, device = plan.memory, plan.topology.device
    yield "Memory of each device in the learner's step, GiB, by the compiler's analysis"
    if memory is None:
        needed = _gib(plan.needed)
        yield f"  the compiler refuses the step: it needs {needed}; the device has {_gib(device.memory)}"
        return
    left = [(f"not taken by JAX (it takes {device.share:.0%})", device.memory * (1 - device.share))]
    rows = [
        (f"parameters ({'adapters' if memory.frozen else 'master weights'})", memory.params),
        *([("frozen weights", memory.frozen)] if memory.frozen else []),
        ("gradients (sum over micro-batches)", memory.gradients),
        ("moments of the optimizer", memory.moments),
        ("activations and other temporaries", memory.temporaries),
        ("tokens, credit and what else comes in", memory.batch),
        ("outputs that reuse nothing", memory.outputs),
        ("peak", memory.peak),
        *(left if device.share < 1 else []),
        ("reserve (runtime, kernels' scratch)", device.reserve),
        ("free", memory.free(device)),
    ]
    for name, size in rows:
        yield f"  {name:<42}{_gib(size):>10}"
    if memory.on_host:
        yield f"  {'in the host' + chr(39) + 's memory, for each device':<42}{_gib(memory.on_host):>10}"
    yield ""


def _sampler_memory(plan: Plan) -> Iterator[str]:
    """What lives together where the learner's process samples, and which of its two programs is the larger."""
    unit, both, config = plan.unit, plan.together, plan.config
    if config.plan.sampler_devices or plan.memory is None:
        return
    yield "Memory of each device while the same process samples"
    if unit is None or both is None:
        yield f"  the compiler refuses the sampler's unit: it needs {_gib(plan.refused or 0)}"
        yield ""
        return
    rows = [
        ("the learner's state, kept meanwhile", both.sampling - unit.peak(0.0)),
        (f"weights in {plan.model_config.dtype}", unit.weights),
        ("keys, values and other temporaries", unit.temporaries),
        ("what comes in and out", unit.moved),
        ("peak while sampling", both.sampling),
        ("peak while updating, those weights beside", both.updating),
    ]
    for name, size in rows:
        yield f"  {name:<42}{_gib(size):>10}"
    larger = "sampling" if both.sampling > both.updating else "updating"
    chosen = "config.sampling.max_rollouts_per_dispatch" if config.sampling.max_rollouts_per_dispatch else "memory"
    yield (
        f"  The larger is {larger}; units of {unit.problems} problems x {unit.rollouts} rollouts, as {chosen} has it, "
        f"{unit.units(config.rollouts_per_step):,} for a step"
    )
    yield ""


def _verdict(plan: Plan) -> Iterator[str]:
    device = plan.topology.device
    if plan.fits:
        yield "It fits."
    else:
        over = plan.needed - device.usable
        yield f"IT DOES NOT FIT: {_gib(over)} GiB a device are missing, the reserve included."
        if plan.memory is not None and plan.memory.free(device) >= 0:
            yield "  The learner's step fits by itself; sampling in the same process does not. Sample from vLLM servers"
            yield "  (--config.plan.sampler_devices=N plans them, docs/clusters.md), or fewer rollouts at once"
            yield "  (--config.sampling.max_rollouts_per_dispatch=N)."
            yield ""
            return
        for knob in plan.knobs:
            outcome = "and it fits" if knob.fits else "not enough by itself"
            yield f"  {' '.join(knob.flags)}: {_gib(knob.saves)} GiB less, {outcome}"
        if not any(knob.fits for knob in plan.knobs):
            yield (
                "  More devices: each doubling of config.mesh.fsdp (and of the topology) halves parameters, gradients "
                "and moments; config.mesh.context (packed rows) and config.mesh.tensor divide activations too"
            )
    yield ""


def _program(plan: Plan) -> Iterator[str]:
    if plan.work is None or plan.flops is None:
        return
    yield "Collectives of an update (each device receives)"
    for kind, count, sent in _by_kind(plan):
        yield f"  {kind:<20}{count:>8,} times{sent / 1e9:>12.2f} GB"
    if not plan.collectives:
        yield "  none"
    yield ""
    work, flops, each = plan.work, plan.flops, 6 if plan.config.adapters is None else 4
    yield "An update computes"
    yield (
        f"  {work.rollouts:,} rollouts, {work.tokens:,.0f} tokens expected in {work.positions:,.0f} positions, "
        f"{work.microbatches} micro-batches"
    )
    yield (
        f"  {flops.model:.3g} FLOPs = {each} x active parameters x tokens ({flops.body / flops.model:.0%}) + attention "
        f"({flops.attention / flops.model:.0%}) + head ({flops.head / flops.model:.0%})"
    )
    yield (
        f"  {flops.computed + flops.computed_float32:.3g} with padding, what is computed again, and the head's passes"
    )
    if plan.layout is not None:
        row_tokens, share = plan.layout
        what = "packed rows" if row_tokens else "prompts that are read once for their rollouts"
        yield f"  --config.packing.row_tokens={row_tokens}: {what} would compute {share:.0%} of that"
    yield ""


def _estimates(plan: Plan) -> Iterator[str]:
    lengths = plan.lengths
    yield "ESTIMATES (rooflines from published peaks; nothing was run)"
    yield (
        f"  assumed: products at {PRODUCTS[0]:.0%} to {PRODUCTS[1]:.0%} of the peak, memory and links at "
        f"{BANDWIDTH[0]:.0%} to {BANDWIDTH[1]:.0%}, overlapped at best and not at worst;"
    )
    yield (
        f"  completions log-normal, median {lengths.median:,.0f}, sigma {lengths.sigma:g}, at most {lengths.limit:,} "
        f"(mean {lengths.mean:,.0f}); prompts of {lengths.prompt:,.0f} tokens"
    )
    if plan.time is not None:
        time = plan.time
        yield (
            f"  update      {_range(time.total)} s (products {_range(time.products)}, memory {_range(time.memory)}, "
            f"links {_range(time.links)}), MFU {time.mfu.low:.0%} to {time.mfu.high:.0%}"
        )
    yield from _sampling(plan)
    if plan.cost is not None:
        cost = plan.cost
        yield (
            f"  run         {_range(cost.device_hours)} device-hours, {_range(cost.wall_hours)} hours; the learner "
            f"updates {_share(cost.learner)} of its time, the sampler samples {_share(cost.sampler)} of its own"
        )
        parts = ", ".join(f"{part.name} {_range(part.device_hours)}" for part in cost.parts)
        yield f"              of which: {parts}"


def _sampling(plan: Plan) -> Iterator[str]:
    sampling, unit, config = plan.sampling, plan.unit, plan.config
    if sampling is None:
        return
    if unit is None:
        yield (
            f"  sampling    {_range(sampling.seconds)} s a step on {config.plan.sampler_devices} devices: "
            f"{sampling.copies} copies of {_gib(sampling.weight_bytes)} GiB, {sampling.in_flight:,} rollouts in flight "
            f"(room for {sampling.room:,}), {_range(sampling.tokens_per_s)} tokens/s"
        )
        ways = {"shared": "by a file on this host", "stream": "as streams, one server after the other"}
        way = ways.get(push_path(config, plan.topology), "from GPU to GPU")
        if plan.cost is not None:
            yield f"  weights     {_range(plan.cost.weights)} s a step, {way}"
        return
    keys = keys_bytes(config, plan.model_config, unit)
    yield (
        f"  sampling    {_range(sampling.seconds)} s a step in the learner's process, {_range(sampling.tokens_per_s)} "
        "tokens/s, as the program is compiled:"
    )
    yield (
        f"              each token receives {unit.wire_bytes / 1e9:,.1f} GB and reads {keys / 1e9:,.1f} GB of keys and "
        f"values (of all {config.sampling.max_tokens:,} positions)"
        f"{f', in {unit.launches:,} kernels' if unit.launches else ''}"
    )
    if plan.topology.known and not plan.topology.device.axes:
        yield (
            "              vLLM servers take a fraction of that: --config.plan.sampler_devices=N plans them "
            "(docs/clusters.md)"
        )


def _by_kind(plan: Plan) -> Iterator[tuple[str, int, float]]:
    """(kind, runs, bytes that each device receives), of the kinds that occur."""
    for kind in KINDS:
        found = [one for one in plan.collectives if one.kind == kind]
        if found:
            yield kind, sum(one.count for one in found), sum(one.count * one.wire_bytes for one in found)


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f}"


def _ends(found: Range) -> list[float]:
    return [found.low, found.high]


def _range(found: Range) -> str:
    low, high = (f"{value:,.0f}" if value >= 10 else f"{value:.2g}" for value in (found.low, found.high))
    return low if low == high else f"{low} to {high}"


def _share(found: Range) -> str:
    low, high = (f"{value:.0%}" for value in (found.low, found.high))
    return low if low == high else f"{low} to {high}"


MEMORY = ("params", "gradients", "moments", "temporaries", "peak")


def table(plans: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines of two tables: what compilers say of each layout, and what rooflines make of it.

    Args:
      plans: name -> `report.figures`.
    """
    head = ["layout", "topology", "mesh", "remat", "parameters", "gradients", "moments", "activations", "peak", "free"]
    lines = ["GiB of each device, by the compilers' analysis; `free` is what peak and reserve leave:", ""]
    lines += _markdown(
        [*head, "fits", "compiled in"], [_memory_row(name, plan) for name, plan in plans.items()], left=4
    )
    known = {name: plan for name, plan in plans.items() if "step_s" in plan}
    lines += ["", "Of a step, and estimates (ranges of stated efficiencies; nothing was run):", ""]
    head = ["layout", "rollouts", "tokens", "FLOPs", "gathered and reduced, GB", "update, s", "MFU", "sampling, s"]
    rows = [_estimate_row(name, plan) for name, plan in known.items()]
    lines += _markdown([*head, "steps", "device-hours of the run"], rows, left=1)
    versions = {name: version for plan in plans.values() for name, version in plan["versions"].items()}
    return [*lines, "", f"Compilers: {', '.join(f'{name} {version}' for name, version in versions.items())}."]


def _memory_row(name: str, plan: Mapping[str, Any]) -> list[str]:
    if "memory" not in plan:
        return [name, plan["topology"], "", "", "", "", "", "", _short_gib(plan["needed"]), "", "no", ""]
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan["mesh"].items()) or "1"
    sizes = [_short_gib(plan["memory"][part]) for part in MEMORY]
    fits = "yes" if plan["fits"] else "no"
    seconds = f"{plan['compile_s']:.0f} s"
    return [name, plan["topology"], mesh, plan["remat"], *sizes, _short_gib(plan["free"]), fits, seconds]


def _estimate_row(name: str, plan: Mapping[str, Any]) -> list[str]:
    return [
        name,
        f"{plan['rollouts']:,}",
        f"{plan['tokens'] / 1e6:.1f} M",
        f"{plan['flops']:.2g}",
        f"{sum(plan['collectives'].values()) / 1e9:,.0f}",
        _span(plan["step_s"]),
        f"{plan['mfu'][0]:.0%} to {plan['mfu'][1]:.0%}",
        _span(plan["sampling_s"]),
        f"{plan['steps']:,}",
        _span(plan["device_hours"]),
    ]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """A table whose first `left` columns are text."""
    rule = [":--"] * left + ["--:"] * (len(head) - left)
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]


def _short_gib(size: float) -> str:
    return f"{size / GIB:.1f}"


def _span(ends: Sequence[float]) -> str:
    return f"{ends[0]:,.0f} to {ends[1]:,.0f}"
