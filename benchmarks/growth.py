"""`python -m benchmarks.growth`: how the time of a step grows with tokens, group size, vocabulary and devices.

    python -m benchmarks.growth                                  # a table; 2 to 5 minutes on two cores
    python -m benchmarks.growth --picture=docs/growth.png        # and the picture of BENCHMARKS.md
    python -m benchmarks.growth --points=points.json             # kept as they come: the same command goes on there

The embedded model (2 layers, D = 64) with random weights, float32. One quantity grows, the others stay: 4 problems,
n = 16, prompts and completions of 16 tokens, V = 32, one device. `tokens` is the length of one packed row that is one
sequence, and has no sampling. Devices are fake ones: the cores of this machine, on which the weights are cut (`fsdp`);
what grows there is the overhead of cutting, for no device is added. Each point is a process of its own, and the
median of warm steps; `growth` is the time by that of the point before, and `slope` what that is as a power of the
quantity (1: linear).
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from benchmarks.shared import (
    in_a_process,
    kept_points,
    median_seconds,
    names,
    print_head,
    print_row,
    random_group,
    save_picture,
)
from isocompute_jax import app

PROBLEMS, PROMPT, COMPLETION = 4, 16, 16
BASE = {"tokens": 0, "group_size": 16, "vocabulary": 32, "devices": 1}
POINTS = {
    "tokens": [256, 1024, 4096, 16_384],
    "group_size": [4, 16, 64, 256],
    "vocabulary": [32, 512, 8192, 131_072],
    "devices": [1, 2, 4, 8],
}
LABELS = {
    "tokens": "tokens of a packed row",
    "group_size": "group size n",
    "vocabulary": "vocabulary",
    "devices": "fake devices",
}
HEAD = ("", "", "update ms", "growth", "slope", "sampling ms", "growth", "slope")

AXES = flags.DEFINE_list("axes", list(POINTS), f"What grows: some of {', '.join(POINTS)}.")
REPEATS = flags.DEFINE_integer("repeats", 5, "Timed steps of each point, after two that are not.", 1)
PICTURE = flags.DEFINE_string("picture", None, "File (.png) for the picture.")
POINTS_FILE = flags.DEFINE_string(
    "points", None, "File (.json) that keeps what was measured, and is not measured again."
)
ONE = flags.DEFINE_string("one", None, "Measure one point here, AXIS:VALUE, as JSON.")

Point = dict[str, float]


def main() -> None:
    """Flags -> table and picture, or one point."""
    if ONE.value is not None:
        axis, _, value = ONE.value.partition(":")
        print(json.dumps(measure(**{**BASE, axis: int(value)})))
        return
    axes = names(AXES, POINTS)
    print_head(HEAD)
    found: dict[str, list[Point]] = kept_points(POINTS_FILE.value)
    for axis in axes:
        points = found.setdefault(axis, [])
        for number, value in enumerate(POINTS[axis]):
            if number == len(points):  # seconds of `update` and, but for rows, `sampling`
                one = [f"--one={axis}:{value}", f"--repeats={REPEATS.value}"]
                points.append({"value": value, **in_a_process("growth", one, what=f"{axis} = {value}")})
                if POINTS_FILE.value:
                    pathlib.Path(POINTS_FILE.value).write_text(json.dumps(found))
            print_row(*cells(axis, points[: number + 1]))
    if PICTURE.value:
        draw(found, pathlib.Path(PICTURE.value))


def measure(*, tokens: int, group_size: int, vocabulary: int, devices: int) -> Point:
    """Seconds of an update, and of sampling what it trains on; of a packed row where `tokens` are given."""
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    from isocompute_jax import learner, model, sharding
    from isocompute_jax.sampling import InProcessSampler

    longest = max(tokens, PROMPT + COMPLETION)
    config = dataclasses.replace(model.EMBEDDED, vocab_size=vocabulary, max_positions=longest)
    mesh = sharding.make_mesh(data=1, fsdp=devices, expert=1, tensor=1) if devices > 1 else None
    optimizer = learner.make_optimizer(learner.OptimizerConfig())
    shardings = None if mesh is None else learner.state_shardings(config, mesh, optimizer)
    params = model.init_params(config, jax.random.key(0))
    state = learner.init_state(params, optimizer, shardings)
    score = learner.make_score(config, temperature=1.0, chunk_tokens=None, mesh=mesh)
    step: Any = learner.make_train_step(score, learner.LossConfig(), optimizer, shardings=shardings)
    batch, rollouts = _batch(tokens, group_size, vocabulary, 1 if mesh is None else devices)
    advantages = np.where(np.arange(rollouts) % 2, 1.0, -1.0).astype(np.float32)[None]
    weights = np.full_like(advantages, 1 / (rollouts * (tokens or COMPLETION)))
    placed = learner.place_batch(batch, mesh)
    credited = learner.Credit(advantages, weights, weights)

    def update() -> None:
        jax.block_until_ready(step(state, placed, credited, 1e-6))

    found = {"update": median_seconds(update, REPEATS.value)}
    if not tokens:
        sampler = InProcessSampler(
            config, state.params, pad_token=0, max_prompt_tokens=PROMPT, max_rollouts_per_dispatch=1024, mesh=mesh
        )
        found["sampling"] = median_seconds(lambda: _sample(sampler, group_size, vocabulary), REPEATS.value)
    return found


def _batch(tokens: int, group_size: int, vocabulary: int, shards: int) -> tuple[Any, int]:
    """Random rollouts, laid out in one micro-batch, and how many they are."""
    from isocompute_jax import learner

    rng = np.random.default_rng(0)
    problems, size = (1, 1) if tokens else (PROBLEMS, group_size)
    prompt = tokens // 8 if tokens else PROMPT
    completion = tokens - prompt if tokens else COMPLETION

    groups = [random_group(rng, str(i), prompt, [completion] * size, vocabulary=vocabulary) for i in range(problems)]
    sizes: dict[str, Any] = dict(
        problems_per_batch=problems, group_size=size, max_prompt_tokens=prompt, max_tokens=completion,
        microbatch_tokens=problems * size * (prompt + completion) * shards, batch_shards=shards,
    )  # fmt: skip
    if tokens:
        return learner.pack_shape(**sizes, row_tokens=tokens).lay_out(groups), 1
    # Sequences are short: training lays them out as trees, by itself.
    return learner.tree_shape(**sizes, row_nodes=2 * (prompt + completion)).lay_out(groups), problems * size


def _sample(sampler: Any, group_size: int, vocabulary: int) -> None:
    """One batch of groups; no token ends a completion."""
    from isocompute_jax.records.requests import SampleRequest, SamplingParams

    rng = np.random.default_rng(0)
    params = SamplingParams(1.0, 1.0, COMPLETION)
    prompts = rng.integers(0, vocabulary, (PROBLEMS, PROMPT)).astype(np.int32)
    sampler.submit([SampleRequest(str(i), p, group_size, 0, 0, (), params) for i, p in enumerate(prompts)])
    assert len(list(sampler.completed())) == PROBLEMS


def cells(axis: str, points: Sequence[Point]) -> list[str]:
    """The last point's row."""
    found = [axis, f"{points[-1]['value']:,.0f}"]
    for name in ("update", "sampling"):
        if name not in points[-1]:
            found += ["-", "", ""]
            continue
        found += [f"{1e3 * points[-1][name]:,.1f}", *(growth(points, name) if len(points) > 1 else ("", ""))]
    return found


def growth(points: Sequence[Point], name: str) -> tuple[str, str]:
    """Of the last point over the one before: times as long, and the power of the quantity that this is."""
    before, now = points[-2:]
    factor = now[name] / before[name]
    return f"{factor:.2f}x", f"{math.log(factor) / math.log(now['value'] / before['value']):.2f}"


def draw(found: dict[str, list[Point]], path: pathlib.Path) -> None:
    """A panel for each quantity, both axes logarithmic, with what linear growth from the last point back would be."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from isocompute_jax.fit.report.figures import style

    with style.in_style():
        figure, axes = style.panels(2, 2, height=5.6, share=False)
        colours = {"update": style.PALETTE(0.15), "sampling": style.PALETTE(0.7)}
        for panel, axis in zip(axes, (axis for axis in POINTS if axis in found), strict=False):
            points = found[axis]
            values = [point["value"] for point in points]
            for name, colour in colours.items():
                times = [1e3 * point[name] for point in points if name in point]
                if times:
                    panel.plot(values, times, "o-", color=colour, linewidth=2, markersize=5)
            style.log_axis(panel)
            style.log_axis(panel, "y")
            limits = panel.get_ylim()
            for drawn in list(panel.lines):
                last = float(np.asarray(drawn.get_ydata())[-1])
                guide = [last * value / values[-1] for value in values]
                panel.plot(values, guide, color=style.QUIET, linestyle=style.DASHED, linewidth=1, zorder=1)
            panel.set_ylim(limits)
            panel.xaxis.set_major_locator(FixedLocator(values))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
            panel.set_title(LABELS[axis], loc="left", fontweight="bold")
        figure.supylabel("milliseconds of a step", fontsize=11)
        handles = [Line2D([], [], color=colour, marker="o", label=name) for name, colour in colours.items()]
        handles.append(Line2D([], [], color=style.QUIET, linestyle=style.DASHED, label="linear growth"))
        style.legend(figure, handles, columns=3)
        save_picture(figure, path)


def _short(value: float) -> str:
    return f"{value / 1024:.0f}k" if value >= 1024 else f"{value:.0f}"


if __name__ == "__main__":
    app.run(main)
