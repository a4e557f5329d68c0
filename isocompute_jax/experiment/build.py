"""The parts of a run, made once from its config: what they are does not change from step to step."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from isocompute_jax import learner, model, sharding
from isocompute_jax.devices import cores_for
from isocompute_jax.experiment.config import MeshConfig, RunConfig
from isocompute_jax.experiment.curriculum import History, ProblemStream, Refill, load_train_sets
from isocompute_jax.experiment.data import check_prompts, check_vocabulary, load_problems
from isocompute_jax.experiment.evaluate import evaluation_points
from isocompute_jax.experiment.graded_stream import GradedStream
from isocompute_jax.experiment.layouts import LayOut, log_larger_microbatch, make_lay_out
from isocompute_jax.experiment.loop_state import LoopState
from isocompute_jax.experiment.pipeline import Pipeline
from isocompute_jax.experiment.rollouts import by_id, make_requests
from isocompute_jax.experiment.turns import make_turns
from isocompute_jax.learner import Batch, LossConfig, OptimizerConfig, Score, TrainState, TrainStep
from isocompute_jax.learner.checkpoint import Checkpointer
from isocompute_jax.model import ModelConfig, Params
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Problem
from isocompute_jax.sampling import Sampler
from isocompute_jax.tasks import Grading, Prompts, Tokenizer, get_grader, load_tokenizer

LOG = logging.getLogger(__name__)

MakeSampler = Callable[..., Sampler]
"""Makes the sampler of a run: `samplers.make_sampler`, or one with the same arguments."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a run reads before it makes anything: cheap, and where most bad input shows."""

    tokenizer: Tokenizer
    prompts: Prompts
    model_config: ModelConfig
    problems: Sequence[Problem]
    evaluation_sets: Mapping[str, Sequence[Problem]]
    stream: ProblemStream
    mesh: Mesh | None


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled functions of the learner.

    Attributes:
      optimizer: what the state's moments belong to.
      shardings: where the state lives; None for one device.
      train_step: one update; on an accelerator it reuses the old state's memory.
      scorer: (params, batch on the mesh) -> log-probabilities.
      probe: the same, at the temperature that is sampled at.
    """

    optimizer: Any
    shardings: TrainState | None
    train_step: TrainStep
    scorer: Callable[[Params, Batch], jax.Array]
    probe: Callable[[Params, Batch], jax.Array]


@dataclasses.dataclass(frozen=True)
class Parts:
    """What every step of a run uses.

    Attributes:
      config: the run's, resolved.
      path: its directory.
      inputs: its model's shape, tokenizer and problems.
      problems: the training problems by id.
      programs: the compiled functions of the learner.
      schedule: step -> learning rate.
      lay_out: makes batches of graded groups.
      lay_out_probes: makes batches of what agreement checks sample.
      reference_params: of the KL term; None without it.
      sampler: what draws rollouts.
      grading: gives groups their rewards.
      rollouts: training rollouts, graded.
      pipeline: leads batches of them to the learner.
      checkpointer: writes and reads checkpoints.
      evaluation_points: C at which to evaluate, ascending.
    """

    config: RunConfig
    path: pathlib.Path
    inputs: Inputs
    problems: Mapping[str, Problem]
    programs: Programs
    schedule: Callable[[int], jax.Array]
    lay_out: LayOut
    lay_out_probes: LayOut
    reference_params: Params | None
    sampler: Sampler
    grading: Grading
    rollouts: GradedStream
    pipeline: Pipeline
    checkpointer: Checkpointer
    evaluation_points: tuple[int, ...]

    def score(self, params: Params, tokens: Batch) -> jax.Array:
        """Log-probabilities of the tokens of a batch, at the temperature that is trained."""
        return self.programs.scorer(params, learner.place_batch(tokens, self.inputs.mesh))

    def score_as_sampled(self, params: Params, tokens: Batch) -> jax.Array:
        """The same, at the temperature that is sampled at: what the sampler should have reported."""
        return self.programs.probe(params, learner.place_batch(tokens, self.inputs.mesh))


def read_inputs(config: RunConfig) -> Inputs:
    """Reads tokenizer, model shape and problem sets, and checks that they fit together.

    Raises:
      InputError: names the file or field at fault.
    """
    # Its config.json first: where that is broken, transformers refuses the tokenizer too.
    model_config = model_config_of(config)
    check_length(config, model_config)
    tokenizer = load_tokenizer(config.model)
    check_mixture(config, model_config)
    check_mesh(config.mesh, model_config)
    check_vocabulary(config.model, tokenizer, model_config.vocab_size)
    make_turns(config.sampling, tokenizer)  # so that they are refused before anything is made
    check_graders(config)
    train = load_train_sets(config)
    limit = config.evaluation.max_problems or None
    name_of = config.reward.name_for
    sets = {name: load_problems(path, grader_name=name_of)[:limit] for name, path in config.evaluation.sets.items()}
    prompts = Prompts(tokenizer, config.prompts)
    check_prompts([train.problems, *sets.values()], prompts, config)
    stream = ProblemStream(train, config.curriculum, problems_per_batch=config.problems_per_batch, seed=config.seed)
    mesh = make_mesh(config)
    check_attention(model_config, mesh)
    return Inputs(tokenizer, prompts, model_config, train.problems, sets, stream, mesh)


def model_config_of(config: RunConfig) -> ModelConfig:
    """The model's shape, from its config.json, and how the run wants it computed."""
    shape = model.load_config(config.model, dtype=config.dtype)
    return dataclasses.replace(shape, **dataclasses.asdict(config.compute))


def check_length(config: RunConfig, model_config: ModelConfig) -> None:
    """Raises InputError where the run's longest sequence is longer than those that the model was made for."""
    sampling = config.sampling
    model.check_length(model_config, sampling.max_prompt_tokens, sampling.max_tokens, prefix="config.sampling.")


def check_attention(model_config: ModelConfig, mesh: Mesh | None) -> None:
    """Raises InputError where the devices do not have the kernel of attention that the config names."""
    device = jax.local_devices()[0] if mesh is None else mesh.devices.flat[0]
    try:
        model.choose_kernel(
            model_config.attention, device, head_dim=model_config.head_dim, dtype=jnp.dtype(model_config.dtype)
        )
    except InputError as error:
        raise InputError(f"config.compute.{error}") from None


def check_mixture(config: RunConfig, model_config: ModelConfig) -> None:
    """Raises InputError where the config asks for the routing of a model that routes nothing."""
    if config.loss.routing != "own" and not model_config.num_experts:
        raise InputError(
            f"config.loss.routing = {config.loss.routing!r}: {config.model} has no experts; set it to 'own'"
        )


def check_mesh(mesh: MeshConfig, model_config: ModelConfig) -> None:
    """Raises InputError unless the mesh divides the model: its experts, and what lies over the tensor axis."""
    if mesh.expert > 1 and not model_config.num_experts:
        raise InputError(
            f"config.mesh.expert = {mesh.expert}: the model has no experts; set it to 1, and give its devices to "
            "config.mesh.fsdp or config.mesh.data"
        )
    _check_divides("expert", mesh.expert, [(model_config.num_experts, "experts")])
    sizes = [(model_config.num_heads, "heads"), (model_config.num_kv_heads, "kv heads")]
    _check_divides("tensor", mesh.tensor, [*sizes, (model_config.mlp_dim, "hidden units")])
    heads, kv_heads = (size // mesh.tensor for size, _ in sizes)
    if not model.context_divides(mesh.context, heads, kv_heads):
        possible = ", ".join(str(n) for n in range(1, heads + 1) if model.context_divides(n, heads, kv_heads))
        whose = f" of each of config.mesh.tensor = {mesh.tensor} parts" if mesh.tensor > 1 else ""
        raise InputError(
            f"config.mesh.context = {mesh.context} devices cannot share the model's {heads} heads and {kv_heads} kv "
            f"heads{whose}, as they do in attention; possible: {possible}. Give the other devices to config.mesh.fsdp "
            "or config.mesh.data"
        )


def _check_divides(axis: str, devices: int, sizes: Sequence[tuple[int, str]]) -> None:
    together = math.gcd(*(size for size, _ in sizes))
    if together % devices:
        named = " and ".join(f"{size} {name}" for size, name in sizes if size % devices)
        possible = ", ".join(str(n) for n in range(1, together + 1) if together % n == 0)
        raise InputError(
            f"config.mesh.{axis} = {devices} does not divide the model's {named}; possible: {possible}. Give the other "
            "devices to config.mesh.fsdp or config.mesh.data"
        )


def facts_of(config: RunConfig, inputs: Inputs) -> run_files.RunFacts:
    """The facts that config.json says of a run."""
    return run_files.RunFacts(
        group_size=config.group_size,
        problems_per_batch=config.problems_per_batch,
        num_steps=config.num_steps,
        problem_set_size=len(inputs.problems),
        model_params=model.count_params(inputs.model_config),
        seed=config.seed,
    )


def check_graders(config: RunConfig) -> None:
    """Raises InputError where `config.reward` names what does not exist, before a problem is blamed for it."""
    named = {"function": config.reward.function} | {f"tasks.{task}": name for task, name in config.reward.tasks.items()}
    for field, name in named.items():
        try:
            if name:
                get_grader(name)
        except InputError as error:
            raise InputError(f"config.reward.{field}: {error}") from None


def make_grading(config: RunConfig, inputs: Inputs) -> Grading:
    """What gives groups their rewards, tried on the problems; the caller closes it.

    Raises:
      InputError: a reward fails at the first problem that is its.
    """
    grading = Grading(config.reward, inputs.tokenizer.decode)
    try:
        grading.check(itertools.chain(inputs.problems, *inputs.evaluation_sets.values()))
    except BaseException:
        grading.close()
        raise
    return grading


def build(
    config: RunConfig,
    inputs: Inputs,
    path: pathlib.Path,
    *,
    grading: Grading,
    make_sampler: MakeSampler,
    interrupted: Callable[[], bool] = lambda: False,
) -> tuple[Parts, LoopState]:
    """Loads the model, then reaches the sampler, which the caller closes.

    Args:
      config: the run's, resolved.
      inputs: from `read_inputs`.
      path: the run's directory.
      grading: gives groups their rewards.
      make_sampler: makes the sampler.
      interrupted: whether the user wants the run to end.

    Returns:
      The parts, and the state before the first step.

    Raises:
      InputError: the weights cannot be loaded, or a service refuses the run.
      RunError: another learner of this run is alive.
    """
    programs = make_programs(
        inputs.model_config,
        config.loss,
        config.optimizer,
        inputs.mesh,
        temperature=config.temperature,
        sampling_temperature=config.sampling.temperature,
    )
    placed = None if programs.shardings is None else programs.shardings.params
    params = model.load_params(config.model, inputs.model_config, shardings=placed)
    first = learner.init_state(params, programs.optimizer, programs.shardings)
    checkpointer = Checkpointer(path / run_files.CHECKPOINTS, first)
    sampler = make_sampler(
        config,
        inputs.model_config,
        first.params,
        workdir=path,
        tokenizer=inputs.tokenizer,
        mesh=inputs.mesh,
        interrupted=interrupted,
    )
    log_larger_microbatch(config, inputs.model_config, inputs.mesh)
    problems = by_id(inputs.problems)
    rollouts = GradedStream(sampler, lambda group: grading.submit(group, problems[group.problem_id]))
    pipeline = Pipeline(
        inputs.stream,
        rollouts,
        functools.partial(training_requests, config, inputs.prompts),
        problems_per_batch=config.problems_per_batch,
        group_size=config.group_size,
        max_compute=config.max_compute,
        window=config.window,
        at_once=config.updates_per_phase,
        refill=refill_of(config),
    )
    parts = Parts(
        config=config,
        path=path,
        inputs=inputs,
        problems=problems,
        programs=programs,
        schedule=make_schedule(config.optimizer, config.rollouts_per_step),
        lay_out=make_lay_out(config, inputs.model_config, config.problems_per_update, config.group_size, inputs.mesh),
        lay_out_probes=make_lay_out(
            config,
            inputs.model_config,
            min(config.agreement.problems, len(inputs.problems)),
            config.agreement.samples,
            inputs.mesh,
            what="the agreement check",
        ),
        reference_params=params if config.loss.kl_coef else None,
        sampler=sampler,
        grading=grading,
        rollouts=rollouts,
        pipeline=pipeline,
        checkpointer=checkpointer,
        evaluation_points=evaluation_points(
            config.evaluation, num_steps=config.num_steps, rollouts_per_step=config.rollouts_per_step
        ),
    )
    history = History.empty(len(inputs.problems))
    return parts, LoopState(first, inputs.stream.get_state(), history, entropy_coef=config.loss.entropy_coef)


def refill_of(config: RunConfig) -> Refill | None:
    """When a step has enough groups with a signal; None without dynamic sampling."""
    if not config.curriculum.dynamic_sampling:
        return None
    most = int(config.curriculum.max_sampled_batches * config.problems_per_batch)
    return Refill(wanted=config.problems_per_batch, most=most)


def training_requests(
    config: RunConfig, prompts: Prompts, problems: Sequence[Problem], step: int
) -> list[SampleRequest]:
    """What is asked of the sampler for step `step`."""
    return make_requests(problems, prompts, config.sampling, group_size=config.group_size, seed=config.seed, step=step)


@functools.lru_cache(maxsize=16)
def make_programs(
    model_config: ModelConfig,
    loss: LossConfig,
    optimizer: OptimizerConfig,
    mesh: Mesh | None,
    *,
    temperature: float,
    sampling_temperature: float | None = None,
    donate: bool | None = None,
) -> Programs:
    """The compiled functions of the learner; runs in one process that agree on all of this share them.

    `sampling_temperature` is the learner's unless given; `donate` (whether a step reuses the old state's memory) is
    left to the platform in training.
    """
    transformation = learner.make_optimizer(optimizer)
    shardings = None
    if mesh is not None:
        shardings = learner.state_shardings(model_config, mesh, transformation, moments=optimizer.moments)

    def score_at(temperature: float) -> Score:
        return learner.make_score(
            model_config, temperature=temperature, chunk_tokens=loss.chunk_tokens, routing=loss.routing, mesh=mesh
        )

    score = score_at(temperature)
    scorer = learner.make_scorer(score, mesh=mesh)
    apart = sampling_temperature not in (None, temperature)
    return Programs(
        transformation,
        shardings,
        # The old state's memory is reused: the sampler gets the new weights before it samples again. Not by XLA:CPU,
        # which copies what it is told to reuse: that saves no memory and costs up to a tenth of a step.
        learner.make_train_step(
            score,
            loss,
            transformation,
            shardings=shardings,
            donate=jax.default_backend() != "cpu" if donate is None else donate,
        ),
        scorer,
        learner.make_scorer(score_at(sampling_temperature), mesh=mesh) if apart else scorer,
    )


@functools.lru_cache(maxsize=16)
def make_schedule(optimizer: OptimizerConfig, rollouts_per_step: int) -> Callable[[int], jax.Array]:
    """Step -> learning rate, compiled."""
    return jax.jit(learner.make_schedule(optimizer, rollouts_per_step=rollouts_per_step))


def make_mesh(config: RunConfig) -> Mesh | None:
    """The mesh of the config; None for one device, unless something lives in the host's memory, which a mesh says.

    Without accelerators each core can be a device.
    """
    sizes = dataclasses.asdict(config.mesh)
    used = math.prod(sizes.values())
    cores_for(used)
    present = jax.device_count()
    if used < present:
        LOG.warning("config.mesh uses %d of %d devices; its axes multiply to what is used", used, present)
    if used == 1 and config.optimizer.moments != "host":
        return None
    try:
        return sharding.make_mesh(**sizes)
    except (ValueError, NotImplementedError) as error:  # too few devices, or axes that a TPU slice cannot be cut into
        raise InputError(f"config.mesh: {error}") from error
