"""One training run: sample, grade, pack, update, book, evaluate, checkpoint.

`train` reads as the walk of one step. Everything that a step needs is in the checkpoint (state, position in the data,
ledger) or keyed by (seed, step, problem, rollout), so a run that is killed and started again repeats the undisturbed
run exactly, on the same machine with the same versions and thread count.

Asynchronous training is the same walk with a window (see `pipeline`). There the moment at which new weights reach a
rollout depends on the clock: what was in flight is sampled again after a restart, and such runs are reproducible in
distribution, not bit for bit. Runs in phases are exact.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isocompute_jax import learner, model, sharding
from isocompute_jax.experiment import agreement
from isocompute_jax.experiment import workdir as workdirs
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.data import ProblemStream, check_prompts, load_problems
from isocompute_jax.experiment.evaluate import evaluate_set, evaluation_steps
from isocompute_jax.experiment.interrupt import Interrupt
from isocompute_jax.experiment.ledger import Ledger
from isocompute_jax.experiment.pipeline import Pipeline
from isocompute_jax.experiment.progress import Report, progress
from isocompute_jax.experiment.rollouts import graded, make_requests, sample
from isocompute_jax.experiment.samplers import make_sampler
from isocompute_jax.experiment.step_metrics import Phases, rollout_metrics, staleness_metrics
from isocompute_jax.learner import Credit, TokenBatch
from isocompute_jax.learner.checkpoint import Checkpointer
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError, Interrupted, RunError
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.sampling import SampleRequest
from isocompute_jax.tasks import load_tokenizer

LOG = logging.getLogger(__name__)


def train(config: RunConfig, workdir: str | os.PathLike[str]) -> None:
    """Runs (or goes on with) one training run in `workdir`.

    Raises:
      InputError: bad config, problem set, checkpoint or workdir, or a service refuses the run; nothing was lost.
      RunError: it cannot go on; unless it diverged, a checkpoint was written (in phases: at the end of the last one),
        and the same command goes on.
      KeyboardInterrupt: the user stopped it; a checkpoint was written.
    """
    with Run(config.resolved(), workdir) as run:
        if run.done:
            LOG.info("%s is done already", workdir)
            return
        bar = progress(os.path.basename(run.path), run.config.num_steps)
        with workdirs.locked(run.path, "run"), Interrupt() as interrupt, bar as report:
            run.restore()
            run.interrupted = lambda: interrupt.requested
            try:
                walk(run, interrupt, report)
            except Diverged:
                raise
            except (InputError, RunError, Interrupted):  # of a service that is gone, or that refuses what it gets
                if run.between_phases:
                    run.checkpoint()
                raise
            run.finish()


def walk(run: Run, interrupt: Interrupt, report: Report) -> None:
    """The steps of a run, and what lies between them."""
    run.measure()
    while run.ledger.step < run.config.num_steps:
        if interrupt.requested and run.between_phases:
            run.checkpoint()
            raise KeyboardInterrupt
        reward = run.step()
        run.measure()
        run.checkpoint_if_due()
        report(run.ledger.step, f"reward {reward:.3f}")


class Diverged(RunError):
    """Numbers are no longer finite: what would be checkpointed is worthless."""


class Run:
    """The parts of one run and the few methods that move it forward; a context, at whose end the sampler is closed."""

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
        self.interrupted: Callable[[], bool] = lambda: False
        facts = run_files.RunFacts(
            group_size=config.group_size,
            problems_per_batch=config.problems_per_batch,
            num_steps=config.num_steps,
            problem_set_size=len(self.problems),
            model_params=model.count_params(self.model_config),
            seed=config.seed,
        )
        self.path = workdirs.open_workdir(workdir, config, facts)
        self._build_sampler(workdir)
        self.ledger = Ledger()
        self.ready: collections.deque[tuple[list[RolloutGroup], TokenBatch, Credit]] = collections.deque()
        self.sampler_version = -1
        self.evaluated = self.checked = -1  # the last step after which that was done and logged
        self.redrawn = 0
        self.clock = time.monotonic()
        self.last_checkpoint = self.clock
        self.evaluation_steps = evaluation_steps(
            config.evaluation, num_steps=config.num_steps, rollouts_per_step=config.rollouts_per_step
        )
        self.checkpointer = Checkpointer(self.path / run_files.CHECKPOINTS, self.state)

    def _build_learner(self) -> None:
        """State, step, scores and schedule, from the base model."""
        config = self.config
        optimizer = learner.make_optimizer(config.optimizer)
        shardings = None if self.mesh is None else learner.state_shardings(self.model_config, self.mesh, optimizer)
        placed = None if shardings is None else shardings.params
        params = model.load_params(config.model, self.model_config, shardings=placed)
        self.reference_params = params if config.loss.kl_coef else None
        self.schedule = jax.jit(learner.make_schedule(config.optimizer, rollouts_per_step=config.rollouts_per_step))
        self.state = learner.init_state(params, optimizer, shardings)
        score = learner.make_score(
            self.model_config, temperature=config.sampling.temperature, chunk_tokens=config.loss.chunk_tokens
        )
        # The old state's memory is reused: the sampler gets the new weights before it samples again.
        self.train_step = learner.make_train_step(score, config.loss, optimizer, shardings=shardings, donate=True)
        self.batch_shape = learner.batch_shape(
            problems_per_batch=config.problems_per_batch,
            group_size=config.group_size,
            max_prompt_tokens=config.sampling.max_prompt_tokens,
            max_tokens=config.sampling.max_tokens,
            microbatch_tokens=config.recipe.microbatch_tokens,
            batch_shards=1 if self.mesh is None else sharding.batch_shards(self.mesh),
        )
        self.score_batch = learner.make_scorer(score, mesh=self.mesh)

    def _build_sampler(self, workdir: str | os.PathLike[str]) -> None:
        """The sampler, and the pipeline that leads through it."""
        config = self.config
        self.sampler = make_sampler(
            config,
            self.model_config,
            self.state.params,
            workdir=workdir,
            tokenizer=self.tokenizer,
            mesh=self.mesh,
            interrupted=lambda: self.interrupted(),
        )
        self.pipeline = Pipeline(
            self.stream,
            self.sampler,
            self.requests,
            num_steps=config.num_steps,
            window=config.window,
            at_once=config.updates_per_phase,
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.sampler.close()

    @property
    def done(self) -> bool:
        """Whether the run has finished."""
        return (self.path / run_files.DONE).exists()

    @property
    def between_phases(self) -> bool:
        """Whether a checkpoint can be written: nothing that was sampled under earlier weights awaits its update."""
        return not self.ready

    def step(self) -> float:
        """One step, from problems to new weights; returns the mean reward."""
        config, step, phases = self.config, self.ledger.step, Phases()
        if not self.ready:
            self.sample(phases)
        groups, tokens, credited = self.ready.popleft()
        learning_rate = float(np.asarray(self.schedule(step)))
        self.state, metrics = self.train_step(
            self.state,
            learner.place_batch(tokens, self.mesh),
            credited,
            jnp.float32(learning_rate),
            self.reference_params,
        )
        metrics = {name: value.item() for name, value in metrics.items()}
        phases.end("update")
        self.ledger = self.ledger.charge_training(groups)
        columns = {**rollout_metrics(groups), **metrics, "learning_rate": learning_rate}
        columns |= staleness_metrics(groups, step=step, window=config.window)
        kl = metrics["kl"] if config.loss.kl_coef else None  # no reference policy was scored
        self.log(run_files.METRICS, {**columns, "kl": kl, "phase_s": phases.seconds})
        return columns["reward"]

    def sample(self, phases: Phases) -> None:
        """Makes ready what the next updates train on: one batch, or those of a sampling phase."""
        step, config = self.ledger.step, self.config
        self.update_sampler()
        phases.end("weights")
        self.pipeline.submit(step)
        completed = self.pipeline.receive(step)
        phases.end("sampling")
        batches = [graded(groups, self.tokenizer) for groups in completed]
        phases.end("grading")
        for groups in batches:
            rewards, lengths = learner.group_rewards(groups), learner.trained_lengths(groups)
            credited = learner.credit(rewards, lengths, config.recipe, max_tokens=config.sampling.max_tokens)
            tokens = learner.layout(groups, self.batch_shape, kept=credited.kept)
            if config.updates_per_phase > 1 and config.loss.ratio_from == "old":
                tokens = dataclasses.replace(tokens, old_logprobs=self.score(tokens))
            self.ready.append((groups, tokens, credited))
        phases.end("packing")

    def requests(self, problems: Sequence[Problem], step: int) -> list[SampleRequest]:
        """What is asked of the sampler for step `step`."""
        config = self.config
        return make_requests(
            problems, self.tokenizer, config.sampling, group_size=config.group_size, seed=config.seed, step=step
        )

    def score(self, batch: TokenBatch) -> jax.Array:
        """Log-probabilities [M, N, R, T] of a batch under the current weights."""
        return self.score_batch(self.state.params, learner.place_batch(batch, self.mesh))

    def update_sampler(self) -> None:
        """Gives the sampler the current weights, in the dtype it computes in, unless it has them."""
        step = self.ledger.step
        if self.sampler_version != step:
            params = self.state.params
            if not self.config.service.endpoints:  # else they are cast on their way out, one at a time
                params = model.cast_params(params, self.model_config.dtype)
            self.sampler.update_weights(params, version=step)
            self.sampler_version = step

    def measure(self) -> None:
        """Agreement and evaluation after the current step, where they are due and not in the logs already."""
        step, config = self.ledger.step, self.config
        if config.service.endpoints and config.agreement.every:
            due = step % config.agreement.every == 0 and self.checked != step
            if due or self.sampler_version < 0:
                self.check_agreement(book=due)
        if step in self.evaluation_steps and self.evaluated != step:
            self.evaluate()

    def check_agreement(self, *, book: bool) -> None:
        """Compares sampler and learner.

        Args:
          book: log it and charge it as evaluation. Else it is the check of a restart: an undisturbed run has none, so
            what it samples counts as redrawn.
        """
        step, config = self.ledger.step, self.config
        self.update_sampler()
        requests = agreement.probes(self.problems, self.tokenizer, config, step=step)
        groups = sample(self.sampler, requests, lane=agreement.LANE, version=step)
        found = agreement.compare(groups, config, lambda batch: np.asarray(self.score(batch)), mesh=self.mesh)
        rollouts = sum(len(group.completions) for group in groups)
        if book and math.isfinite(found.mean):
            self.ledger = self.ledger.charge_evaluation(rollouts, sum(group.num_tokens for group in groups))
            self.log(run_files.AGREEMENT, found.columns())
        elif not book:
            self.ledger = self.ledger.charge_redrawn(rollouts)
        agreement.judge(found, config.agreement, step=step)
        self.checked = step if book else self.checked

    def evaluate(self) -> None:
        """Evaluates every named set with the current weights, then logs one line for each."""
        config, step = self.config, self.ledger.step
        self.update_sampler()
        results = [
            evaluate_set(name, problems, config=config, step=step, sampler=self.sampler, tokenizer=self.tokenizer)
            for name, problems in self.evaluation_sets.items()
        ]
        for columns, tokens in results:
            self.ledger = self.ledger.charge_evaluation(columns["problems"] * columns["samples"], tokens)
            epochs = self.ledger.compute / (config.group_size * len(self.problems))
            self.log(run_files.EVAL, {**columns, "epochs": epochs})
        self.evaluated = step

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
        redrawn = self.sampler.redrawn_rollouts
        self.ledger = self.ledger.charge_redrawn(redrawn - self.redrawn)
        self.redrawn = redrawn
        run_files.append_line(self.path / name, {**self.ledger.columns(), **columns})

    def restore(self) -> None:
        """Goes on from the last checkpoint, or starts anew; logs are cut back to it."""
        restored = self.checkpointer.restore()
        step = -1
        if restored is not None:
            self.state, loop = restored
            self.ledger = Ledger(**loop["ledger"])
            self.evaluated, self.checked = loop["evaluated"], loop["checked"]
            step = self.ledger.step
            self.pipeline.restart(step, loop["stream"])
            LOG.info("%s: going on from step %d", self.path, step)
            if self.config.window > self.config.updates_per_phase:
                LOG.info(
                    "max_staleness = %d: what was in flight is sampled again, under newer weights. Asynchronous runs "
                    "are reproducible in distribution, not bit for bit",
                    self.config.max_staleness,
                )
        last = {run_files.METRICS: step, run_files.EVAL: self.evaluated, run_files.AGREEMENT: self.checked}
        workdirs.cut_logs_back(self.path, last)

    def checkpoint_if_due(self) -> None:
        """A checkpoint every `checkpoint_every_s` seconds; when it falls changes no result."""
        if self.between_phases and time.monotonic() - self.last_checkpoint >= self.config.checkpoint_every_s:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Parameters, optimizer, position in the data, ledger and what was measured.

        Random numbers are keyed by seed and step; batches that are out are drawn again from the position.

        Raises:
          RunError: a parameter is not finite; the earlier checkpoint is kept.
        """
        if not all_finite(self.state.params):
            raise self.diverged("parameters")
        loop = {
            "ledger": dataclasses.asdict(self.ledger),
            "stream": self.pipeline.position(self.ledger.step),
            "evaluated": self.evaluated,
            "checked": self.checked,
        }
        self.checkpointer.save(self.state, loop)
        self.last_checkpoint = time.monotonic()

    def diverged(self, what: str) -> Diverged:
        """The error of a run that cannot go on."""
        return Diverged(
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


@jax.jit
def all_finite(params: model.Params) -> jax.Array:
    """Whether every parameter is a number."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(params)]))


def make_mesh(config: RunConfig) -> Any:
    """The mesh of the config, or None for one device."""
    sizes = dataclasses.asdict(config.mesh)
    if all(size == 1 for size in sizes.values()):
        return None
    try:
        return sharding.make_mesh(**sizes)
    except ValueError as error:
        raise InputError(f"config.mesh: {error}") from error
