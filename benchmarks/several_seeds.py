"""`python -m benchmarks.several_seeds`: small steps of several seeds in one program.

    python -m benchmarks.several_seeds                         # B_problem = 2, n = 4 and 32; 1, 2, 4, 8 seeds
    python -m benchmarks.several_seeds --group_sizes=4 --seeds=1,16

A step of a few rollouts is a hundred operations of ten to twenty microseconds each; how much longer do they take for
several seeds? The library's functions are pure: `jax.vmap` of `sample_unit` and of `make_train_step` over seeds, each
with weights, moments, problems and rollouts of its own, is all it takes. Whole steps on one pinned core, but for
logging: prompts, sampling, grading, packing, update, new weights; milliseconds, medians, and steps of all seeds in a
second. For CPUs: on GPUs the step is compiled with options of its own, and no other jitted function can call it.
"""

from __future__ import annotations

import functools
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from isocompute_jax import app
from isocompute_jax.experiment.inputs import read_inputs
from isocompute_jax.sweeps import workers

HEADER = (
    "| n | seeds | step | sampling | grading | packing | update | steps/s of all seeds |\n"
    "| --: | --: | --: | --: | --: | --: | --: | --: |"
)
PHASES = ("sampling", "grading", "packing", "update")

GROUP_SIZES = flags.DEFINE_list("group_sizes", ["4", "32"], "Rollouts per problem, n.")
SEEDS = flags.DEFINE_list("seeds", ["1", "2", "4", "8"], "Seeds in one program.")
PROBLEMS = flags.DEFINE_integer("problems_per_batch", 2, "B_problem of each seed.", 1)
STEPS = flags.DEFINE_integer("steps", 200, "Timed steps, after a quarter as many that are not.", 1)


def main() -> None:
    """Flags -> table."""
    cores = workers.default_cores()
    if cores:
        os.sched_setaffinity(0, {min(cores)})  # before JAX counts them
    from benchmarks import throughput

    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        model = throughput.make_model("embedded", root)
        print(HEADER)
        for size in GROUP_SIZES.value:
            for seeds in SEEDS.value:
                found = measure(model, root, group_size=int(size), seeds=int(seeds))
                step = sum(found.values())
                cells = [size, seeds, *(f"{1e3 * x:.2f}" for x in (step, *found.values())), f"{int(seeds) / step:,.0f}"]
                print("| " + " | ".join(cells) + " |", flush=True)


def measure(model: pathlib.Path, root: pathlib.Path, *, group_size: int, seeds: int) -> dict[str, float]:
    """Median seconds of each phase of a step of all seeds."""
    walks = Walks(model, root, group_size=group_size, seeds=seeds)
    for number in range(STEPS.value // 4):
        walks.step(number)
    lines = [walks.step(STEPS.value // 4 + number) for number in range(STEPS.value)]
    return {phase: statistics.median(line[phase] for line in lines) for phase in PHASES}


class Walks:
    """Training runs that differ in their seed, in lockstep."""

    def __init__(self, model: pathlib.Path, root: pathlib.Path, *, group_size: int, seeds: int):
        import jax
        import numpy as np

        from benchmarks.throughput import run_config
        from isocompute_jax import learner
        from isocompute_jax import model as models
        from isocompute_jax.experiment import build, layouts
        from isocompute_jax.experiment.problem_stream import ProblemStream, TrainSets
        from isocompute_jax.sampling import InProcessSampler
        from isocompute_jax.sampling.in_process import UnitShape, sample_unit

        problems = PROBLEMS.value
        config = run_config(model, root, group_size=group_size, rollouts=problems * group_size, steps=1).resolved()
        self.config, self.inputs = config, read_inputs(config)
        shape, sampling = self.inputs.model_config, config.sampling
        self.programs = build.make_programs(
            shape, config.loss, config.optimizer, None, temperature=sampling.temperature
        )
        params = models.load_params(model, shape)
        state = learner.init_state(params, self.programs.optimizer)
        self.state: Any = jax.tree.map(lambda x: np.stack([np.asarray(x)] * seeds), state)
        self.streams = [
            ProblemStream(TrainSets.of(self.inputs.problems), config.curriculum, problems_per_batch=problems, seed=seed)
            for seed in range(seeds)
        ]
        self.lay_out = layouts.make_lay_out(config, shape, problems, group_size, None)
        self.units = InProcessSampler(
            shape, params, pad_token=0, max_prompt_tokens=sampling.max_prompt_tokens, max_rollouts_per_dispatch=1024
        )
        self.shape = UnitShape(problems, group_size)
        drawn = functools.partial(
            sample_unit, config=shape, max_tokens=sampling.max_tokens, stop_tokens=self.inputs.tokenizer.eos_ids
        )
        self.sample: Callable[..., Any] = jax.jit(jax.vmap(drawn, in_axes=(0, 0, None, None)))
        self.update: Callable[..., Any] = jax.jit(jax.vmap(self.programs.train_step, in_axes=(0, 0, 0, None)))

    def step(self, number: int) -> dict[str, float]:
        """One step of each; seconds of its phases."""
        import jax
        import numpy as np

        from isocompute_jax import learner, tasks
        from isocompute_jax.experiment import rollouts
        from isocompute_jax.records.rollout import RolloutGroup
        from isocompute_jax.sampling.in_process import unpack

        config, tokenizer, ends = self.config, self.inputs.tokenizer, [time.perf_counter()]
        problems = [next(stream) for stream in self.streams]
        requests = [
            rollouts.make_requests(
                chosen, self.inputs.prompts, config.sampling, group_size=config.group_size, seed=seed, step=number
            )
            for seed, chosen in enumerate(problems)
        ]
        units = [self.units.make_unit([(request, 0) for request in asked], self.shape) for asked in requests]
        temperature, top_p = np.float32(config.sampling.temperature), np.float32(config.sampling.top_p)
        samples = jax.device_get(self.sample(self.state.params, stacked(units), temperature, top_p))
        groups = []
        for seed, asked in enumerate(requests):
            own = jax.tree.map(lambda x, seed=seed: x[seed], samples)
            for row, request in enumerate(asked):
                drawn = unpack(own, row, config.group_size, number, len(request.prompt_tokens))
                groups.append(RolloutGroup(request.problem_id, number, request.prompt_tokens, tuple(drawn)))
        ends.append(time.perf_counter())
        size, grading = len(requests[0]), tasks.Grading(tasks.RewardConfig(), tokenizer.decode)
        graded = [
            tasks.graded(groups[seed * size :][:size], rollouts.by_id(chosen), grading)
            for seed, chosen in enumerate(problems)
        ]
        ends.append(time.perf_counter())
        credits = [
            learner.credit(
                learner.group_rewards(own),
                learner.trained_lengths(own),
                config.recipe,
                max_tokens=config.sampling.max_tokens,
            )
            for own in graded
        ]
        batches = [self.lay_out(own, credited.kept) for own, credited in zip(graded, credits, strict=True)]
        batch, credited = stacked(batches), stacked(credits)
        ends.append(time.perf_counter())
        self.state, metrics = self.update(self.state, batch, credited, np.float32(1e-5))
        jax.device_get(metrics)
        ends.append(time.perf_counter())
        return dict(zip(PHASES, np.diff(ends).tolist(), strict=True))


def stacked(trees: Sequence[Any]) -> Any:
    """Trees of host arrays as one, along a new first axis."""
    import jax
    import numpy as np

    return jax.tree.map(lambda *x: np.stack(x), *trees)


if __name__ == "__main__":
    app.run(main)
