"""The parts of a run, made once from its config: what they are does not change from step to step."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import pathlib
from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from isocompute_jax import learner, model
from isocompute_jax.allocation.auto import Controller
from isocompute_jax.allocation.schedule import BatchSize
from isocompute_jax.distributed import Team, alone
from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.environments.grading import EpisodeGrades
from isocompute_jax.environments.runner import Runner
from isocompute_jax.environments.turns import EnvironmentTurns
from isocompute_jax.experiment.config import RunConfig, TrackConfig
from isocompute_jax.experiment.dealing import Dealer
from isocompute_jax.experiment.demonstrations import Demonstrations, demonstrations, with_reward_of_one
from isocompute_jax.experiment.inputs import Inputs
from isocompute_jax.experiment.layouts import LayOut, log_larger_microbatch, make_lay_out
from isocompute_jax.experiment.loop_state import LoopState
from isocompute_jax.experiment.pipeline import Pipeline
from isocompute_jax.experiment.problem_history import History
from isocompute_jax.experiment.rollouts import GradedStream, SharedGrading, by_id, evaluation_seed, make_requests
from isocompute_jax.experiment.samplers import make_environment
from isocompute_jax.experiment.teacher import TeacherLogprobs, teacher_of
from isocompute_jax.experiment.tracking import Trackers, make_trackers
from isocompute_jax.learner import Batch, LossConfig, OptimizerConfig, Score, TrainState, TrainStep
from isocompute_jax.learner.checkpoint import Checkpointer, Retention
from isocompute_jax.model import LoraConfig, ModelConfig, Params
from isocompute_jax.records import run_files
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Problem
from isocompute_jax.sampling import Sampler
from isocompute_jax.tasks import Grades, Grading, Prompts, RewardConfig, Tokenizer

LOG = logging.getLogger(__name__)

MakeSampler = Callable[..., Sampler]
"""Makes the sampler of a run: `samplers.make_sampler`, or one with the same arguments."""


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled functions of the learner."""

    optimizer: optax.GradientTransformation  # what the state's moments belong to.
    shardings: TrainState | None  # where the state lives; None for one device.
    train_step: TrainStep  # one update; on an accelerator it reuses the old state's memory.
    scorer: Callable[[Params, Batch], jax.Array]  # (params, batch on the mesh) -> log-probabilities.
    probe: Callable[[Params, Batch], jax.Array]  # the same, at the temperature that is sampled at.


@dataclasses.dataclass(frozen=True)
class Parts:
    """What every step of a run uses."""

    config: RunConfig  # the run's, resolved.
    path: pathlib.Path  # its directory.
    inputs: Inputs
    programs: Programs
    lay_outs: Callable[[BatchSize], LayOut]  # of batches of a size
    lay_out_probes: LayOut  # makes batches of what agreement checks sample.
    frozen: Params | None  # weights that adapters belong to; None where all are trained.
    reference_params: Params | None  # of the KL term; None without it, or where a teacher is in their place.
    teacher: TeacherLogprobs | None
    sampler: Sampler
    grading: Grades
    pipeline: Pipeline  # leads batches of training rollouts to the learner.
    checkpointer: Checkpointer
    team: Team
    trackers: Trackers
    # what the size of each group is a multiple of where groups of a step may be of unequal size; else None.
    block: int | None = None

    def weights(self, state: LoopState) -> Params:
        """What is computed with: the state's parameters, or the frozen weights with its adapters."""
        trained = state.learner.params
        return trained if self.frozen is None else model.with_adapters(self.frozen, trained)

    def score(self, params: Params, tokens: Batch, *, as_sampled: bool = False) -> jax.Array:
        """Log-probabilities of the tokens of a batch, at the temperature that is trained.

        Those `as_sampled` are at the temperature that is sampled at: what the sampler should have reported.
        """
        self.team.arrive()
        program = self.programs.probe if as_sampled else self.programs.scorer
        return program(params, learner.place_batch(tokens, self.inputs.mesh))

    def learning_rate(self, step: int, compute: int, size: BatchSize) -> float:
        """Of update `step` on a batch of a size, after `compute` rollouts."""
        rate = make_schedule(self.config.optimizer, size.rollouts)(step)
        factor = self.config.schedule.rate_factor(compute, self.config.max_compute)
        return float(np.asarray(rate)) * factor  # by 1.0, which changes no bit, where the rate has no schedule

    def send_weights(self, state: LoopState) -> LoopState:
        """Gives the sampler the current weights unless it has them; every process lays down its share of them."""
        if state.served == state.step:
            return state
        self.team.everywhere(lambda: self.sampler.update_weights(self.weights(state), version=state.step))
        return dataclasses.replace(state, served=state.step)


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


def make_grading(
    config: RewardConfig,
    tokenizer: Tokenizer,
    problems: Iterable[Problem],
    team: Team | None = None,
    *,
    environment: EnvironmentConfig | None = None,
) -> Grading | EpisodeGrades:
    """What gives groups their rewards in this process, tried on the problems in process 0; the caller closes it.

    Raises:
      InputError: a reward, or the environment, fails at the first problem that is its.
    """
    team = team or alone()
    if environment is not None and environment.name:
        with contextlib.closing(Runner(environment, environment=config.environment)) as runner:
            team.broadcast(lambda: runner.check(next(iter(problems))))
        return EpisodeGrades(config)
    grading = Grading(config, tokenizer.decode)
    try:
        team.broadcast(lambda: grading.check(problems))
    except BaseException:
        grading.close()
        raise
    return grading


def build(
    config: RunConfig,
    inputs: Inputs,
    path: pathlib.Path,
    *,
    grading: Grading | EpisodeGrades,
    make_sampler: MakeSampler,
    interrupted: Callable[[], bool] = lambda: False,
    team: Team | None = None,
) -> tuple[Parts, LoopState]:
    """Loads the model, then reaches the sampler, which the caller closes, as it does the checkpointer.

    Returns the parts, and the state before the first step. `interrupted` says whether the user wants the run to end.

    Raises:
      InputError: the weights cannot be loaded, or a service refuses the run.
      RunError: another learner of this run is alive.
    """
    team, programs = team or alone(), programs_of(config, inputs)
    shape, mesh, lora = inputs.model_config, inputs.mesh, config.adapters
    placed = None if mesh is None else model.param_shardings(shape, mesh)
    params = model.load_params(config.model, shape, shardings=placed)
    trained = params if lora is None else first_adapters(config, shape, params, programs.shardings)
    first = learner.init_state(trained, programs.optimizer, programs.shardings)
    retention = Retention(keep_last=config.checkpoints.keep_last, keep_best=config.checkpoints.keep_best)
    teacher = teacher_of(config, inputs, team)
    checkpointer = Checkpointer(path / run_files.CHECKPOINTS, first, retention=retention, decide=team.broadcast)
    sampler = make_sampler(
        config,
        shape,
        first.params if lora is None else model.with_adapters(params, first.params),
        workdir=path,
        tokenizer=inputs.tokenizer,
        mesh=mesh,
        interrupted=interrupted,
        team=team,
        environment=environment_of(config, inputs),
    )
    log_larger_microbatch(config, inputs.model_config, inputs.mesh)
    shared = team.count > 1 and isinstance(grading, Grading)
    graders = SharedGrading(team, grading) if shared else grading
    parts = Parts(
        config=config,
        path=path,
        inputs=inputs,
        programs=programs,
        lay_outs=functools.cache(functools.partial(lay_out_of_size, config, inputs)),
        lay_out_probes=lay_out_of_probes(config, inputs),
        frozen=None if lora is None else params,
        reference_params=params if config.loss.kl_coef and not config.teacher else None,
        teacher=teacher,
        sampler=sampler,
        grading=graders,
        pipeline=make_pipeline(config, inputs, sampler, graders, team),
        checkpointer=checkpointer,
        team=team,
        trackers=make_trackers(config.track if team.leads else TrackConfig(), path),
        block=config.block,
    )
    return parts, LoopState(
        first,
        inputs.stream.get_state(),
        History.empty(len(inputs.problems)),
        entropy_coef=config.loss.entropy_coef,
        controller=Controller(config.group_size, config.schedule.largest) if config.schedule.kind == "auto" else None,
    )


def environment_of(config: RunConfig, inputs: Inputs) -> EnvironmentTurns | None:
    """What answers the rollouts of a run; None where nothing does."""
    if not config.environment.name:
        return None
    # Problems of two sets may have one id; seeds tell them apart.
    sets = {evaluation_seed(config.seed, name): by_id(found) for name, found in inputs.evaluation_sets.items()}
    training = by_id(inputs.problems)
    return make_environment(
        config, inputs.prompts, lambda request: sets.get(request.seed, training)[request.problem_id]
    )


def first_adapters(config: RunConfig, shape: ModelConfig, params: Params, shardings: TrainState | None) -> Params:
    """Those that training begins with, from a PEFT directory or new ones."""
    lora = config.lora
    if not lora.start:
        # Committed, as restored ones are: else a resumed run, and the second step, would compile everything anew.
        placed = jax.sharding.SingleDeviceSharding(jax.devices()[0]) if shardings is None else shardings.params
        return jax.device_put(model.init_adapters(shape, lora, jax.random.key(config.seed)), placed)
    LOG.info("training begins with the adapters of %s", lora.start)
    placed, base = None if shardings is None else shardings.params, model.fingerprint(params)
    return model.load_adapter(lora.start, shape, lora, base_fingerprint=base, shardings=placed)


def make_pipeline(config: RunConfig, inputs: Inputs, sampler: Sampler, grading: Grades, team: Team) -> Pipeline:
    """What leads batches of training rollouts to the learner."""
    problems, curriculum, schedule = by_id(inputs.problems), config.curriculum, config.schedule
    source, graded = sampler, grading.submit
    if config.supervised:
        texts = demonstrations(inputs.problems, config.supervised, inputs.tokenizer, config.sampling.max_tokens)
        source = Demonstrations(texts)
        graded = with_reward_of_one
    return Pipeline(
        inputs.stream,
        GradedStream(source, lambda group: graded(group, problems[group.problem_id])) if team.leads else None,
        functools.partial(training_requests, config, inputs.prompts),
        size_at=config.sizes.at,
        max_compute=config.max_compute,
        window=config.window,
        at_once=config.updates_per_phase,
        refill_up_to=curriculum.max_sampled_batches if curriculum.dynamic_sampling else None,
        credited_turns=config.environment.credited_turns,
        dealer=Dealer(schedule.per_problem, schedule.block, schedule.most) if config.block else None,
        team=team,
    )


def training_requests(
    config: RunConfig, prompts: Prompts, problems: Sequence[Problem], step: int, group_size: int
) -> list[SampleRequest]:
    """What is asked of the sampler for step `step`."""
    return make_requests(problems, prompts, config.sampling, group_size=group_size, seed=config.seed, step=step)


def lay_out_of_size(config: RunConfig, inputs: Inputs, size: BatchSize) -> LayOut:
    """The layout of the updates on batches of a size."""
    problems = config.of_size(size).problems_laid_out
    return make_lay_out(config, inputs.model_config, problems, size.group_size, inputs.mesh, block=config.block)


def made_of(
    model_config: ModelConfig,
    loss: LossConfig,
    optimizer: OptimizerConfig,
    mesh: Mesh | None,
    lora: LoraConfig | None,
) -> tuple[optax.GradientTransformation, TrainState | None, Callable[[float], Score]]:
    """What the programs of a run are made of: the optimizer, where the state lives, temperature -> score function."""
    transformation = learner.make_optimizer(optimizer)
    shardings = None
    if mesh is not None:
        shardings = learner.state_shardings(model_config, mesh, transformation, moments=optimizer.moments, lora=lora)

    def score_at(temperature: float) -> Score:
        return learner.make_score(
            model_config, temperature=temperature, chunk_tokens=loss.chunk_tokens, routing=loss.routing, mesh=mesh
        )

    return transformation, shardings, score_at


def lay_out_of_probes(config: RunConfig, inputs: Inputs) -> LayOut:
    """The layout of what agreement checks sample."""
    return make_lay_out(
        config,
        inputs.model_config,
        min(config.agreement.problems, len(inputs.problems)),
        config.agreement.samples,
        inputs.mesh,
        batches=1 + config.num_steps // max(config.check_every, 1),
        what="the agreement check",
        own_rows=False,
    )


def programs_of(config: RunConfig, inputs: Inputs) -> Programs:
    """The compiled functions of a run's learner."""
    return make_programs(
        inputs.model_config,
        config.loss,
        config.optimizer,
        inputs.mesh,
        config.adapters,
        temperature=config.temperature,
        sampling_temperature=config.sampling.temperature,
    )


@functools.lru_cache(maxsize=16)
def make_programs(
    model_config: ModelConfig,
    loss: LossConfig,
    optimizer: OptimizerConfig,
    mesh: Mesh | None,
    lora: LoraConfig | None = None,
    *,
    temperature: float,
    sampling_temperature: float | None = None,
) -> Programs:
    """The compiled functions of the learner; runs in one process that agree on all of this share them.

    `sampling_temperature` is the learner's unless given.
    """
    transformation, shardings, score_at = made_of(model_config, loss, optimizer, mesh, lora)
    score = score_at(temperature)
    scorer = learner.make_scorer(score, mesh=mesh)
    apart = sampling_temperature not in (None, temperature)
    return Programs(
        transformation,
        shardings,
        # The old state's memory is reused: the sampler gets the new weights before it samples again.
        learner.make_train_step(
            score,
            loss,
            transformation,
            shardings=shardings,
            donate=True,
        ),
        scorer,
        learner.make_scorer(score_at(sampling_temperature), mesh=mesh) if apart else scorer,
    )


@functools.lru_cache(maxsize=16)
def make_schedule(optimizer: OptimizerConfig, rollouts_per_step: int) -> Callable[[int], jax.Array]:
    """Step -> learning rate, compiled."""
    return jax.jit(learner.make_schedule(optimizer, rollouts_per_step=rollouts_per_step))
