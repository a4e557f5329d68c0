"""`python -m benchmarks.packing`: rollouts of log-normal lengths packed into rows, beside padding and packing in order.

    python -m benchmarks.packing                                   # 1,024 rollouts, rows of 16k, 8 shards, 20 steps
    python -m benchmarks.packing --rows_per_microbatch=16

Each step draws its own rollouts: completions with a median of 2k tokens, sigma 1 and at most 14k, after prompts of 200
to 2k, which a group of 16 shares. `padding` is the share of the tokens computed that belong to no sequence. Of
attention (the sum of len^2), `heaviest shard` is its total over the step by the mean of the shards, and `waiting` what
the micro-batches take one after the other, each as long as its heaviest shard, by the same mean. Time is the
processor's in `pack` (in `layout` for padding), and that of copying the packed batch by NumPy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags

from benchmarks.shared import print_head, print_row, random_group
from isocompute_jax import app, learner
from isocompute_jax.learner.packing import shard_attention

MAX_PROMPT, MAX_TOKENS = 2_000, 14_000

STEPS = flags.DEFINE_integer("steps", 20, "Steps, each with rollouts of its own.", 1)
PROBLEMS = flags.DEFINE_integer("problems_per_step", 64, "Problems of a step, each with 16 rollouts.", 1)
SHARDS = flags.DEFINE_integer("batch_shards", 8, "Shards of the batch axis.", 1)
ROW_TOKENS = flags.DEFINE_integer("row_tokens", 16_384, "Tokens of a row.", MAX_PROMPT + MAX_TOKENS)
ROWS = flags.DEFINE_integer("rows_per_microbatch", 8, "Rows of a micro-batch, over all shards.", 1)


class Measured(NamedTuple):
    """One step, packed in one way."""

    rows: int  # rows computed
    padding: float  # share of their tokens
    attention: np.ndarray  # [M, S] sum of len^2 by micro-batch and shard
    microbatches: int  # that are compiled


def draw_lengths(rng: np.random.Generator, problems: int = 64, group_size: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of prompts [P] and of completions [P, G]."""
    completions = np.ceil(rng.lognormal(np.log(2_000), 1.0, (problems, group_size)))
    return rng.integers(200, MAX_PROMPT + 1, problems), np.minimum(completions, MAX_TOKENS).astype(int)


def in_order(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """The lengths in each row, a new row begun where the next sequence does not fit."""
    rows: list[list[int]] = []
    for length in lengths:
        if not rows or sum(rows[-1]) + length > row_tokens:
            rows.append([])
        rows[-1].append(length)
    return rows


def of_rows(rows: list[list[int]], row_tokens: int, microbatch: int, shards: int) -> Measured:
    """What rows of sequences of such lengths come to, in the order they have."""
    squares = np.array([sum(length**2 for length in row) for row in rows], float)
    squares = np.append(squares, np.zeros(-len(rows) % microbatch))
    attention = squares.reshape(-1, shards, microbatch // shards).sum(axis=2)
    padding = 1 - sum(map(sum, rows)) / (squares.size * row_tokens)
    return Measured(squares.size, padding, attention, len(attention))


def of_batch(batch: learner.PackedBatch, shards: int) -> Measured:
    """What a packed batch comes to, read from its arrays."""
    metrics = batch.metrics(shards)
    return Measured(int(metrics["num_rows"]), metrics["padding"], shard_attention(batch, shards), len(batch.tokens))


def processor_s(work: Callable[[], object]) -> float:
    """Seconds of processor time; one thread computes it."""
    started = time.process_time()
    work()
    return time.process_time() - started


def cells(steps: Sequence[Measured]) -> tuple[object, ...]:
    """Of a layout's row: means over the steps, and the worst."""

    def mean_and_worst(values: list[float], spec: str) -> str:
        return f"{np.mean(values):{spec}} ({np.max(values):{spec}})"

    padding = mean_and_worst([step.padding for step in steps], ".1%")
    heaviest = mean_and_worst([s.attention.sum(axis=0).max() / s.attention.sum(axis=0).mean() for s in steps], ".3f")
    waiting = mean_and_worst([s.attention.max(axis=1).sum() / s.attention.mean(axis=1).sum() for s in steps], ".3f")
    shapes = len({step.microbatches for step in steps})
    return f"{np.mean([step.rows for step in steps]):,.0f}", padding, heaviest, waiting, shapes


def main() -> None:
    """Flags -> table."""
    shards, microbatch, row_tokens = SHARDS.value, ROWS.value, ROW_TOKENS.value
    longest = MAX_PROMPT + MAX_TOKENS
    sizes: dict[str, Any] = dict(
        problems_per_batch=PROBLEMS.value,
        group_size=16,
        max_prompt_tokens=MAX_PROMPT,
        max_tokens=MAX_TOKENS,
        microbatch_tokens=microbatch * row_tokens,
        batch_shards=shards,
    )
    packed_shape, padded_shape = learner.pack_shape(row_tokens=row_tokens, **sizes), learner.batch_shape(**sizes)
    found: dict[str, list[Measured]] = {"padded": [], "in order": [], "packed": []}
    seconds: dict[str, list[float]] = {"padded": [], "packed": [], "copy": []}
    for seed in range(STEPS.value):
        rng = np.random.default_rng(seed)
        prompts, completions = draw_lengths(rng, PROBLEMS.value)
        groups = [random_group(rng, "p", *lengths) for lengths in zip(prompts, completions, strict=True)]
        lengths = np.ravel(prompts[:, None] + completions).tolist()
        found["padded"].append(of_rows([[length] for length in lengths], longest, microbatch, shards))
        found["in order"].append(of_rows(in_order(lengths, row_tokens), row_tokens, microbatch, shards))
        batch = packed_shape.lay_out(groups)
        found["packed"].append(of_batch(batch, shards))
        for name, function in {
            "packed": lambda groups=groups: packed_shape.lay_out(groups),
            "copy": lambda batch=batch: jax.tree.map(np.copy, batch),
            "padded": lambda groups=groups: padded_shape.lay_out(groups),
        }.items():
            seconds[name].append(processor_s(function))
    copy = np.median(seconds["copy"])
    rows = f"micro-batches of {microbatch} rows of {row_tokens:,} tokens on {shards} shards"
    print(f"{PROBLEMS.value * 16:,} rollouts, {rows}; mean (worst) of {STEPS.value} steps")
    print_head(("", "rows", "padding", "heaviest shard", "waiting", "compiled shapes", "CPU ms (of a copy)"))
    for name, steps in found.items():
        took = np.median(seconds[name]) if name in seconds else None
        print_row(name, *cells(steps), f"{1e3 * took:.0f} ({took / copy:.1f})" if took else "-")


if __name__ == "__main__":
    app.run(main)
