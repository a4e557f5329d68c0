"""Programs of the batch size that comes next, compiled in a thread while the run makes steps of this one.

A schedule says which size comes next, and `auto` may double n, once or twice; each size has its own sampler's unit,
update and scores. They are lowered from shapes alone, as the run will call them, so that `jax.jit` finds them compiled;
no computation is run, and no bit of the run depends on it. Shapes that depend on what is drawn are left to the step
that meets them: the later rounds of dynamic sampling, and of policies that look at rewards, in powers of two.

Not where several processes are one run: XLA shares the tuning of a GPU's kernels out among them, and each waits in its
compiler for what the others found, so that a thread which one of them had ended would hold up all.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from isocompute_jax import model, sharding
from isocompute_jax.allocation import auto
from isocompute_jax.allocation.schedule import BatchSize
from isocompute_jax.experiment import noise
from isocompute_jax.experiment.build import Parts, make_schedule, training_requests
from isocompute_jax.experiment.layouts import shape_of
from isocompute_jax.experiment.loop_state import LoopState
from isocompute_jax.learner import Batch, Credit, TrainState
from isocompute_jax.learner.batches import batch_shardings
from isocompute_jax.sampling.protocol import Compiles

LOG = logging.getLogger(__name__)

Compile = Callable[[], object]
"""Compiles one program."""


class Ahead:
    """Compiles ahead in one thread, a size at a time.

    Args:
      on: whether it does; else everything is compiled by the step that needs it first.
    """

    def __init__(self, on: bool) -> None:
        self._on = on
        self._known: set[BatchSize] = set()
        self._size: BatchSize | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def wait(self, size: BatchSize) -> None:
        """Waits for programs of this size that are being compiled; what a step would compile beside them, twice."""
        if self._thread is not None and self._size == size:
            self._thread.join()

    def follow(self, parts: Parts, state: LoopState) -> None:
        """Begins with a size that may come after that of the step just made, unless it is busy, or knows them all."""
        if not self._on or (self._thread is not None and self._thread.is_alive()):
            return
        size = next((size for size in sizes_after(parts, state) if size not in self._known), None)
        if size is None:
            return
        self._known.add(size)
        self._size = size
        programs = programs_of(parts, sharding.abstract(state.learner), size)  # the next step takes the arrays' memory
        self._thread = threading.Thread(target=self._compile, args=(size, programs), name="ahead", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Compiles no further program, and waits for the one that is: a process that ended meanwhile would crash."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _compile(self, size: BatchSize, programs: Iterable[Compile]) -> None:
        try:
            for compile_one in programs:
                if self._closed.is_set():
                    return
                compile_one()
        except Exception as error:  # whatever it is, the step that needs the program meets it, or does not
            LOG.warning(
                "programs for steps of %d x %d rollouts were not compiled ahead, and are when they come: %r",
                *(size.problems, size.group_size, error),
            )


def compiles_ahead(parts: Parts) -> bool:
    """Whether a run does: alone on accelerators, whose hosts have cores to spare."""
    mesh = parts.inputs.mesh
    device = jax.local_devices()[0] if mesh is None else mesh.devices.flat[0]
    return parts.team.count == 1 and device.platform != "cpu"


def next_size(parts: Parts, state: LoopState) -> BatchSize:
    """Of the batch that the next step trains on."""
    if state.ready:
        return state.ready[0].sampled.size
    return parts.config.sizes.at(state.ledger.compute, state.group_size)


def sizes_after(parts: Parts, state: LoopState) -> list[BatchSize]:
    """The sizes that may come after the one of now, the nearest first, as far as a step of them can be paid."""
    sizes, compute, most = parts.config.sizes, state.ledger.compute, parts.config.max_compute
    found = [sizes.after(compute, most, state.group_size)]
    if state.controller is not None:
        times = range(1, len(auto.SHARED) + 1)
        larger = {auto.doubled(state.group_size, state.controller.largest, each) for each in times} - {state.group_size}
        grown = [sizes.at(compute, n) for n in sorted(larger)]
        found = [*(size for size in grown if compute + size.rollouts <= most), *found]
    return [size for size in found if size is not None]


def programs_of(parts: Parts, learner: TrainState, size: BatchSize) -> Iterator[Compile]:
    """What compiles the programs of a size, in the order in which a step needs them; `learner` is abstract."""
    config, inputs, mesh = parts.config, parts.inputs, parts.inputs.mesh
    if isinstance(parts.sampler, Compiles) and not config.supervised:
        requests = training_requests(config, inputs.prompts, inputs.problems[: size.problems], 0, size.group_size)
        if config.block:  # a deal of one block or more to each, cut into blocks
            requests = [dataclasses.replace(request, group_size=config.block) for request in requests]
            rest = size.rollouts - config.block * (len(requests) - 1)
            requests[0] = dataclasses.replace(requests[0], group_size=rest)
        yield functools.partial(parts.sampler.compile, requests)
    yield lowered(make_schedule(config.optimizer, size.rollouts), 0)
    reference = sharding.abstract(parts.reference_params) if config.loss.reads_reference else None
    scored = ["old_logprobs"] * config.keeps_old_logprobs + ["reference_logprobs"] * bool(config.teacher)
    frozen = None if parts.frozen is None else sharding.abstract(parts.frozen)
    weights, problems = jax.tree.leaves(learner.params)[0], config.of_size(size).problems_laid_out
    shape = shape_of(config, inputs.model_config, problems, size.group_size, mesh, block=config.block)
    turns = config.environment.credited_turns
    credit = blank_credit(*((size.rollouts,) if config.block else (size.problems, size.group_size)), turns=turns)
    for blank in shape.blanks():
        tokens = placed(blank, mesh)
        if config.scores_first:
            whole = learner.params if frozen is None else model.with_adapters(frozen, learner.params)
            yield lowered(parts.programs.scorer, whole, tokens)
        if scored:  # before the update, and so lies where the weights do
            like = jax.ShapeDtypeStruct(np.shape(blank.sampler_logprobs), np.float32, sharding=weights.sharding)
            tokens = placed(dataclasses.replace(blank, **dict.fromkeys(scored, like)), mesh)
        yield lowered(
            parts.programs.train_step,
            *(learner, tokens, credit, 0.0, reference, 0.0 if config.loss.entropy_target else None, frozen),
        )
    measured = noise.cell_shape(parts, size) if config.schedule.noise_every else None
    if measured is not None:
        problems, shape = measured
        for blank in shape.blanks():
            credit = blank_credit(problems, size.group_size // 2, turns=turns)
            yield lowered(noise.programs_of(parts).gradient, learner.params, placed(blank, mesh), credit, frozen)


def lowered(function: Any, *args: Any) -> Compile:
    """What compiles a function of `jax.jit`, as a call with such arguments would."""
    return lambda: function.lower(*args).compile()


def blank_credit(*shape: int, turns: int = 0) -> Credit:
    """Credit of nothing; with `turns` of each rollout, of so many turns."""
    zeros = np.zeros(shape, np.float32)
    if not turns:
        return Credit(zeros, zeros, zeros)
    return Credit(np.zeros((*shape, turns), np.float32), zeros, zeros, np.zeros((*shape, turns), np.int32))


def placed(batch: Batch, mesh: Mesh | None) -> Batch:
    """The shapes of a batch and where `learner.place_batch` puts it."""

    def of(x: Any, where: Any = None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where or getattr(x, "sharding", None))

    return jax.tree.map(of, batch, *([] if mesh is None else [batch_shardings(batch, mesh)]))
