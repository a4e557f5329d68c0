"""The plans of several configs in one table, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isocompute_jax.accelerators import GIB

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
        return [name, plan["topology"], "", "", "", "", "", "", _gib(plan["needed"]), "", "no", ""]
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan["mesh"].items()) or "1"
    sizes = [_gib(plan["memory"][part]) for part in MEMORY]
    fits = "yes" if plan["fits"] else "no"
    seconds = f"{plan['compile_s']:.0f} s"
    return [name, plan["topology"], mesh, plan["remat"], *sizes, _gib(plan["free"]), fits, seconds]


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


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"


def _span(ends: Sequence[float]) -> str:
    return f"{ends[0]:,.0f} to {ends[1]:,.0f}"
