"""One training run: sample, grade, pack, update, book, evaluate, checkpoint.

`train` reads as the walk of one step. Everything that a step needs is in the checkpoint (state, position in the data,
ledger) or keyed by (seed, step, problem, rollout), so a run that is killed and started again repeats the undisturbed
run exactly, on the same machine with the same versions and thread count.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isocompute_jax import learner, model, sharding
from isocompute_jax.experiment import workdir as workdirs
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.data import ProblemStream
from isocompute_jax.experiment.evaluate import evaluate_set, evaluation_steps
from isocompute_jax.experiment.interrupt import Interrupt
from isocompute_jax.experiment.ledger import Ledger
from isocompute_jax.experiment.progress import progress
from isocompute_jax.experiment.rollouts import graded, make_requests
from isocompute_jax.learner.checkpoint import Checkpointer
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.sampling import InProcessSampler
from isocompute_jax.tasks import Tokenizer, load_tokenizer, read_problems

LOG = logging.getLogger(__name__)


def train(config: RunConfig, workdir: str | os.PathLike[str]) -> None:
    """Runs (or goes on with) one training run in `workdir`.

    Raises:
      InputError: bad config, problem set, checkpoint or workdir; nothing was lost.
      KeyboardInterrupt: the user stopped it; a checkpoint was written.
    """
    run = Run(config.resolved(), workdir)
    if run.done:
        LOG.info("%s is done already", workdir)
        return
    total = run.config.num_steps
    bar = progress(os.path.basename(run.path), total)
    with workdirs.locked(run.path, "run"), Interrupt() as interrupt, bar as report:
        if not run.restore():
            run.evaluate()
        while run.ledger.step < total:
            if interrupt.requested:
                run.checkpoint()
                raise KeyboardInterrupt
            reward = run.step()
            if run.ledger.step in run.evaluation_steps:
                run.evaluate()
            run.checkpoint_if_due()
            report(run.ledger.step, f"reward {reward:.3f}")
        run.finish()


class Run:
    """The parts of one run and the few methods that move it forward."""

    def __init__(self, config: RunConfig, workdir: str | os.PathLike[str]):
        self.config = config
        self.tokenizer = load_tokenizer(config.model)
        self.model_config = model.load_config(config.model, dtype=config.dtype)
        self.problems = load_problems(config.train_set, config.problem_set_size)
        limit = config.evaluation.max_problems
        self.evaluation_sets = {name: load_problems(p)[: limit or None] for name, p in config.evaluation.sets.items()}
        check_prompts([self.problems, *self.evaluation_sets.values()], self.tokenizer, config)
        self.stream = ProblemStream(self.problems, problems_per_batch=config.problems_per_batch, seed=config.seed)
        self.mesh = make_mesh(config)
        self._build_learner()
        facts = run_files.RunFacts(
            group_size=config.group_size,
            problems_per_batch=config.problems_per_batch,
            num_steps=config.num_steps,
            problem_set_size=len(self.problems),
            model_params=model.count_params(self.model_config),
            seed=config.seed,
        )
        self.path = workdirs.open_workdir(workdir, config, facts)
        self.ledger = Ledger()
        self.clock = time.monotonic()
        self.last_checkpoint = self.clock
        self.evaluation_steps = evaluation_steps(
            config.evaluation, num_steps=config.num_steps, rollouts_per_step=config.rollouts_per_step
        )
        self.checkpointer = Checkpointer(
            self.path / run_files.CHECKPOINTS, self.model_config, self.optimizer, self.mesh
        )

    def _build_learner(self) -> None:
        """State, step, schedule and sampler, from the base model."""
        config = self.config
        shardings = None if self.mesh is None else model.param_shardings(self.model_config, self.mesh)
        params = model.load_params(config.model, self.model_config, shardings=shardings)
        self.reference_params = params if config.loss.kl_coef else None
        self.optimizer = learner.make_optimizer(config.optimizer)
        self.schedule = jax.jit(learner.make_schedule(config.optimizer, rollouts_per_step=config.rollouts_per_step))
        self.state = learner.init_state(params, self.model_config, self.optimizer, self.mesh)
        # The old state's memory is reused: the sampler gets the new weights before it samples again.
        self.train_step = learner.make_train_step(
            self.model_config, config.loss, self.optimizer, mesh=self.mesh, donate=True
        )
        self.batch_shape = learner.batch_shape(
            problems_per_batch=config.problems_per_batch,
            group_size=config.group_size,
            max_prompt_tokens=config.sampling.max_prompt_tokens,
            max_tokens=config.sampling.max_tokens,
            microbatch_tokens=config.recipe.microbatch_tokens,
            batch_shards=1 if self.mesh is None else sharding.batch_shards(self.mesh),
        )
        self.sampler = InProcessSampler(
            self.model_config,
            params,
            stop_tokens=self.tokenizer.eos_ids,
            pad_token=self.tokenizer.pad_id,
            max_prompt_tokens=config.sampling.max_prompt_tokens,
            max_rollouts_per_dispatch=config.sampling.max_rollouts_per_dispatch,
            mesh=self.mesh,
        )

    @property
    def done(self) -> bool:
        """Whether the run has finished."""
        return (self.path / run_files.DONE).exists()

    def step(self) -> float:
        """One step, from problems to new weights; returns the mean reward."""
        config, step, phases = self.config, self.ledger.step, Phases()
        problems = next(self.stream)
        requests = make_requests(
            problems, self.tokenizer, config.sampling, group_size=config.group_size, seed=config.seed, step=step
        )
        self.sampler.submit(requests)
        completed = list(self.sampler.completed())
        phases.end("sampling")
        groups = graded(completed, self.tokenizer)
        phases.end("grading")
        batch = learner.pack(
            groups,
            shape=self.batch_shape,
            advantage_scale=config.recipe.advantage_scale,
            aggregation=config.recipe.aggregation,
            zero_variance_groups=config.recipe.zero_variance_groups,
        )
        phases.end("packing")
        learning_rate = float(np.asarray(self.schedule(step)))
        self.state, metrics = self.train_step(
            self.state,
            learner.place_batch(batch, self.mesh),
            jnp.float32(learning_rate),
            jnp.float32(config.sampling.temperature),
            self.reference_params,
        )
        metrics = {name: value.item() for name, value in metrics.items()}
        self.update_sampler()
        phases.end("update")
        self.ledger = self.ledger.charge_training(groups)
        columns = {**rollout_metrics(groups), **metrics, "learning_rate": learning_rate, "staleness": 0}
        kl = metrics["kl"] if config.loss.kl_coef else None  # no reference policy was scored
        self.log(run_files.METRICS, {**columns, "kl": kl, "phase_s": phases.seconds})
        return columns["reward"]

    def evaluate(self) -> None:
        """Evaluates every named set with the current weights and logs one line for each."""
        config = self.config
        for name, problems in self.evaluation_sets.items():
            columns, groups = evaluate_set(
                name, problems, config=config, step=self.ledger.step, sampler=self.sampler, tokenizer=self.tokenizer
            )
            tokens = sum(group.num_tokens for group in groups)
            self.ledger = self.ledger.charge_evaluation(len(groups) * config.evaluation.samples, tokens)
            epochs = self.ledger.compute / (config.group_size * len(self.problems))
            self.log(run_files.EVAL, {**columns, "epochs": epochs})

    def update_sampler(self) -> None:
        """Gives the sampler the current weights, in the dtype it computes in."""
        params = model.cast_params(self.state.params, self.model_config.dtype)
        self.sampler.update_weights(params, version=self.ledger.step + 1)

    def log(self, name: str, columns: dict[str, Any]) -> None:
        """Appends a line with the ledger's columns first.

        Raises:
          RunError: a number is not finite.
        """
        broken = [key for key, value in columns.items() if isinstance(value, float) and not math.isfinite(value)]
        if broken:
            raise self.diverged(", ".join(broken))
        now = time.monotonic()
        self.ledger = self.ledger.charge_time(now - self.clock, len(jax.devices()) if self.mesh is not None else 1)
        self.clock = now
        run_files.append_line(self.path / name, {**self.ledger.columns(), **columns})

    def restore(self) -> bool:
        """Goes on from the last checkpoint, or starts anew (False); logs are cut back to it."""
        restored = self.checkpointer.restore()
        step = -1
        if restored is not None:
            self.state, loop = restored
            self.ledger = Ledger(**loop["ledger"])
            self.stream.set_state(loop["stream"])
            step = self.ledger.step
            params = model.cast_params(self.state.params, self.model_config.dtype)
            self.sampler.update_weights(params, version=step)
            LOG.info("%s: going on from step %d", self.path, step)
        workdirs.cut_logs_back(self.path, step=step)
        return restored is not None

    def checkpoint_if_due(self) -> None:
        """A checkpoint every `checkpoint_every_s` seconds; when it falls changes no result."""
        if time.monotonic() - self.last_checkpoint >= self.config.checkpoint_every_s:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Parameters, optimizer, position in the data and ledger; random numbers are keyed by seed and step.

        Raises:
          RunError: a parameter is not finite; the earlier checkpoint is kept.
        """
        if not all_finite(self.state.params):
            raise self.diverged("parameters")
        loop = {"ledger": dataclasses.asdict(self.ledger), "stream": self.stream.get_state()}
        self.checkpointer.save(self.state, loop)
        self.last_checkpoint = time.monotonic()

    def diverged(self, what: str) -> RunError:
        """The error of a run that cannot go on."""
        return RunError(
            f"{self.path}: {what} not finite at step {self.ledger.step}: the learning rate is probably too high. The "
            "last checkpoint is kept"
        )

    def finish(self) -> None:
        """Last checkpoint, the trained model as a Hugging Face directory, and DONE."""
        self.checkpoint()
        self.checkpointer.close()
        params = model.cast_params(self.state.params, self.model_config.dtype)
        model.save_checkpoint(self.path / "model", self.model_config, params, tokenizer_from=self.config.model)
        run_files.write_atomic(self.path / run_files.DONE, f"{self.ledger.compute} rollouts\n")


class Phases:
    """Seconds spent in each phase of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end(self, name: str) -> None:
        """The phase `name` ends now."""
        now = time.perf_counter()
        self.seconds[name] = round(now - self._last, 6)
        self._last = now


@jax.jit
def all_finite(params: model.Params) -> jax.Array:
    """Whether every parameter is a number."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(params)]))


def rollout_metrics(groups: list[RolloutGroup]) -> dict[str, float]:
    """What the sampled rollouts say before any update: reward, lengths, truncation, groups without signal."""
    rewards = np.stack([learner.rewards_of(group) for group in groups])
    completions = [completion for group in groups for completion in group.completions]
    tokens = sum(len(completion.tokens) for completion in completions)
    return {
        "reward": float(rewards.mean()),
        "zero_variance_share": float(np.mean(learner.zero_variance(rewards))),
        "completion_length": tokens / len(completions),
        "truncation_rate": sum(completion.finish_reason == "length" for completion in completions) / len(completions),
        "sampler_entropy": -float(sum(completion.logprobs.sum() for completion in completions)) / tokens,
    }


def load_problems(path: str, size: int = 0) -> list[Problem]:
    """The first `size` problems of a file (0: all of them)."""
    problems = read_problems(path)
    if size > len(problems):
        raise InputError(f"config.problem_set_size = {size}, but {path} has only {len(problems)} problems")
    return problems[:size] if size else problems


def check_prompts(sets: Sequence[Sequence[Problem]], tokenizer: Tokenizer, config: RunConfig) -> None:
    """Raises InputError for a prompt that cannot be sampled from: now, and not in the step that meets it."""
    limit = config.sampling.max_prompt_tokens
    for problems in sets:
        prompts = tokenizer.encode_batch([problem.prompt for problem in problems])
        for problem, prompt in zip(problems, prompts, strict=True):
            if not 1 <= len(prompt) <= limit:
                raise InputError(
                    f"problem {problem.id!r}: its prompt has {len(prompt)} tokens, and between 1 and "
                    f"config.sampling.max_prompt_tokens = {limit} are possible: raise it, or leave the problem out"
                )


def make_mesh(config: RunConfig) -> Any:
    """The mesh of the config, or None for one device."""
    sizes = dataclasses.asdict(config.mesh)
    if all(size == 1 for size in sizes.values()):
        return None
    try:
        return sharding.make_mesh(**sizes)
    except ValueError as error:
        raise InputError(f"config.mesh: {error}") from error
