"""A section of docs/findings.md: which sweeps it rests on, and what all of their runs have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isocompute_jax.gallery.page.chapter import RISE, Gallery, table
from isocompute_jax.gallery.tables import SUFFIX, Sweep

TEXT = """## The sweeps

{count} sweeps, {runs} runs, {rollouts:.0f} million rollouts. All of them: chained sums such as `7+5-3=`, answers of
at most {tokens} tokens, reward 1 or 0, temperature {temperature:g}; clipped loss with advantages over the group's
standard deviation, one update on each batch, Adam ({rate} at {batch} rollouts per step, constant in B unless the table
says otherwise, {warmup} warm-up steps, gradients clipped to a norm of {clip:g}), no KL or entropy term unless it says
so. Held out are {held_out} problems, {samples} samples each, so the standard error of an evaluation is at most
{error:.3f}. Easy problems are solved in 0.3 to 0.6 of samples by the base model, Hard ones in at most 1 of 16.

{rows}

`python -m isocompute_jax.study --preset=full --only=NAME` runs one of them (`other_base` and `other_size` have
`base_600` and `wide_64`; `again_64` is `problems_64` with `--preset=quick --first_seed=5`), and `make gallery-record`
keeps it.
"""
HEADS = ("sweep", "problems", "D", "B_problem", "n", "seeds", "rollouts of a run", "what differs")
SETS = {"easy_64": "Easy", "terms_easy": "Easy", "strong_easy": "Easy", "crossed_mixture": "half Easy, half Hard"}
"""Sweeps whose training problems are not Hard ones."""
OTHER = {
    "again_64": "other seeds",
    "base_600": "base model taught for half as long",
    "crossed_hard": "evaluated on Easy too",
    "crossed_mixture": "evaluated on Easy and on Hard too",
    "wide_64": "base model twice as wide",
}
DIFFERS = {
    "optimizer.base_lr": "rate {:g}",
    "optimizer.lr_scaling_exponent": "rate as B^{:g}",
    "recipe.zero_variance_groups": "groups without signal: {}",
    "loss.kl_coef": "KL and entropy terms, {:g} each",
}
"""Field of a config -> what to say where it is not that of the first sweep."""


def section(gallery: Gallery) -> str:
    """Markdown."""
    names = sorted(path.stem for path in gallery.path.glob(f"*{SUFFIX}"))
    sweeps = {name: gallery.sweep(name) for name in names}
    first = sweeps[RISE].facts.shared
    evaluated = sweeps[RISE].table["solve_counts"][0].as_py()
    return TEXT.format(
        count=len(sweeps),
        runs=sum(len(sweep.facts.runs) for sweep in sweeps.values()),
        rollouts=sum(_rollouts(sweep) for sweep in sweeps.values()) / 1e6,
        tokens=first["sampling.max_tokens"],
        temperature=first["sampling.temperature"],
        rate=f"{first['optimizer.base_lr']:.1e}".replace("e-0", "e-"),
        batch=first["optimizer.base_batch"],
        warmup=first["optimizer.warmup_steps"],
        clip=first["optimizer.clip_norm"],
        held_out=len(evaluated),
        samples=first["evaluation.samples"],
        error=0.5 / (len(evaluated) * first["evaluation.samples"]) ** 0.5,
        rows=table(HEADS, [_row(name, sweep, first) for name, sweep in sweeps.items()]),
    )


def _row(name: str, sweep: Sweep, first: Mapping[str, Any]) -> tuple[object, ...]:
    shared = sweep.facts.shared
    sizes, batches = (sorted(set(sweep.column(each).tolist())) for each in ("group_size", "problems_per_batch"))
    differs = [
        text.format(shared[field]) for field, text in DIFFERS.items() if shared.get(field, first[field]) != first[field]
    ]
    return (
        f"`{name}`",
        SETS.get(name, "Hard"),
        f"{shared['problem_set_size']:,}",
        _range(batches),
        _range(sizes),
        len(set(sweep.column("seed").tolist())),
        f"{shared['max_compute']:,}",
        "; ".join([*differs, *([OTHER[name]] if name in OTHER else [])]),
    )


def _range(values: list[int]) -> str:
    return f"{values[0]} to {values[-1]}" if len(values) > 1 else f"{values[0]}"


def _rollouts(sweep: Sweep) -> int:
    """Of all runs."""
    return len(sweep.facts.runs) * sweep.facts.shared["max_compute"]
