"""A learning-rate range test: short forks of one run, each at a rate of its own, on the same problems.

All begin from a run of some steps at a rate that moves nothing, so that Adam's moments are those of the base model's
gradients; its rollouts give the noise of the gradient too. The forks go upwards in the rate, and end with the first
that breaks. The rule, over trials in rising order of rate:

- A trial **breaks** if its numbers are no longer finite; or the policy leaves the base model by more than `MOST_KL`
  nats a token with each update, the mean of its second half (with a teacher nobody knows); or at its end entropy is
  below 1 / `COLLAPSED` or above `EXPLODED` times the base model's; or its gradient norm, the median of its second half,
  is above `STEEP` times the base model's; or its reward, the mean of its second half, lies more than `WORSE` standard
  errors below that of a smaller rate.
- The rate of the first that breaks is the **edge**. Candidates are the rates at most edge / `ROOM`, since a run is far
  longer than a trial, and what does not break in ten steps may in a thousand; all rates where nothing broke; the
  smallest where none is so small.
- A trial is **felt** if `LEAST_FELT` of its updates before the last step had a group with a signal; one that was not
  may break, and is no candidate. Where no trial was felt, because problems are seldom solved, the usual rate stands.
- A trial whose reward lies more than `WORSE` standard errors of the difference below the highest is none either.
- The **geometric middle** of the smallest and the largest candidate is taken. A trial says where a rate does harm, and
  seldom which of the others is better: the middle is at most half as far from the best as they are from each other, and
  an edge that was misread by a factor of 2 moves it by 1.4. The largest, which short trials favour and long runs
  do not, was taken at first: four times the usual rate where nothing broke before.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import pathlib
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isocompute_jax.allocation.schedule import ScheduleConfig
from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import AlarmsConfig, EvaluationConfig, RunConfig, TrackConfig
from isocompute_jax.experiment.workdir import Diverged
from isocompute_jax.records import run_files

LOG = logging.getLogger(__name__)

MOST_KL = 0.05
"""Between what the embedded base model had at a rate that trains well, 2.5e-4 (0.03), and at twice that (0.1)."""
COLLAPSED, EXPLODED = AlarmsConfig().entropy_collapse, AlarmsConfig().entropy_explosion
STEEP, WORSE, ROOM = 10.0, 2.5, 2.0
LEAST_STEPS = 4
"""Of a trial."""
LEAST_FELT = LEAST_STEPS - 1
"""Updates before the last step, whose own is not seen any more: as many as the smallest trial makes."""
STILL = 1e-3
"""Of the smallest rate: that of the run that the trials are forks of."""
UNFELT = 1e-12
"""Weight of a KL term that is there to be logged."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One rate, for some steps."""

    rate: float
    reward: float  # mean of the second half of its steps
    error: float  # its standard error
    kl: float  # nats a token from the base model, over the updates that led there; likewise. NaN with a teacher
    gradient_norm: float  # median of the second half, in multiples of the base model's
    entropy: float  # at the end, in multiples of the base model's
    felt: int  # updates before its last step that had a group with a signal
    diverged: bool = False


@dataclasses.dataclass(frozen=True)
class RateChoice:
    """What the trials say."""

    rate: float
    edge: float | None  # the smallest rate that broke; None where none did
    why: str  # how it broke
    candidates: tuple[float, ...] = ()  # rising; the rate is their middle. Empty where no trial was felt

    @property
    def felt(self) -> bool:
        """Whether a trial was felt, so that there was something to choose."""
        return bool(self.candidates)


def broken(trial: Trial, smaller: Sequence[Trial]) -> str:
    """How a trial broke, in words; empty if it did not.

    Args:
      trial: the trial.
      smaller: those at smaller rates.
    """
    if trial.diverged:
        return "numbers are no longer finite"
    if trial.kl > MOST_KL:
        return f"{trial.kl:.2g} nats a token from the base model with each update"
    if trial.entropy < 1 / COLLAPSED or trial.entropy > EXPLODED:
        return f"entropy is {trial.entropy:.2g} times the base model's"
    if trial.gradient_norm > STEEP:
        return f"the gradient norm is {trial.gradient_norm:.2g} times the base model's"
    best = max(smaller, key=lambda other: other.reward, default=trial)
    if worse(trial, best):
        return f"reward is {trial.reward:.3f}, and {best.reward:.3f} at {best.rate:.3g}"
    return ""


def worse(trial: Trial, best: Trial) -> bool:
    """Whether its reward lies below that of the best beyond doubt."""
    return trial.reward < best.reward - WORSE * math.hypot(trial.error, best.error)


def choose(trials: Sequence[Trial], usual: float) -> RateChoice:
    """The rate that the rule takes (see the top of this file).

    Args:
      trials: in rising order of rate, one or more.
      usual: rate for a model of this size, which stands where no trial was felt.
    """
    edge, why, whole = None, "", []
    for trial in trials:
        why = broken(trial, whole)
        if why:
            edge = trial.rate
            break
        whole.append(trial)
    most = math.inf if edge is None else max(edge / ROOM * (1 + 1e-9), trials[0].rate)
    if not any(trial.felt >= LEAST_FELT for trial in trials):
        return RateChoice(min(usual, most), edge, why)
    candidates = [trial for trial in whole if trial.rate <= most and trial.felt >= LEAST_FELT] or [trials[0]]
    best = max(candidates, key=lambda trial: trial.reward)
    near = [trial.rate for trial in candidates if not worse(trial, best)]
    return RateChoice(float(f"{math.sqrt(near[0] * near[-1]):.3g}"), edge, why, tuple(near))


def usual_of(rates: Sequence[float]) -> float:
    """Of a range from a quarter of the usual rate to 16 times it, the usual one."""
    return rates[len(rates) // 3]


# --- running it


@dataclasses.dataclass(frozen=True)
class TestPlan:
    """What is run."""

    group_size: int
    problems: int  # of a batch
    start: int  # steps of the run that is forked
    steps: int  # of each trial
    rates: tuple[float, ...]  # rising

    @property
    def batch(self) -> int:
        """Rollouts of a step."""
        return self.group_size * self.problems

    @property
    def rollouts(self) -> int:
        """Of all, if no trial breaks before the last."""
        return self.batch * (self.start + self.steps * len(self.rates))


MOST_START, MOST_STEPS = 16, 16
"""Steps; in many more the policy goes as far from the base model as it should."""


def plan_test(rollouts: int, *, group_size: int, problems: int, rates: Sequence[float]) -> TestPlan | None:
    """The largest groups with trials of eight steps for so many rollouts; else of four; else every other rate alone.

    None where groups of 4 are too many even so.

    Args:
      rollouts: that it may take.
      group_size: n that is wanted.
      problems: of a batch.
      rates: that are wanted, rising.
    """
    for chosen, least in ((tuple(rates), 2 * LEAST_STEPS), (tuple(rates), LEAST_STEPS), (rates[::2], LEAST_STEPS)):
        for n in _halved(group_size):
            steps = rollouts // (n * problems)
            start = min(max(steps // (len(chosen) + 1), LEAST_STEPS), MOST_START)
            each = min((steps - start) // len(chosen), MOST_STEPS)
            if each >= least:
                return TestPlan(n, problems, start, each, tuple(chosen))
    return None


def least_rollouts(problems: int, rates: Sequence[float]) -> int:
    """Of the smallest test that `plan_test` makes."""
    return 4 * problems * LEAST_STEPS * (1 + len(rates[::2]))


def _halved(group_size: int) -> Iterator[int]:
    while group_size >= 4:
        yield group_size
        group_size //= 2


@dataclasses.dataclass(frozen=True)
class Tested:
    """What the test found."""

    plan: TestPlan
    trials: tuple[Trial, ...]  # those that were run, rising
    choice: RateChoice
    lines: tuple[Mapping[str, Any], ...]  # of metrics.jsonl of the run that was forked
    rollouts: int
    seconds: float  # median of a step's, sampling included
    sampling_s: float  # median share of it


def run_test(config: RunConfig, plan: TestPlan, directory: pathlib.Path) -> Tested:
    """Runs it; of each run its logs are kept in `directory`, its weights are not.

    Args:
      config: what is to be trained; its rate, sizes, schedule and evaluations are the test's.
      plan: of the test.
      directory: must hold no earlier test.

    Raises:
      RunError: a run failed otherwise than by its rate.
    """
    still = plan.rates[0] * STILL
    base = dataclasses.replace(
        config,
        group_size=plan.group_size,
        problems_per_batch=plan.problems,
        max_compute=plan.batch * plan.start,
        checkpoint_every_s=1e9,
        export_every=0,
        loss=dataclasses.replace(config.loss, kl_coef=config.loss.kl_coef or UNFELT),
        # Programs are compiled for the optimizer's fields: the forks' rates are factors of one.
        optimizer=dataclasses.replace(config.optimizer, base_lr=still, lr_scaling_exponent=0.0, warmup_steps=0),
        recipe=dataclasses.replace(config.recipe, healthy="none"),
        schedule=ScheduleConfig(noise_every=1),
        evaluation=EvaluationConfig(),
        track=TrackConfig(rollouts=0),
    )
    parent = directory / "start"
    train(base, parent)
    start = run_files.read_lines(parent / run_files.METRICS)
    booked, timed, trials = int(start[-1]["compute"]), list(start), []
    for rate in plan.rates:
        path = directory / f"rate_{rate:.4g}"
        schedule = ScheduleConfig(rate=f"{rate / still:.9g}@0")
        fork = dataclasses.replace(
            base, fork=str(parent), schedule=schedule, max_compute=plan.batch * (plan.start + plan.steps)
        )
        diverged = False
        try:
            train(fork, path)
        except Diverged as error:
            LOG.info("%s", error)
            diverged = True
        lines = run_files.read_lines(path / run_files.METRICS)[plan.start :]
        if config.teacher:  # `kl` is the distance to it, and that to the base model is not known
            lines = [line | {"kl": math.nan} for line in lines]
        shutil.rmtree(path / run_files.CHECKPOINTS, ignore_errors=True)
        shutil.rmtree(path / "model", ignore_errors=True)
        booked += plan.batch * (len(lines) + diverged)
        timed += lines
        trials.append(trial_of(rate, lines, start, plan.batch, diverged=diverged))
        if broken(trials[-1], trials[:-1]):
            break
    shutil.rmtree(parent / run_files.CHECKPOINTS, ignore_errors=True)
    shutil.rmtree(parent / "model", ignore_errors=True)
    seconds = [line["phase_s"] for line in timed]
    return Tested(
        plan,
        tuple(trials),
        choose(trials, usual_of(plan.rates)),
        tuple(start),
        booked,
        statistics.median(sum(value for name, value in phase.items() if name != "noise") for phase in seconds),
        statistics.median(phase.get("sampling", 0.0) + phase.get("waiting", 0.0) for phase in seconds),
    )


def train(config: RunConfig, path: pathlib.Path) -> None:
    """Trains, saying no more than warnings: a trial misses no held-out problems, and its model is not kept."""
    level = loop.LOG.level
    loop.LOG.setLevel(logging.WARNING)
    try:
        loop.train(config, path)
    finally:
        loop.LOG.setLevel(level)


def trial_of(
    rate: float, lines: Sequence[Mapping[str, Any]], start: Sequence[Mapping[str, Any]], batch: int, *, diverged: bool
) -> Trial:
    """A trial from the lines of its metrics.jsonl.

    Args:
      rate: it was run at.
      lines: of its own steps.
      start: lines of the run that was forked.
      batch: rollouts of a step.
      diverged: whether it ended because numbers were no longer finite.
    """
    if not lines:
        return Trial(rate, 0.0, 0.0, math.inf, math.inf, 1.0, 0, diverged=True)
    late = lines[len(lines) // 2 :]
    # Without a signal there is no update, and neither distance nor gradient is measured.
    made = [sum(line["zero_variance_share"] < 1 for line in lines[:i]) for i in range(len(lines))]
    taught = [i for i in range(len(lines) // 2, len(lines)) if lines[i]["zero_variance_share"] < 1]
    reward = statistics.fmean(line["reward"] for line in late)
    solved = min(max(reward, 0.0), 1.0)
    count = batch * len(late)
    begun = [line for line in start if line["zero_variance_share"] < 1]
    return Trial(
        rate,
        reward,
        math.sqrt(max(solved * (1 - solved), 1 / count) / count),  # at least as if one rollout had been solved
        statistics.fmean(lines[i]["kl"] / max(made[i], 1) for i in taught) if taught else 0.0,
        _ratio(_median([lines[i] for i in taught], "gradient_norm"), _median(begun, "gradient_norm")),
        _ratio(lines[-1]["sampler_entropy"], _median(start, "sampler_entropy")),
        made[-1],
        diverged,
    )


def _median(lines: Sequence[Mapping[str, Any]], name: str) -> float:
    """0 of no lines."""
    return statistics.median(line[name] for line in lines) if lines else 0.0


def _ratio(above: float, below: float) -> float:
    """1 where there is nothing to compare, or to compare with."""
    return above / below if above > 0 and below > 0 else 1.0
